"""Segments over real sockets: checkpoints, parts of files, and what is refused."""

import contextlib
import dataclasses
import json
import os
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from tests.conftest import RawClient
from tests.segment_fixtures import flip
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace import Put, blocking
from tailrace.errors import BadSegment, NotDurable, NotLeader, Overloaded, ProtocolError, UnknownCheckpoint, UnknownFeed
from tailrace.model import Level
from tailrace.segment.format import TRAILER_BYTES
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.file_parts import PART_BYTES_MAX
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import (
    CheckpointRequest,
    PartitionCheckpoint,
    SegmentFetch,
    SegmentRelease,
)

pytestmark = pytest.mark.usefixtures("others_are_served")


@pytest.fixture
async def rows(feed):
    """Rows of 4 KiB that do not compress, so that each partition has about 1.5 MiB."""
    await feed.write([Put(b"k%d" % number, os.urandom(4_000)) for number in range(1_600)])


async def take(connection, feed_id, partition=0, *, flush=True, **members):
    request = CheckpointRequest(feed_id, partition, flush=flush)._replace(**members)
    await connection.send(encode_json(Opcode.SEGMENT_CHECKPOINT, request.to_json(), 7))
    frame = await connection.receive()
    if frame.opcode is Opcode.ERROR:
        raise decode_error(frame.body)
    return PartitionCheckpoint.from_json(decode_json(frame.body, "RESULT"))


async def fetch(connection, checkpoint, offset, nbytes, number=0, id=9):
    await connection.send(SegmentFetch(checkpoint.id, checkpoint.segments[number].id, offset, nbytes).encode(id))
    frame = await connection.receive()
    assert frame.id == id
    if frame.opcode is Opcode.ERROR:
        raise decode_error(frame.body)
    assert frame.opcode is Opcode.SEGMENT_DATA
    return bytes(frame.body)


def content(running, checkpoint, number=0):
    store = running.node.storage.store
    path = store.segment_path(checkpoint.feed_id, checkpoint.partition, checkpoint.segments[number].id)
    with open(path, "rb") as file:
        return file.read()


async def fetch_whole(connection, checkpoint):
    nbytes = checkpoint.segments[0].nbytes
    parts = [
        await fetch(connection, checkpoint, offset, min(PART_BYTES_MAX, nbytes - offset))
        for offset in range(0, nbytes, PART_BYTES_MAX)
    ]
    return b"".join(parts)


async def test_a_file_comes_as_it_is(greeted, feed_id, rows, running):
    checkpoint = await take(greeted, feed_id)
    assert checkpoint.segments[-1].last_seq == checkpoint.seq > 0
    assert checkpoint.segments[0].nbytes > PART_BYTES_MAX
    assert await fetch_whole(greeted, checkpoint) == content(running, checkpoint)


@pytest.fixture
def unread(running, feed_id, rows, monkeypatch):
    """The segment of partition 0, whose bytes may not pass through Python."""

    def read(*arguments):
        raise AssertionError("the file is read")

    def of(checkpoint):
        segment = running.node.feeds.of_id(feed_id).partitions[0].chain.segments[0]
        assert segment.identity.segment_id == checkpoint.segments[0].id
        monkeypatch.setattr(segment, "read_part", read)
        return segment

    return of


async def test_no_byte_of_a_file_passes_through_python(greeted, feed_id, rows, running, unread):
    checkpoint = await take(greeted, feed_id)
    data = content(running, checkpoint)
    unread(checkpoint)
    assert await fetch_whole(greeted, checkpoint) == data


async def test_a_file_that_is_not_in_memory_is_loaded_and_sent(greeted, feed_id, rows, running, unread):
    checkpoint = await take(greeted, feed_id)
    data = content(running, checkpoint)
    segment = unread(checkpoint)
    forget_cached(segment.path)
    assert segment.lend_cached(0, PART_BYTES_MAX) is None
    assert await fetch_whole(greeted, checkpoint) == data
    running.node.storage.store.segment_files.close_idle()
    assert await fetch_whole(greeted, checkpoint) == data


