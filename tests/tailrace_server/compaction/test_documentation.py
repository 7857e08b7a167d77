"""docs/internals/compaction.md says what the code does."""

from __future__ import annotations

import json
from pathlib import Path

from tailrace.segment.identity import INCLUDED_IDS_MAX
from tailrace_server.compaction.policy import CompactionLimits, Reason
from tailrace_server.compaction.task import (
    BLOCK_BYTES,
    FOREIGN_MAX,
    INPUTS_MAX,
    VERSION,
    CompactionResult,
    CompactionTask,
    Foreign,
)

PAGE = (Path(__file__).parents[3] / "docs" / "internals" / "compaction.md").read_text()


def rows(heading, after=""):
    """The cells of the first table behind ``after`` whose first column has this heading."""
    text = PAGE[PAGE.index(after) :]
    lines = text[text.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_reasons_are_those_of_the_code_in_their_order():
    assert [name for name, *_ in rows("reason")] == [reason.name for reason in Reason]


def test_the_members_are_those_of_the_code():
    for section, kind in (("### The task", CompactionTask), ("### The result", CompactionResult)):
        members = dict(rows("member", section))
        assert tuple(members) == ("version", *kind._fields)
        assert members["version"] == str(VERSION)
    for name in Foreign._fields:
        assert f"`{name}`" in members["foreign"]


def test_the_numbers_are_those_of_the_code():
    limits = CompactionLimits()
    assert (limits.tier_segments_min, limits.tier_ratio, limits.major_share, limits.tombstone_share) == (4, 4, 0.5, 0.2)
    assert limits.tier_bytes_min == 64 * 1024
    assert f"At most {limits.inputs_max} segments" in PAGE
    assert dict(rows("member", "### The task"))["inputs"].startswith(f"1 to {INPUTS_MAX} paths")
    assert dict(rows("member", "### The task"))["block_bytes"].endswith(f"; {BLOCK_BYTES}")
    assert f"up to {FOREIGN_MAX} producers" in PAGE
    assert f"{INCLUDED_IDS_MAX} in all" in PAGE


def test_the_line_of_a_task_has_its_members_in_that_order():
    task = CompactionTask(("a",), "b", bytes(16), 0, 1, False, False, None, 0)
    assert list(json.loads(task.encode())) == [name for name, _ in rows("member", "### The task")]
