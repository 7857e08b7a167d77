"""The bytes of a stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.publishing import stage_file
from tailrace_server.publishing.stage_file import HEADER_BYTES, BadStage, StagedBlock

FEED, STAGE = b"f" * 16, b"s" * 16


def entries_of(sizes):
    found, offset = [], HEADER_BYTES
    for partition, nbytes in sizes:
        found.append(StagedBlock(partition, 3, offset, nbytes))
        offset += nbytes
    return found, offset


def read_end(data):
    footer = stage_file.decode_footer(data[-stage_file.FOOTER_BYTES :])
    return stage_file.decode_index(data[: -stage_file.FOOTER_BYTES], footer)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(97, 5_000)), max_size=8))
def test_index_and_footer_come_back(sizes):
    entries, end = entries_of(sizes)
    data = stage_file.encode_end(entries, end, 12_345, 67)
    index, footer = data[: -stage_file.FOOTER_BYTES], stage_file.decode_footer(data[-stage_file.FOOTER_BYTES :])
    assert footer == (len(entries), 3 * len(entries), end, stage_file.sum_of(index), 12_345, 67)
    assert stage_file.decode_index(index, footer) == entries
    wanted = {}
    for entry in entries:
        wanted.setdefault(entry.partition, []).append(entry)
    assert stage_file.by_partition(entries) == wanted


def test_the_header_comes_back():
    assert stage_file.decode_header(stage_file.encode_header(FEED, STAGE)) == (FEED, STAGE)


def test_a_changed_bit_is_found():
    entries, end = entries_of([(0, 100), (1, 200)])
    data = stage_file.encode_end(entries, end, 12_345, 67)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(BadStage):
            read_end(bytes(changed))
    header = stage_file.encode_header(FEED, STAGE)
    for place in range(len(header)):
        changed = bytearray(header)
        changed[place] ^= 1
        with pytest.raises(BadStage):
            stage_file.decode_header(bytes(changed))


def test_another_version_is_refused_by_name():
    header = bytearray(stage_file.encode_header(FEED, STAGE))
    header[4] = 2
    header[56:] = stage_file.sum_of(bytes(header[:56])).to_bytes(8, "little")
    with pytest.raises(BadStage, match="has version 2, known is 1"):
        stage_file.decode_header(bytes(header))