async def test_parts_that_wait_are_loaded_with_the_first_one(greeted, feed_id, rows, running, unread, monkeypatch):
    checkpoint = await take(greeted, feed_id)
    segment, loads = unread(checkpoint), []
    load = segment.load
    monkeypatch.setattr(segment, "load", lambda *part: (loads.append(part), load(*part)))
    nbytes = checkpoint.segments[0].nbytes // 3
    other = await take(greeted, feed_id, 1)
    before = SegmentFetch(other.id, other.segments[0].id, 0, PART_BYTES_MAX)  # so many that the socket is full
    await greeted.send(*(before.encode(number) for number in range(50)))
    fetches = [SegmentFetch(checkpoint.id, checkpoint.segments[0].id, n * nbytes, nbytes).encode(n) for n in range(3)]
    await greeted.send(*fetches)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert not loads, "nothing is loaded before its turn"
    forget_cached(segment.path)
    while (lent := segment.lend_cached(0, nbytes)) is not None:  # a busy system takes a moment to drop a page
        lent.give_back()
        await trio.sleep(0.01)
        forget_cached(segment.path)
    assert [(await greeted.receive()).id for _ in range(53)] == [*range(50), 0, 1, 2]
    assert loads == [(0, nbytes), (nbytes, nbytes), (2 * nbytes, nbytes)]


async def test_a_file_that_does_not_stay_in_memory_is_read(greeted, feed_id, rows, running, monkeypatch):
    checkpoint = await take(greeted, feed_id)
    segment = running.node.feeds.of_id(feed_id).partitions[0].chain.segments[0]
    monkeypatch.setattr(segment, "lend_cached", lambda *part: None)
    assert await fetch_whole(greeted, checkpoint) == content(running, checkpoint)


def forget_cached(path):
    """Has the system drop a file from memory."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


async def test_a_transport_that_has_no_socket_of_the_system(greeted, feed_id, rows, running, monkeypatch):
    class OtherTransport:
        pass

    monkeypatch.setattr("tailrace_server.serving.segment_sender.FileTransport", OtherTransport)
    checkpoint = await take(greeted, feed_id)
    assert await fetch_whole(greeted, checkpoint) == content(running, checkpoint)


async def test_other_answers_do_not_wait_for_a_whole_file(greeted, feed_id, rows):
    """They are behind one part at most, even if the client reads nothing for a while."""
    checkpoint = await take(greeted, feed_id)
    fetches = [SegmentFetch(checkpoint.id, checkpoint.segments[0].id, 0, PART_BYTES_MAX).encode(n) for n in range(60)]
    await greeted.send(*fetches)
    await trio.testing.wait_all_tasks_blocked(0.05)
    await greeted.send(encode_json(Opcode.LIST_FEEDS, {}, 1_000))
    order = [(await greeted.receive()).id for _ in range(61)]
    assert [id for id in order if id != 1_000] == list(range(60))
    assert order.index(1_000) < 30


async def test_requests_that_come_while_the_last_part_leaves(greeted, feed_id, rows):
    """Each is answered once, in order, whether or not the sender has just ended."""
    checkpoint = await take(greeted, feed_id)
    for burst in (1, 2, 1, 3, 1, 1):
        parts = [SegmentFetch(checkpoint.id, checkpoint.segments[0].id, n, 7).encode(n) for n in range(burst)]
        for part in parts:
            await greeted.send(part)
        assert [(await greeted.receive()).id for _ in parts] == list(range(burst))


async def test_streams_and_files_share_a_connection(running, feed, client, rows, tmp_path):
    """The SDK's stream has a connection of its own, so both go over the node at the same time."""
    async with feed.consume(until="now") as stream, trio.open_nursery() as nursery:
        nursery.start_soon(feed.fetch, tmp_path / "copy")
        seen = sum([len(event) async for event in stream if isinstance(event, tailrace.Mutations)])
    assert seen == 1_600


@pytest.mark.parametrize(("offset", "nbytes"), [(0, None), (None, 1), (2**63, 1), (1, None)])
async def test_a_part_beyond_the_end(greeted, feed_id, feed, offset, nbytes):
    await feed.put(b"k", b"v")
    partition = next(p.id for p in await feed.partitions() if p.high_seq)
    checkpoint = await take(greeted, feed_id, partition)
    size = checkpoint.segments[0].nbytes
    offset, nbytes = size if offset is None else offset, size + 1 if nbytes is None else nbytes
    with pytest.raises(BadSegment, match=f"has {size} bytes, and {nbytes} bytes from {offset} on were asked for"):
        await fetch(greeted, checkpoint, offset, nbytes)
    assert len(await fetch(greeted, checkpoint, size - 1, 1)) == 1


async def test_a_segment_that_the_checkpoint_does_not_have(greeted, feed_id, rows):
    first, second = await take(greeted, feed_id), await take(greeted, feed_id, 1)
    with pytest.raises(BadSegment, match="has no segment"):
        await fetch(greeted, first._replace(segments=second.segments), 0, 1)


