"""Rows that a producer hashed wrongly: corrected where they belong here, kept and named where they don't."""

from __future__ import annotations

import pytest

from tailrace.model.hashing import key_hash, partition_range
from tailrace_server.compaction.task import FOREIGN_MAX
from tailrace_server.compaction.worker import compact
from tailrace_server.segment import Segment

OUT = "/feed/0/out.seg"
FIRST, LAST = partition_range(0, 2)
HERE = [key for key in (b"%d" % number for number in range(100)) if key_hash(key) <= LAST]
ELSEWHERE = [key for key in (b"%d" % number for number in range(100)) if key_hash(key) > LAST]


@pytest.fixture
def chain(memory_disk, chain_of):
    return chain_of(memory_disk())


def folded(chain, **changes):
    return compact(chain.task(hash_first=FIRST, hash_last=LAST, **changes), chain.disk)


@pytest.mark.parametrize("history", [False, True])
def test_a_key_of_this_partition_is_found_afterwards(chain, row, history):
    chain.add([row(1, HERE[0], b"1", hash_=5), row(2, HERE[1], b"2")], producer_id=77)
    before = Segment.open(chain.disk, chain.paths[0])
    assert before.find(HERE[0], key_hash(HERE[0])) is None
    result = folded(chain, history=history)
    after = Segment.open(chain.disk, OUT)
    assert after.verify() == []
    assert after.find(HERE[0], key_hash(HERE[0])).value == b"1"
    assert (result.foreign_rows, result.foreign_kept) == (1, 0)
    [found] = result.foreign
    assert found == (77, 1, 1, chain.paths[0], 1, HERE[0])


@pytest.mark.parametrize("history", [False, True])
def test_a_key_of_another_partition_stays_and_is_named(chain, row, read_rows, history):
    chain.add([row(1, HERE[0], b"1")], producer_id=1)
    chain.add([row(2, ELSEWHERE[0], b"2", hash_=6), row(3, HERE[1], b"3")], producer_id=2)
    result = folded(chain, history=history)
    assert [(found.key, found.hash_) for found in read_rows(chain.disk, OUT)] == [
        (HERE[0], key_hash(HERE[0])),
        (ELSEWHERE[0], 6),
        (HERE[1], key_hash(HERE[1])),
    ]
    assert (result.foreign_rows, result.foreign_kept) == (1, 1)
    assert result.foreign == ((2, 1, 0, chain.paths[1], 2, ELSEWHERE[0]),)


@pytest.mark.parametrize("keys", [HERE, ELSEWHERE])
def test_rows_of_one_key_meet_whatever_hashes_they_came_with(chain, row, read_rows, keys):
    chain.add([row(1, keys[0], b"1", hash_=5), row(2, keys[0], b"2", hash_=key_hash(HERE[0]))])
    chain.add([row(3, keys[0], b"3", hash_=6)])
    result = folded(chain)
    assert [found.seq for found in read_rows(chain.disk, OUT)] == [3]
    assert result.superseded == 2


def test_two_keys_under_one_wrong_hash_both_survive(chain, row, read_rows):
    chain.add([row(1, HERE[0], b"1", hash_=5), row(2, HERE[1], b"2", hash_=5)])
    folded(chain)
    assert [found.key for found in read_rows(chain.disk, OUT)] == HERE[:2]


def test_they_are_counted_by_producer(chain, row):
    chain.add([row(1, HERE[0], b"", hash_=1), row(2, ELSEWHERE[0], b"", hash_=2)], producer_id=8)
    chain.add([row(3, HERE[1], b"", hash_=1), row(4, HERE[2], b"", hash_=2), row(5, HERE[3], b"")], producer_id=9)
    chain.add([row(6, HERE[4], b"", hash_=1)], producer_id=8)
    result = folded(chain)
    assert (result.foreign_rows, result.foreign_kept) == (5, 1)
    assert [found[:3] for found in result.foreign] == [(8, 3, 2), (9, 2, 2)]


def test_only_so_many_producers_are_named(chain, row):
    for number in range(FOREIGN_MAX + 5):
        chain.add([row(number + 1, HERE[0], b"", hash_=1)], producer_id=number + 1)
    result = folded(chain)
    assert len(result.foreign) == FOREIGN_MAX
    assert result.foreign_rows == FOREIGN_MAX + 5


def test_the_example_has_the_beginning_of_a_long_key(chain, row):
    chain.add([row(1, b"k" * 4_096, b"", hash_=1)])
    assert folded(chain).foreign[0].key == b"k" * 64
