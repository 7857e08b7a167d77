"""Events that came together, as few messages: no row is lost, doubled or moved, and sizes stay bounded."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import encode_block
from tailrace.consuming.events import Mutations, Rollback, RoundComplete, SnapshotEnd
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace_server.serving.tailing.gathering import Gathering
from tailrace_server.serving.tailing.messages import MESSAGE_BYTES_MAX, MESSAGE_ROWS_MAX

NOWHERE = Position.at(FailoverLog(), 0)


def block(partition, first_seq, values):
    encoded = encode_block([b"k"] * len(values), values, partition=partition)
    return Mutations(encoded.stamped(first_seq, 1_000))


def end(partition, seq):
    return SnapshotEnd(partition, 0, seq, NOWHERE)


def told(events, **options):
    gathering = Gathering()
    texts = [text for event in events for text in gathering.add(event, **options)]
    return [json.loads(text) for text in [*texts, *gathering.take()]], gathering


def of(message):
    """Returns what a message tells, in short."""
    match message["type"]:
        case "mutations":
            return message["partition"], [row["seq"] for row in message["rows"]]
        case "snapshot_end":
            return message["partition"], message["seq"]
    return message["type"]


def test_rows_of_a_partition_share_a_message_and_the_last_end_follows_them():
    events = [block(2, 1, [b"a"]), end(2, 1), block(0, 5, [b"b"]), block(2, 2, [b"c", b"d"]), end(2, 3), end(0, 5)]
    messages, gathering = told(events)
    assert [of(message) for message in messages] == [(2, [1, 2, 3]), (2, 3), (0, [5]), (0, 5)]
    assert gathering.unfinished == frozenset()


def test_a_snapshot_whose_end_has_not_come_is_unfinished():
    messages, gathering = told([block(2, 1, [b"a"]), end(2, 1), block(2, 2, [b"b"])])
    assert [of(message) for message in messages] == [(2, [1, 2])]
    assert gathering.unfinished == {2}


def test_an_end_without_rows_and_a_round_are_not_told():
    assert told([end(2, 1), RoundComplete(1)])[0] == []


def test_a_rollback_comes_after_the_rows_before_it_and_before_those_after_it():
    again = block(2, 1, [b"a"])
    again.refetched = True
    messages, _ = told([block(2, 1, [b"x", b"y"]), Rollback(2, 1, (b"k",)), again, block(2, 2, [b"z"]), end(2, 2)])
    assert [of(message) for message in messages] == [(2, [1, 2]), "rollback", (2, [1]), (2, [2]), (2, 2)]
    assert [message.get("refetched") for message in messages] == [None, None, True, None, None]


def test_rows_up_to_a_seq_are_left_out():
    messages, _ = told([block(2, 1, [b"a", b"b"]), end(2, 2), block(2, 3, [b"c", b"d"]), end(2, 4)], above=3)
    assert [of(message) for message in messages] == [(2, [4]), (2, 4)]
    assert told([block(2, 1, [b"a"]), end(2, 1)], above=1)[0] == []


@st.composite
def streams(draw):
    """Draws the events of a stream of three partitions: blocks in the order of their seqs, and ends of snapshots."""
    at = {0: 0, 1: 0, 2: 0}
    events = []
    for _ in range(draw(st.integers(0, 30))):
        partition = draw(st.integers(0, 2))
        if draw(st.booleans()):
            sizes = draw(st.lists(st.sampled_from((1, 100, 30_000, MESSAGE_BYTES_MAX + 1)), min_size=1, max_size=4))
            events.append(block(partition, at[partition] + 1, [b"v" * size for size in sizes]))
            at[partition] += len(sizes)
        elif at[partition]:
            events.append(end(partition, at[partition]))
    return events


@given(streams())
def test_each_row_once_in_order_and_no_end_before_its_rows(events):
    messages, _ = told(events)
    for partition in range(3):
        given = [seq for e in events if isinstance(e, Mutations) and e.partition == partition for seq in e.seqs()]
        mine = [message for message in messages if message["partition"] == partition]
        assert [row["seq"] for message in mine for row in message.get("rows", ())] == given
        last = 0
        for message in mine:
            if message["type"] == "snapshot_end":
                assert message["seq"] == last, "an end stands for the rows before it"
            else:
                last = message["rows"][-1]["seq"]
    for rows in (message["rows"] for message in messages if message["type"] == "mutations"):
        assert len(rows) <= MESSAGE_ROWS_MAX
        assert len(rows) == 1 or sum(len(row["key"]) + len(row["value"]) for row in rows) <= MESSAGE_BYTES_MAX


def test_many_rows_are_cut():
    messages, _ = told([block(0, 1, [b""] * (MESSAGE_ROWS_MAX + 1))])
    assert [len(message["rows"]) for message in messages] == [MESSAGE_ROWS_MAX, 1]
