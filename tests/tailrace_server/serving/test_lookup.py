import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.looked_up import items_of

from tailrace.block import encode_block
from tailrace.errors import UnknownFeed
from tailrace.model import Level
from tailrace.model.failover import FailoverEntry
from tailrace.model.hashing import key_hash
from tailrace_server.partition.branching import with_branch
from tailrace_server.partition.partition import Partition
from tailrace_server.serving import lookup as module
from tailrace_server.serving.lookup import Lookup


def partition_of(blocks, id=0):
    """A partition that holds ``blocks``, each a list of (key, value)."""
    made = Partition(b"f" * 16, id, 0, 2**64 - 1)
    made.log = made.log.with_entry(FailoverEntry(b"u" * 16, 1, 0))
    for rows in blocks:
        block = encode_block([key for key, _ in rows], [value for _, value in rows], partition=id)
        made.append(block.stamped(made.high_seq + 1, 1000), made.log.branch, 1, 0.0)
    return made


def never():
    return False


def looked_up(lookup):
    return [None if item is None else (item.version.seq, item.value) for item in items_of(lookup)]


def test_keys_are_answered_in_their_order():
    partitions = [partition_of([[(b"a", b"1"), (b"b", b"2")], [(b"a", None)]]), partition_of([[(b"c", b"3")]], 1)]
    keys = [b"c", b"b", b"a", b"x", b"b"]
    lookup = Lookup(keys, [partitions[key == b"c"] for key in keys])
    assert lookup.step(never)
    assert looked_up(lookup) == [(1, b"3"), (2, b"2"), None, None, (2, b"2")]
    assert {item.version.partition for item in items_of(lookup) if item} == {0, 1}


@pytest.mark.parametrize("together", [1, 6])
def test_each_row_has_the_branch_in_which_it_was_written(together):
    partition = partition_of([[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]])
    partition.log = with_branch(partition.log, b"v" * 16, partition.high_seq)
    block = encode_block([b"d", b"e", b"f"], [b"4", b"5", b"6"], partition=0)
    partition.append(block.stamped(4, 1000), partition.log.branch, 1, 0.0)
    keys, found = [b"f", b"a", b"e", b"b", b"d", b"c"], []
    for first in range(0, len(keys), together):
        lookup = Lookup(keys[first : first + together], [partition] * together)
        assert lookup.step(never)
        found += [item.version.branch[:1] for item in items_of(lookup)]
    assert b"".join(found) == b"vuvuvu"


def test_it_goes_in_slices_while_the_partition_grows():
    rnd = random.Random(1)
    blocks = [[(b"key %d" % rnd.randrange(200), rnd.randbytes(3) * 30) for _ in range(10)] for _ in range(60)]
    partition = partition_of(blocks[:30])
    keys = [b"key %d" % number for number in range(220)]
    lookup, turns = Lookup(keys, [partition] * len(keys)), 0
    while not lookup.step(lambda: True):
        turns += 1
        if turns % 4 == 0 and len(blocks) > 30:
            rows = blocks.pop()
            block = encode_block([key for key, _ in rows], [value for _, value in rows], partition=0)
            partition.append(block.stamped(partition.high_seq + 1, 1000), partition.log.branch, 1, 0.0)
    assert turns >= 30 - 1, "a slice takes a block at least, and no more if it has no time"
    assert len(blocks) < 60
    again = Lookup(keys, [partition] * len(keys))
    assert again.step(never)
    newest = looked_up(again)
    for found, latest in zip(looked_up(lookup), newest, strict=True):
        assert (found is None) or found[0] <= latest[0], "what was found was there, and was the newest then"


def test_an_answer_has_room_for_so_much(monkeypatch):
    monkeypatch.setattr(module, "VALUE_BYTES_MAX", 100)
    monkeypatch.setattr(module, "AHEAD_BYTES_MAX", 100)
    partition = partition_of([[(b"%d" % number, bytes(40)) for number in range(10)]])
    keys = [b"%d" % number for number in range(10)]
    answered = 0
    while answered < len(keys):
        lookup = Lookup(keys[answered:], [partition] * (len(keys) - answered))
        assert lookup.step(never)
        assert 1 <= len(items_of(lookup)) <= 3
        answered += len(items_of(lookup))


