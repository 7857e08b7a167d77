"""Blocks whose checksums are right and whose contents are not: the only answer is BadBlock, or columns that hold."""

from __future__ import annotations

import struct

import lz4.block
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.block import (
    BODY_BYTES_MAX,
    FLAG_COMPRESSED,
    FLAG_SEQS,
    FLAG_TIMESTAMPS,
    FLAG_TOMBSTONES,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Block,
    encode_block,
)
from tailrace.block.check import check_plainly, check_with_numpy
from tailrace.block.encode import Stamps
from tailrace.block.layout import read_layout
from tailrace.block.lazy import numpy_or_none
from tailrace.errors import BadBlock

HYPOTHESIS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=examples(300)
)

# Two rows, with everything: hashes 0, seqs 16, timestamps 32, key offsets 48, keys 64, validity 72, value offsets 80,
# values 96.
FULL = encode_block([b"ab", b"c"], [b"xyz", None], partition=1, hashes=[7, 3], stamps=Stamps([5, 9], [10, 20]))
# The same rows as a producer sends them: hashes 0, key offsets 16, keys 32, validity 40, value offsets 48, values 64.
SENT = encode_block([b"ab", b"c"], [b"xyz", None], partition=1, hashes=[7, 3])
LONG = encode_block(
    [b"key %03d" % i for i in range(100)],
    [None if i % 7 == 0 else b"v" * i for i in range(100)],
    partition=1,
    compress=False,
)


def accept(data: bytes) -> Block:
    """Takes a block as a reader does, columns included."""
    block = Block.parse(data)
    block.columns()
    return block


def assert_sound(block: Block) -> None:
    """What every accepted block has to offer, by each accessor."""
    columns, header = block.columns(), block.header
    keys, values, hashes = columns.keys(), columns.values(), columns.hashes()
    assert len(keys) == len(values) == len(columns.seqs()) == len(columns.timestamps()) == len(hashes) == header.rows
    assert b"".join(keys) == columns.key_data.tobytes()
    assert b"".join(value for value in values if value is not None) == columns.value_data.tobytes()
    assert all(1 <= len(key) <= KEY_BYTES_MAX for key in keys)
    assert all(value is None or len(value) <= VALUE_BYTES_MAX for value in values)
    assert (min(hashes), max(hashes)) == (header.least_hash, header.greatest_hash)
    assert (None in values) == bool(header.flags & FLAG_TOMBSTONES)
    batch = columns.to_arrow()
    batch.validate(full=True)
    assert batch["key"].to_pylist() == keys
    assert batch["value"].to_pylist() == values


@pytest.mark.parametrize("rows_before", [0, 60], ids=["plainly", "by numpy"])
@pytest.mark.parametrize(
    ("offset", "what", "message"),
    [
        (0, struct.pack("<Q", 8), "key hashes lie between"),
        (8, struct.pack("<Q", 2), "key hashes lie between"),
        (8, struct.pack("<Q", 4), "key hashes lie between"),
        (16, struct.pack("<Q", 4), "the header says"),
        (16, struct.pack("<Q", 6), "the header says"),
        (24, struct.pack("<Q", 8), "the header says"),
        (32, struct.pack("<Q", 21), "timestamps go backwards"),
        (40, struct.pack("<Q", 21), "timestamp is 21"),
        (48, struct.pack("<I", 1), "key offsets begin at 1"),
        (52, struct.pack("<I", 0), "key offsets make keys"),
        (52, struct.pack("<I", 3), "key offsets make keys"),
        (52, struct.pack("<I", 4), "key offsets make keys"),
        (52, struct.pack("<I", 0xFFFFFFFF), "key offsets make keys"),
        (56, struct.pack("<I", 9), "padding|would end|bitmap|offsets"),
        (56, struct.pack("<I", 0xFFFFFFFF), "the keys would end"),
        (60, b"\1", "padding before the keys"),
        (67, b"\1", "padding before the validity bitmap"),
        (72, b"\3", "has none"),
        (72, b"\5", "beyond the last row"),
        (72, b"\2", "tombstone's value has bytes"),
        (73, b"\1", "padding before the value offsets"),
        (80, struct.pack("<I", 1), "value offsets begin at 1"),
        (84, struct.pack("<I", 4), "value offsets make a value"),
        (84, struct.pack("<I", 0xFFFFFFFF), "value offsets make a value"),
        (84, struct.pack("<I", 2), "tombstone's value has bytes"),
        (88, struct.pack("<I", 2), "values end at byte 98 of the body, which has 99"),
        (88, struct.pack("<I", 4), "values would end at byte 100"),
        (92, b"\1", "padding before the values"),
    ],
)
def test_each_rule_is_enforced(forge, monkeypatch, rows_before, offset, what, message):
    if rows_before:
        monkeypatch.setattr("tailrace.block.check.PLAIN_ROWS_MAX", 0)
    body = bytearray(FULL.body)
    assert body[offset : offset + len(what)] != what
    body[offset : offset + len(what)] = what
    with pytest.raises(BadBlock, match=message):
        accept(forge(FULL, bytes(body)))


