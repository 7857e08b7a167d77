"""What nobody needs any more goes, and nothing else."""

import errno

import pytest
import trio
import trio.testing

from tailrace.errors import Overloaded
from tailrace.model import Level
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.rounds import Rounds
from tailrace_server.upkeep import trimmer

ROW = (b"k", bytes(900))


async def flushed(engine, partition, count):
    """So many segments of a row each."""
    for _ in range(count):
        engine.put(partition, ROW)
        await engine.flusher.pass_once()


async def fold(engine, partition):
    info = engine.node.feeds.of_id(partition.feed_id).info
    while await engine.node.storage.compactor.compact(partition, info):
        pass


async def test_a_feed_is_written_by_one_at_a_time(engine, monkeypatch):
    """The flusher does, and so does a replica for each partition that it fills: all by the same temporary file."""
    store, written = engine.flusher._trimmer._store, []
    write_feeds = store.write_feeds

    def noting(feeds):
        written.extend(feed.info.name for feed in feeds)
        write_feeds(feeds)

    monkeypatch.setattr(store, "write_feeds", noting)
    for name in ("one", "two"):
        engine.create(name)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(engine.flusher.write_feeds)
    assert sorted(written) == ["one", "two"]


async def test_feeds_are_written_together(engine, monkeypatch):
    """One that is dropped, or whose creation may be lost, while those before it are written is left out."""
    monkeypatch.setattr(trimmer, "FEEDS_TOGETHER", 2)
    store, written = engine.flusher._trimmer._store, []
    write_feeds = store.write_feeds

    def noting(feeds):
        written.append([feed.info.name for feed in feeds])
        write_feeds(feeds)
        if len(written) == 1:
            engine.drop("three")

    monkeypatch.setattr(store, "write_feeds", noting)
    for name in ("one", "two", "three", "four", "five"):
        engine.create(name)
    engine.node.feed_changes.create({"name": "six", "feed_id": "66" * 16, "partitions": 1})
    await engine.flusher.write_feeds()
    assert written == [["one", "two"], ["four"], ["five"]]
    assert [name for name in engine.node.feeds.creations if name != b"6" * 16] == [bytes.fromhex("66" * 16)]
    engine.sync()
    await engine.flusher.write_feeds()
    assert written[3:] == [["six"]]
    assert not engine.node.feeds.creations
    engine.kill()
    assert sorted(feed.info.name for feed in engine.node.feeds) == ["five", "four", "one", "six", "two"]


async def test_a_feed_is_not_removed_while_feeds_are_written(engine):
    """Its FEED may be among them: written after the removal, it would bring an empty feed back."""
    partition, trims = engine.create(), engine.flusher._trimmer
    await engine.flusher.write_feeds()
    directory = trims._store.feed_directory(partition.feed_id)
    engine.drop()
    engine.sync()
    async with trio.open_nursery() as nursery, trims._writing_feeds:
        nursery.start_soon(trims.trim)
        await trio.testing.wait_all_tasks_blocked()
        assert engine.disk.exists(f"{directory}/FEED")
    assert not engine.disk.exists(directory)


async def test_nothing_waits_for_the_data_of_a_dropped_feed(engine, monkeypatch):
    """It may take seconds. Its files are closed before: one that is open gives its space back at once."""
    partition, trims, seen = engine.create(), engine.flusher._trimmer, []
    await flushed(engine, partition, 3)
    files, remove = trims._store.segment_files, engine.disk.remove

    def remove_large(path):
        if path.endswith(".seg"):
            seen.append((trims._writing_feeds.locked(), files.idle, trims._journal.oldest_number > oldest))
        remove(path)

    monkeypatch.setattr(engine.disk, "remove_large", remove_large)
    idle = files.idle
    engine.drop()
    engine.sync()
    oldest = trims._journal.oldest_number
    await trims.trim()
    assert seen == [(False, idle - 3, True)] * 3
    assert engine.feed_directories() == []


async def test_a_feed_is_not_created_again_while_its_files_are_removed(engine):
    """A repeated request may come late. The removal would take the files of the second feed, too."""
    partition, trims = engine.create(), engine.flusher._trimmer
    await flushed(engine, partition, 1)
    engine.drop()
    with pytest.raises(Overloaded, match="files of feed 'orders' are being removed"):
        engine.create()
    engine.sync()
    await trims.trim()
    engine.create()
    await trims.trim()
    engine.kill()
    assert len(engine.feed_directories()) == 1


