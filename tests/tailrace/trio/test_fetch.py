"""`Feed.fetch` against real nodes: what it copies, and what becomes of it when a node or the fetch ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import tailrace
from tailrace import Put, SegmentReader, blocking
from tailrace.errors import BadCopy


@pytest.fixture
async def feed_id(feed):
    return (await feed.resolve()).feed_id


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*.seg")}


def node_files(running, feed_id):
    return files_of(os.path.join(running.config.data, "feeds", feed_id.hex()))


async def write(feed, rows, tag=b""):
    await feed.write([Put(b"k%d" % number, tag + os.urandom(2_000)) for number in range(rows)])


def bytes_in(folder):
    """The bytes of all segments, half ones too."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*.seg*"))


def state_of(path):
    """The values of all keys in a copy."""
    reader, found = SegmentReader(path), {}
    for partition in reader.partitions:
        for event in reader.mutations(partition):
            found.update(zip(event.keys(), event.values(), strict=True))
    return found


async def items_of(feed):
    return {item.key: item.value async for item in feed.items()}


async def test_a_copy_has_the_files_of_the_node(running, feed, feed_id, tmp_path):
    await write(feed, 3_000)
    fetched = await feed.fetch(tmp_path / "copy")
    assert files_of(tmp_path / "copy") == node_files(running, feed_id)
    assert fetched.fetched_bytes == fetched.nbytes == sum(map(len, node_files(running, feed_id).values()))
    assert sum(partition.seq for partition in fetched.partitions.values()) == 3_000
    assert state_of(tmp_path / "copy") == await items_of(feed)
    assert len(running.node.storage.checkpoints) == 0


async def test_the_next_fetch_takes_only_what_is_new(feed, tmp_path):
    await write(feed, 500)
    first = await feed.fetch(str(tmp_path / "copy"))
    await feed.put(b"k1", b"new")
    second = await feed.fetch(str(tmp_path / "copy"))
    assert 0 < second.fetched_bytes < first.nbytes / 4
    assert state_of(tmp_path / "copy") == await items_of(feed)
    assert (await feed.fetch(tmp_path / "copy")).fetched_bytes == 0


async def test_the_positions_of_a_copy_go_on_by_stream(feed, tmp_path):
    await write(feed, 500)
    await feed.fetch(tmp_path / "copy")
    await feed.put(b"k1", b"later")
    positions = SegmentReader(tmp_path / "copy").positions
    async with feed.consume(positions, until="now") as stream:
        seen = [m async for event in stream if isinstance(event, tailrace.Mutations) for m in event]
    assert [(m.key, m.value) for m in seen] == [(b"k1", b"later")]


async def test_both_shells_make_the_same_copy(running, feed, feed_id, tmp_path):
    await write(feed, 500)

    def fetch():
        with blocking.connect(running.url) as client:
            return client.feed("orders").fetch(tmp_path / "copy", partitions=[1, 3])

    fetched = await trio.to_thread.run_sync(fetch)
    assert list(fetched.partitions) == [1, 3]
    assert {name.partition("/")[0] for name in files_of(tmp_path / "copy")} == {"1", "3"}
    await feed.fetch(tmp_path / "copy")
    assert files_of(tmp_path / "copy") == node_files(running, feed_id)


async def test_compactions_during_fetches(running, feed, tmp_path):
    """Each copy is whole, and the last one has the node's files."""
    done = trio.Event()

    async def keep_writing():
        for number in range(12):
            await write(feed, 200, b"%d" % number)
            for partition in running.node.feeds.named("orders").partitions:
                await running.node.storage.flusher.flush(partition)
                running.node.storage.compactor.consider(partition)
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_writing)
        while not done.is_set():
            await feed.fetch(tmp_path / "copy")
            SegmentReader(tmp_path / "copy").verify()
    await feed.fetch(tmp_path / "copy")
    assert state_of(tmp_path / "copy") == await items_of(feed)