async def test_a_checkpoint_that_is_not_kept(greeted, feed_id, rows):
    checkpoint = await take(greeted, feed_id)
    await greeted.ask(Opcode.SEGMENT_RELEASE, b'{"checkpoint":"%s"}' % checkpoint.id.hex().encode())
    with pytest.raises(UnknownCheckpoint, match="ask for another one"):
        await fetch(greeted, checkpoint, 0, 1)


async def test_a_restart_keeps_none(raw, feed_id, rows, running):
    async with raw() as connection:
        checkpoint = await take(await connection.hello(), feed_id)
    await running.kill()
    await running.start()
    async with raw() as connection:
        with pytest.raises(UnknownCheckpoint):
            await fetch(await connection.hello(), checkpoint, 0, 1)


async def test_an_answer_that_is_lost_keeps_no_files(raw, feed_id, rows, running):
    """The client connects again, and asks again as the copy that it is."""
    for _ in range(5):
        async with raw() as connection:
            last = await take(await connection.hello(), feed_id, asker=b"a" * 16)
    async with raw() as connection:
        await connection.hello()
        assert await fetch(connection, last, 0, 10)
    assert len(running.node.storage.checkpoints) == 1


async def test_a_late_ask_by_an_earlier_connection_does_not_end_a_checkpoint(raw, feed_id, rows, running):
    """The link of the first connection is cut in one way for a while, and the client has connected again."""
    async with raw() as earlier, raw() as later:
        await earlier.hello()
        used = await take(await later.hello(), feed_id, asker=b"a" * 16)
        with pytest.raises(UnknownCheckpoint, match="asked again by a later connection"):
            await take(earlier, feed_id, asker=b"a" * 16)
        assert await fetch(later, used, 0, 10)
        assert len(running.node.storage.checkpoints) == 1
        again = await take(later, feed_id, asker=b"a" * 16)
        with pytest.raises(UnknownCheckpoint):
            await fetch(later, used, 0, 10)
        assert await fetch(later, again, 0, 10)


async def test_a_feed_that_is_not_there(greeted, feed_id):
    with pytest.raises(UnknownFeed):
        await take(greeted, bytes(16))
    with pytest.raises(UnknownFeed, match="no partition 4"):
        await take(greeted, feed_id, 4)


async def test_a_level_that_the_node_cannot_give(greeted, feed_id):
    with pytest.raises(NotDurable, match="needs a set of nodes"):
        await take(greeted, feed_id, level=Level.QUORUM)


async def test_a_node_that_does_not_lead_refuses_if_the_leader_is_asked_for(greeted, feed_id, rows, running):
    leadership = running.node.leaderships.of(feed_id, 0)
    leadership.become_follower(leadership.term + 1, "127.0.0.1:4799")
    for place in ((feed_id, 0), (bytes(16), 0)):  # it need not have heard of the feed
        with pytest.raises(NotLeader) as raised:
            await take(greeted, *place, leader=True)
        assert raised.value.leader == "127.0.0.1:4799"
    assert (await take(greeted, feed_id)).feed_id == feed_id, "any node may be asked"


@pytest.mark.parametrize("leads_again", [False, True])
async def test_a_leader_that_steps_down_before_it_answers(greeted, feed_id, rows, running, monkeypatch, leads_again):
    """It may have flushed less than it had acknowledged: a follower knows less of what is stable."""
    leadership, checkpoints = running.node.leaderships.of(feed_id, 0), running.node.storage.checkpoints
    flush = checkpoints._flush

    async def flush_and_step_down(partition):
        await flush(partition)
        leadership.step_down(leadership.term + 1)
        if leads_again:
            leadership.become_leader(leadership.term)

    monkeypatch.setattr(checkpoints, "_flush", flush_and_step_down)
    with pytest.raises(NotLeader):
        await take(greeted, feed_id, leader=True)
    assert not len(checkpoints), "nothing is kept for the client, which asks another node"


async def test_more_parts_than_one_connection_may_ask_for(run_node, node_config, feed_of):
    limits = dataclasses.replace(node_config.limits, waiting_fetches_max=2)
    running = await run_node(dataclasses.replace(node_config, limits=limits))
    async with feed_of(running) as (connection, feed_id):
        checkpoint = await take(connection, feed_id)
        part = SegmentFetch(checkpoint.id, checkpoint.segments[0].id, 0, 100)
        await connection.send(*(part.encode(number) for number in range(3)))
        frames = [await connection.receive() for _ in range(3)]
        opcodes = {frame.id: frame.opcode for frame in frames}
        assert opcodes == {0: Opcode.SEGMENT_DATA, 1: Opcode.SEGMENT_DATA, 2: Opcode.ERROR}
        [error] = [decode_error(frame.body) for frame in frames if frame.opcode is Opcode.ERROR]
        assert isinstance(error, Overloaded)


