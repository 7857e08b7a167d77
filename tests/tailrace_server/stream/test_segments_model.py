"""Streams over memory and segments, against a model: whatever moves meanwhile, a consumer has the partition's state."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from tests.tailrace_server.stream.model import KEYS, PARTITIONS, WHENEVER, StreamsModel
from tests.tiers import examples

from tailrace.model import Level
from tailrace.wire.filters import EVERYTHING


class MovingModel(StreamsModel):
    """Partitions whose blocks also move to segments, are merged and folded, while streams read them."""

    @rule(**WHENEVER, share=st.sampled_from([1, 2]))
    def flush(self, which, share):
        partition = self.partitions[which]
        blocks = [b for b in partition.tree.blocks_after(0) if b.header.last_seq <= partition.durable_seq]
        if blocks:
            partition.flush(blocks[(len(blocks) - 1) // share].header.last_seq)

    @rule(**WHENEVER, first=st.integers(0, 3), count=st.integers(1, 4), purges=st.booleans())
    def fold(self, which, first, count, purges):
        partition = self.partitions[which]
        chain = partition.chain.segments
        if chain:
            first %= len(chain)
            last = min(first + count, len(chain)) - 1
            partition.fold(first, last, purge_before_us=1 if purges and first == 0 else None)

    @rule(**WHENEVER, purges=st.booleans())
    def move_all(self, which, purges):
        """Everything into one segment, at once."""
        partition = self.partitions[which]
        partition.sync()
        partition.flush()
        if partition.chain.segments:
            partition.fold(purge_before_us=1 if purges else None)

    @rule(**WHENEVER)
    def merge(self, which):
        """Small blocks become one, as they do with age."""
        partition = self.partitions[which]
        plan = partition.tree.merge_plan(partition.durable_seq, [0])
        if plan is not None:
            partition.replace_tree(partition.tree.replaced(plan, list(plan.merge()), [0]))

    @rule(**WHENEVER)
    def remove_what_nobody_needs(self, which):
        self.partitions[which].remove_free()


class ReplicaModel(MovingModel):
    """Streams that a replica credits each by itself: more is to be sent than their feed may have under way."""

    is_replica = True

    @initialize(window=st.sampled_from([600, 1200]), blocks=st.integers(3, 9), moved=st.integers(0, PARTITIONS))
    def start(self, window, blocks, moved):
        self.make(window, blocks)
        for which in range(PARTITIONS):
            for number in range(blocks):
                self.write(which, [KEYS[number % len(KEYS)]], True, 150)
            self.sync(which)
            if which < moved:
                self.flush(which, 2)
            self.open_stream(which, Level.DISK, None, 0.0, None, EVERYTHING)
        self.pump(1 << 20)


def test_a_replica_has_the_partitions_state_wherever_it_may_stand():
    run_state_machine_as_test(
        ReplicaModel, settings=settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
    )


def test_a_consumer_has_the_partitions_state_wherever_it_may_stand():
    run_state_machine_as_test(
        MovingModel, settings=settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
    )
