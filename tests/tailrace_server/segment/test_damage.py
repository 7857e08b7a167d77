"""Every bit of a segment that flips is found by verify, and never gives a wrong answer."""

from __future__ import annotations

import contextlib
import os
from unittest import mock

import numpy as np
import pytest

from tailrace.block import Block
from tailrace.block.header import sum_of
from tailrace.model.hashing import key_hash
from tailrace.segment import key_table
from tailrace.segment.format import Trailer
from tailrace.segment.page import PAGE_BYTES, pack_pages
from tailrace_server.segment import Segment, SegmentDamaged
from tailrace_server.segment.verify import PROBLEMS_MAX

KEYS = [b"a", b"b", b"cc", b"missing"]


@pytest.fixture
def blocks(block_of):
    return [
        block_of([(b"a", b"1", 1, 10), (b"b", b"2", 2, 10), (b"a", b"3", 3, 10)]),
        block_of([(b"cc", b"v" * 300, 5, 11), (b"b", None, 7, 12)]),
    ]


@pytest.fixture
def answers(one_file, written, blocks):
    """What a good segment says."""
    return asked(Segment.open(one_file(written(blocks)), "a.seg"))


def asked(segment):
    """Every question with its answer; SegmentDamaged in the place of an answer."""
    questions = {key: lambda key=key: segment.find(key, key_hash(key)) for key in KEYS}
    questions |= {number: lambda number=number: segment.read_blocks(number, 10_000) for number in range(2)}
    return {question: attempt(ask) for question, ask in questions.items()}


def attempt(ask):
    try:
        return ask()
    except SegmentDamaged:
        return SegmentDamaged


def check_flip(disk, place, bit, answers):
    """Opened before the bit flips, and opened after it."""
    before = Segment.open(disk, "a.seg")
    disk.data[place] ^= 1 << bit
    try:
        segments = [before]
        with contextlib.suppress(SegmentDamaged):
            segments.append(Segment.open(disk, "a.seg"))
        for segment in segments:
            for question, answer in asked(segment).items():
                assert answer in (SegmentDamaged, answers[question]), f"{question} after bit {bit} of byte {place}"
        assert segments[-1].verify() != [], f"bit {bit} of byte {place}"
    finally:
        disk.data[place] ^= 1 << bit


@pytest.mark.usefixtures("small_pages")
class TestSmallPages:
    @pytest.mark.slow
    def test_a_bit_of_every_byte_that_flips(self, one_file, written, blocks, answers):
        disk = one_file(written(blocks))
        for place in range(len(disk.data)):
            check_flip(disk, place, place % 8, answers)
        assert Segment.open(disk, "a.seg").verify() == []

    @pytest.mark.slow
    def test_every_bit_that_flips(self, one_file, written, blocks, answers):
        disk = one_file(written(blocks))
        for place in range(len(disk.data)):
            for bit in range(8):
                check_flip(disk, place, bit, answers)

    def test_every_byte_that_cannot_be_read(self, one_file, written, blocks, answers):
        disk = one_file(written(blocks))
        opened = Segment.open(disk, "a.seg")
        for place in range(len(disk.data)):
            disk.bad = {place}
            for question, answer in asked(opened).items():
                assert answer in (SegmentDamaged, answers[question])
            problems = opened.verify()
            assert any(f"the disk can't read it: {os.strerror(5)}" in problem.why for problem in problems)

    def test_every_length_that_it_is_cut_to(self, one_file, written, blocks, answers):
        disk = one_file(written(blocks))
        opened = Segment.open(disk, "a.seg")
        while disk.data:
            disk.data.pop()
            for question, answer in asked(opened).items():
                assert answer in (SegmentDamaged, answers[question])
            assert opened.verify() != []


def test_bits_that_flip_with_pages_of_full_size(one_file, written, blocks, answers):
    disk = one_file(written(blocks))
    for place in range(0, len(disk.data), 37):
        check_flip(disk, place, place % 8, answers)


def test_damage_is_named_by_its_place(one_file, written, blocks):
    disk = one_file(written(blocks))
    segment = Segment.open(disk, "a.seg")
    second = 64 + blocks[0].nbytes
    disk.data[second + 100] ^= 1
    with pytest.raises(SegmentDamaged, match=f"the segment a.seg is damaged at offset {second}: the body's checksum"):
        segment.read_blocks(0, 10_000)
    assert segment.read_blocks(0, 0)[0] == blocks[:1]
    [block, file] = segment.verify()
    assert (block.offset, block.why[:9], file.offset) == (second, "block 1: ", 0)
    disk.data[second + 100] ^= 1
    disk.data[second + blocks[1].nbytes] = 1
    [padding, file] = segment.verify()
    assert padding.offset == second + blocks[1].nbytes


