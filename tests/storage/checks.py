"""What has to hold of a node that was just started, whatever happened before: ``check`` walks all of it."""

from __future__ import annotations

import json
import os

from tailrace.model import Level
from tailrace_server.feeds.feed import info_from_json
from tailrace_server.manifest import ManifestStore, invariants
from tailrace_server.partition.newest_row import newest_row
from tailrace_server.segment import SegmentDamaged

from .consumers import Consumer
from .engine import DATA
from .ledger import partitions_of

# So many of a partition's consumers go on at each check: all of them would take half of the time.
CONSUMERS = 3
# How a consumer that stays at level disk may be sent back: never because of a crash.
EXPECTED = {"purged"}


def check(engine):
    """Compares the node with the ledger. AssertionError says what is wrong."""
    check_files(engine)
    check_running(engine)
    check_swept(engine)


def check_running(engine):
    """What has to hold at any time."""
    engine.node.check()
    used = sum(partition.tree.memory_bytes for partition in engine.node.feeds.partitions())
    assert engine.node.storage.memory.used == used, "the account of the memory is wrong"
    _check_listed(engine.node.feeds)
    for partition in partitions_of(engine.node):
        told = engine.ledger.of(partition)
        _check_bounds(partition, told)
        if (partition.feed_id, partition.id) in engine.ledger.damaged:
            _check_damaged(engine, partition, told)
        else:
            assert partition.damage is None, partition.damage
            _check_content(engine, partition, told)


def _check_listed(feeds):
    """What the list of feeds says is what there is."""
    [partition] = feeds.system.partitions
    assert partition.damage is None
    rows = feeds._rows.read()
    listed = {feed_id for feed_id, row in rows.items() if row.creation is not None}
    assert listed == {feed.info.feed_id for feed in feeds}
    for feed_id in listed:
        creation = json.loads(rows[feed_id].creation)
        assert info_from_json(creation["feed"]) == feeds.of_id(feed_id).info


def _check_bounds(partition, told):
    assert partition.high_seq == len(told.rows)
    assert partition.durable_seq >= told.acknowledged_seq or partition.damage is not None, "answered too early"
    assert partition.flushed_seq <= partition.durable_seq, "what is not durable was flushed"
    assert partition.purge_seq <= told.purge_allowed, "tombstones were purged that are not old enough"
    assert partition.trim_seq <= told.trim_allowed, "rows were trimmed that are not old enough"
    last = told.rows[-1].timestamp if told.rows else 0
    assert partition.last_timestamp >= last, "timestamps would fall"


def _check_content(engine, partition, told):
    for segment in partition.chain.segments:
        assert segment.verify() == [], segment.path
    _check_gets(partition, told)
    _read_all(engine, partition, told, Level.DISK)
    if partition.high_seq > partition.durable_seq:
        _read_all(engine, partition, told, Level.MEMORY)
    for consumer in engine.rnd.sample(told.consumers, min(CONSUMERS, len(told.consumers))):
        consumer.read(engine.node, told, engine.rnd.choice((None, None, 0, 1, 2)))
        if consumer.level == Level.DISK:
            assert set(consumer.why) <= EXPECTED, f"a consumer of level disk was rolled back: {consumer.why}"


def _read_all(engine, partition, told, level):
    """From the beginning; kept for none of the later checks."""
    consumer = Consumer(told, engine.feed_info(partition), level)
    assert consumer.read(engine.node, told)
    assert consumer.position.seq == partition.visible_seq(level), "a stream from 0 does not come to the end"


def _check_gets(partition, told):
    partition.keys.catch_up(partition.tree, lambda: False)
    state = told.state_at(partition.high_seq)
    kept = partition.trim_seq
    for key in {row.key for row in told.rows} | {b"nobody"}:
        found = newest_row(partition, key)
        row = state.get(key)
        if found is not None and found.value is None:
            found = None
        if row is not None and row.seq <= kept:
            continue
        expected = None if row is None else (row.seq, row.timestamp, row.value)
        assert (None if found is None else tuple(found)) == expected, f"{key!r} is {found}, it has to be {expected}"
        if row is not None and row.seq > partition.log[-1].base:
            assert partition.version_of(row.seq).branch == row.branch, f"{key!r} has changed its branch"


def _check_damaged(engine, partition, told):
    """Errors, or right answers."""
    state = told.state_at(partition.high_seq)
    partition.keys.catch_up(partition.tree, lambda: False)
    for key in {row.key for row in told.rows}:
        try:
            found = newest_row(partition, key)
        except SegmentDamaged:
            continue
        value = None if found is None else found.value
        row = state.get(key)
        if row is not None and row.seq <= partition.trim_seq:
            continue
        assert value == (None if row is None else row.value), f"a damaged segment gives {key!r} a wrong value"
    for level in (Level.MEMORY, Level.DISK):
        try:
            _read_all(engine, partition, told, level)
        except SegmentDamaged:
            continue


def check_files(engine):
    """The files are those that manifests name, and these are whole."""
    disk, node = engine.disk, engine.node
    store = ManifestStore(disk, DATA)
    root = f"{DATA}/feeds"
    names = disk.names(root) if disk.exists(root) else []
    with_files = {bytes.fromhex(name) for name in names}
    known = node.feeds.known_ids()
    assert with_files <= known, "the directory of a feed that is none"
    for partition in node.feeds.partitions():
        if partition.damage is not None:
            continue
        if not partition.has_manifest:
            continue
        manifest = store.read(partition.feed_id, partition.id)
        assert manifest is not None, "the manifest is gone"
        invariants.check(manifest)
        assert store.missing(manifest) == [] or (partition.feed_id, partition.id) in engine.ledger.damaged
        chain = [os.path.basename(segment.path) for segment in partition.chain.segments]
        assert [f"{entry.id.hex()}.seg" for entry in manifest.segments] == chain, "the chain is not the manifest's"


def check_swept(engine):
    """After a start nothing lies in a partition's directory but what is named. Not in one that has no FEED yet."""
    disk, node = engine.disk, engine.node
    store = ManifestStore(disk, DATA)
    for partition in node.feeds.partitions():
        if not partition.has_manifest or partition.damage is not None:
            continue
        directory = store.partition_directory(partition.feed_id, partition.id)
        named = {os.path.basename(segment.path) for segment in partition.chain.segments} | {"MANIFEST"}
        left = set(disk.names(directory)) - named
        assert not left, f"nobody needs {left} any more"