def test_seqs_that_fall_inside_are_refused(forge):
    block = encode_block([b"a", b"b", b"c"], [b""] * 3, partition=1, stamps=Stamps([5, 6, 20], [1, 1, 1]))
    for middle in (5, 4, 20, 21):
        body = bytearray(block.body)
        body[32:40] = struct.pack("<Q", middle)
        with pytest.raises(BadBlock, match="do not rise"):
            accept(forge(block, bytes(body)))


@pytest.mark.parametrize("block", [FULL, SENT, LONG], ids=["full", "sent", "long"])
def test_bytes_too_few_or_too_many_are_refused(forge, block):
    body = bytes(block.body)
    for length in range(max(0, len(body) - 120), len(body)):
        with pytest.raises(BadBlock):
            accept(forge(block, body[:length]))
    for garbage in (b"\0", b"\0" * 8, b"garbage"):
        with pytest.raises(BadBlock, match="values end"):
            accept(forge(block, body + garbage))
    with pytest.raises(BadBlock):
        accept(forge(block, b""))


@pytest.mark.parametrize("flags", range(0, 16, 2))
def test_flags_that_do_not_fit_the_body_are_refused(forge, flags):
    for block in (FULL, SENT):
        if flags != block.header.flags:
            with pytest.raises(BadBlock):
                accept(forge(block, flags=flags))


@pytest.mark.parametrize("rows", [1, 3, 4, 1000, 65_536])
def test_another_count_of_rows_is_refused(forge, rows):
    with pytest.raises(BadBlock):
        accept(forge(SENT, rows=rows))
    with pytest.raises(BadBlock):
        accept(forge(LONG, rows=rows))


def test_a_key_over_its_bound_is_refused(forge, installed):
    for rows in (1, 50):
        keys, values = [b"k" * KEY_BYTES_MAX] * rows, [b"v"] * rows
        body = bytes(encode_block(keys, values, partition=1, hashes=[1] * rows, compress=False).body)
        accept(forge(encode_block(keys, values, partition=1, hashes=[1] * rows, compress=False)))
        start = 8 * rows
        offsets = list(struct.unpack_from(f"<{rows + 1}I", body, start))
        longer = struct.pack(f"<{rows + 1}I", *offsets[:-1], offsets[-1] + 8)
        padding = bytes(-len(longer) % 8)
        forged = (
            body[:start]
            + longer
            + padding
            + b"k" * (offsets[-1] + 8)
            + body[start + len(longer + padding) + offsets[-1] :]
        )
        with pytest.raises(BadBlock, match="1 to 4096 bytes"):
            accept(forge(encode_block(keys, values, partition=1, hashes=[1] * rows, compress=False), forged))


def test_a_value_over_its_bound_is_refused(forge, installed):
    block = encode_block([b"a", b"b"], [bytes(VALUE_BYTES_MAX), b"1"], partition=1, hashes=[1, 1], compress=False)
    accept(forge(block))
    body = bytearray(block.body)
    start = 16 + 16 + 8  # hashes; key offsets; keys and their padding
    assert struct.unpack_from("<3I", body, start) == (0, VALUE_BYTES_MAX, VALUE_BYTES_MAX + 1)
    struct.pack_into("<I", body, start + 4, VALUE_BYTES_MAX + 1)
    with pytest.raises(BadBlock, match="value offsets"):
        accept(forge(block, bytes(body)))


def test_value_offsets_that_go_around_are_refused(forge, installed):
    rows = 301  # each step is permitted, and after 256 of them 32-bit offsets are at 0 again
    block = encode_block([b"k"] * rows, [b""] * rows, partition=1, hashes=[1] * rows, compress=False)
    body = bytearray(block.body)
    assert not any(body[-4 * (rows + 1) :])  # they end the body: no padding, no values
    offsets = [row * VALUE_BYTES_MAX % 2**32 for row in range(257)] + [0] * (rows - 256)
    body[-len(offsets) * 4 :] = struct.pack(f"<{len(offsets)}I", *offsets)
    with pytest.raises(BadBlock, match="go backwards"):
        accept(forge(block, bytes(body)))


