"""A partition of which some is in segments: by key, with conditions, and what memory and journal still hold of it."""

import contextlib
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.looked_up import items_of
from tests.tailrace_server.stored import FakeJournal, StoredPartition

from tailrace.block import encode_block
from tailrace.errors import VersionConflict
from tailrace.model import Version
from tailrace.segment import key_table
from tailrace.wire.messages import WriteFlag
from tailrace_server.partition.chain import Chain, LostSegment
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.writing import write_block
from tailrace_server.segment import NotCached, ReadCache, Reads, SegmentDamaged
from tailrace_server.serving import lookup as lookup_module
from tailrace_server.serving.lookup import Lookup
from tailrace_server.state.memory import MemoryAccount


class Made:
    """A partition with its journal; what is taken is durable at once."""

    def __init__(self):
        self.partition = StoredPartition(account=MemoryAccount())
        self.journal = FakeJournal()
        self.numbers = 0

    def take(self, key, value, flags=0, if_version=None):
        block = encode_block([key], [value], partition=0, producer_id=7, producer_seq=self.numbers + 1)
        self.partition.keys.catch_up(self.partition.tree, lambda: False)
        taken = write_block(
            self.partition, block, self.journal, now_us=1000, now=0.0, flags=flags, if_version=if_version
        )
        if taken.fresh:
            self.numbers += 1
            self.partition.sync()
        return taken

    def version(self, seq):
        return Version(0, self.partition.log.branch, seq)

    def get(self, *keys):
        lookup = Lookup(keys, [self.partition] * len(keys))
        assert lookup.step(lambda: False)
        return [item and (item.version.seq, item.value) for item in items_of(lookup)]


@pytest.fixture
def made():
    return Made()


# Gets


def test_what_was_flushed_is_found(made):
    made.take(b"a", b"1")
    made.take(b"b", b"2")
    made.partition.flush()
    made.take(b"b", b"3")
    assert made.get(b"a", b"b", b"c") == [(1, b"1"), (3, b"3"), None]
    made.partition.flush()
    assert made.get(b"a", b"b", b"c") == [(1, b"1"), (3, b"3"), None]
    made.partition.fold()
    assert made.get(b"a", b"b", b"c") == [(1, b"1"), (3, b"3"), None]


def test_a_deletion_hides_what_older_segments_have(made):
    made.take(b"a", b"1")
    made.partition.flush()
    made.take(b"a", None)
    assert made.get(b"a") == [None], "in memory"
    made.partition.flush()
    assert made.get(b"a") == [None], "in a segment"
    made.partition.fold(purge_before_us=2000)
    assert made.partition.purge_seq == 2
    assert made.get(b"a") == [None], "nowhere any more"


def test_an_index_that_was_level_before_the_flush_says_nothing_of_it(made):
    made.take(b"a", b"1")
    assert made.get(b"a") == [(1, b"1")]
    made.take(b"b", b"2")
    made.partition.flush()
    made.take(b"c", b"3")
    assert made.get(b"a", b"b", b"c") == [(1, b"1"), (2, b"2"), (3, b"3")]


def test_keys_of_one_hash(made, monkeypatch):
    """They are easily made on purpose."""
    server = ("partition.newest_row", "tree.key_index", "serving.lookup")
    for name in ("tailrace.block.encode", *(f"tailrace_server.{module}" for module in server)):
        with contextlib.suppress(AttributeError):
            monkeypatch.setattr(f"{name}.key_hash", lambda key: 7)
        with contextlib.suppress(AttributeError):
            monkeypatch.setattr(f"{name}.hash_keys", lambda keys: [7] * len(keys))
        with contextlib.suppress(AttributeError):
            monkeypatch.setattr(f"{name}.hash_column", lambda keys: np.full(len(keys), 7, "<u8"))
    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"c", b"3")):
        made.take(key, value)
    made.partition.flush()
    made.take(b"b", None)
    made.partition.flush()
    made.take(b"c", b"5")
    assert made.get(b"a", b"b", b"c", b"d") == [(1, b"1"), None, (5, b"5"), None]
    assert not made.take(b"b", None, WriteFlag.IF_PRESENT).fresh
    assert made.take(b"d", b"6", WriteFlag.IF_ABSENT).fresh
    with pytest.raises(VersionConflict):
        made.take(b"a", b"7", WriteFlag.IF_ABSENT)


MANY = [b"key %d" % number for number in range(60)]
changes = st.lists(
    st.tuples(st.sampled_from(MANY[:50]), st.none() | st.sampled_from([b"", b"1", b"2" * 90])), min_size=1, max_size=80
)


