"""The events of one poll: every row once and in order, at most so many, and a position after each call."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import encode_block
from tailrace.consuming.events import Mutations, Rollback, SnapshotEnd
from tailrace.consuming.together import together
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions

LOG = FailoverLog([(b"u" * 16, 1, 0)])


def rows_event(partition, first_seq, rows, *, refetched=False):
    block = encode_block([b"%d" % (first_seq + row) for row in range(rows)], [b"v"] * rows, partition=partition)
    return Mutations(block.stamped(first_seq, 1000), refetched=refetched)


@st.composite
def queues(draw):
    """Events of two partitions, with the position after each: between snapshots, or inside of one."""
    seqs, made = {0: 0, 1: 0}, []
    for _ in range(draw(st.integers(1, 12))):
        partition = draw(st.sampled_from([0, 1]))
        kind = draw(st.sampled_from(["rows", "rows", "run", "end", "barrier", "rollback", "refetched"]))
        before = seqs[partition]
        if kind in ("rows", "run"):
            count = draw(st.integers(1, 9))
            last = seqs[partition] = before + count
            at = Position.at(LOG, last) if kind == "rows" else Position.at(LOG, last, before, last + 5)
            made.append((rows_event(partition, before + 1, count), partition, at, 100))
        elif kind == "end":
            made.append(
                (SnapshotEnd(partition, 1, before, Position.at(LOG, before)), partition, Position.at(LOG, before), 0)
            )
        elif kind == "barrier":
            made.append((b"cookie", -1, None, 0))
        elif kind == "rollback":
            made.append((Rollback(partition, before, ()), partition, Position.at(LOG, before), 0))
        else:
            made.append((rows_event(partition, before + 1, 4, refetched=True), partition, None, 7))
    return made


@given(queues(), st.integers(1, 12))
def test_each_row_once_in_order_and_with_a_position_behind_each_call(made, rows_max):
    queue = collections.deque(made)
    handled = {0: Position.at(LOG, 0), 1: Position.at(LOG, 0)}
    handed, nbytes = [], 0
    while queue:
        first = queue.popleft()
        if isinstance(first[0], bytes):  # the session reaches it when it is asked for an event
            continue
        in_hand = together(first, queue, lambda: bool(queue), rows_max, handled)
        assert in_hand
        rows = sum(len(event) for event, *_ in in_hand if isinstance(event, Mutations))
        assert rows <= rows_max or len(in_hand) == 1
        assert not any(isinstance(event, bytes) for event, *_ in in_hand)
        assert not any(isinstance(event, Rollback) for event, *_ in in_hand[:-1])
        for event, partition, position, count in in_hand:
            nbytes += count
            if isinstance(event, Mutations):
                handed += [(partition, seq) for seq in event.seqs()]
                if not event.refetched:
                    assert position.seq == event.last_seq
            if position is not None:
                handled[partition] = position
        Positions(b"c" * 16, b"f" * 16, handled)  # none contradicts itself
        assert Positions.parse(str(Positions(b"c" * 16, b"f" * 16, handled))) == Positions(
            b"c" * 16, b"f" * 16, handled
        )
    rows_of = [event for event in made if isinstance(event[0], Mutations)]
    assert handed == [(partition, seq) for event, partition, _, _ in rows_of for seq in event.seqs()]
    assert nbytes == sum(count for *_, count in made)


def test_a_cut_block_leads_to_a_position_inside_of_its_rows():
    """If the block is the end of a run, no seq inside is a state: a consumer that resumes there may have to go back."""
    event = rows_event(0, 11, 10)
    queue = collections.deque()
    before = Position.at(LOG, 10, 7, 20)
    in_hand = together((event, 0, Position.at(LOG, 20), 5), queue, lambda: bool(queue), 4, {0: before})
    assert [position for _, _, position, _ in in_hand] == [Position.at(LOG, 14, 7, 20)]
    (rest,) = queue
    assert list(rest[0].seqs()) == list(range(15, 21))
    assert rest[1:] == (0, Position.at(LOG, 20), 5)


def test_what_has_not_arrived_is_waited_for_by_no_poll():
    queue = collections.deque()
    asked = []

    def arrive():
        asked.append(len(queue))
        if len(asked) == 1:
            queue.append((rows_event(1, 1, 2), 1, Position.at(LOG, 2), 0))
        return bool(queue)

    in_hand = together((rows_event(0, 1, 2), 0, Position.at(LOG, 2), 0), queue, arrive, 100, {})
    assert [event.partition for event, *_ in in_hand] == [0, 1]
    assert len(asked) == 2
