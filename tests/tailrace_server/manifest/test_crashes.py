"""Every step of what the store does, stopped at every call, with everything that a disk may leave of it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random

import pytest
from tests.memory_disk import KEEP, LOSE, MemoryDisk
from tests.tailrace_server.manifest.builders import FEED, chain, feed_file, id_of, manifest_of

from tailrace.errors import NoSpace
from tailrace_server.host import disk as host_disk
from tailrace_server.host.disk import write_atomically
from tailrace_server.manifest import ManifestDamaged, ManifestStore, codec, segment_name

OTHER = b"\x01" * 16
PARTITION_PATH = f"/data/feeds/{FEED.hex()}/3"
FATES = [LOSE, KEEP, random.Random(1), random.Random(2)]

FLUSHED = chain(10, 20, 30)
OLD = manifest_of(FLUSHED[:2])
NEW = manifest_of(FLUSHED)
FOLDED = FLUSHED[1]._replace(id=id_of(9), base_id=bytes(16), included_ids=(id_of(1), id_of(2)), after_seq=0, rows=5)
FOLDED = FOLDED._replace(oldest_timestamp=FLUSHED[0].oldest_timestamp, is_major=True, deduplicated=True)
COMPACTED = manifest_of((FOLDED, FLUSHED[2]))


def write_segment(disk, entry):
    write_atomically(disk, f"{PARTITION_PATH}/{segment_name(entry.id)}", b"s" * entry.nbytes)


def start():
    """A feed whose partition has two segments."""
    disk = MemoryDisk()
    disk.make_directory("/data")
    store = ManifestStore(disk, "/data")
    store.write(manifest_of())
    store.write_feed(feed_file())
    for entry in FLUSHED[:2]:
        write_segment(disk, entry)
    store.write(OLD)
    assert disk.pending == []
    return disk


def crashes(act):
    """Each disk that ``act(disk, store)`` may leave, stopped at each of its calls; and whether it was stopped."""
    for number in itertools.count():
        for torn_bytes in (0, 70):
            disk = start()
            disk.torn_bytes = torn_bytes
            disk.crash_at(number)
            stopped = False
            try:
                act(disk, ManifestStore(disk, "/data"))
            except disk.Crashed:
                stopped = True
            for names, fate in itertools.product(disk.survivals(), FATES):
                cut = disk.fork()
                cut.cut_power(fate, names)
                yield cut, stopped
            disk.kill()
            yield disk, stopped
        if not stopped:
            return


def flush(disk, store):
    write_segment(disk, FLUSHED[2])
    store.write(NEW)


def compact(disk, store):
    write_segment(disk, FOLDED)
    store.write(COMPACTED)
    for entry in FLUSHED[:2]:
        disk.remove(store.segment_path(FEED, 3, entry.id))


def flush_and_compact(disk, store):
    flush(disk, store)
    compact(disk, store)


@pytest.mark.parametrize(
    ("act", "possible"),
    [
        (lambda disk, store: store.write(NEW._replace(segments=OLD.segments, flushed_seq=20, purge_seq=7)), 2),
        (flush, 2),
        (flush_and_compact, 3),
    ],
)
def test_after_a_crash_there_is_one_manifest_and_all_that_it_names(act, possible):
    found = set()
    for disk, stopped in crashes(act):
        store = ManifestStore(disk, "/data")
        manifest = store.read(FEED, 3)
        assert store.missing(manifest) == []
        store.sweep(manifest)
        names = {"MANIFEST", *(segment_name(entry.id) for entry in manifest.segments)}
        assert set(disk.names(PARTITION_PATH)) == names
        assert ManifestStore(disk, "/data").read(FEED, 3) == manifest
        last = (manifest.purge_seq, manifest.segments)
        found.add(last)
        if not stopped:
            newest = last
        for survivors in disk.survivals():  # what was swept may come back, and is swept again
            again = disk.fork()
            again.cut_power(LOSE, survivors)
            store = ManifestStore(again, "/data")
            assert store.read(FEED, 3) == manifest
            assert store.missing(manifest) == []
            store.sweep(manifest)
            assert set(again.names(PARTITION_PATH)) == names
    assert len(found) == possible
    assert newest in found


def test_what_has_returned_is_never_undone():
    for act, expected in ((flush, NEW), (flush_and_compact, COMPACTED)):
        for disk, stopped in crashes(act):
            if not stopped:
                assert ManifestStore(disk, "/data").read(FEED, 3) == expected


def test_what_was_found_after_a_kill_survives_a_power_cut():
    """Because of it journal files are removed."""

    def flush_of_a_new_feed(disk, store):
        flush(disk, store)
        store.write_feed(feed_file(feed_id=OTHER, name="other"))

    for disk, _ in crashes(flush_of_a_new_feed):
        store = ManifestStore(disk, "/data")
        manifest, feeds = store.read(FEED, 3), store.feeds()
        disk.cut_power(LOSE)
        assert (store.read(FEED, 3), store.feeds()) == (manifest, feeds)


def without_its_sync(disk, path, data):
    file = disk.create(path + ".new")
    file.write_at(0, (data,), len(data))
    file.close()
    disk.rename(path + ".new", path)
    disk.sync_directory(path.rpartition("/")[0])


def without_the_directorys(disk, path, data):
    file = disk.create(path + ".new")
    file.write_at(0, (data,), len(data))
    file.sync()
    file.close()
    disk.rename(path + ".new", path)


def in_place(disk, path, data):
    file = disk.create(path)
    file.write_at(0, (data,), len(data))
    file.sync()
    file.close()


@pytest.mark.planted
@pytest.mark.parametrize("bug", [without_its_sync, without_the_directorys, in_place])
def test_a_planted_bug_is_found(monkeypatch, bug):
    def run():
        for disk, stopped in crashes(flush_and_compact):
            store = ManifestStore(disk, "/data")
            manifest = store.read(FEED, 3)
            assert manifest is not None
            assert store.missing(manifest) == []
            assert stopped or manifest == COMPACTED

    run()
    real = host_disk.write_atomically

    def write(disk, path, data):
        (bug if path.endswith("MANIFEST") and data != codec.encode(OLD) else real)(disk, path, data)

    monkeypatch.setattr("tailrace_server.manifest.store.write_atomically", write)
    with pytest.raises((AssertionError, ManifestDamaged)):
        run()


def test_a_drop_is_undone_or_finished():
    outcomes = set()
    for disk, stopped in crashes(lambda disk, store: store.drop_feed(FEED)):
        store = ManifestStore(disk, "/data")
        feeds = store.feeds()
        assert feeds in ([feed_file()], [])
        removed = store.finish_drops([])
        if feeds:
            assert (stopped, removed) == (True, [])
            assert store.read(FEED, 3) == OLD
            assert store.missing(OLD) == []
        else:
            assert disk.names("/data/feeds") == []
        outcomes.add((bool(feeds), bool(removed)))
    assert outcomes == {(True, False), (False, True), (False, False)}


@pytest.mark.slow
def test_a_drop_that_is_finished_after_a_crash_may_crash_again():
    for disk, _ in crashes(lambda disk, store: store.drop_feed(FEED)):
        for number in itertools.count():
            again = disk.fork()
            again.crash_at(number)
            stopped = False
            try:
                ManifestStore(again, "/data").finish_drops([])
            except again.Crashed:
                stopped = True
            for survivors in again.survivals():
                cut = again.fork()
                cut.cut_power(LOSE, survivors)
                store = ManifestStore(cut, "/data")
                store.finish_drops([])
                assert bool(store.feeds()) == bool(cut.names("/data/feeds"))
                if store.feeds():
                    assert store.read(FEED, 3) == OLD
                    assert store.missing(OLD) == []
            if not stopped:
                break


def test_a_creation_is_there_or_leaves_nothing():
    def create(disk, store):
        store.write(manifest_of(feed_id=OTHER))
        store.write_feed(feed_file(feed_id=OTHER, name="other"))

    counts = set()
    for disk, _ in crashes(create):
        store = ManifestStore(disk, "/data")
        store.finish_drops([])
        counts.add(len(store.feeds()))
        assert len(store.feeds()) == len(disk.names("/data/feeds"))
    assert counts == {1, 2}


def test_of_creations_together_each_is_there_or_leaves_nothing():
    others = (OTHER, bytes(16))

    def create(disk, store):
        for feed_id in others:
            store.write(manifest_of(feed_id=feed_id))
        store.write_feeds([feed_file(feed_id=feed_id, name=feed_id.hex()) for feed_id in others])

    counts = set()
    for disk, stopped in crashes(create):
        store = ManifestStore(disk, "/data")
        store.finish_drops([])
        counts.add(len(store.feeds()))
        assert len(store.feeds()) == len(disk.names("/data/feeds"))
        assert stopped or len(store.feeds()) == 3
    assert counts == {1, 2, 3}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_any_call_may_fail_and_the_next_try_succeeds(code):
    for number in itertools.count():
        disk = start()
        store = ManifestStore(disk, "/data")
        disk.fail_at(number, code)
        with contextlib.suppress(OSError, NoSpace):
            flush(disk, store)
        done = disk.before is not None  # the call that was to fail never came
        disk.before = None
        found = store.read(FEED, 3)
        assert found in (OLD, NEW)
        assert store.missing(found) == []
        flush(disk, store)
        disk.cut_power(LOSE)
        assert store.read(FEED, 3) == NEW
        assert store.missing(NEW) == []
        if done:
            return