def test_problems_are_bounded(one_file, written, block_of):
    blocks = [block_of([(b"a", b"1", seq, 1)]) for seq in range(1, PROBLEMS_MAX + 20)]
    disk = one_file(written(blocks))
    segment = Segment.open(disk, "a.seg")
    for number in range(len(blocks)):
        disk.data[64 + number * blocks[0].nbytes + 50] ^= 1
    assert len(segment.verify()) == PROBLEMS_MAX


class TestWrittenWrong:
    """Files whose checksums are right, and whose parts contradict each other."""

    def problems(self, one_file, data):
        return [problem.why for problem in Segment.open(one_file(data), "a.seg").verify()]

    def test_rows_in_the_wrong_order(self, one_file, written, block_of):
        blocks = [block_of([(b"a", b"1", 1, 1), (b"a", b"2", 2, 1)])]
        with mock.patch.object(key_table, "build", lambda hashes: [pack_pages(0, hashes[0], np.array([1, 0], "u4"))]):
            data = written(blocks)
        assert self.problems(one_file, data) == ["the entries of page 0 of the key table do not rise"]

    def test_a_row_that_is_not_there(self, one_file, written, block_of):
        blocks = [block_of([(b"a", b"1", 1, 1)])]
        with mock.patch.object(key_table, "build", lambda hashes: [pack_pages(0, hashes[0], np.array([7], "u4"))]):
            data = written(blocks)
        assert self.problems(one_file, data) == ["page 0 of the key table names row 7 of 1"]
        with pytest.raises(SegmentDamaged, match="the key table names row 7, there are 1"):
            Segment.open(one_file(data), "a.seg").find(b"a", key_hash(b"a"))

    def test_hashes_of_other_rows(self, one_file, written, blocks):
        made = key_table.build
        with mock.patch.object(key_table, "build", lambda hashes: made([column + np.uint64(1) for column in hashes])):
            data = written(blocks)
        [why] = self.problems(one_file, data)
        assert why.startswith("page 0 of the key table gives row ")
        segment = Segment.open(one_file(data), "a.seg")
        middle = sorted(KEYS[:3], key=key_hash)[1]
        with pytest.raises(SegmentDamaged, match="does not have the hash that the key table says"):
            segment.find(middle, key_hash(middle) + 1)

    def test_counts_that_are_wrong(self, one_file, written, blocks):
        with mock.patch("tailrace_server.segment.totals.RowTotals.fill", fill_wrongly):
            data = written(blocks)
        assert self.problems(one_file, data) == [
            "the identity's tombstones is 2, the rows have 1",
            "the identity's key_value_bytes is 0, the rows have 309",
        ]

    def test_bounds_of_the_hashes_that_are_wrong(self, one_file, written, blocks):
        with mock.patch(
            "tailrace_server.segment.writer.Trailer", lambda **fields: Trailer(**fields | {"least_hash": 0})
        ):
            data = written(blocks)
        assert self.problems(one_file, data) == ["the trailer's least and greatest hash are not those of the rows"]

    def test_a_compressed_body_that_is_none(self, one_file, written, block_of):
        good = block_of([(b"a", b"v" * 500, 1, 1)])
        body = b"\xff" * len(good.body)
        header = good.header._replace(body_sum=sum_of(body))
        with mock.patch("tailrace_server.segment.writer._verified", return_value=good.open_columns()):
            data = written([Block(header, header.pack(), body)])
        assert "lz4" in self.problems(one_file, data)[0]
        with pytest.raises(SegmentDamaged, match="damaged at offset 64: the body is no lz4"):
            Segment.open(one_file(data), "a.seg").find(b"a", key_hash(b"a"))

    def test_a_key_table_of_another_length_or_place(self, one_file, written, blocks):
        made = key_table.build
        with (
            mock.patch.object(key_table, "build", lambda hashes: [*made(hashes), *made(hashes)]),
            mock.patch("tailrace_server.segment.writer.pages_of", return_value=2),
        ):
            data = written(blocks)
        with pytest.raises(SegmentDamaged, match="the key table has 2 pages, which is wrong for 5 rows"):
            Segment.open(one_file(data), "a.seg")
        with mock.patch("tailrace_server.segment.writer.table_begin", return_value=2 * PAGE_BYTES):
            data = written(blocks)
        with pytest.raises(SegmentDamaged, match="the blocks end at 405, the key table can't begin at 8192"):
            Segment.open(one_file(data), "a.seg")


def fill_wrongly(totals, identity):
    if not totals.rows:
        return identity
    return identity._replace(rows=5, tombstones=2, oldest_timestamp=10, newest_timestamp=12)
