"""docs/formats/journal.md says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tailrace.block import encode_block
from tailrace_server.config import StorageConfig
from tailrace_server.journal import CleanPartition, RecordKind, open_journal, write_clean
from tailrace_server.journal.file_case import STOPS, FileCase
from tailrace_server.journal.format import FILE_HEADER_BYTES, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES
from tailrace_server.journal.recovery import REPLACE_BYTES_MAX
from tailrace_server.journal.reserve import RESERVE_BYTES_DEFAULT
from tailrace_server.journal.space import ALLOCATE_BYTES
from tailrace_server.journal.writer import FILE_BYTES_DEFAULT

PAGE = (Path(__file__).parents[3] / "docs" / "formats" / "journal.md").read_text()
FEED = bytes(range(0xF0, 0x100))
BRANCH = bytes(range(0xB0, 0xC0))


def rows(heading):
    """The cells of the table whose first column has this heading."""
    lines = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_worked_example_is_what_is_written(memory_disk):
    disk = memory_disk()
    journal, _ = open_journal(disk, "/journal", token=lambda nbytes: bytes(range(1, nbytes + 1)))
    journal.append(RecordKind.FEED_CREATED, FEED, 0, b'{"name":"orders"}')
    journal.sync()
    block = encode_block([b"k1"], [b"v1"], partition=2, producer_id=0x1122334455667788, producer_seq=1)
    journal.append_block(FEED, 2, BRANCH, block.stamped(1, 1_700_000_000_000_000))
    journal.close()
    lines = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} )+) ", PAGE, re.MULTILINE)
    assert [int(offset) for offset, _ in lines] == list(range(0, 416, 16))
    assert bytes.fromhex("".join(text for _, text in lines)) == disk.content("/journal/00000001.log")


def test_the_cases_are_those_of_the_code():
    documented = {name: done for name, _, _, done in rows("case")}
    assert documented.keys() == {case.name for case in FileCase}
    assert {name for name, done in documented.items() if done == "stop"} == {case.name for case in STOPS}


def test_the_kinds_are_those_of_the_code():
    assert [(int(number), name) for number, name, _ in rows("kind | name")] == [
        (kind.value, kind.name) for kind in RecordKind
    ]


def test_the_fields_lie_back_to_back():
    tables = re.findall(r"\| offset \| bytes \| field \|\n\|---\|---\|---\|\n((?:\|.*\|\n)+)", PAGE)
    for table, end in zip(tables, (FILE_HEADER_BYTES, RECORD_HEADER_BYTES), strict=True):
        place = 0
        for offset, nbytes in re.findall(r"^\| (\d+) \| (\d*)", table, re.MULTILINE):
            assert int(offset) == place
            place += int(nbytes or 0)
        assert place == end


def test_the_bounds_are_those_of_the_code():
    for bound in (PAYLOAD_BYTES_MAX, REPLACE_BYTES_MAX, RESERVE_BYTES_DEFAULT):
        assert f"{bound:,}" in PAGE
    assert FILE_BYTES_DEFAULT == 256 << 20
    assert StorageConfig().journal_file_bytes_max == 64 << 20
    assert ALLOCATE_BYTES == 4 << 20
    assert "(64 MiB in a node, 256 MiB in a repair)" in PAGE
    assert "4 MiB ahead" in PAGE


def test_the_members_of_clean_are_those_of_the_code(memory_disk):
    disk = memory_disk()
    disk.make_directory("/data")
    write_clean(disk, "/data", (1, 416), [CleanPartition(FEED, 2, BRANCH, 1)])
    members = {name for cell, _ in rows("member") for name in re.findall(r"`(\w+)`", cell)}
    assert json.loads(disk.content("/data/CLEAN").splitlines()[0]).keys() == members
