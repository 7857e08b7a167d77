from __future__ import annotations

import errno

import pytest
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.manifest.builders import BRANCH, FEED, chain, entry, feed_file, id_of, manifest_of

from tailrace.errors import NoSpace
from tailrace_server.host.disk import RealDisk, write_atomically
from tailrace_server.manifest import ManifestDamaged, ManifestStore, codec, segment_name

OTHER = b"\x01" * 16
FEED_PATH = f"/data/feeds/{FEED.hex()}"
PARTITION_PATH = f"{FEED_PATH}/3"
EMPTY = manifest_of()
SEGMENTS = chain(10, 20)
FULL = manifest_of(SEGMENTS)


@pytest.fixture
def disk():
    disk = MemoryDisk()
    disk.make_directory("/data")
    return disk


@pytest.fixture
def store(disk):
    return ManifestStore(disk, "/data")


def write_segments(disk, *entries):
    for made in entries:
        write_atomically(disk, f"{PARTITION_PATH}/{segment_name(made.id)}", bytes(made.nbytes))


@pytest.fixture
def feed(disk, store):
    """A feed with one partition that has two segments."""
    store.write(EMPTY)
    store.write_feed(feed_file())
    write_segments(disk, *SEGMENTS)
    store.write(FULL)
    return store


def test_paths(store):
    assert store.feed_directory(FEED) == FEED_PATH
    assert store.partition_directory(FEED, 3) == PARTITION_PATH
    assert store.segment_path(FEED, 3, b"\xab" * 16) == f"{PARTITION_PATH}/{'ab' * 16}.seg"


def test_on_a_real_disk(tmp_path):
    store = ManifestStore(RealDisk(), str(tmp_path))
    assert store.feeds() == []
    assert store.finish_drops(()) == []
    store.drop_feed(FEED)
    store.write(EMPTY)
    store.write_feed(feed_file())
    assert store.read(FEED, 3) == EMPTY
    assert store.feeds() == [feed_file()]
    assert (tmp_path / "feeds" / FEED.hex() / "3" / "MANIFEST").read_bytes() == codec.encode(EMPTY)
    (tmp_path / "feeds" / FEED.hex() / "3" / "a.new").write_bytes(b"x")
    assert store.sweep(EMPTY) == ["a.new"]
    store.drop_feed(FEED)
    assert list((tmp_path / "feeds").iterdir()) == []


# Manifests.


def test_a_manifest_is_durable_when_it_is_written(disk, store):
    calls = []
    disk.before = lambda name, path: calls.append(name)
    store.write(EMPTY)
    assert calls == ["make_directory"] * 3 + ["create", "write_at", "sync", "rename", "sync_directory"]
    calls.clear()
    store.write(EMPTY)
    assert calls == ["create", "write_at", "sync", "rename", "sync_directory"]


def test_nothing_was_written_yet(store):
    assert store.read(FEED, 3) is None
    store.write(EMPTY)
    assert store.read(FEED, 3) == EMPTY
    assert store.read(FEED, 4) is None


def test_all_manifests_of_a_feed_are_made_durable_in_one_step(disk, store, feed, monkeypatch):
    synced = []
    monkeypatch.setattr(disk, "sync_directories", synced.append)
    manifests = store.read_all(FULL.feed_id, range(FULL.partition + 2))
    assert [manifest is not None for manifest in manifests] == [
        number == FULL.partition for number in range(FULL.partition + 2)
    ]
    assert synced == [[store.partition_directory(FULL.feed_id, FULL.partition)]]


def test_segments_without_a_manifest_are_damage(disk, feed):
    disk.remove(f"{PARTITION_PATH}/MANIFEST")
    with pytest.raises(ManifestDamaged, match=f"{PARTITION_PATH}/MANIFEST can't be used: it is missing"):
        feed.read(FEED, 3)


def test_a_damaged_manifest_names_its_file(disk, feed):
    disk.flip(f"{PARTITION_PATH}/MANIFEST", 300)
    with pytest.raises(
        ManifestDamaged, match=f"{PARTITION_PATH}/MANIFEST can't be used: its checksum is wrong; rest"
    ) as raised:
        feed.read(FEED, 3)
    assert "A member of a set needs no backup: start it with an empty directory" in str(raised.value)