def test_what_is_in_flight():
    partition = partition_of([[(b"a", b"1")]])
    lookup = Lookup([b"a"], [partition])
    assert lookup.in_flight(Level.MEMORY) == []
    assert lookup.in_flight(Level.DISK) == [(partition, 1)]
    partition.durable_through(1)
    assert lookup.in_flight(Level.DISK) == []
    assert lookup.in_flight(Level.QUORUM) == [(partition, 1)]


KEYS = [b"key %d" % number for number in range(40)]
BLOCKS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(KEYS[:30]), st.none() | st.sampled_from([b"", b"1", b"2" * 90])),
        min_size=1,
        max_size=60,
    ),
    max_size=5,
)


@given(BLOCKS, BLOCKS, st.lists(st.sampled_from(KEYS), min_size=16, max_size=90), st.randoms(use_true_random=False))
def test_many_keys_are_looked_up_as_each_alone(first, second, keys, rnd):
    partitions = [partition_of(first), partition_of(second, 1)]
    newest = [dict(row for rows in blocks for row in rows) for blocks in (first, second)]
    owners = [rnd.randrange(2) for _ in keys]
    lookup = Lookup(keys, [partitions[owner] for owner in owners])
    while not lookup.step(lambda: rnd.random() < 0.3):
        assert lookup.found_bytes() == 0 or items_of(lookup), "an answer has at least one item"
    assert [None if item is None else item.value for item in items_of(lookup)] == [
        newest[owner].get(key) for owner, key in zip(owners, keys, strict=True)
    ]
    for item, owner in zip(items_of(lookup), owners, strict=True):
        assert item is None or item.version.partition == owner


def test_another_key_of_the_hash_is_newer():
    partition = partition_of([[(key, b"old") for key in KEYS]])
    others = [b"other %d" % number for number in range(20)]
    block = encode_block(others, [b"x"] * 20, partition=0, hashes=[key_hash(key) for key in KEYS[:20]])
    partition.append(block.stamped(partition.high_seq + 1, 1000), partition.log.branch, 1, 0.0)
    lookup = Lookup(KEYS, [partition] * len(KEYS))
    assert lookup.step(never)
    assert {item.value for item in items_of(lookup)} == {b"old"}


def test_one_large_value_that_is_asked_for_many_times_is_not_made_so_often(monkeypatch):
    monkeypatch.setattr(module, "VALUE_BYTES_MAX", 1_000)
    monkeypatch.setattr(module, "AHEAD_BYTES_MAX", 1_000)
    partition = partition_of([[(b"a", bytes(400)), (b"b", b"1")]])
    lookup = Lookup([b"a"] * 40, [partition] * 40)
    assert lookup.step(never)
    assert len(items_of(lookup)) == 3
    assert lookup.found_bytes() <= 2_000


def test_values_that_have_no_room_ahead_are_looked_up_in_their_turn(monkeypatch):
    monkeypatch.setattr(module, "AHEAD_BYTES_MAX", 1_000)
    partition = partition_of([[(key, bytes(90)) for key in KEYS[:20]], [(key, bytes(400)) for key in KEYS[20:]]])
    lookup = Lookup(KEYS, [partition] * len(KEYS))
    assert not lookup.step(lambda: True)
    assert lookup.found_bytes() <= 1_000 + 400
    while not lookup.step(lambda: True):
        pass
    assert [len(item.value) for item in items_of(lookup)] == [90] * 20 + [400] * 20


def test_a_feed_that_is_dropped_between_two_slices():
    partition = partition_of([[(key, b"1") for key in KEYS], [(key, b"2") for key in KEYS[::2]]])
    lookup = Lookup(KEYS, [partition] * len(KEYS))
    assert not lookup.step(lambda: True)
    partition.is_dropped = True
    with pytest.raises(UnknownFeed, match="was dropped"):
        lookup.step(never)