async def test_segments_that_were_folded_are_removed(engine):
    partition = engine.create()
    await flushed(engine, partition, 4)
    await fold(engine, partition)
    assert len(engine.segments(partition)) == 5
    await engine.flusher.pass_once()
    assert len(engine.segments(partition)) == len(partition.chain.segments) == 1
    engine.check_rows(partition)
    engine.kill()
    engine.check_rows(engine.partition())


async def test_a_start_removes_what_a_crash_has_left_of_them(engine):
    partition = engine.create()
    await flushed(engine, partition, 4)
    await fold(engine, partition)
    engine.kill()
    assert len(engine.segments(engine.partition())) == 1
    engine.check_rows(engine.partition())


async def test_one_that_is_read_stays(engine):
    partition = engine.create()
    await flushed(engine, partition, 4)
    rounds = Rounds(1 << 20)
    rounds.open(PartitionStream(1, partition, Level.DISK, 0, None, 0, pins=engine.node.storage.pins), lambda: None)
    rounds.next_buffers(1 << 20)
    ((stream, part),) = rounds.next_loads()
    await fold(engine, partition)
    await engine.flusher.pass_once()
    assert len(engine.segments(partition)) == 2
    assert engine.node.status()["storage"]["retired_bytes"] == part.segment.nbytes
    rounds.loaded(stream, part, *part.load())
    rounds.next_buffers(1 << 20)
    await engine.flusher.pass_once()
    assert len(engine.segments(partition)) == 1
    rounds.close_all()


async def test_what_cannot_be_removed_is_removed_later(engine):
    partition = engine.create()
    await flushed(engine, partition, 4)
    await fold(engine, partition)
    engine.fail("remove", ".seg", errno.EIO)
    await engine.flusher.pass_once()
    assert "Input/output error" in engine.flusher.failure
    await engine.flusher.pass_once()
    assert engine.flusher.failure == ""
    engine.check_rows(partition)
    engine.kill()
    assert len(engine.segments(engine.partition())) == 1


async def test_the_journal_waits_for_the_file_of_a_feed(engine):
    partition = engine.create()
    engine.fail("rename", "FEED", times=100)
    await flushed(engine, partition, 3)
    assert engine.flusher.failure
    files = len(engine.journal_files)
    assert files > 3, "each holds a block"
    engine.disk.before = None
    engine.kill()
    engine.check_rows(engine.partition())
    await engine.flusher.pass_once()
    assert len(engine.journal_files) < files


@pytest.mark.parametrize("number", range(3))
async def test_a_trim_of_the_journal_goes_on_where_it_failed(engine, number):
    partition = engine.create()
    for _ in range(4):
        engine.put(partition, ROW)
    left = number

    def before(name, path):
        nonlocal left
        if name == "remove" and path.endswith(".log"):
            left -= 1
            if left == -1:
                raise OSError(errno.EIO, "Input/output error", path)

    engine.disk.before = before
    await engine.flusher.pass_once()
    assert engine.flusher.failure
    await engine.flusher.pass_once()
    assert engine.flusher.failure == ""
    assert len(engine.journal_files) == 1
    engine.kill()
    engine.check_rows(engine.partition())


async def test_a_history_that_was_trimmed_starts_again(engine):
    partition = engine.create(retention="history")
    for number in range(3):
        engine.put(partition, (b"%d" % number, b"v"))
        await engine.flusher.pass_once()
    await engine.node.storage.installer.drop_oldest(partition, 2)
    await engine.flusher.pass_once()
    assert len(engine.segments(partition)) == 1
    engine.kill()
    partition = engine.partition()
    assert (partition.trim_seq, partition.flushed_seq) == (2, 3)
    assert engine.get(partition, b"0", b"1", b"2") == [None, None, b"v"]
    await engine.node.storage.installer.drop_oldest(partition, 1)
    engine.kill()
    partition = engine.partition()
    assert (partition.trim_seq, partition.flushed_seq, partition.high_seq) == (3, 3, 3)
    engine.put(partition, (b"3", b"v"))
    await engine.flusher.pass_once()
    rounds = Rounds(1 << 20)
    rounds.open(PartitionStream(1, partition, Level.DISK, 0, None, 0, pins=engine.node.storage.pins), lambda: None)
    while rounds.next_buffers(1 << 20) or rounds.has_news:
        for stream, part in rounds.next_loads():
            rounds.loaded(stream, part, *part.load())
    assert rounds.slots[1].stream.delivered_seq == 4
