"""Tails that share the ticks of a hub: each gets each row once, in order, wherever it joins."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType
from wsproto.connection import Connection

from tailrace.block import encode_block
from tailrace.consuming.events import Mutations, Rollback, SnapshotEnd
from tailrace.consuming.ring import RingChange, unbounded_ring
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.position import Position, Positions
from tailrace_server.serving.tailing import ticks
from tailrace_server.serving.tailing.gathering import Gathering
from tailrace_server.serving.tailing.ticks import Ring, Tick, pieces_of

PARTITIONS = 2
OLD = FailoverLog((FailoverEntry(b"a" * 16, 1, 0),))
# The next branch, which leaves out what the old one had above 5.
NEW = FailoverLog((FailoverEntry(b"b" * 16, 2, 5), FailoverEntry(b"a" * 16, 1, 0)))


def positions(*seqs, log=OLD):
    return Positions(bytes(16), bytes(16), {number: Position.at(log, seq) for number, seq in enumerate(seqs)})


def rows(partition, first_seq, count=1):
    return Mutations(encode_block([b"k"] * count, [b"v"] * count, partition=partition).stamped(first_seq, 1_000))


def end(partition, seq):
    return SnapshotEnd(partition, 0, seq, Position.at(OLD, seq))


def decoded(pieces):
    """Returns the messages of frames, as a client reads them."""
    connection = Connection(ConnectionType.CLIENT)
    connection.receive_data(b"".join(pieces))
    messages, text = [], ""
    for event in connection.events():
        text += event.data
        if event.message_finished:
            messages.append(json.loads(text))
            text = ""
    assert not text, "the last message is not whole"
    return messages


class History:
    """The hub's stream: its events in an order of its own, cut into ticks, and its ring."""

    def __init__(self, begin, log=OLD):
        self.log = log
        self.at = dict(enumerate(begin))
        self.snapshots = {}  # the first seq, and what it will end at, of those that are open
        self.gathering = Gathering()
        self.ring = Ring(self.positions())

    def positions(self):
        of = {}
        for partition, seq in self.at.items():
            first, last = self.snapshots.get(partition, (seq, seq))
            of[partition] = Position.at(self.log, seq, first, last)
        return Positions(bytes(16), bytes(16), of)

    def tick(self, *events):
        texts = [text for event in events for text in self.gathering.add(event)]
        pieces = pieces_of([*texts, *self.gathering.take()])
        self.ring.append(Tick(events, pieces, self.positions(), self.gathering.unfinished))

    def advance(self, *seqs):
        """Makes a tick that leads to these seqs, with all snapshots ended."""
        events = []
        for partition, seq in enumerate(seqs):
            if seq > self.at[partition]:
                events += [rows(partition, self.at[partition] + 1, seq - self.at[partition]), end(partition, seq)]
                self.at[partition] = seq
        self.tick(*events)


def took(place, ring):
    """Returns the messages of all ticks from the place on."""
    messages = []
    while place.number < ring.next:
        pieces = place.take(ring.get(place.number))
        assert pieces is not None
        messages += decoded(pieces)
    return messages


def seqs_of(messages, partition):
    return [row["seq"] for message in messages if message["partition"] == partition for row in message.get("rows", ())]


@st.composite
def histories(draw):
    """Draws a hub's stream of two partitions with open and ended snapshots in any order, as ticks."""
    history = History(draw(st.tuples(st.integers(0, 3), st.integers(0, 3))))
    for _ in range(draw(st.integers(0, 8))):
        events = []
        for _ in range(draw(st.integers(0, 4))):
            partition = draw(st.integers(0, PARTITIONS - 1))
            at = history.at[partition]
            if partition not in history.snapshots:
                count = draw(st.integers(1, 4))
                first = draw(st.integers(1, count))
                history.snapshots[partition] = (at, at + count)
                events.append(rows(partition, at + 1, first))
                history.at[partition] += first
            else:
                _, last = history.snapshots.pop(partition)
                if at < last:
                    events.append(rows(partition, at + 1, last - at))
                history.at[partition] = last
                events.append(end(partition, last))
        history.tick(*events)
    return history


