"""The rows of a chain of segments against a plain model: a list, and a dict of keys."""

from __future__ import annotations

import itertools
import tempfile
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace.copies.copied import FEED_ID, LOG, Row, Run, newest, rows_of, write_partition
from tests.tiers import examples

from tailrace.block import Block
from tailrace.block.header import sum_of
from tailrace.copies.chain import CopiedChain
from tailrace.copies.copy_file import CopyFile
from tailrace.errors import BadCopy
from tailrace.model.hashing import key_hash

KEYS = st.sampled_from([b"a", b"b", b"c", b"dd", b"ee", b"f" * 300, b"g" * 300]) | st.binary(min_size=1, max_size=3)
VALUES = st.none() | st.binary(max_size=12) | st.just(b"v" * 700)
# Hashes as they are, some equal, all equal: the word of a producer, which counts for nothing.
HASHES = st.sampled_from([None, lambda key: 7, lambda key: key[0] % 2, lambda key: len(key) << 50])


@st.composite
def chains(draw):
    """Runs that follow each other; each has some rows in some blocks, and gaps where rows are missing."""
    runs, seq, timestamp = [], draw(st.integers(0, 3)), 1000
    for _ in range(draw(st.integers(0, 4))):
        after_seq, blocks = seq, []
        for _ in range(draw(st.integers(0, 3))):
            rows = []
            for key, value in draw(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)):
                seq, timestamp = seq + draw(st.integers(1, 3)), timestamp + draw(st.integers(0, 2))
                rows.append(Row(key, value, seq, timestamp))
            blocks.append(rows)
        seq += draw(st.integers(0 if blocks else 1, 2))
        runs.append(Run(after_seq, seq, blocks))
    return runs


def opened(directory, runs, **options):
    copy = write_partition(directory, 3, runs, **options)
    return CopiedChain(f"{directory}/3", FEED_ID, copy, "`tailrace fetch orders DIR`")


def rows_in(mutations):
    return [Row(m.key, m.value, m.seq, m.timestamp) for event in mutations for m in event]


def rows_of_arrays(pieces):
    rows = []
    for piece in pieces:
        keys = [piece.key_data[a:b].tobytes() for a, b in itertools.pairwise(piece.key_offsets.tolist())]
        values = [piece.value_data[a:b].tobytes() for a, b in itertools.pairwise(piece.value_offsets.tolist())]
        valid = [True] * piece.rows if piece.valid is None else piece.valid.tolist()
        values = [value if there else None for value, there in zip(values, valid, strict=True)]
        rows += map(Row, keys, values, piece.seqs.tolist(), piece.timestamps.tolist())
    return rows


@settings(deadline=None, max_examples=examples(120))
@given(chains(), st.integers(0, 40), st.integers(0, 40) | st.just(2**63 - 1), st.booleans(), st.booleans(), HASHES)
def test_the_rows_of_a_range_all_of_them_or_the_newest(runs, first_seq, last_seq, latest, compress, hash_of):
    rows = [row for run in runs for row in rows_of(run)]
    expected = [row for row in (newest(rows) if latest else rows) if first_seq <= row.seq <= last_seq]
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.multiple("tailrace.segment.rows", READ_BYTES=400, RAW_BYTES=1_500),
        mock.patch("tailrace.segment.newest.HASHES_MAX", 5),
        opened(directory, runs, compress=compress, hash_of=hash_of) as chain,
    ):
        assert rows_in(chain.mutations(first_seq, last_seq, latest=latest)) == expected
        assert rows_of_arrays(chain.arrays(first_seq, last_seq, latest=latest)) == expected
        events = list(chain.mutations(first_seq, last_seq, latest=latest))
        assert [(len(event), event.first_seq, event.last_seq) for event in events] == [
            (len(rows_), rows_[0].seq, rows_[-1].seq) for rows_ in ([*event] for event in events)
        ]
        assert all(event.partition == 3 for event in events)


@settings(deadline=None, max_examples=examples(60))
@given(chains(), KEYS)
def test_a_key_is_found_with_its_newest_row(runs, key):
    latest = {row.key: row for run in runs for row in rows_of(run)}
    with tempfile.TemporaryDirectory() as directory, opened(directory, runs) as chain:
        for wanted in {key, *latest}:
            found, row = chain.find(wanted, key_hash(wanted)), latest.get(wanted)
            assert found == (None if row is None else (row.seq, row.timestamp, row.value))


def test_events_know_the_branch_of_their_last_seq(tmp_path):
    runs = [Run(0, 12, [[Row(b"a", b"1", seq, 5)] for seq in (8, 9, 10)])]
    with opened(tmp_path, runs) as chain:
        found = {event.last_seq: event.branch for event in chain.mutations(1, 99, latest=False)}
    assert found == {8: LOG[1].branch, 9: LOG[1].branch, 10: LOG[0].branch}


def test_whole_blocks_are_not_copied(tmp_path):
    runs = [Run(0, 4, [[Row(b"a", b"1", 1, 5), Row(b"b", b"1", 2, 5)], [Row(b"a", b"2", 3, 5), Row(b"c", b"2", 4, 5)]])]
    with opened(tmp_path, runs) as chain:
        first, second = chain.mutations(1, 99, latest=True)
        unread = next(chain.mutations(1, 99, latest=False)).block
    assert [m.key for m in first] == [b"b"]
    assert isinstance(second.block.body, memoryview), "a view of the bytes that were read"
    assert isinstance(unread.body, memoryview)


def test_a_chain_is_read_from_the_block_of_its_first_seq_on(tmp_path):
    runs = [Run(0, 400, [[Row(b"%d" % seq, b"v" * 100, seq, 5)] for seq in range(1, 401)])]
    offsets, real = [], CopyFile.read

    def read(file, offset, nbytes):
        offsets.append(offset)
        return real(file, offset, nbytes)

    with opened(tmp_path, runs) as chain, mock.patch.object(CopyFile, "read", read):
        assert len(rows_in(chain.mutations(390, 500, latest=True))) == 11
    assert min(offsets) > 389 * 100


def test_rows_that_break_their_format_under_good_checksums_are_named(tmp_path):
    runs = [Run(0, 2, [[Row(b"aa", b"1", 1, 5), Row(b"bb", b"2", 2, 5)]])]
    with opened(tmp_path, runs, compress=False) as chain:
        [segment] = chain._segments
        good = segment.read_block(0)
        body = bytearray(good.body)
        body[8 * good.rows + 4 : 8 * good.rows + 8] = b"\xff" * 4
        header = good.header._replace(body_sum=sum_of(bytes(body)))
        bad = Block(header, header.pack(), bytes(body))
        with mock.patch.object(segment, "read_blocks", return_value=([bad], 1)):
            for read in (chain.mutations, chain.arrays):
                for latest in (False, True):
                    with pytest.raises(BadCopy, match=r"is damaged at offset 64: .*key offsets.*; remove it, and run"):
                        list(read(1, 99, latest=latest))
