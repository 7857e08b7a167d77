"""The payload of PUBLISHED."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.publishing.blocks import stamped

from tailrace.errors import BadBlock
from tailrace_server.journal import published_record as record
from tailrace_server.journal.published_record import decode_published, encode_published
from tailrace_server.state.last_batches import LastBatch

SINKS = {"job": LastBatch(7, "query", 6, 5)}


def payload_of(sinks, blocks):
    covered, bodies = encode_published(sinks, blocks)
    return b"".join((covered, *bodies)), len(covered)


@given(st.lists(st.integers(1, 5), max_size=6), st.dictionaries(st.sampled_from("ab"), st.just(LastBatch(1, "o", 2))))
def test_it_comes_back(sizes, sinks):
    blocks, seq = [], 0
    for rows in sizes:
        blocks.append(stamped(seq + 1, rows))
        seq += rows
    found = decode_published(*payload_of(sinks, blocks))
    assert found == (sinks, tuple(blocks))


def test_many_bodies_are_joined(monkeypatch):
    monkeypatch.setattr(record, "BUFFERS_MAX", 2)
    blocks = [stamped(1), stamped(3), stamped(5)]
    covered, bodies = encode_published(SINKS, blocks)
    assert len(bodies) == 1
    assert decode_published(b"".join((covered, *bodies)), len(covered)) == (SINKS, tuple(blocks))


def test_a_changed_bit_is_found():
    payload, covered = payload_of(SINKS, [stamped(1), stamped(3)])
    for place in range(covered - 2 * 96, len(payload)):  # what is before has the record's checksum, as these have too
        changed = bytearray(payload)
        changed[place] ^= 4
        with pytest.raises(BadBlock):
            decode_published(bytes(changed), covered)


def test_a_payload_that_is_cut_is_refused():
    payload, covered = payload_of(SINKS, [stamped(1), stamped(3)])
    for end in range(len(payload)):
        with pytest.raises(BadBlock):
            decode_published(payload[:end], covered)
    with pytest.raises(BadBlock, match="1 bytes follow the published blocks"):
        decode_published(payload + b"x", covered)


def test_seqs_have_to_be_contiguous():
    with pytest.raises(BadBlock, match="seq 4 was published right behind 2"):
        decode_published(*payload_of(SINKS, [stamped(1), stamped(4)]))
