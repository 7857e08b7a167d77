"""The rows that are due: none early, none forgotten, against plain Python."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import Stamps, encode_block
from tailrace.block.header import TIMESTAMP_MAX, TTL_S_MAX
from tailrace.model.hashing import key_hash
from tailrace_server.blocks.expiring import expiring_rows, first_look_us, tombstones_of
from tailrace_server.state.expiries import LATE_PARTS, LATE_US_MAX, NEVER_US

rows = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 10**9), st.booleans(), st.sampled_from([0, 0, 1, 5, 900, TTL_S_MAX])),
    min_size=1,
    max_size=50,
)


def made(rows):
    """The block of rows, and (key, seq, timestamp, ttl in microseconds or None) of each."""
    seq, stamp, seqs, stamps = 0, 10**15, [], []
    for gap, later, _, _ in rows:
        seq, stamp = seq + gap, stamp + later
        seqs.append(seq)
        stamps.append(stamp)
    keys = [b"%d" % seq for seq in seqs]
    values = [b"v" if is_put else None for _, _, is_put, _ in rows]
    ttls = [ttl if is_put else min(ttl, 1) for _, _, is_put, ttl in rows]
    block = encode_block(keys, values, partition=0, stamps=Stamps(seqs, stamps), ttls=ttls)
    return block, list(
        zip(keys, seqs, stamps, [t if v else -1 for t, v in zip(ttls, values, strict=True)], strict=True)
    )


def named(due):
    """Key, hash and seq of each row."""
    data, ends = due.key_data.tobytes(), due.key_offsets.tolist()
    keys = [data[begin:end] for begin, end in pairwise(ends)]
    return list(zip(keys, due.hashes.tolist(), due.seqs.tolist(), strict=True))


@given(
    rows,
    st.integers(-1, 10**11),
    st.sampled_from([None, 1_000_000, 70_000_000]),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_exactly_the_due_rows_are_found(rows, passed, default_us, first, length):
    block, known = made(rows)
    now = 10**15 + passed
    due, looks = [], []
    for key, seq, stamp, ttl in known:
        ttl_us = ttl * 1_000_000 if ttl > 0 else default_us
        if ttl < 0 or ttl_us is None or not first <= seq <= first + length:
            continue
        if stamp + ttl_us <= now:
            due.append((key, key_hash(key), seq))
        else:
            looks.append(stamp + ttl_us + min(ttl_us // LATE_PARTS, LATE_US_MAX))
    found = expiring_rows(block, first, first + length, now, default_us, 1_000)
    assert (named(found.due), *found[1:]) == (due, min(looks, default=NEVER_US), 0)
    few = expiring_rows(block, first, first + length, now, default_us, 2)
    assert named(few.due) == due[:2]
    assert few.rest_seq == (due[2][2] if len(due) > 2 else 0)
    assert few.look_us == found.look_us


@given(rows, st.sampled_from([None, 1_000_000]))
def test_no_row_is_due_before_the_first_look_without_its_share(rows, default_us):
    block, _ = made(rows)
    look = first_look_us(block, default_us)
    if look == NEVER_US:
        assert not expiring_rows(block, 0, 1_000, NEVER_US - 1, default_us, 1_000).due.rows
    else:
        assert expiring_rows(block, 0, 1_000, look, default_us, 1_000).due.rows


def test_a_stamp_at_the_end_of_time_does_not_overflow():
    block = encode_block([b"a"], [b"1"], partition=0, ttls=[TTL_S_MAX]).stamped(1, TIMESTAMP_MAX)
    assert expiring_rows(block, 1, 1, 10**15, None, 9)[1:] == (NEVER_US - 1, 0)


@given(rows)
def test_the_block_of_tombstones_deletes_each_due_key_as_an_expiry(rows):
    block, known = made(rows)
    due = expiring_rows(block, 0, 1_000, NEVER_US - 1, 1_000_000, 1_000).due
    keys = [key for key, _, _, ttl in known if ttl >= 0]
    if not keys:
        assert not due.rows
        return
    columns = tombstones_of(due, 3).stamped(7, 10**15).open_columns()
    assert columns.header.partition == 3
    assert columns.keys() == keys
    assert columns.values() == [None] * len(keys)
    assert all(columns.expired())
