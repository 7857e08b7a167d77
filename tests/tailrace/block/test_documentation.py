"""docs/formats/block.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.block import Block, BlockHeader, encode_block

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "block.md"


@pytest.fixture
def documented() -> bytes:
    """The bytes of the worked example."""
    lines = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} )+)", PAGE.read_text(), re.MULTILINE)
    example = b""
    for offset, digits in lines:
        assert int(offset) == len(example)
        example += bytes.fromhex(digits)
    return example


def test_the_worked_example_is_what_the_code_writes(documented):
    block = encode_block(
        [b"apple", b"pear"], [b"red", None], partition=3, producer_id=0x0102030405060708, producer_seq=1
    ).stamped(41, 1_700_000_000_000_000)
    assert block.tobytes() == documented


def test_the_worked_example_is_read(documented):
    columns = Block.parse(documented).columns()
    assert columns.keys() == [b"apple", b"pear"]
    assert columns.values() == [b"red", None]
    assert list(columns.seqs()) == [41, 42]


def test_the_table_of_the_header_gives_the_offsets_of_the_code(documented):
    text = PAGE.read_text().split("## Header")[1].split("| flag |")[0]
    table = [(int(offset), int(nbytes)) for offset, nbytes in re.findall(r"^\| (\d+) \| (\d+) \|", text, re.MULTILINE)]
    header = BlockHeader.unpack(documented)
    fields = [(offset, nbytes) for offset, nbytes in table if offset not in (0, 4, 60, 88)]
    read = [int.from_bytes(documented[offset : offset + nbytes], "little") for offset, nbytes in fields]
    assert read == list(header)
    assert [offset for offset, _ in table[1:]] + [96] == [offset + nbytes for offset, nbytes in table]
