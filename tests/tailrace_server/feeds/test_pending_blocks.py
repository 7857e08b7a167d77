"""What a start makes of a journal by columns is what it makes of it record by record, damaged or not."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory_disk import MemoryDisk

from tailrace.block import encode_block
from tailrace.errors import TailraceError
from tailrace.model import VersionRange
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.feeds import pending_blocks
from tailrace_server.feeds import recovery as feed_recovery
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.feeds.feed import Feed, creation_to_bytes, info_of_request
from tailrace_server.feeds.recovery import FeedRecovery
from tailrace_server.journal import RecordKind, open_journal
from tailrace_server.journal.controls import LogRecord, ProducersRecord, RollbackRecord
from tailrace_server.journal.published_record import encode_published
from tailrace_server.manifest import ManifestStore
from tailrace_server.manifest.producers import producers_to_json
from tailrace_server.partition.chain import Chain
from tailrace_server.state import producers
from tailrace_server.state.last_batches import LastBatch
from tailrace_server.state.memory import MemoryAccount
from tailrace_server.state.producers import ProducerTable
from tailrace_server.state.use_times import UseTimes
from tailrace_server.upkeep.installer import manifest_of

FEEDS = (b"f" * 16, b"g" * 16)
PARTITIONS = 3
FIRST_BRANCH = b"B" * 16


@contextlib.contextmanager
def constants(**values):
    """Other bounds for a while, so that small journals reach them. By module and name, as ``module__NAME``."""
    modules = {"recovery": feed_recovery, "pending": pending_blocks, "producers": producers}
    before = []
    try:
        for name, value in values.items():
            module, _, constant = name.partition("__")
            before.append((modules[module], constant, getattr(modules[module], constant)))
            setattr(modules[module], constant, value)
            if module == "producers" and hasattr(pending_blocks, constant):
                before.append((pending_blocks, constant, getattr(pending_blocks, constant)))
                setattr(pending_blocks, constant, value)
        yield
    finally:
        for module, constant, value in reversed(before):
            setattr(module, constant, value)


class Place:
    """A partition as the journal's writer knows it."""

    def __init__(self):
        self.blocks = []  # those that are there, none of them flushed in part
        self.log = FailoverLog([(FIRST_BRANCH, 1, 0)])
        self.rollbacks = 0
        self.timestamp = 1_000
        self.numbers = {}

    @property
    def high_seq(self):
        return self.blocks[-1].header.last_seq if self.blocks else 0


