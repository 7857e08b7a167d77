"""Rows of one partition as lists, blocks of them, and a strategy that makes such rows."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from tailrace.block import Stamps, encode_block

Row = tuple[bytes, bytes | None, int, int]  # key, value, seq, timestamp


@st.composite
def histories(draw, rows_max=60):
    """Rows of one partition in seq order, with gaps or without; values and keys of any lengths, or of one."""
    strings = draw(st.sampled_from([st.binary(max_size=12), st.binary(min_size=4, max_size=4), st.just(b"")]))
    keys = draw(st.sampled_from([st.binary(min_size=1, max_size=8), st.binary(min_size=8, max_size=8)]))
    values = draw(st.sampled_from([strings, strings | st.none(), st.none()]))
    steps = draw(st.sampled_from([st.just(1), st.integers(1, 5)]))
    ticks = draw(st.sampled_from([st.just(0), st.integers(0, 3)]))
    rows, seq, timestamp = [], 0, 1000
    for _ in range(draw(st.integers(1, rows_max))):
        seq, timestamp = seq + draw(steps), timestamp + draw(ticks)
        rows.append((draw(keys), draw(values), seq, timestamp))
    return rows


def block_of(rows: list[Row], *, compress: bool = True, partition: int = 3):
    """A block of rows that have their seqs and timestamps."""
    keys, values, seqs, timestamps = zip(*rows, strict=True)
    stamps = Stamps(seqs, timestamps)
    return encode_block(keys, values, partition=partition, stamps=stamps, compress=compress)


def rows_of(*blocks) -> list[Row]:
    """All rows of blocks."""
    rows = []
    for block in blocks:
        columns = block.open_columns()
        rows += zip(columns.keys(), columns.values(), columns.seqs(), columns.timestamps(), strict=True)
    return rows


def split(rows: list[Row], cuts: list[int]) -> list[list[Row]]:
    """Cuts a list into neighbouring parts, none of them empty."""
    borders = [0, *sorted({cut % len(rows) for cut in cuts} - {0}), len(rows)]
    return [rows[start:stop] for start, stop in itertools.pairwise(borders)]
