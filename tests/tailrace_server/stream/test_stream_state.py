"""The table of a stream's states, and each of its arrows in the rounds of a connection."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.tailrace_server.stream.slots import check_slots

from tailrace.model import EndReason
from tailrace_server.stream import partition_stream
from tailrace_server.stream.stream_state import _TABLE, StreamEvent, StreamState, transition

ARROWS = [(state, event) for state, events in _TABLE.items() for event in events]
ROWS = [(b"k%d" % number, bytes(100)) for number in range(2)]


@given(st.lists(st.sampled_from(StreamEvent)))
def test_a_sequence_of_events_follows_the_table(events):
    state = StreamState.IDLE
    for event in events:
        if (state, event) in ARROWS:
            before, state = state, transition(state, event)
            assert state is _TABLE[before][event]
            assert state.has_turn == (state in (StreamState.READY, StreamState.SENDING))
            if before.in_snapshot and not state.in_snapshot:
                assert event in (StreamEvent.SNAPSHOT_SENT, StreamEvent.CLOSED), "a snapshot is sent to its end"
        else:
            with pytest.raises(RuntimeError, match=f"state {state.name}: event {event.name}"):
                transition(state, event)


def test_each_state_is_in_the_table_and_can_be_reached():
    reached = {StreamState.IDLE}
    while more := {_TABLE[state][event] for state, event in ARROWS if state in reached} - reached:
        reached |= more
    assert reached == set(_TABLE) == set(StreamState)
    assert not _TABLE[StreamState.ENDED]
    assert {event for _, event in ARROWS} == set(StreamEvent)


@pytest.mark.parametrize(("state", "event"), ARROWS, ids=lambda member: member.name)
def test_an_arrow(made, monkeypatch, state, event):
    slot = bring_to(state, made)
    assert slot.state is state
    EVENTS[event](made, monkeypatch)
    assert slot.state is transition(state, event)


def bring_to(state, made):
    """A slot of one stream in ``state``."""
    if state in (StreamState.QUEUED, StreamState.LOADING):
        made.put(*ROWS)
        made.partition.flush()
    made.open()
    slot = made.rounds.slots[1]
    if state is StreamState.READY:
        made.put(*ROWS[:1])
    if state is StreamState.SENDING:
        _send_half(made)
    if state in (StreamState.QUEUED, StreamState.LOADING):
        made.rounds.next_buffers(1 << 20)
    if state is StreamState.LOADING:
        _begin_read(made)
    return slot


def _send_half(made, monkeypatch=None):
    made.put(*ROWS)
    made.rounds.set_window(1)
    made.consumer.read()


def _send_all(made, monkeypatch):
    made.rounds.set_window(1 << 30)
    made.consumer.read()


def _begin_read(made, monkeypatch=None):
    [load] = made.rounds.next_loads()
    made.consumer.loads.append(load)
    slot, part = load
    slot.stream.partition.pins.pin(part.segment)


def _let_go(made, monkeypatch):
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 0)
    made.partition.flush()


EVENTS = {
    StreamEvent.NEWS: lambda made, monkeypatch: made.put(*ROWS[:1]),
    StreamEvent.SNAPSHOT_STARTED: _send_half,
    StreamEvent.SNAPSHOT_SENT: _send_all,
    StreamEvent.CHUNK_MISSING: _let_go,
    StreamEvent.READ_STARTED: _begin_read,
    StreamEvent.CHUNK_READ: lambda made, monkeypatch: made.consumer.load(),
    StreamEvent.CLOSED: lambda made, monkeypatch: made.rounds.close(1, EndReason.CLOSED),
}


def test_a_read_that_ends_after_its_stream_makes_room_for_another(made):
    slot = bring_to(StreamState.LOADING, made)
    made.rounds.close(1, EndReason.CLOSED)
    assert slot.holds_chunk, "a thread still reads"
    made.consumer.load()
    assert slot.state is StreamState.ENDED
    assert not slot.holds_chunk
    check_slots(made.rounds)