class Writing:
    """A journal of several files, and what was flushed of it."""

    def __init__(self, file_bytes_max=1 << 20):
        self.disk = MemoryDisk()
        self.journal, _ = open_journal(self.disk, "/journal", file_bytes_max=file_bytes_max)
        self.places = {(feed, number): Place() for feed in FEEDS for number in range(PARTITIONS)}
        self.flushed = {}
        self.terms = 1

    def create(self, feed):
        self.journal.append(RecordKind.FEED_CREATED, feed, 0, creation_to_bytes(info_of(feed), FIRST_BRANCH))

    def drop(self, feed):
        self.journal.append(RecordKind.FEED_DROPPED, feed, 0, b"")

    def stamped(self, place, rows, value, producer, *, compress=False, key=b"k"):
        number = place.numbers[producer] = place.numbers.get(producer, 0) + 1
        keys = [key + b"%d" % (len(place.blocks) + index) for index in range(rows)]
        values = [None if value is None or index % 4 == 3 else value for index in range(rows)]
        ttls = [0 if value is None else number % 2 * index for index, value in enumerate(values)]
        block = encode_block(keys, values, partition=0, compress=compress, ttls=ttls).numbered(producer, number)
        place.timestamp += rows % 3
        made = block.stamped(place.high_seq + 1, place.timestamp)
        place.blocks.append(made)
        return made

    def put(self, feed, number, rows, value, producer, *, compress=False):
        place = self.places[feed, number]
        made = self.stamped(place, rows, value, producer, compress=compress)
        self.journal.append_block(feed, number, place.log.branch, made)

    def odd(self, feed, number, what):
        """A record that no writer would write there."""
        place = self.places[feed, number]
        if what == "again" and place.blocks:
            self.journal.append_block(feed, number, place.log.branch, place.blocks[len(place.blocks) // 2])
        elif what == "changed" and place.blocks:
            seq = place.blocks[-1].header.first_seq
            other = encode_block([b"other"], [b"other"], partition=0).stamped(seq, place.timestamp)
            self.journal.append_block(feed, number, place.log.branch, other)
        elif what == "gap":
            block = encode_block([b"k"], [b"v"], partition=0).stamped(place.high_seq + 2, place.timestamp)
            self.journal.append_block(feed, number, place.log.branch, block)
        elif what == "earlier":  # a timestamp that falls
            place.timestamp = max(place.timestamp - 10, 1)
        elif what == "absent":
            block = encode_block([b"k"], [b"v"], partition=0).stamped(1, 1)
            self.journal.append_block(feed, PARTITIONS + 1, FIRST_BRANCH, block)
        elif what == "unknown":
            self.journal.append(RecordKind.FLUSHED, feed, number, b"")
        elif what == "no feed":
            block = encode_block([b"k"], [b"v"], partition=0).stamped(9, 1)
            self.journal.append_block(b"?" * 16, 0, FIRST_BRANCH, block)

    def branch(self, feed, number):
        place = self.places[feed, number]
        self.terms += 1
        entry = FailoverEntry(self.terms.to_bytes(16, "big"), self.terms, place.high_seq)
        place.log = place.log.with_entry(entry)
        payload = LogRecord(place.log, place.rollbacks).encode()
        self.journal.append(RecordKind.FAILOVER_ENTRY, feed, number, payload)

    def roll_back(self, feed, number, count):
        place = self.places[feed, number]
        floor = self.flushed.get((feed, number), (0,))[0]
        flushed = sum(block.header.last_seq <= floor for block in place.blocks)
        kept = place.blocks[: max(len(place.blocks) - count, flushed)]
        place.blocks, place.numbers = kept, {}
        place.rollbacks += 1
        self.terms += 1
        held = [entry for entry in place.log if entry.base <= place.high_seq] or place.log[-1:]
        place.log = FailoverLog(held)
        nothing = producers_to_json(ProducerTable(), place.high_seq, 0.0)
        payload = RollbackRecord(place.high_seq, place.log, place.rollbacks, nothing).encode()
        self.journal.append(RecordKind.ROLLED_BACK, feed, number, payload)

    def publish(self, feed, number, count):
        place = self.places[feed, number]
        blocks = [self.stamped(place, 2, b"published", 0) for _ in range(count)]
        place.numbers.pop(0, None)
        covered, bodies = encode_published({"sink": LastBatch(count, "here", place.high_seq)}, blocks)
        self.journal.append_published(feed, number, place.log.branch, covered, bodies)

    def tell(self, feed, number, ahead):
        place = self.places[feed, number]
        told = ProducerTable()
        told.record(99, 5, VersionRange(number, place.log.branch, place.high_seq + 1, place.high_seq + ahead), 0.0)
        seq = place.high_seq + ahead
        payload = ProducersRecord(seq, producers_to_json(told, seq, 0.0)).encode()
        self.journal.append(RecordKind.PRODUCERS_TOLD, feed, number, payload)

    def flush(self, feed, number):
        """As if a manifest said all that is there now."""
        place = self.places[feed, number]
        self.flushed[feed, number] = place.high_seq, place.log, place.timestamp, place.rollbacks


def info_of(feed):
    return info_of_request({"name": feed[:1].decode(), "feed_id": feed.hex(), "partitions": PARTITIONS}, 100)


feeds = st.sampled_from(FEEDS)
numbers = st.integers(0, PARTITIONS - 1)
values = st.one_of(st.none(), st.binary(max_size=12), st.just(b"v" * 400))
puts = st.tuples(
    st.just("put"), feeds, numbers, st.integers(1, 5), values, st.integers(0, 3), st.booleans(), st.integers(1, 30)
)
rare = st.one_of(
    st.tuples(st.just("branch"), feeds, numbers),
    st.tuples(st.just("roll_back"), feeds, numbers, st.integers(0, 5)),
    st.tuples(st.just("tell"), feeds, numbers, st.integers(0, 3)),
    st.tuples(st.just("flush"), feeds, numbers),
    st.tuples(st.just("drop"), st.just(FEEDS[1])),
)
odd = st.tuples(
    st.just("odd"),
    feeds,
    numbers,
    st.sampled_from(["again", "changed", "gap", "earlier", "absent", "unknown", "no feed"]),
)
publishes = st.tuples(st.just("publish"), feeds, numbers, st.integers(1, 3))
histories = st.tuples(
    st.lists(st.one_of(puts, puts, puts, publishes, rare), min_size=1, max_size=15),
    st.one_of(st.none(), odd),
    st.integers(0, 15),
)


def carry_out(writing, step):
    match step:
        case ("put", feed, number, rows, value, producer, compress, count):
            for index in range(count):
                own = (number + index) % PARTITIONS if count % 2 else number
                writing.put(feed, own, rows, value, producer, compress=compress)
        case ("drop", feed):
            writing.drop(feed)
        case (name, *rest):
            getattr(writing, name)(*rest)


def recovery_of(writing, found, bytes_max=1 << 30):
    catalog = Catalog(MemoryAccount(bytes_max))
    disk = writing.disk
    times = UseTimes(0.0, found.records.begin, writing.journal.written)
    recovery = FeedRecovery(catalog, disk, ManifestStore(disk, "/data"), times)
    for feed in {feed for feed, _ in writing.flushed}:
        catalog.add(Feed.of(info_of(feed), FIRST_BRANCH, catalog.account))
    for (feed, number), (seq, log, timestamp, rollbacks) in writing.flushed.items():
        partition = catalog.partition(feed, number)
        manifest = manifest_of(partition, Chain(), bytes(16))
        manifest = manifest._replace(flushed_seq=seq, log=log, last_timestamp=timestamp, rollbacks=rollbacks)
        partition.restore(manifest, Chain(), ProducerTable())
    if found.rolled_back:
        recovery.gather(found.records.of_kind(RecordKind.ROLLED_BACK), bytes)
    return catalog, recovery


def state_of(partition):
    rows = []
    for block in partition.tree.blocks_after(0):
        columns = block.columns()
        rows += zip(
            *(columns.seqs(), columns.timestamps(), columns.keys(), columns.values(), columns.ttls()), strict=True
        )
    partition.check()
    return {
        "rows": rows,
        "high_seq": partition.high_seq,
        "durable_seq": partition.durable_seq,
        "flushed_seq": partition.flushed_seq,
        "log": partition.log,
        "rollbacks": partition.rollbacks,
        "timestamp": partition.last_timestamp,
        "newest": None if partition.newest_block is None else partition.newest_block.header.last_seq,
        "producers": partition.producers.snapshot(0.0),
        "told": partition.producers.leader_seq,
        "homes": (list(partition.journal_references._blocks.items()), partition.journal_references._controls),
        "sinks": partition.sinks.as_of(1 << 60),
        "runs": list(partition.published),
        "dropped": partition.is_dropped,
    }


def outcome(writing, apply):
    """The state of every partition after a start; or why it ended."""
    journal, found = open_journal(writing.disk.fork(), "/journal")
    catalog, recovery = recovery_of(writing, found)
    try:
        apply(recovery, found.records, journal)
    except TailraceError as error:
        return repr(error)
    feeds = {feed.info.feed_id: [state_of(partition) for partition in feed.partitions] for feed in catalog}
    drops = {id: drop.place for id, drop in catalog.drops.items()}
    return feeds, catalog.creations, drops, recovery.unknown, recovery.listed_from, recovery.found_records


def one_at_a_time(recovery, records, journal):
    for record in records:
        recovery.recover(record, journal)


def by_columns(recovery, records, journal):
    recovery.replay(records.parts(), journal)


def written(history):
    steps, odd, place = history
    writing = Writing(file_bytes_max=6_000)
    for feed in FEEDS:
        writing.create(feed)
    for index, step in enumerate(steps):
        if odd is not None and index == place:
            carry_out(writing, odd)
        carry_out(writing, step)
    if odd is not None and place >= len(steps):
        carry_out(writing, odd)
    writing.journal.sync()
    return writing


@given(
    history=histories,
    together=st.sampled_from([1, 4, 64]),
    pending_bytes=st.sampled_from([1, 4_000, 1 << 26]),
    unpacked_bytes=st.sampled_from([1, 1_000, 1 << 24]),
    small=st.sampled_from([40, 200, 65_536]),
    packed=st.sampled_from([0, 450, 1_024]),
    merged=st.sampled_from([100, 1_000, 1 << 20]),
    joined_rows=st.sampled_from([3, 100, 30_000]),
    producers_max=st.sampled_from([2, 10_000]),
    results_together=st.sampled_from([1, 16]),
)
def test_by_columns_it_is_what_it_is_record_by_record(
    history,
    together,
    pending_bytes,
    unpacked_bytes,
    small,
    packed,
    merged,
    joined_rows,
    producers_max,
    results_together,
):
    writing = written(history)
    with constants(producers__PRODUCERS_MAX=producers_max):
        expected = outcome(writing, one_at_a_time)
        with constants(
            recovery__TOGETHER_MIN=together,
            pending__PENDING_BYTES_MAX=pending_bytes,
            pending___UNPACKED_BYTES_MAX=unpacked_bytes,
            pending__SMALL_BYTES_MAX=small,
            pending__MERGED_BYTES_MAX=merged,
            pending___JOINED_ROWS_MAX=joined_rows,
            producers___TOGETHER_MIN=results_together,
        ):
            assert outcome(writing, by_columns) == expected


def test_many_blocks_of_a_partition_become_one():
    writing = Writing()
    writing.create(FEEDS[0])
    for number in range(200):
        writing.put(FEEDS[0], number % 2, 1, b"v", 1)
    _, found = open_journal(writing.disk, "/journal")
    catalog, recovery = recovery_of(writing, found)
    recovery.replay(found.records.parts(), writing.journal)
    assert [p.tree.block_count for p in catalog.partitions() if p.high_seq] == [1, 1]
    assert [p.high_seq for p in catalog.partitions() if p.high_seq] == [100, 100]


def test_large_compressed_blocks_stay_as_they_are():
    writing = Writing()
    writing.create(FEEDS[0])
    for _ in range(200):
        writing.put(FEEDS[0], 0, 1, bytes(60_000), 1, compress=True)
    journal, found = open_journal(writing.disk, "/journal")
    catalog, recovery = recovery_of(writing, found)
    recovery.replay(found.records.parts(), journal)
    written = [block.tobytes() for block in writing.places[FEEDS[0], 0].blocks]
    assert [block.tobytes() for block in catalog.partition(FEEDS[0], 0).tree.blocks_after(0)] == written


def test_publishes_wait_with_the_blocks_beside_them():
    writing = Writing()
    writing.create(FEEDS[0])
    for number in range(300):
        writing.put(FEEDS[0], number % PARTITIONS, 1, b"v", 1)
        if number % 7 == 0:
            writing.publish(FEEDS[0], number % PARTITIONS, 1 + number % 2)
    journal, found = open_journal(writing.disk, "/journal")
    catalog, recovery = recovery_of(writing, found)
    kinds, recover = [], recovery.recover

    def noted(record, journal):
        kinds.append(record.kind)
        recover(record, journal)

    recovery.recover = noted
    recovery.replay(found.records.parts(), journal)
    assert kinds == [RecordKind.FEED_CREATED]
    assert outcome(writing, by_columns) == outcome(writing, one_at_a_time)
    assert sum(len(list(partition.published)) for partition in catalog.partitions()) == 43


def test_no_block_is_joined_across_the_beginning_of_a_branch():
    writing = Writing()
    writing.create(FEEDS[0])
    for _ in range(160):
        writing.put(FEEDS[0], 0, 1, b"v", 1)
    log = FailoverLog([(FIRST_BRANCH, 1, 0)]).with_entry(FailoverEntry(b"C" * 16, 2, 80))
    writing.flushed[FEEDS[0], 0] = 10, log, 1_000, 0  # the manifest knows both branches
    journal, found = open_journal(writing.disk, "/journal")
    catalog, recovery = recovery_of(writing, found)
    recovery.replay(found.records.parts(), journal)
    assert [block.seqs for block in catalog.partition(FEEDS[0], 0).tree.blocks_after(0)] == [(11, 80), (81, 160)]


@pytest.mark.parametrize("apply", [one_at_a_time, by_columns])
def test_what_is_forgotten_at_a_start_is_what_was_used_first(apply):
    writing = Writing(file_bytes_max=20_000)
    writing.create(FEEDS[0])
    for producer in range(1, 601):
        writing.put(FEEDS[0], producer % PARTITIONS, 1, b"v", producer)
    journal, found = open_journal(writing.disk, "/journal")
    catalog, recovery = recovery_of(writing, found)
    apply(recovery, found.records, journal)
    memory = catalog.account.producers
    memory.bytes_max = memory.used * 3 // 4  # as the manifests of other partitions may have made it
    memory.make_room(0.0)
    left = [entry.producer_id for partition in catalog.partitions() for entry in partition.producers.snapshot(0.0)[0]]
    assert 300 < len(left) < 450
    assert min(left) > 600 - len(left) - 10  # these were used last


@pytest.mark.parametrize("joined", [False, True])
def test_a_block_that_was_joined_is_known_when_it_comes_again(joined):
    writing = Writing()
    writing.create(FEEDS[0])
    for _ in range(100):
        writing.put(FEEDS[0], 0, 2, b"v", 1)
    place = writing.places[FEEDS[0], 0]
    writing.journal.append_block(FEEDS[0], 0, FIRST_BRANCH, place.blocks[50])
    if joined:
        writing.odd(FEEDS[0], 0, "changed")
    found = outcome(writing, by_columns)
    if joined:
        assert "is missing" in found
    else:
        assert found[0][FEEDS[0]][0]["high_seq"] == 200
    assert found == outcome(writing, one_at_a_time)


def test_blocks_that_a_rollback_voids_are_left_out():
    writing = Writing()
    writing.create(FEEDS[0])
    for count in (100, 80):
        for _ in range(count):
            writing.put(FEEDS[0], 0, 1, b"v", 1)
        writing.roll_back(FEEDS[0], 0, 30)
    found = outcome(writing, by_columns)
    assert found[0][FEEDS[0]][0]["high_seq"] == 120
    assert found == outcome(writing, one_at_a_time)


def test_all_blocks_may_be_void():
    writing = Writing()
    writing.create(FEEDS[0])
    for _ in range(100):
        writing.put(FEEDS[0], 0, 1, b"v", 1)
    writing.roll_back(FEEDS[0], 0, 100)
    found = outcome(writing, by_columns)
    assert found[0][FEEDS[0]][0]["high_seq"] == 0
    assert found == outcome(writing, one_at_a_time)


def test_blocks_that_are_unpacked_are_held_in_bounded_memory():
    writing = Writing()
    writing.create(FEEDS[0])
    for number in range(1_000):  # 60 MB of rows, in half a megabyte of journal
        writing.put(FEEDS[0], number % PARTITIONS, 1, bytes(60_000), 1, compress=True)
    journal, found = open_journal(writing.disk, "/journal")
    catalog, recovery = recovery_of(writing, found)
    with constants(pending__PENDING_BYTES_MAX=2 << 20, pending___UNPACKED_BYTES_MAX=1 << 20):
        tracemalloc.start()
        try:
            recovery.replay(found.records.parts(), journal)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert sum(partition.high_seq for partition in catalog.partitions()) == 1_000
    assert peak < 20 << 20
