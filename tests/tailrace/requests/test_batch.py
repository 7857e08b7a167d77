import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import Delete, Put
from tailrace.block import VALUE_BYTES_MAX
from tailrace.errors import TooLarge
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests.batch import BLOCK_BYTES, ROW_BYTES, Batches, PartitionShare, split

changes = st.lists(
    st.builds(Put, st.binary(min_size=1, max_size=4), st.binary(max_size=30), st.none())
    | st.builds(Delete, st.binary(min_size=1, max_size=4)),
    max_size=40,
)
sizes = st.sampled_from([1, 20, 60, 1 << 20])
counts = st.sampled_from([1, 2, 7, 1000])


def rows_of(ready):
    """Rows by partition, in order."""
    rows = {}
    for batch in ready:
        assert batch.hashes == [key_hash(key) for key in batch.keys]
        rows.setdefault(batch.partition, []).extend(zip(batch.keys, batch.values, strict=True))
    return rows


def expected_rows(changes, partitions):
    rows = {}
    for change in changes:
        value = change.value if isinstance(change, Put) else None
        rows.setdefault(partition_of_hash(key_hash(change.key), partitions), []).append((change.key, value))
    return rows


def check_bounds(ready, last, bytes_max, rows_max):
    for batch in ready:
        sizes = [len(k) + len(v or b"") for k, v in zip(batch.keys, batch.values, strict=True)]
        full = sum(sizes) >= bytes_max or len(sizes) >= rows_max
        assert full or batch in last, "sent before it was full"
        assert sum(sizes[:-1]) < bytes_max, "a row more than needed"
        assert len(sizes) <= rows_max


def take_all(batches):
    return [batches.take(partition) for partition in batches.partitions]


@given(changes, st.sampled_from([1, 4]), sizes, counts)
def test_rows_of_a_partition_stay_in_order(made, partitions, bytes_max, rows_max):
    batches = Batches(partitions, bytes_max, rows_max)
    ready = []
    for change in made:
        full = batches.add(change.key, change.value if isinstance(change, Put) else None)
        if full is not None:
            ready.append(batches.take(full))
    last = take_all(batches)
    assert rows_of(ready + last) == expected_rows(made, partitions)
    check_bounds(ready + last, last, bytes_max, rows_max)
    assert (batches.partitions, batches.nbytes) == ([], 0)


@given(
    st.lists(changes, max_size=4),
    st.sampled_from([1, 4]),
    sizes,
    counts,
    st.sampled_from([0, 50, 500, 1 << 20]),
)
def test_many_rows_at_once_are_as_one_after_the_other(lists, partitions, bytes_max, rows_max, nbytes_max):
    batches = Batches(partitions, bytes_max, rows_max)
    ready = []
    for made in lists:
        for rows in split(made, partitions):
            share = PartitionShare(rows)
            while not share.is_taken:
                before, taken = batches.nbytes, share.taken
                full = batches.extend(share, nbytes_max)
                costs = [len(k) + len(v or b"") + ROW_BYTES for k, v in zip(rows.keys, rows.values, strict=True)]
                added = sum(costs[taken : share.taken])
                assert batches.nbytes - before in (added, added + BLOCK_BYTES)
                assert share.taken == taken + 1 or batches.nbytes - costs[share.taken - 1] < nbytes_max
                if full:
                    ready.append(batches.take(rows.partition))
                else:
                    assert share.is_taken or batches.nbytes >= nbytes_max, "stopped before it had to"
    last = take_all(batches)
    assert rows_of(ready + last) == expected_rows([change for made in lists for change in made], partitions)
    check_bounds(ready + last, last, bytes_max, rows_max)
    assert all(batch.keys for batch in ready + last), "an empty batch makes no block"


