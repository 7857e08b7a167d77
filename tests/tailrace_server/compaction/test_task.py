"""Tasks and results as lines of JSON: what is written is read, and what cannot be is refused by name."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.blocks.builder import TARGET_BYTES_MAX
from tailrace_server.compaction.errors import BadTask
from tailrace_server.compaction.task import (
    INPUTS_MAX,
    LINE_BYTES_MAX,
    CompactionResult,
    CompactionTask,
    Foreign,
)
from tailrace_server.segment import NO_BASE, SegmentIdentity

TASK = CompactionTask(
    inputs=("/feed/0/a.seg", "/feed/0/b.seg"),
    output="/feed/0/c.seg",
    segment_id=bytes(range(16)),
    hash_first=0,
    hash_last=2**64 - 1,
    is_major=True,
    history=False,
    purge_before_us=1_700_000_000_000_000,
    stable_seq=900,
)
IDENTITY = SegmentIdentity(b"f" * 16, 3, b"b" * 16, b"s" * 16, NO_BASE, (b"i" * 16,), True, True, 0, 900, 17, 5)
RESULT = CompactionResult(IDENTITY, 4_096, 10, 4, 1, 2, 1, (Foreign(2**63, 2, 1, "/feed/0/a.seg", 8, b"\xff"),))

PATHS = st.text(min_size=1, max_size=50)
U64 = st.integers(0, 2**64 - 1)


@st.composite
def tasks(draw):
    *inputs, output = draw(st.lists(PATHS, min_size=2, max_size=INPUTS_MAX + 1, unique=True))
    first, last = sorted((draw(U64), draw(U64)))
    is_major, history = draw(st.booleans()), draw(st.booleans())
    purge = draw(st.none() | U64) if is_major and not history else None
    numbers = (draw(U64), draw(st.integers(1, TARGET_BYTES_MAX)))
    segment_id = draw(st.binary(min_size=16, max_size=16))
    flags = (is_major, history)
    cuts = tuple(sorted(draw(st.sets(U64, max_size=5))))
    task = CompactionTask(tuple(inputs), output, segment_id, first, last, *flags, purge, *numbers, draw(st.booleans()))
    return task._replace(cuts=cuts, next_base_id=draw(st.sampled_from([b"", segment_id])))


@settings(deadline=None)
@given(tasks())
def test_a_task_is_read_as_it_was_written(task):
    line = task.encode()
    assert b"\n" not in line
    assert CompactionTask.decode(line) == task


def test_a_result_is_read_as_it_was_written():
    assert CompactionResult.decode(RESULT.encode()) == RESULT


def test_the_longest_task_fits_into_a_line():
    paths = tuple(chr(0x1F600) * 1_000 + f"{number:096}" for number in range(INPUTS_MAX + 1))
    line = TASK._replace(inputs=paths[1:], output=paths[0]).encode()
    assert len(line) < LINE_BYTES_MAX


@pytest.mark.parametrize("kind", [CompactionTask, CompactionResult])
class TestLines:
    def members(self, kind):
        return json.loads((TASK if kind is CompactionTask else RESULT).encode())

    def test_another_version_is_named(self, kind):
        for version in (2, 0, None, "1"):
            line = json.dumps({**self.members(kind), "version": version})
            with pytest.raises(BadTask, match=f"version {version!r}, this program knows version 1"):
                kind.decode(line)

    def test_members_that_are_missing_or_unknown(self, kind):
        members = self.members(kind)
        for wrong in ({**members, "more": 1}, {name: members[name] for name in list(members)[:-1]}):
            with pytest.raises(BadTask, match="exactly the members"):
                kind.decode(json.dumps(wrong))

    def test_what_is_no_object(self, kind):
        for line in (b"", b"{", b"[]", b"7", b"\xff", b"null"):
            with pytest.raises(BadTask):
                kind.decode(line)

    @settings(deadline=None)
    @given(st.sampled_from(range(20)), st.sampled_from([None, -1, 2**64, "", "zz", [], {}, 1.5, [1], True]))
    def test_a_wrong_member_raises_nothing_else(self, kind, place, value):
        members = self.members(kind)
        name = list(members)[place % len(members)]
        with contextlib.suppress(BadTask):
            kind.decode(json.dumps({**members, name: value}))


class TestTask:
    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"is_major": False}, "only a compaction of the oldest segment"),
            ({"history": True}, "keeps its history"),
            ({"inputs": ()}, "0 segments to compact"),
            ({"inputs": tuple(f"{n}.seg" for n in range(INPUTS_MAX + 1))}, f"1 to {INPUTS_MAX}"),
            ({"inputs": ("a", "a")}, "named twice"),
            ({"output": "/feed/0/a.seg"}, "named twice"),
            ({"output": ""}, "must be paths"),
            ({"segment_id": b"short"}, "16 bytes"),
            ({"hash_first": 5, "hash_last": 4}, "no hash lies between"),
            ({"stable_seq": -1}, "stable_seq is -1"),
            ({"purge_before_us": "now"}, "purge_before_us is 'now'"),
            ({"block_bytes": 0}, "not 0"),
            ({"block_bytes": 2**40}, "raw bytes"),
            ({"compress": 1}, "compress must be true or false"),
        ],
    )
    def test_what_contradicts_itself(self, changes, why):
        with pytest.raises(BadTask, match=why):
            TASK._replace(**changes).check()

    def test_inputs_that_are_no_list(self):
        for inputs in (7, None, "abc", {"a": 1}, [["a"], ["b"]]):
            with pytest.raises(BadTask):
                CompactionTask.decode(json.dumps({**json.loads(TASK.encode()), "inputs": inputs}))
