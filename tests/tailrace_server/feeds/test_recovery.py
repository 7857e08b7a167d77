import json

import pytest
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.recorded import RecordJournal, info_of

from tailrace.block import encode_block
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.feeds.feed import creation_to_bytes
from tailrace_server.feeds.recovery import FeedRecovery
from tailrace_server.journal import Record, RecordKind
from tailrace_server.manifest import ManifestStore
from tailrace_server.state.memory import MemoryAccount
from tailrace_server.state.use_times import UseTimes

U = b"u" * 16


def record_of(kind, feed_id, partition, payload, block, lsn=1):
    values = dict.fromkeys(Record._fields)
    known = {"kind": kind, "feed_id": feed_id, "partition": partition, "payload": payload, "block": block, "lsn": lsn}
    return Record(**(values | known))


def recovered(journal):
    catalog = Catalog(MemoryAccount())
    disk = MemoryDisk()
    recovery = FeedRecovery(catalog, disk, ManifestStore(disk, "/data"), UseTimes(0.0))
    for number, record in enumerate(journal.records, 1):
        recovery.recover(record_of(*record, lsn=number), journal)
    return catalog


@pytest.fixture
def journal():
    return RecordJournal()


@pytest.fixture
def catalog(journal):
    made = Catalog(MemoryAccount())
    made.create(info_of("orders"), journal, U, 10)
    return made


def block_at(first_seq, rows=2, value=b"v"):
    return encode_block([b"k"] * rows, [value] * rows, partition=0).stamped(first_seq, 1000)


def test_what_was_journaled_comes_back(catalog, journal):
    journal.append_block(b"f" * 16, 0, U, block_at(1))
    journal.append_block(b"f" * 16, 0, U, block_at(3))
    catalog.create(info_of("gone", b"g" * 16), journal, U, 10)
    journal.append_block(b"g" * 16, 0, U, block_at(1))
    catalog.drop(b"g" * 16, journal)
    found = recovered(journal)
    assert [feed.info for feed in found] == [info_of("orders")]
    partition = found.partition(b"f" * 16, 0)
    assert (partition.high_seq, partition.log) == (4, catalog.partition(b"f" * 16, 0).log)
    partition.check()


def test_blocks_of_a_feed_that_was_dropped_are_passed_over(catalog, journal):
    catalog.drop(b"f" * 16, journal)
    journal.append_block(b"f" * 16, 0, U, block_at(1))
    journal.append(RecordKind.FAILOVER_ENTRY, b"f" * 16, 0, json.dumps([]).encode())
    journal.append(RecordKind.FEED_DROPPED, b"f" * 16, 0, b"")
    assert list(recovered(journal)) == []


def test_a_block_that_is_there_already_is_passed_over(catalog, journal):
    for first_seq in (1, 3, 1, 3, 5):
        journal.append_block(b"f" * 16, 0, U, block_at(first_seq))
    assert recovered(journal).partition(b"f" * 16, 0).high_seq == 6


def test_a_gap_stops_the_start(catalog, journal):
    journal.append_block(b"f" * 16, 0, U, block_at(1))
    journal.append_block(b"f" * 16, 0, U, block_at(5))
    with pytest.raises(
        BadDirectory,
        match=r"something of feeds/(66){16}/0, .* is missing: that file has seqs 5 to 6, and .* end at seq 2",
    ):
        recovered(journal)


def test_a_record_of_a_newer_version_stops_the_start(catalog, journal):
    journal.append(RecordKind.FLUSHED, b"f" * 16, 0, b"")
    with pytest.raises(BadDirectory, match="FLUSHED"):
        recovered(journal)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (RecordKind.FEED_CREATED, b"{}"),
        (RecordKind.FEED_CREATED, b'{"feed": [], "branch": ""}'),
        (RecordKind.FAILOVER_ENTRY, b'{"log": 1}'),
        (RecordKind.FAILOVER_ENTRY, b"no JSON"),
    ],
)
def test_a_record_that_cannot_be_used_stops_the_start_and_is_named(catalog, journal, kind, payload):
    feed_id = b"f" * 16 if kind is RecordKind.FAILOVER_ENTRY else b"x" * 16
    journal.append(kind, feed_id, 0, payload)
    with pytest.raises(BadDirectory, match=f"{kind.name} record of feed {feed_id.hex()} cannot be used.*repair"):
        recovered(journal)


def test_a_feed_reads_back_from_its_payload(journal):
    journal.append(RecordKind.FEED_CREATED, b"f" * 16, 0, creation_to_bytes(info_of("orders"), U))
    found = recovered(journal).named("orders")
    assert found.info == info_of("orders")
    assert {p.log.branch for p in found.partitions} == {U}
