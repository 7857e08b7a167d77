"""What a copy becomes when a node tells its checkpoint, and the parts that are asked for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.copies.compare import (
    WINDOW_BYTES_FIRST,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    Action,
    PartCutter,
    compare,
    copy_of,
    is_of_a_segment,
    missing_segments,
    next_window,
    surplus_files,
)
from tailrace.copies.layout import PartitionCopy, SegmentCopy
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.wire.segment_messages import CheckpointFile, PartitionCheckpoint

FEED = bytes(16)
# u ends at 100, v at 150.
LOGS = {
    "u": FailoverLog([(b"u" * 16, 1, 0)]),
    "vu": FailoverLog([(b"v" * 16, 2, 100), (b"u" * 16, 1, 0)]),
    "wvu": FailoverLog([(b"w" * 16, 3, 150), (b"v" * 16, 2, 100), (b"u" * 16, 1, 0)]),
    "x": FailoverLog([(b"x" * 16, 9, 0)]),
    "y": FailoverLog([(b"y" * 16, 1, 0)]),
    "": FailoverLog(),
}


def held(log, seq):
    return PartitionCopy(0, seq, 0, LOGS[log], ())


def told(log, seq):
    return PartitionCheckpoint(bytes(16), 60.0, FEED, 0, seq, 0, seq, LOGS[log], ())


@pytest.mark.parametrize(
    ("log", "seq", "told_log", "told_seq", "action", "common"),
    [
        ("u", 50, "u", 80, Action.TAKE, 50),
        ("u", 50, "u", 50, Action.TAKE, 50),
        ("u", 50, "u", 40, Action.KEEP, 40),  # a follower that is behind
        ("u", 100, "vu", 120, Action.TAKE, 100),
        ("u", 90, "vu", 120, Action.TAKE, 90),
        ("u", 120, "vu", 130, Action.ROLL_BACK, 100),  # the copy has 101 to 120 of u, which were lost
        ("u", 120, "vu", 100, Action.ROLL_BACK, 100),
        ("u", 120, "wvu", 90, Action.ROLL_BACK, 100),
        ("u", 90, "vu", 80, Action.KEEP, 90),  # the files of the node end below the base of its branch
        ("vu", 120, "u", 130, Action.KEEP, 0),  # an old leader, and its tail of u
        ("vu", 100, "u", 100, Action.KEEP, 0),
        ("vu", 140, "wvu", 160, Action.TAKE, 140),
        ("u", 50, "", 0, Action.KEEP, 0),  # a node that has nothing yet
        ("u", 50, "x", 80, Action.ROLL_BACK, 0),  # all of u was lost, or it is 25 branches old
        ("y", 0, "u", 80, Action.TAKE, 0),
        ("u", 50, "y", 80, Action.REFUSE, 0),  # the same term, another branch
        ("x", 50, "u", 80, Action.KEEP, 0),
    ],
)
def test_the_table(log, seq, told_log, told_seq, action, common):
    assert compare(held(log, seq), told(told_log, told_seq)) == (action, common)


def test_a_copy_of_nothing_takes_everything():
    assert compare(None, told("vu", 120)).action is Action.TAKE
    assert compare(held("", 0), told("vu", 120)).action is Action.TAKE


@st.composite
def histories(draw):
    """The log and the seq of some nodes, each of which went on from a part of the history before it."""
    log, seq = FailoverLog([(bytes(16), 1, 0)]), draw(st.integers(0, 20))
    found = [(log, seq)]
    for number in range(1, draw(st.integers(1, 4))):
        base = draw(st.integers(0, seq))
        log = log.with_entry(FailoverEntry(bytes([number]) * 16, log.term + 1, base))
        seq = draw(st.integers(base, base + 20))
        found.append((log, seq))
    return found


@given(histories())
def test_a_copy_never_goes_back_to_an_older_leader_and_always_follows_a_newer_one(nodes):
    for (log, seq), (later_log, later_seq) in itertools.combinations(nodes, 2):
        older, newer = PartitionCopy(0, seq, 0, log, ()), told("u", 0)._replace(log=later_log, seq=later_seq)
        action, common = compare(older, newer)
        assert action is not Action.REFUSE
        assert (action is Action.TAKE) <= (later_seq >= seq or not seq)
        assert (action is Action.ROLL_BACK) == (common < seq)
        assert common == min(seq, *(entry.base for entry in later_log if entry not in log))
        if not later_seq:
            continue
        back = compare(PartitionCopy(0, later_seq, 0, later_log, ()), told("u", 0)._replace(log=log, seq=seq))
        assert back.action is Action.KEEP


def segment_of(number, nbytes):
    return SegmentCopy(bytes([number]) * 16, nbytes, bytes(16), 10 * number + 1, 10 * number + 10)


def test_only_what_is_missing_is_fetched_and_only_our_files_are_removed():
    files = [CheckpointFile(bytes([n]) * 16, 100, bytes(16), 10 * n + 1, 10 * n + 10) for n in range(3)]
    copy = copy_of(told("u", 30)._replace(segments=tuple(files)))
    names = [segment.file_name for segment in copy.segments]
    assert missing_segments(copy, {names[0]: 100, names[1]: 99}) == [*copy.segments[1:]]
    old = segment_of(9, 1).file_name
    there = [names[0], old, old + ".new", names[1] + ".new", "CHECKPOINT.json", "notes.seg", "notes.txt", ".new"]
    assert surplus_files(copy, there) == sorted([old, old + ".new", names[1] + ".new"])


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("0a" * 16 + ".seg", True),
        ("0a" * 16 + ".seg.new", True),
        ("0A" * 16 + ".seg", False),
        ("0a" * 15 + ".seg", False),
        ("0a" * 16, False),
        ("0a" * 16 + ".new", False),
        ("0a" * 16 + ".seg.new.new", False),
        ("../" + "0a" * 16 + ".seg", False),
        ("", False),
    ],
)
def test_names_of_segments(name, is_one):
    assert is_of_a_segment(name) is is_one


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=6),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_the_parts_of_files_are_their_bytes_in_order(files, window_bytes, part_bytes_max):
    segments = [(segment_of(number, nbytes), min(begin, nbytes)) for number, (nbytes, begin) in enumerate(files)]
    cutter = PartCutter(segments)
    have = dict(segments)
    order = []
    while parts := cutter.next_parts(window_bytes, part_bytes_max):
        assert sum(part.nbytes for part in parts) <= window_bytes
        for segment, offset, nbytes in parts:
            assert have[segment] == offset
            assert 0 < nbytes <= part_bytes_max
            have[segment] = offset + nbytes
            order.append(segment.id)
    assert all(nbytes == segment.nbytes for segment, nbytes in have.items())
    assert order == sorted(order)


@given(st.lists(st.floats(0, 60), max_size=30))
def test_a_window_stays_in_its_bounds(times):
    window_bytes = WINDOW_BYTES_FIRST
    for seconds in times:
        before, window_bytes = window_bytes, next_window(window_bytes, seconds)
        assert WINDOW_BYTES_MIN <= window_bytes <= WINDOW_BYTES_MAX
        assert (window_bytes > before) <= (seconds < 0.5)
        assert (window_bytes < before) <= (seconds > 4)
