"""docs/formats/segment.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.block import encode_block
from tailrace.segment.block_index import ENTRY_BYTES, BlockIndex
from tailrace.segment.format import HEADER_BYTES, TRAILER_BYTES
from tailrace.segment.identity import IDENTITY_BYTES_MAX, INCLUDED_IDS_MAX
from tailrace.segment.key_table import GUESSES_MAX
from tailrace.segment.page import PAGE_BYTES, PAGE_ENTRIES
from tailrace_server.segment import Segment, SegmentIdentity
from tailrace_server.segment.writer import WRITE_BYTES

PAGE = (Path(__file__).parents[3] / "docs" / "formats" / "segment.md").read_text()


def rows(heading):
    """The cells of the table whose first column has this heading."""
    lines = PAGE[PAGE.index(f"\n| {heading} |") + 1 :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def shown():
    """The bytes of the worked example: what is not shown are zeros."""
    text = PAGE[PAGE.index("## Worked example") :]
    parts = {int(offset): bytes.fromhex(digits) for offset, digits in re.findall(HEX_LINE, text, re.MULTILINE)}
    place, identity = re.search(r"^(\d+)  (\{.*?\})$", text, re.MULTILINE | re.DOTALL).groups()
    parts[int(place)] = re.sub(r"\n +", "", identity).encode()
    data = bytearray(max(offset + len(part) for offset, part in parts.items()))
    for offset, part in parts.items():
        assert not any(data[offset : offset + len(part)])
        data[offset : offset + len(part)] = part
    return bytes(data)


HEX_LINE = r"^ *(\d+)  ((?:[0-9a-f]{2} )+)  "


def test_the_worked_example_is_what_is_written(written, one_file):
    block = encode_block(
        [b"apple", b"pear"], [b"red", None], partition=3, producer_id=0x102030405060708, producer_seq=1
    )
    data = written([block.stamped(41, 1_700_000_000_000_000)], after_seq=40)
    assert shown() == data
    assert Segment.open(one_file(shown()), "a.seg").verify() == []


def test_the_fields_lie_back_to_back():
    for heading, end in (
        ("offset", HEADER_BYTES),
        ("offset in the page", PAGE_BYTES),
        ("offset in the trailer", TRAILER_BYTES),
    ):
        place = 0
        for offset, nbytes, _ in rows(heading):
            assert int(offset.replace(",", "")) == place
            place += int(nbytes.replace(",", ""))
        assert place == end


def test_the_columns_of_the_index_are_those_of_the_code():
    table = rows("column")
    assert [name.replace(" ", "_") for name, _, _ in table] == ["offset", "first_seq", "last_seq", "bytes", "rows"]
    assert [int(nbytes) for _, nbytes, _ in table] == [column.itemsize for column in BlockIndex.of([])]
    assert sum(int(nbytes) for _, nbytes, _ in table) == ENTRY_BYTES == 32


def test_the_members_of_the_identity_are_those_of_the_code():
    members = [name for cell, _ in rows("member") for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(members) == sorted(SegmentIdentity._fields)


def test_the_bounds_are_those_of_the_code():
    assert f"at most {IDENTITY_BYTES_MAX:,} bytes" in PAGE
    assert f"at most {INCLUDED_IDS_MAX} |" in PAGE
    assert f"{PAGE_ENTRIES} u64" in PAGE
    assert GUESSES_MAX == 4
    assert "After four" in PAGE
    assert WRITE_BYTES == 1 << 20
    assert "about 1 MiB" in PAGE
