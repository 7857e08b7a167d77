"""The states of a consumed partition: what the table has, and what it refuses."""

import itertools

import pytest

from tailrace.consuming.partition import TRANSITIONS, ConsumedPartition, ConsumerState, Step, transition
from tailrace.consuming.ring import Ring
from tailrace.errors import ProtocolError
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.opcodes import Opcode


def waiting():
    return ConsumedPartition(3, Position.at(FailoverLog(), 0), Ring(10, 1_000), None, 0.0)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(ConsumerState, [*Opcode, *Step])))
def test_each_event_in_each_state(state, event):
    if (state, event) in TRANSITIONS:
        assert transition(3, state, event) is TRANSITIONS[state, event]
        return
    error = ProtocolError if isinstance(event, Opcode) else RuntimeError
    with pytest.raises(error, match=event.name) as caught:
        transition(3, state, event)
    assert "partition 3" in str(caught.value)
    assert state.value in str(caught.value)


def test_every_state_is_reached_and_only_the_end_is_final():
    assert set(TRANSITIONS.values()) == set(ConsumerState)
    assert {state for state, _ in TRANSITIONS} == set(ConsumerState) - {ConsumerState.ENDED}


def test_a_refused_event_changes_nothing():
    partition = waiting()
    with pytest.raises(ProtocolError, match="BLOCK for partition 3, whose stream is waiting"):
        partition.step(Opcode.BLOCK)
    with pytest.raises(RuntimeError, match=r"partition 3 looks up keys \(LOOK_UP\) while its stream is waiting"):
        partition.look_up(7)
    assert partition.state is ConsumerState.WAITING
    assert partition.stream_id == 0


def test_failures_are_counted():
    partition = waiting()
    assert [partition.count_failure() for _ in range(3)] == [1, 2, 3]


def test_going_back_to_the_beginning_clears_the_ring():
    partition = waiting()
    partition.ring.add([5], [b"k"])
    assert partition.roll_back_to(0, 0, FailoverLog()).seq == 0
    assert partition.ring.rows == 0