@pytest.fixture
def feed_of():
    @asynccontextmanager
    async def feed_of(running):
        async with tailrace.connect(running.url) as client:
            feed = await client.create_feed("orders", partitions=1)
            await feed.put(b"k", os.urandom(1_000))
            feed_id = (await feed.resolve()).feed_id
        async with await trio.open_tcp_stream("127.0.0.1", running.config.listen[1]) as stream:
            yield await RawClient(stream).hello(), feed_id

    return feed_of


async def test_a_connection_that_ends_unpins_what_it_was_sent(raw, feed_id, rows, running):
    async with raw() as connection:
        checkpoint = await take(await connection.hello(), feed_id)
        part = SegmentFetch(checkpoint.id, checkpoint.segments[0].id, 0, PART_BYTES_MAX)
        await connection.send(*(part.encode(number) for number in range(60)))
        await connection.receive()
    await trio.testing.wait_all_tasks_blocked(0.2)
    running.node.storage.checkpoints.release(checkpoint.id)
    assert not running.node.storage.pins.reads_feed(feed_id)
    [segment, *_] = running.node.feeds.of_id(feed_id).partitions[0].chain.segments
    assert segment._file._file._readers == 0, "its descriptor was given back"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"feed_id":"00"}', b"[]"])
async def test_a_checkpoint_that_cannot_be_read_ends_the_connection(greeted, body):
    error = await greeted.ask(Opcode.SEGMENT_CHECKPOINT, body)
    assert isinstance(decode_error(error.body), ProtocolError)
    assert await greeted.is_closed()


def fetch_without_async(url, name, path):
    with blocking.connect(url) as client:
        client.feed(name).fetch(path)


@pytest.mark.parametrize("shell", ["trio", "blocking"])
async def test_a_fetch_that_gets_wrong_bytes_has_the_node_find_the_damage(feed, rows, running, tmp_path, shell):
    await feed.fetch(tmp_path / "before")
    [segment] = running.node.feeds.named(feed.name).partitions[2].chain.segments
    flip(segment.path, 500)
    fetch = partial(feed.fetch, tmp_path / "copy")
    if shell == "blocking":
        fetch = partial(trio.to_thread.run_sync, fetch_without_async, running.url, feed.name, tmp_path / "copy")
    with pytest.raises(BadSegment, match=f"partition 2 of feed {feed.name} cannot be read"):
        await fetch()
    await until(lambda: running.node.storage.damages)
    status = running.node.status()
    assert not status["healthy"]
    assert f"the segment {segment.path} is damaged" in status["failure"]


@pytest.mark.parametrize("place", ["footer", "block"])
async def test_a_consumer_that_gets_wrong_bytes_has_the_node_find_the_damage(feed, rows, running, tmp_path, place):
    """A stream does not read the footer again: the node would not have noticed."""
    await feed.fetch(tmp_path / "before")
    [segment] = running.node.feeds.named(feed.name).partitions[2].chain.segments
    flip(segment.path, segment.nbytes - TRAILER_BYTES - 3 if place == "footer" else 500)
    with contextlib.suppress(BadSegment):
        async with feed.consume(until="now", catch_up="segments") as stream:
            assert sum([len(event) async for event in stream if isinstance(event, tailrace.Mutations)]) == 1_600
    await until(lambda: running.node.storage.damages)
    assert list(running.node.storage.damages) == [segment.path]


async def test_a_report_about_a_good_file_changes_nothing(greeted, feed_id, rows, running):
    checkpoint = await take(greeted, feed_id)
    ids = [checkpoint.segments[0].id, b"z" * 16]
    release = SegmentRelease(checkpoint.id, tuple(ids))
    await greeted.ask(Opcode.SEGMENT_RELEASE, json.dumps(release.to_json()).encode())
    checks = running.node.storage.damage_checks
    await until(lambda: not checks._waiting and checks._reading is None)
    assert running.node.status()["healthy"]
    assert list(checks._reported) == [running.node.feeds.of_id(feed_id).partitions[0].chain.segments[0].path]
    assert not len(running.node.storage.checkpoints)