def test_lz4_that_says_another_length_is_refused(forge):
    raw = bytes(LONG.body)
    packed = lz4.block.compress(raw, store_size=False)
    assert accept(forge(LONG, packed, flags=FLAG_COMPRESSED | FLAG_TOMBSTONES, raw_bytes=len(raw))) is not None
    for wrong in (len(packed) + 1, len(raw) - 1, len(raw) + 1, len(raw) + 8):
        with pytest.raises(BadBlock, match=r"lz4|decompresses"):
            accept(forge(LONG, packed, flags=FLAG_COMPRESSED | FLAG_TOMBSTONES, raw_bytes=wrong))


def test_lz4_bombs_are_refused(forge):
    bomb = lz4.block.compress(bytes(BODY_BYTES_MAX + 1_000_000), store_size=False)
    for raw_bytes in (len(bomb) + 1, 1_000_000, BODY_BYTES_MAX):
        with pytest.raises(BadBlock):
            accept(forge(LONG, bomb, flags=FLAG_COMPRESSED, raw_bytes=raw_bytes))
    with pytest.raises(BadBlock, match="cannot hold"):
        accept(forge(LONG, b"tiny", flags=FLAG_COMPRESSED, raw_bytes=BODY_BYTES_MAX))


def test_zeros_that_decompress_are_still_checked(forge):
    zeros = lz4.block.compress(bytes(100_000), store_size=False)
    with pytest.raises(BadBlock):
        accept(forge(LONG, zeros, flags=FLAG_COMPRESSED, raw_bytes=100_000))


@HYPOTHESIS
@given(noise=st.binary(max_size=400), raw_bytes=st.integers(256, 20_000))
def test_noise_for_lz4_is_refused(forge, noise, raw_bytes):
    with pytest.raises(BadBlock):
        accept(forge(LONG, noise, flags=FLAG_COMPRESSED | FLAG_TOMBSTONES, raw_bytes=raw_bytes))


@HYPOTHESIS
@given(noise=st.binary(max_size=200))
def test_noise_is_refused(noise):
    with pytest.raises(BadBlock):
        accept(noise)


@HYPOTHESIS
@given(
    block=st.sampled_from([FULL, SENT]),
    body=st.binary(max_size=200),
    flags=st.integers(0, 15),
    rows=st.integers(0, 70),
    stamp=st.tuples(st.integers(0, 100), st.integers(0, 100)),
)
def test_noise_under_right_checksums_is_refused(forge, block, body, flags, rows, stamp):
    data = forge(block, body, flags=flags, rows=rows, first_seq=stamp[0], last_seq=stamp[1], raw_bytes=len(body))
    with pytest.raises(BadBlock):
        accept(data)


@HYPOTHESIS
@given(data=st.data())
def test_changed_bodies_are_refused_or_sound(forge, data, row_lists, encode_rows):
    block = encode_rows(data.draw(row_lists), compress=False)
    if data.draw(st.booleans()):
        seqs = [2 * row + 1 for row in range(block.rows)]
        block = encode_rows(
            list(zip(block.columns().keys(), block.columns().values(), strict=True)),
            compress=False,
            stamps=Stamps(seqs, seqs),
        )
    body = bytearray(block.body)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place] = data.draw(st.sampled_from([0, 1, 255, body[place] ^ 1]) | st.integers(0, 255))
    try:
        changed = accept(forge(block, bytes(body)))
    except BadBlock:
        return
    assert_sound(changed)


@HYPOTHESIS
@given(data=st.data())
def test_both_checks_say_the_same(forge, data, row_lists, encode_rows):
    numpy = pytest.importorskip("numpy")
    assert numpy_or_none() is numpy
    block = encode_rows(data.draw(row_lists), compress=False)
    body = bytearray(block.body)
    for _ in range(data.draw(st.integers(0, 3))):
        place = 4 * data.draw(st.integers(0, len(body) // 4 - 1))
        (number,) = struct.unpack_from("<I", body, place)
        change = data.draw(st.sampled_from([-1, 1, 5000, 2**31]) | st.integers(0, 2**32 - 1))
        struct.pack_into("<I", body, place, (number + change) % 2**32)
    raw = memoryview(bytes(body))
    answers = []
    try:
        layout = read_layout(block.header, raw)
    except BadBlock:
        return
    for check in (check_plainly, lambda *parts: check_with_numpy(numpy, *parts)):
        try:
            check(block.header, layout, raw)
        except BadBlock as error:
            answers.append(str(error))
        else:
            answers.append("sound")
    assert answers[0] == answers[1]


def test_a_bad_block_stays_bad(forge):
    body = bytearray(SENT.body)
    body[0] ^= 1
    block = Block.parse(forge(SENT, bytes(body)))
    for _ in range(2):
        with pytest.raises(BadBlock):
            block.columns()
    with pytest.raises(BadBlock):
        block.stamped(1, 1).columns()
    assert FULL.header.flags == FLAG_SEQS | FLAG_TIMESTAMPS | FLAG_TOMBSTONES
