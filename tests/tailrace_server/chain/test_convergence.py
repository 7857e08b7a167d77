"""Two leaders for a while, lost acknowledgements, repeated offers, restarts, compactions: the chains become equal."""

import contextlib

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.tailrace_server.chain.lives import live, small_bounds
from tests.tailrace_server.chain.world import NODES, World
from tests.tiers import examples

from tailrace_server.chain.receiving import OfferCase

NODE = st.integers(0, NODES - 1)
PLACE = st.integers(0, 7)
# The lives that a run of ``make test`` has, and seeds of lives that meet the rare cases.
LIVES = 60
MEETING = (3, 4, 37, 84, 279)


class Replication(RuleBasedStateMachine):
    """Any order of writes, failovers, offers and losses."""

    @initialize(leader=NODE)
    def start(self, leader):
        self.bounds = contextlib.ExitStack()
        self.bounds.enter_context(small_bounds())
        self.world = World()
        self.world.promote([leader, (leader + 1) % NODES])

    @rule(node=NODE, rows=st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 9)), max_size=4))
    def write_and_flush(self, node, rows):
        for key, value in rows:
            self.world.write(node, key, value)
        self.world.flush(node)

    @rule(node=NODE, key=st.sampled_from("abc"), value=st.none() | st.integers(0, 9))
    def write(self, node, key, value):
        self.world.write(node, key, value)

    @rule(node=NODE, first=st.integers(0, 2), count=st.integers(1, 4))
    def begin_compaction(self, node, first, count):
        self.world.begin_compaction(node, first, count)

    @rule(node=NODE)
    def finish_compaction(self, node):
        self.world.finish_compaction(node)

    @rule(node=NODE)
    def remove_files(self, node):
        self.world.remove_files(node)

    @rule(leader=NODE, follower=NODE)
    def offer(self, leader, follower):
        self.world.offer(leader, follower)

    @rule(leader=NODE, follower=NODE, steps=st.integers(1, 12))
    def replicate(self, leader, follower, steps):
        """Several steps in which no message is lost."""
        self.world.retry(leader, follower)
        for _ in range(steps):
            if not self.world.mail and not self.world.offer(leader, follower):
                break
            self.world.deliver(len(self.world.mail) - 1)
            self.world.check()

    @rule(place=PLACE, again=st.booleans())
    def deliver(self, place, again):
        self.world.deliver(place, again=again)

    @rule(place=PLACE)
    def lose(self, place):
        self.world.lose(place)

    @rule(place=PLACE, count=st.integers(0, 3))
    def break_transfer(self, place, count):
        self.world.break_transfer(place, count)

    @rule(leader=NODE, follower=NODE)
    def retry(self, leader, follower):
        self.world.retry(leader, follower)

    @rule(node=NODE, leader=NODE)
    def follow(self, node, leader):
        self.world.follow(node, leader)

    @rule(leader=NODE)
    def follow_all(self, leader):
        for node in range(NODES):
            self.world.follow(node, leader)

    @rule(members=st.sets(NODE, min_size=2))
    def promote(self, members):
        self.world.promote(sorted(members))

    @rule(node=NODE)
    def restart(self, node):
        self.world.restart(node)

    @rule(node=NODE)
    def replace_disk(self, node):
        self.world.replace_disk(node)

    @invariant()
    def rows_are_those_of_the_history(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        if not hasattr(self, "world"):
            return
        with self.bounds:
            leader = self.world.heal()
            self.world.check()
            self.world.check_converged(leader)
            self.world.check_equal_chains(leader)
            self.world.check()
            self.world.check_converged(leader)


@pytest.mark.slow
class TestReplication(Replication.TestCase):
    settings = settings(max_examples=examples(100), stateful_step_count=60)


@pytest.mark.slow
def test_lives_in_which_two_nodes_lead_for_a_while():
    for seed in range(examples(LIVES)):
        live(seed)


@pytest.mark.slow
def test_the_lives_meet_each_case():
    """OVERLOADED is left to the labelled offers."""
    seen = {case for seed in MEETING for case in live(seed).seen}
    assert seen == set(OfferCase) - {OfferCase.OVERLOADED}


def test_a_broken_transfer_is_continued_after_a_compaction_of_its_segment():
    world = World()
    world.promote([0, 1])
    world.follow(1, 0)
    for number in range(5):
        world.write(0, "abcde"[number], number)
    world.flush(0)
    for count in (2, 1):
        world.offer(0, 1)
        world.deliver(0)
        world.deliver(0)
        world.break_transfer(0, count)
        world.begin_compaction(0, 0, 1)
        world.finish_compaction(0)
        world.retry(0, 1)
    world.settle(0)
    world.check()
    assert (world.broken, world.continued) == (2, 2)
    assert world.nodes[1].last_seq == 5