@given(st.lists(st.tuples(changes, st.sampled_from(["", "flush", "flush", "fold"])), max_size=5), st.data())
def test_many_keys_are_found_wherever_rows_are(taken, data):
    """Between two slices rows are written, and flushed and compacted: they are found in their new place."""
    made, newest = Made(), {}
    kept = data.draw(st.sampled_from([None, ReadCache(1_000), ReadCache(1 << 20)]))

    def store(rows, then):
        for key, value in rows:
            made.take(key, value)
            newest[key] = value
        if then:
            made.partition.flush()
        if then == "fold" and made.partition.chain.segments:
            made.partition.fold()

    for rows, then in taken:
        store(rows, then)
    keys = data.draw(st.lists(st.sampled_from(MANY), min_size=1, max_size=100))
    with contextlib.ExitStack() as stack:
        for module, name, value in ((key_table, "SLAB_HASHES_MIN", 1), (lookup_module, "AHEAD_KEYS_MIN", 2)):
            stack.enter_context(mock.patch.object(module, name, value))
        lookup = Lookup(keys, [made.partition] * len(keys), kept)
        seen = [{key: newest.get(key) for key in keys}]
        rnd = data.draw(st.randoms(use_true_random=False))
        while not lookup.step(lambda: rnd.random() < 0.5):
            if rnd.random() < 0.3 and len(seen) < 4:
                store([(rnd.choice(MANY), b"later %d" % len(seen))], rnd.choice(["", "flush", "fold"]))
                seen.append({key: newest.get(key) for key in keys})
    for key, item in zip(keys, items_of(lookup), strict=True):
        found = None if item is None else item.value
        assert found in [state[key] for state in seen], "what it was at some moment of the look-up"
        if item is not None:
            assert item.version.branch == made.partition.log.branch


def test_a_chain_that_was_replaced_is_not_searched(made, monkeypatch):
    """Its segments may be closed, and the rows of the tree may be in a newer one."""
    monkeypatch.setattr(key_table, "SLAB_HASHES_MIN", 1)
    for begin in (0, 20):
        for key in MANY[begin : begin + 20]:
            made.take(key, b"1")
        made.partition.flush()
    lookup = Lookup(MANY, [made.partition] * len(MANY))
    assert not lookup.step(lambda: True), "the tree, which is empty, and the first key"
    assert not lookup.step(lambda: True), "a block of the newer segment"
    replaced = made.partition.chain.segments
    for key in MANY[:40]:
        made.take(key, b"2")
    made.partition.flush()
    made.partition.fold()
    for segment in replaced:
        monkeypatch.setattr(segment, "find_all", pytest.fail)
        monkeypatch.setattr(segment, "find", pytest.fail)
    while not lookup.step(lambda: True):
        pass
    values = [None if item is None else item.value for item in items_of(lookup)]
    newest = [*[b"2"] * 40, *[None] * 20]
    newest[0] = newest[20] = b"1"  # the first key, and the block
    assert values == newest


def absent_from(partitions):
    """Three keys for each partition that it lacks, and their owners."""
    owners = [partition for partition in partitions for _ in range(3)]
    return [b"absent %d" % number for number in range(len(owners))], owners


def sharing(stored, count):
    """So many partitions with the segments of one."""
    made = []
    for number in range(count):
        partition = Partition(stored.feed_id, number, 0, 2**64 - 1)
        partition.log, partition.chain = stored.log, stored.chain
        made.append(partition)
    return made


def test_keys_that_are_not_found_take_time_too(made, monkeypatch):
    """One slice searches one tree or one segment, if it has no time for more."""
    monkeypatch.setattr(key_table, "SLAB_HASHES_MIN", 1)
    for key in (b"a", b"b", b"c", b"d"):
        made.take(key, b"1")
        made.partition.flush()
    keys, owners = absent_from(sharing(made.partition, 5))
    lookup, turns = Lookup(keys, owners), 1
    while not lookup.step(lambda: True):
        turns += 1
    assert items_of(lookup) == [None] * 15
    assert turns >= 5 + 5 * 4 - 1, "the keys of the last slice end it"


def test_a_thousand_partitions_roll_back_while_the_disk_is_waited_for(made):
    made.take(b"a", b"1")
    made.partition.flush()
    [segment] = made.partition.chain.segments
    partitions = sharing(made.partition, 1_200)
    keys, owners = absent_from(partitions)
    lookup = Lookup(keys, owners)
    missing = NotCached(Reads(), segment._file, 0, 1)
    with mock.patch.object(segment, "find_all", side_effect=missing), pytest.raises(NotCached):
        lookup.step(lambda: False)
    for partition in partitions:
        partition.rollbacks += 1
    assert lookup.step(lambda: False)
    assert items_of(lookup) == [None] * len(keys)