@given(st.lists(st.tuples(st.booleans(), changes), max_size=6), st.sampled_from([1, 4]), counts)
def test_rows_have_their_hashes_however_they_were_added(lists, partitions, rows_max):
    batches, ready = Batches(partitions, 1 << 20, rows_max), []
    for is_single, made in lists:
        for change in made if is_single else ():
            full = batches.add(change.key, change.value if isinstance(change, Put) else None)
            ready += [] if full is None else [batches.take(full)]
        for rows in () if is_single else split(made, partitions):
            share = PartitionShare(rows)
            while not share.is_taken:
                ready += [batches.take(rows.partition)] if batches.extend(share, 1 << 20) else []
    made = [change for _, several in lists for change in several]
    assert rows_of(ready + take_all(batches)) == expected_rows(made, partitions)


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("k", b"v", TypeError),
        (b"k", "v", TypeError),
        (bytearray(b"k"), b"v", TypeError),
        (b"", b"v", ValueError),
        (b"", None, ValueError),
        (bytes(4097), b"v", TooLarge),
        (b"k", bytes(VALUE_BYTES_MAX + 1), TooLarge),
    ],
    ids=itertools.count(),
)
def test_a_bad_row_is_refused_and_leaves_nothing(partitions, key, value, error):
    batches = Batches(partitions, 1 << 20, 1_000)
    with pytest.raises(error):
        batches.add(key, value)
    assert (batches.partitions, batches.nbytes) == ([], 0)


def test_a_key_may_be_of_a_subclass_of_bytes():
    class Key(bytes):
        pass

    batches = Batches(1, 1 << 20, 1_000)
    batches.add(Key(b"k"), b"v")
    assert batches.take(0).encode().columns().keys() == [b"k"]


@given(changes.filter(bool))
def test_no_block_is_larger_than_was_counted(made):
    batches = Batches(1, 1 << 20, 1000)
    for change in made:
        batches.add(change.key, change.value if isinstance(change, Put) else None)
    counted = batches.nbytes
    assert batches.take(0).encode().nbytes <= counted


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Put("k", b"v"), TypeError),
        (Put(b"k", "v"), TypeError),
        (Put(b"k", None), TypeError),
        (Put(b"", b"v"), ValueError),
        (Delete(b""), ValueError),
        (Put(bytes(4097), b"v"), TooLarge),
        (Put(b"k", bytes(VALUE_BYTES_MAX + 1)), TooLarge),
        ((b"k",), TypeError),
        ((b"k", b"v", b"w"), TypeError),
        (b"k", TypeError),
        (7, TypeError),
        (None, TypeError),
        (Put(bytearray(b"k"), b"v"), TypeError),
    ],
    ids=itertools.count(),
)
def test_one_bad_row_is_refused_with_all_others(partitions, bad, error):
    with pytest.raises(error):
        split([Put(b"a", b"1"), bad, Put(b"b", b"2")], partitions)
    (rows,) = split([Put(b"a", b"1")], partitions)
    assert rows.encode().columns().keys() == [b"a"]


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([None, 1, 60])), min_size=1, max_size=40), st.sampled_from([1, 4])
)
def test_the_ttls_of_rows_are_in_the_blocks_and_counted(rows, partitions):
    puts = [Put(b"%d" % number, b"v", ttl) for number, (_, ttl) in enumerate(rows)]
    batches, made = Batches(partitions, 1 << 20, 1_000), []
    for (is_single, _), put in zip(rows, puts, strict=True):
        if is_single:
            batches.add(put.key, put.value, put.ttl)
        else:
            [share] = map(PartitionShare, split([put], partitions))
            batches.extend(share, 1 << 20)
    for partition in batches.partitions:
        before = batches.nbytes
        made.append(batches.take(partition).encode())
        assert made[-1].nbytes <= before - batches.nbytes
    assert batches.nbytes == 0
    made += [share.encode() for share in split(puts, partitions)]
    columns = [block.columns() for block in made]
    found = [row for each in columns for row in zip(each.keys(), each.ttls(), strict=True)]
    assert sorted(found) == sorted(2 * [(put.key, put.ttl or 0) for put in puts])