async def test_a_node_that_restarts_during_a_fetch(running, feed, tmp_path):
    await write(feed, 3_000)
    restarted = False

    def progress(received, wanted):
        nonlocal restarted
        if not restarted:
            restarted = True
            running.node.storage.checkpoints._release_all(list(running.node.storage.checkpoints._kept.values()))
            running.cut_connections()

    fetched = await feed.fetch(tmp_path / "copy", progress=progress)
    assert restarted
    assert fetched.fetched_bytes == fetched.nbytes, "no byte came twice"
    assert state_of(tmp_path / "copy") == await items_of(feed)


async def test_a_fetch_that_is_cancelled_goes_on(feed, tmp_path):
    await write(feed, 3_000)
    with trio.CancelScope() as scope:
        await feed.fetch(tmp_path / "copy", progress=lambda received, wanted: scope.cancel())
    assert scope.cancelled_caught
    have = bytes_in(tmp_path / "copy")
    assert have > 0
    fetched = await feed.fetch(tmp_path / "copy")
    assert fetched.fetched_bytes == fetched.nbytes - have
    assert state_of(tmp_path / "copy") == await items_of(feed)


async def test_an_error_comes_alone(feed, tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(BadCopy, match="not empty"):
        await feed.fetch(tmp_path)
    with pytest.raises(ValueError, match="partitions 0 to 3"):
        await feed.fetch(tmp_path / "copy", partitions=[4])
    with pytest.raises(ValueError, match="memory"):
        await feed.fetch(tmp_path / "copy", visibility="memory")
    assert set(os.listdir(tmp_path)) == {"data", "thesis.txt"}


async def test_a_feed_that_was_made_again_is_another_feed(client, feed, tmp_path):
    await feed.put(b"k", b"v")
    await feed.fetch(tmp_path / "copy")
    await client.drop_feed("orders")
    again = await client.create_feed("orders", partitions=4)
    await again.put(b"k", b"w")
    with pytest.raises(BadCopy, match="is a copy of the feed 'orders' with the id"):
        await again.fetch(tmp_path / "copy")
    assert state_of(tmp_path / "copy") == {b"k": b"v"}


async def test_a_rollback_of_the_node(running, feed, lose, tmp_path):
    await feed.put(b"k", b"kept")
    async with lose():
        await feed.put(b"k", b"lost")
        await feed.fetch(tmp_path / "copy")
        assert state_of(tmp_path / "copy") == {b"k": b"lost"}
    await feed.put(b"k", b"of another branch")
    fetched = await feed.fetch(tmp_path / "copy")
    assert [p.rolled_back_to for p in fetched.partitions.values() if p.rolled_back_to is not None] == [1]
    assert state_of(tmp_path / "copy") == {b"k": b"of another branch"}


FETCH = """
import sys
from tailrace import blocking
def progress(received, wanted):
    print(received, flush=True)
with blocking.connect(sys.argv[1]) as client:
    client.feed("orders").fetch(sys.argv[2], progress=progress)
"""


def kill_after_lines(url, path, lines):
    """Begins a fetch in a process, and kills it when it has told of its progress so often."""
    with subprocess.Popen([sys.executable, "-c", FETCH, url, str(path)], stdout=subprocess.PIPE) as process:
        for _ in range(lines):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)


@pytest.mark.slow
async def test_a_fetch_that_is_killed_at_any_point_goes_on(running, feed, feed_id, tmp_path):
    await write(feed, 4_000)
    for number in range(6):
        await trio.to_thread.run_sync(kill_after_lines, running.url, tmp_path / "copy", number % 3 + 1)
    fetched = await feed.fetch(tmp_path / "copy")
    assert fetched.fetched_bytes < fetched.nbytes, "the killed ones have left something"
    assert files_of(tmp_path / "copy") == node_files(running, feed_id)


async def test_a_follower_gives_a_copy_too(members, tmp_path):
    async with tailrace.connect(members.url) as client:
        feed = await client.create_feed("orders", partitions=2)
        version = await feed.put(b"k", b"v", level="quorum")
    async with tailrace.connect(members.url, state="follower") as client:
        feed = client.feed("orders")
        assert await feed.get(b"k", level="quorum", at_least=version) is not None
        await feed.fetch(tmp_path / "copy", visibility="quorum")
    assert state_of(tmp_path / "copy") == {b"k": b"v"}