# Conditions

steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([b"a", b"b"]),
            st.none() | st.binary(max_size=3),
            st.sampled_from([0, WriteFlag.IF_ABSENT, WriteFlag.IF_PRESENT, WriteFlag.IF_VERSION]),
            st.integers(0, 12),
        ),
        st.sampled_from(["flush", "fold", "purge"]),
    ),
    max_size=30,
)


@given(steps)
def test_conditions_hold_against_a_dict_wherever_rows_are(taken):
    """{key: (seq, value)} of what is there."""
    made, state, seq = Made(), {}, 0
    for step in taken:
        if step == "flush":
            made.partition.flush()
        elif isinstance(step, str):
            if made.partition.chain.segments:
                made.partition.fold(purge_before_us=2000 if step == "purge" else None)
        else:
            key, value, flag, named = step
            expected = {
                0: True,
                WriteFlag.IF_ABSENT: key not in state,
                WriteFlag.IF_PRESENT: key in state,
                WriteFlag.IF_VERSION: key in state and state[key][0] == named,
            }[flag]
            fresh = False
            try:
                fresh = made.take(key, value, flag, if_version=made.version(named)).fresh
            except VersionConflict as error:
                assert error.current == (made.version(state[key][0]) if key in state else None)  # noqa: PT017
            assert fresh == expected
            if fresh:
                seq += 1
                state[key] = (seq, value)
                if value is None:
                    del state[key]
        made.partition.check()
        assert made.get(b"a", b"b") == [state.get(b"a"), state.get(b"b")]


# Memory, and the journal's files


def test_a_flush_gives_its_memory_back(made):
    account = made.partition.account
    for number in range(10):
        made.take(b"%d" % number, bytes(100))
    assert account.used == made.partition.tree.memory_bytes > 1000
    made.partition.flush(6)
    assert account.used == made.partition.tree.memory_bytes
    made.partition.flush()
    assert account.used == 0


def test_a_drop_gives_its_memory_back(made):
    made.take(b"a", bytes(100))
    made.partition.drop()
    assert made.partition.account.used == 0
    made.partition.check()


def test_a_file_of_the_journal_is_needed_until_its_blocks_are_in_a_segment(made):
    made.take(b"a", b"1")
    made.journal.file_of = lambda place: 2
    made.take(b"b", b"2")
    assert made.partition.journal_references.oldest == 1
    made.partition.flush(1)
    assert made.partition.journal_references.oldest == 2
    made.partition.flush()
    assert made.partition.journal_references.oldest is None


def test_who_watches_flushes_hears_of_each_that_moved_something(made):
    heard = []
    made.partition.watchers.on_flush(lambda: heard.append(made.partition.flushed_seq))
    made.take(b"a", b"1")
    made.partition.flush()
    made.take(b"b", b"2")
    made.partition.flush()
    made.partition.fold()
    assert heard == [1, 2]
    assert made.partition.newest_block is None, "it is not in memory any more"


# Damage


@pytest.fixture
def lost(made):
    """Of the segments (0, 1] and (1, 2] the older one cannot be opened; 3 is in memory."""
    made.take(b"a", b"1")
    old = made.partition.flush()
    made.take(b"b", b"2")
    new = made.partition.flush()
    made.take(b"c", b"3")
    error = SegmentDamaged(old.path, 0, "it is gone")
    made.partition.chain = Chain([LostSegment(old.identity, old.nbytes, error), new])
    made.partition.damage = error
    return made


def test_what_needs_no_lost_segment_is_found(lost):
    assert lost.get(b"b", b"c") == [(2, b"2"), (3, b"3")]
    for key in (b"a", b"never"):
        with pytest.raises(SegmentDamaged, match="it is gone"):
            lost.get(key)


def test_nothing_more_is_taken(lost):
    before = lost.partition.high_seq
    for flags in (0, WriteFlag.IF_ABSENT):
        with pytest.raises(SegmentDamaged, match="it is gone"):
            lost.take(b"d", b"4", flags)
    assert lost.partition.high_seq == before
    lost.partition.check()


def test_what_is_in_memory_can_be_flushed(lost):
    lost.partition.flush()
    lost.partition.check()
    assert [s.identity.last_seq for s in lost.partition.chain.segments] == [1, 2, 3]


def test_a_new_partition_has_an_account_of_its_own():
    assert Partition(b"f" * 16, 0, 0, 1).account.used == 0
