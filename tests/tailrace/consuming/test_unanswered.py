"""The partitions that a node has not answered: the verdict of a look at all of them, by a look at few."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.consuming.partition import ConsumerState
from tailrace.consuming.unanswered import NOT_AGREED, Unanswered

IDS = st.integers(0, 3)


class Partition:
    """The state of a partition, which counts the looks at it."""

    def __init__(self, state):
        self._state = state
        self.looks = 0

    @property
    def state(self):
        self.looks += 1
        return self._state

    def move(self, state):
        self._state = state


OPERATIONS = st.one_of(
    st.tuples(st.just("begin"), IDS),
    st.tuples(st.just("move"), IDS, st.sampled_from(ConsumerState)),
    st.tuples(st.just("remove"), IDS),
    st.tuples(st.just("look")),
)


@given(st.lists(OPERATIONS, max_size=40))
def test_it_tells_what_a_look_at_all_partitions_tells(operations):
    unanswered, partitions = Unanswered(), {}
    for name, *arguments in operations:
        match name, *arguments:
            case "begin", id:
                partitions[id] = unanswered[id] = Partition(ConsumerState.WAITING)
            case "move", id, state if id in partitions:
                partitions[id].move(state)
                if state is ConsumerState.WAITING:  # a partition that waits is added each time
                    unanswered[id] = partitions[id]
                elif state is ConsumerState.REQUESTED and id not in unanswered:
                    partitions[id].move(ConsumerState.OPEN)  # only one that waits is asked for
            case "remove", id:
                partitions.pop(id, None)
                unanswered.pop(id, None)
            case _:
                waiting = [partitions[id] for id in sorted(partitions) if partitions[id].state in NOT_AGREED]
                assert unanswered.any() == bool(waiting)
                assert unanswered.first() is (waiting[0] if waiting else None)


def test_a_look_costs_nothing_for_each_partition_once_all_are_answered():
    partitions = [Partition(ConsumerState.OPEN) for _ in range(4096)]
    unanswered = Unanswered(enumerate(partitions))
    for _ in range(1000):
        assert not unanswered.any()
    assert {partition.looks for partition in partitions} == {1}


def test_a_look_that_finds_a_partition_looks_at_no_other():
    partitions = [Partition(ConsumerState.REQUESTED) for _ in range(4096)]
    unanswered = Unanswered(enumerate(partitions))
    for _ in range(1000):
        assert unanswered.any()
    assert sum(partition.looks for partition in partitions) == 1000