def test_a_manifest_of_another_partition(disk, feed):
    disk.make_directory(f"{FEED_PATH}/4")
    disk.rename(f"{PARTITION_PATH}/MANIFEST", f"{FEED_PATH}/4/MANIFEST")
    with pytest.raises(ManifestDamaged, match=f"it is of partition {FEED.hex()}/3"):
        feed.read(FEED, 4)


def test_a_manifest_that_the_disk_cannot_read(disk, feed):
    disk.fail("read_at")
    with pytest.raises(ManifestDamaged, match="the disk can't read it: Input/output error"):
        feed.read(FEED, 3)
    with pytest.raises(ManifestDamaged, match="FEED can't be used: the disk can't read it"):
        feed.feeds()


def test_a_full_disk_leaves_the_old_one(disk, feed):
    disk.size_bytes -= disk.free
    with pytest.raises(NoSpace, match=f"no space is left in {PARTITION_PATH}"):
        feed.write(EMPTY)
    with pytest.raises(NoSpace, match=f"no space is left in {FEED_PATH}"):
        feed.write_feed(feed_file())
    assert feed.read(FEED, 3) == FULL
    assert not [name for name in disk.names(PARTITION_PATH) if name.endswith(".new")]


def test_a_bad_disk_is_told(disk, feed):
    disk.fail_at(0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        feed.write(EMPTY)
    assert feed.read(FEED, 3) == FULL


# Segments.


def test_segments_that_are_missing_are_told(disk, feed):
    assert feed.missing(FULL) == []
    write_atomically(disk, f"{PARTITION_PATH}/{segment_name(id_of(2))}", b"short")
    assert feed.missing(FULL) == [SEGMENTS[1]]
    disk.remove(f"{PARTITION_PATH}/{segment_name(id_of(1))}")
    assert feed.missing(FULL) == list(SEGMENTS)


def test_what_no_manifest_names_is_swept(disk, feed):
    write_segments(disk, entry(3, 20, 30))
    for name in ("x.new", "MANIFEST.new", f"{segment_name(id_of(4))}.new", "notes.txt", "a.seg"):
        disk.create(f"{PARTITION_PATH}/{name}").close()
    removed = feed.sweep(FULL)
    assert removed == sorted([segment_name(id_of(3)), "x.new", "MANIFEST.new", f"{segment_name(id_of(4))}.new"])
    assert disk.names(PARTITION_PATH) == sorted(
        ["MANIFEST", segment_name(id_of(1)), segment_name(id_of(2)), "a.seg", "notes.txt"]
    )
    assert feed.sweep(FULL) == []


def test_only_a_running_node_gives_space_back_in_steps(disk, feed, monkeypatch):
    """A start would wait for nothing: no fsync is under way beside it."""
    large, remove = [], disk.remove

    def remove_large(path):
        large.append(path)
        remove(path)

    monkeypatch.setattr(disk, "remove_large", remove_large)
    write_segments(disk, entry(3, 20, 30))
    assert feed.sweep(FULL) == [segment_name(id_of(3))]
    feed.begin_drop(FEED)
    assert feed.finish_drops([]) == [FEED]
    assert large == []
    feed.write(EMPTY)
    write_segments(disk, *SEGMENTS)
    paths = {f"{PARTITION_PATH}/{segment_name(one.id)}" for one in SEGMENTS}
    feed.drop_feed(FEED)
    assert paths < set(large)


def test_what_is_being_read_or_written_is_kept(disk, feed):
    write_segments(disk, entry(3, 20, 30))
    disk.create(f"{PARTITION_PATH}/{segment_name(id_of(4))}.new").close()
    assert feed.sweep(FULL, [id_of(3), id_of(4)]) == []
    assert feed.sweep(FULL, [id_of(3)]) == [f"{segment_name(id_of(4))}.new"]


# Feeds.


def test_feeds_are_listed_by_their_ids(disk, store):
    store.write_feed(feed_file())
    store.write_feed(feed_file(feed_id=OTHER, name="other"))
    disk.create("/data/feeds/notes").close()
    assert [feed.info.name for feed in store.feeds()] == ["other", "orders"]
    assert store.feeds()[1] == feed_file()
    assert store.feeds()[1].branch == BRANCH


def test_feeds_that_are_written_together_share_fsyncs(disk, store, monkeypatch):
    made, synced = [], []
    make_directories, sync_directories = disk.make_directories, disk.sync_directories
    monkeypatch.setattr(disk, "make_directories", lambda paths: (made.append(list(paths)), make_directories(paths)))
    monkeypatch.setattr(disk, "sync_directories", lambda paths: (synced.append(list(paths)), sync_directories(paths)))
    feeds = [feed_file(feed_id=OTHER, name="other"), feed_file()]
    store.write_feeds(feeds)
    directories = [f"/data/feeds/{OTHER.hex()}", FEED_PATH]
    assert made == synced == [directories]
    assert disk.pending == []
    assert store.feeds() == feeds


def test_a_full_disk_names_the_place_of_many_feeds(disk, store):
    disk.size_bytes -= disk.free
    with pytest.raises(NoSpace, match="no space is left in /data/feeds"):
        store.write_feeds([feed_file(), feed_file(feed_id=OTHER, name="other")])


def test_a_feed_may_get_another_name(store):
    store.write_feed(feed_file())
    store.write_feed(feed_file(name="new"))
    assert [feed.info.name for feed in store.feeds()] == ["new"]


def test_a_feed_under_another_id(disk, store):
    store.write_feed(feed_file())
    disk.make_directory(f"/data/feeds/{OTHER.hex()}")
    disk.rename(f"{FEED_PATH}/FEED", f"/data/feeds/{OTHER.hex()}/FEED")
    with pytest.raises(ManifestDamaged, match=f"{OTHER.hex()}/FEED can't be used: it is the file of feed {FEED.hex()}"):
        store.feeds()


def test_a_damaged_feed_names_its_file(disk, feed):
    disk.flip(f"{FEED_PATH}/FEED", 300)
    with pytest.raises(ManifestDamaged, match=f"{FEED_PATH}/FEED can't be used: its checksum is wrong"):
        feed.feeds()


def test_a_feed_is_dropped_with_all_its_files(disk, feed):
    disk.create(f"{PARTITION_PATH}/x.new").close()
    feed.drop_feed(FEED)
    assert disk.names("/data/feeds") == []
    assert disk.pending == []
    feed.drop_feed(FEED)
    assert feed.feeds() == []


def test_a_feed_without_a_file_of_its_own_is_dropped_too(disk, store):
    store.write(EMPTY)
    write_segments(disk, *SEGMENTS)
    store.drop_feed(FEED)
    assert disk.names("/data/feeds") == []


def test_a_feed_that_only_the_journal_knows_is_left_alone(disk, store):
    store.write(EMPTY)
    write_segments(disk, *SEGMENTS)
    store.write(FULL)
    assert store.finish_drops([FEED]) == []
    assert store.read(FEED, 3) == FULL


def test_a_feed_that_nobody_knows_is_removed_unless_it_has_segments(disk, store):
    store.write(EMPTY)
    assert store.finish_drops([]) == [FEED]
    assert disk.names("/data/feeds") == []
    store.write(EMPTY)
    write_segments(disk, *SEGMENTS)
    with pytest.raises(ManifestDamaged, match=f"{FEED_PATH}/FEED can't be used: it is missing, and there are segments"):
        store.finish_drops([])
    assert disk.exists(f"{PARTITION_PATH}/MANIFEST")


@pytest.mark.parametrize("call", range(10))
def test_a_drop_that_failed_is_finished(disk, feed, call):
    disk.fail_at(call, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        feed.drop_feed(FEED)
    assert feed.feeds() in ([], [feed_file()])
    feed.drop_feed(FEED)
    assert disk.names("/data/feeds") == []
    assert disk.pending == []
