"""An application that stores its positions as a string, with its state: all that it has after a restart."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace.consuming.nodes import selected
from tests.tailrace.consuming.rollback_model import World
from tests.tailrace.consuming.test_rollback_model import OPERATIONS, random_operations
from tests.tiers import examples

from tailrace.consuming.events import Mutations, Rollback
from tailrace.consuming.session import ConsumerSession, Subscription
from tailrace.errors import Unreachable
from tailrace.model.position import Positions
from tailrace.wire.filters import EVERYTHING, StreamFilter
from tailrace.wire.messages import Hello


class Application:
    """Applies mutations as they come; stores what it has now and then, after an event, in one write."""

    def __init__(self):
        self.state = {}
        self.stored = ({}, None)

    def take(self, event):
        if isinstance(event, Mutations):
            for key, value, deleted in zip(event.keys(), event.values(), event.deleted(), strict=True):
                if deleted:
                    self.state.pop(key, None)
                else:
                    self.state[key] = value
        elif isinstance(event, Rollback) and event.keys is None:
            self.state = {}

    def store(self, positions):
        self.stored = (dict(self.state), str(positions))

    def restart(self):
        state, text = self.stored
        self.state = dict(state)
        return text


class ApplicationWorld(World):
    """As `World`, with an application; it dies by being stopped, at any event."""

    def __init__(self, seed, ring_rows, on_rollback, filter=EVERYTHING):
        super().__init__(Application, seed, ring_rows, filter)
        self.on_rollback = on_rollback

    def consume(self, other, events_max, crash_at):
        if self.session is None:
            self._start()
        node = self.node(other)
        if self._talk(node, events_max):
            self.compared += 1
            assert self.index.state == selected(node.state(), self.filter)
        self.session.connection_lost(Unreachable("cut"))
        if crash_at is not None and crash_at % 2:
            self.session = None

    def _start(self):
        wanted = Subscription(
            "orders",
            ring_rows=self.ring_rows,
            on_rollback=self.on_rollback,
            filter=self.filter,
            catch_up=self.catch_up,
        )
        text = self.index.restart()
        if text is not None:
            positions = Positions.parse(text)
            wanted = wanted._replace(since=positions, stored=(positions,))
        self.session = ConsumerSession(Hello(), wanted, lambda: self.now)

    def _talk(self, node, events_max):
        session, events = self.session, 0
        for _ in self.exchanges(node):
            while (event := session.next_event()) is not None:
                self.index.take(event)
                if self.random.random() < 0.4:
                    self.index.store(session.latest_positions)
                events += 1
                if events == events_max:
                    return False
            if self.is_behind():
                return False
        return session.status().partitions[0].state == "open"


MODES = st.sampled_from(["follow", "restart"])
FILTERS = [EVERYTHING, StreamFilter(b"a"), StreamFilter(b"", True), StreamFilter(b"b", True)]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(OPERATIONS, max_size=25), st.integers(0, 9), st.sampled_from([0, 2, 100]), MODES, st.sampled_from(FILTERS)
)
def test_the_application_has_what_the_node_has_whenever_all_was_said(operations, seed, ring_rows, mode, filter):
    ApplicationWorld(seed, ring_rows, mode, filter).run(operations)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(120), pytest.param(range(120, 500), marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", ["follow", "restart"])
def test_many_random_lives(mode, seeds):
    for seed in seeds:
        world = ApplicationWorld(seed, (100, 100, 2)[seed % 3], mode, FILTERS[seed % 4])
        world.run(random_operations(random.Random(seed)))


@pytest.mark.planted
def test_a_position_that_is_taken_to_know_what_is_above_it(monkeypatch):
    """Planted: the model has to notice."""
    monkeypatch.setattr("tailrace.consuming.subscription.floor_without_ring", lambda position: 0)
    noticed = False
    for seed in range(500):
        try:
            ApplicationWorld(seed, 100, "follow").run(random_operations(random.Random(seed)))
        except AssertionError:
            noticed = True
            break
    assert noticed
