"""The invariants of the slots of a connection."""

from __future__ import annotations

from tailrace_server.stream.stream_state import StreamState


def check_slots(rounds):
    """Asserts the invariants of the slots of ``rounds``, as they are between two calls of it."""
    slots = list(rounds.slots.values())
    assert [slot.stream.id for slot in slots] == list(rounds.slots)
    waiting = {slot for slot in slots if rounds._shares.holds(slot)}  # until their feeds have room
    assert all(slot.state.has_turn for slot in waiting)
    assert set(rounds._turns) == {slot for slot in slots if slot.state.has_turn} - waiting
    assert set(rounds._reads.queue) == {slot for slot in slots if slot.state is StreamState.QUEUED}
    assert set(rounds.deadlines._slots) == {slot for slot in slots if slot.stream.awaits_time}
    assert rounds._held._bytes == sum(slot.flushed_bytes for slot in slots)
    for slot in slots:
        stream = slot.stream
        assert slot.state is not StreamState.ENDED
        assert stream.snapshot_after <= stream.delivered_seq <= stream.snapshot_last
        assert slot.state.in_snapshot or stream.delivered_seq == stream.snapshot_last
        assert stream.end_seq is None or stream.end_seq >= stream.promised_seq
        assert slot.stream.all_sent or slot.state.in_snapshot
        loads = slot.state in (StreamState.QUEUED, StreamState.LOADING)
        assert loads == (slot.stream.cursor_to_load is not None)
        assert slot.holds_chunk == (
            slot.state is StreamState.LOADING or (slot.state is StreamState.SENDING and not slot.stream.is_in_memory)
        )
        if slot.state is StreamState.IDLE:
            assert not slot.stream.has_news
    held = sum(slot.holds_chunk for slot in slots)
    assert held <= rounds._reads._chunks, "those of streams that have ended count too"