@given(histories(), st.tuples(st.integers(0, 12), st.integers(0, 12)), st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_a_tail_gets_each_row_once_in_order_wherever_it_joins(history, held, more):
    place = history.ring.place(positions(*held))
    if place is None:
        low = history.ring._positions_before(max(history.ring._first, history.ring._joins_from or 0))
        unsettled = history.ring._joins_from is None
        assert unsettled or any(low[partition].seq > seq for partition, seq in enumerate(held)), "it had a place"
        return
    messages = took(place, history.ring)
    # Whatever is open ends, and then the stream goes on for longer than what the tail came with.
    ending = []
    for partition, (_, last) in sorted(history.snapshots.items()):
        if history.at[partition] < last:
            ending.append(rows(partition, history.at[partition] + 1, last - history.at[partition]))
        history.at[partition] = last
        ending.append(end(partition, last))
    history.snapshots.clear()
    history.tick(*ending)
    history.advance(*(max(history.at[partition], held[partition]) + more[partition] for partition in range(2)))
    messages += took(place, history.ring)
    assert place.is_level
    assert place.positions == history.positions()
    for partition, seq in enumerate(held):
        assert seqs_of(messages, partition) == list(range(seq + 1, history.at[partition] + 1))
    told = dict(enumerate(held))
    for message in messages:
        if message["type"] == "mutations":
            told[message["partition"]] = message["rows"][-1]["seq"]
        else:
            assert message["seq"] == told[message["partition"]], "an end stands for the rows that the client has"


@given(histories(), st.integers(0, 9), st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_the_positions_of_a_tail_are_what_it_has_after_each_tick(history, ticks_taken, held):
    place = history.ring.place(positions(*held))
    if place is None:
        return
    messages = []
    while place.number < history.ring.next and ticks_taken:
        messages += decoded(place.take(history.ring.get(place.number)))
        ticks_taken -= 1
    for partition, seq in enumerate(held):
        assert place.positions[partition].seq == max([seq, *seqs_of(messages, partition)])


def test_a_tail_that_is_ahead_leaves_out_what_it_has():
    history = History((0, 0))
    place = history.ring.place(positions(5, 1))
    history.advance(3, 2)
    history.advance(7, 3)
    messages = took(place, history.ring)
    assert (seqs_of(messages, 0), seqs_of(messages, 1)) == ([6, 7], [2, 3])
    assert place.positions == positions(7, 3)


def test_a_tail_behind_the_ticks_has_no_place(monkeypatch):
    monkeypatch.setattr(ticks, "RING_TICKS_MAX", 2)
    history = History((0, 0))
    for seq in range(1, 5):
        history.advance(seq, 0)
    assert history.ring.place(positions(1, 0)) is None
    assert history.ring.get(1) is None
    assert seqs_of(took(history.ring.place(positions(2, 0)), history.ring), 0) == [3, 4]


def test_the_ticks_that_are_kept_are_bounded_by_their_bytes(monkeypatch):
    monkeypatch.setattr(ticks, "RING_BYTES_MAX", 1_000)
    history = History((0, 0))
    for seq in range(10, 100, 10):
        history.advance(seq, 0)
    assert history.ring.get(history.ring.next - 1) is not None, "the last one is kept"
    assert history.ring.get(history.ring.next - 2) is None


def test_rows_that_the_hub_does_not_know_give_no_place():
    history = History((3, 3), log=NEW)
    assert history.ring.place(positions(5, 4)) is not None, "both logs have these"
    assert history.ring.place(positions(6, 4)) is None, "the new branch has another row 6"
    assert history.ring.place(positions(6, 4, log=NEW)) is not None
    assert History((3, 3)).ring.place(positions(6, 4, log=NEW)) is None, "the hub does not know the branch yet"


def test_a_hub_that_learns_of_another_branch_lets_go_of_a_tail_that_has_more_of_the_old_one():
    history = History((4, 4))
    place, safe = history.ring.place(positions(6, 4)), history.ring.place(positions(5, 4))
    history.log = NEW
    history.advance(8, 4)
    assert place.take(history.ring.get(0)) is None
    assert place.positions == positions(6, 4)
    assert seqs_of(decoded(safe.take(history.ring.get(0))), 0) == [6, 7, 8]


@pytest.mark.parametrize("is_level", [False, True])
def test_a_rollback_reaches_the_tails_that_are_level_and_ends_the_places_of_others(is_level):
    history = History((4, 4))
    place = history.ring.place(positions(4 if is_level else 6, 4))
    history.tick()
    assert place.take(history.ring.get(0)) == ()
    assert place.is_level is is_level
    history.log, history.at[0], history.snapshots[0] = NEW, 3, (3, 6)
    history.tick(Rollback(0, 3, (b"k",)))
    pieces = place.take(history.ring.get(1))
    assert history.ring.place(positions(3, 4, log=NEW)) is None, "its rows are still to be read again"
    assert ([message["type"] for message in decoded(pieces)] == ["rollback"]) if is_level else (pieces is None)
    history.snapshots.clear()
    history.advance(6, 4)
    assert history.ring.place(positions(6, 4, log=NEW)).number == 3


def test_a_rollback_ends_the_place_of_a_tail_whose_rows_the_new_branch_has():
    history = History((4, 4))
    place = history.ring.place(positions(5, 4))
    history.log, history.at[0] = NEW, 3
    history.tick(Rollback(0, 3, (b"k",)))
    assert place.take(history.ring.get(0)) is None


def ring_of(floor_seq, *entries):
    ring = unbounded_ring(RingChange(floor_seq))
    for seq, key in entries:
        ring.add([seq], [key])
    return ring.whole()


def recent_keys(place):
    """Returns the floor of each ring, and the keys above it."""
    rings = {partition: unbounded_ring(ring) for partition, ring in place.start().rings.items()}
    return {partition: (ring.floor_seq, ring.keys_above(ring.floor_seq)) for partition, ring in rings.items()}


def test_a_tail_keeps_its_recent_keys_and_those_of_its_rows_until_it_is_level():
    history = History((4, 4))
    place = history.ring.place(positions(6, 4))
    place.remember({0: ring_of(2, (5, b"five")), 1: ring_of(1, (3, b"three"))})
    history.advance(5, 5)
    took(place, history.ring)
    assert place.start().since == place.positions == positions(6, 5)
    assert recent_keys(place) == {0: (2, [b"five"]), 1: (1, [b"three", b"k"])}
    history.advance(6, 5)
    took(place, history.ring)
    assert place.is_level
    assert recent_keys(place) == {}


def test_a_tail_keeps_no_keys_of_a_partition_that_it_has_begun_by_the_ticks():
    history = History((0, 4))
    place = history.ring.place(positions(0, 5))
    place.remember({0: ring_of(0), 1: ring_of(1)})
    history.advance(3, 4)
    took(place, history.ring)
    assert recent_keys(place).keys() == {1}


@pytest.mark.parametrize("held", [(4, 4), (4, 5)])
def test_a_tail_that_joins_where_the_hub_is_is_level_at_once(held):
    history = History((2, 4))
    history.advance(4, 4)
    assert history.ring.place(positions(*held)).is_level is (held == (4, 4))


def test_a_tail_that_joins_before_the_hub_has_told_the_end_of_a_snapshot_is_not_level():
    history = History((0, 0))
    history.at[0] = 2
    history.tick(rows(0, 1, 2))
    assert not history.ring.place(positions(2, 0)).is_level
    history.tick(end(0, 2))
    assert history.ring.place(positions(2, 0)).is_level


def test_the_end_of_a_snapshot_that_a_tail_has_is_not_told_again():
    history = History((0, 0))
    place = history.ring.place(positions(2, 0))
    history.at[0], history.snapshots[0] = 2, (0, 2)
    history.tick(rows(0, 1, 2))
    history.snapshots.clear()
    history.tick(end(0, 2))
    assert took(place, history.ring) == []
    assert place.is_level


def test_frames_are_those_that_wsproto_reads():
    texts = [json.dumps({"text": "é" * size}, ensure_ascii=False) for size in (1, 50, 60, 70, 40_000, 1, 2)]
    pieces = pieces_of(texts)
    assert decoded(pieces) == [json.loads(text) for text in texts]
    assert all(decoded([piece]) for piece in pieces), "each piece has whole messages"
    assert len(pieces) == 3
