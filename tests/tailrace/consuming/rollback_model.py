"""A consumer with an index, as it is built, against nodes of a model; both ends of the wire, without a socket.

The world knows what no consumer does: each node's whole history, and so its state.
"""

from __future__ import annotations

import random

from tests.crashing_indexes import Crash
from tests.tailrace.consuming.nodes import Cluster, Conversation, selected

from tailrace.consuming.events import Rollback
from tailrace.consuming.session import ConsumerSession, Subscription
from tailrace.errors import Unreachable
from tailrace.indexes.applier import Applier, IndexQueue, IndexRollback
from tailrace.wire.filters import EVERYTHING
from tailrace.wire.messages import Hello

RETRIES = 3
EXCHANGES_MAX = 100


class World(Cluster):
    """``run`` does operations by name. ``ring_rows``: as small as makes rings that do not reach. ``filter``: what the

    consumer asks for. A subclass sets ``conversation``, the nodes' side, and ``catch_up``."""

    conversation = Conversation
    catch_up = "stream"

    def __init__(self, make_index, seed=0, ring_rows=100, filter=EVERYTHING):
        super().__init__()
        self.filter = filter
        self.random = random.Random(seed)
        self.index = make_index()
        self.ring_rows = ring_rows
        self.now = 0.0
        self.session = self.jobs = self.applier = None
        self.compared = self.deaths = 0

    def run(self, operations):
        for name, *arguments in operations:
            getattr(self, name)(*arguments)
        # In the end everything works, and nothing of it dies.
        self.consume(0, None, None)
        assert self.compared, "the leader has served it"
        return self

    def consume(self, other, events_max, crash_at):
        """One connection to a node: cut after so many events; the process dies before so many durable steps."""
        node = self.node(other)
        self.index.steps.left = crash_at
        try:
            if self.session is None:
                self._start()
            if self._talk(node, events_max):
                self._compare(node)
        except Crash:
            self.session = None
            self.deaths += 1
        finally:
            self.index.steps.left = None
        if self.session is not None:
            self.session.connection_lost(Unreachable("cut"))

    def restart(self):
        """The process stops and starts again."""
        self.session = None

    def _start(self):
        self.applier = Applier(self.index)
        checkpoint = self.applier.open()
        wanted = Subscription(
            "orders", ring_rows=self.ring_rows, by_index=True, filter=self.filter, catch_up=self.catch_up
        )
        if checkpoint is not None:
            positions = checkpoint.positions
            wanted = wanted._replace(since=positions, stored=(positions,), rings=checkpoint.rings)
        self.session = ConsumerSession(Hello(), wanted, lambda: self.now)
        self.jobs = IndexQueue(self.session)

    def exchanges(self, node):
        """A new connection to ``node``, until neither has anything to say; yields after each exchange."""
        talk, idle = self.conversation(node, self.random), 0
        self.session.connection_made()
        for _ in range(EXCHANGES_MAX):
            if idle == RETRIES:
                return
            self.now += 10
            sent = b"".join(self.session.data_to_send())
            self.session.receive_data(talk.answer(sent))
            self._check_answered()
            idle = 0 if sent else idle + 1
            yield
        raise AssertionError("they never come to an end")

    def _check_answered(self):
        """The session's look at few partitions says what a look at all of them does."""
        states = [status.state for status in self.session.status().partitions]
        is_answered = bool(states) and not {"waiting", "requested"} & set(states)
        assert self.session.answered == is_answered or (is_answered and self.catch_up != "stream")

    def is_behind(self):
        """The session knows that the node is behind it."""
        return any(status.reason.startswith("behind") for status in self.session.status().partitions)

    def _talk(self, node, events_max):
        """True where everything was said, and applied."""
        session, events = self.session, 0
        for _ in self.exchanges(node):
            if self.is_behind():
                return False
            while (event := session.next_event()) is not None:
                self._check_answered()
                ready = self.jobs.add(event)
                if isinstance(event, Rollback) or (ready and self.random.random() < 0.7):
                    self._apply()
                events += 1
                if events == events_max:
                    return False
        self._apply()
        return session.status().partitions[0].state == "open"

    def _apply(self):
        jobs, _ = self.jobs.take()
        for job in jobs:
            if isinstance(job, IndexRollback):
                self.session.settle(job.event, self.applier.roll_back(job))
            else:
                self.applier.apply(job)

    def _compare(self, node):
        self.compared += 1
        for position in self.session.positions.values():  # of an empty partition there may be none
            assert (position.seq, position.snapshot_first, position.snapshot_last) == (node.high_seq,) * 3
        assert self.index.state == selected(node.state(), self.filter)
