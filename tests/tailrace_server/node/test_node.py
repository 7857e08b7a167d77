import pytest
import trio

import tailrace
from tailrace.model import EndReason, Level
from tailrace.model.failover import FailoverLog
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamEnd, StreamRequest, encode_number
from tailrace_server.journal import JournalFailed

KEY = b"key"
PARTITION = partition_of_hash(key_hash(KEY), 4)


def partition(running):
    return running.node.feeds.named("orders").partitions[PARTITION]


def fail_to_sync():
    raise JournalFailed("fsync: input/output error")


async def test_writes_during_a_failed_fsync_have_an_unknown_outcome_until_the_next_start(running, feed):
    """The journal may have them or not: the writer sends them again until a node can tell."""
    await feed.put(KEY, b"before")

    node = running.node
    node.storage.journal.sync = fail_to_sync
    results = []

    async def put():
        results.append(await feed.put(KEY, b"v"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        while node.storage.committer.failure is None:
            await trio.lowlevel.checkpoint()
        assert not node.status()["healthy"]
        await running.kill()
        await running.start()
    assert [version.seq for version in results] == [2]
    assert partition(running).high_seq == 2, "it was written once"


async def test_after_a_failed_fsync_nothing_is_acknowledged(running):
    async with tailrace.connect(running.url) as client:
        await (await client.create_feed("orders", partitions=4)).put(KEY, b"v")
    async with tailrace.connect(running.url, retry_for=2) as client:
        feed = client.feed("orders")
        assert (await feed.get(KEY)).value == b"v"
        running.node.storage.journal.sync = fail_to_sync
        with pytest.raises(tailrace.Unreachable, match="input/output error") as caught:
            await feed.put(KEY, b"w")
        assert caught.value.outcome == "unknown"
        for level in ("memory", "disk"):
            with pytest.raises(tailrace.Retryable):
                await feed.put(KEY, b"x", level=level)
        assert (await feed.get(KEY, level="memory")).value == b"w"
        assert partition(running).durable_seq == 1


async def test_after_a_failed_fsync_nothing_is_shown_that_is_not_durable(running):
    """A stream at level memory ends, and opens no more; one at level disk goes on with what is durable."""

    async with tailrace.connect(running.url) as client, tailrace.connect(running.url, retry_for=2) as impatient:
        feed = await client.create_feed("orders", partitions=1)
        await feed.put(KEY, b"v")
        async with feed.consume(visibility="memory") as stream:
            events = [event async for event in stream_until_idle(stream)]
            assert [event.last_seq for event in events if isinstance(event, tailrace.Mutations)] == [1]
            running.node.storage.journal.sync = fail_to_sync
            with pytest.raises(tailrace.Unreachable):
                await impatient.feed("orders").put(KEY, b"w")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_on, stream)
                while not has_ended_for_the_disk(stream):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        async with feed.consume() as durable:
            events = [event async for event in stream_until_idle(durable)]
            assert [event.last_seq for event in events if isinstance(event, tailrace.Mutations)] == [1]


async def read_on(stream):
    async for _ in stream:
        pass


def has_ended_for_the_disk(stream):
    (status,) = stream.status().partitions
    return status.state in ("waiting", "requested") and "input/output error" in (status.reason or "")


async def stream_until_idle(stream):
    """The events up to the end of the first round."""
    async for event in stream:
        yield event
        if isinstance(event, tailrace.RoundComplete):
            return


async def test_a_node_that_stops_tells_its_consumers(running, feed, raw):
    """What was visible is delivered before the stream ends, and the end has a name."""
    feed_id = (await feed.resolve()).feed_id
    await feed.put(KEY, b"v")
    async with raw() as connection:
        await connection.hello()
        request = StreamRequest(feed_id, PARTITION, FailoverLog(), 0, 0, 0, None, None, Level.DISK)
        await connection.send(request.encode(9))
        assert (await connection.receive()).opcode is Opcode.STREAM_OK
        await running.stop()
        frames = []
        while (frame := await connection.receive()) is not None:
            frames.append(frame)
    assert Opcode.BLOCK in {frame.opcode for frame in frames}
    (end,) = [StreamEnd.decode(frame.body) for frame in frames if frame.opcode is Opcode.STREAM_END]
    assert end.reason is EndReason.DRAINING


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_node_that_stops_ends_a_stream_behind_its_snapshot_if_the_consumer_takes_that(
    running, feed, raw, goes_on
):
    feed_id = (await feed.resolve()).feed_id
    await feed.put(KEY, b"v")
    await feed.put(KEY, b"w")
    async with raw() as connection, trio.open_nursery() as nursery:
        await connection.hello(window_bytes=1)
        request = StreamRequest(feed_id, PARTITION, FailoverLog(), 0, 0, 0, None, None, Level.DISK)
        await connection.send(request.encode(9))
        opcodes = [(await connection.receive()).opcode for _ in range(3)]
        assert opcodes == [Opcode.STREAM_OK, Opcode.SNAPSHOT_START, Opcode.BLOCK]
        nursery.start_soon(running.stop)
        if goes_on:
            await connection.send(encode_number(Opcode.CREDIT, 1 << 20))
        opcodes = []
        while (frame := await connection.receive()) is not None:
            opcodes.append(frame.opcode)
    rest = [Opcode.BLOCK, Opcode.SNAPSHOT_END] if goes_on else []
    assert opcodes[: len(rest) + 1] == [*rest, Opcode.STREAM_END]


async def test_a_bug_in_what_one_connection_is_sent_ends_that_one_only(running, feed, raw, monkeypatch, caplog):
    node, key = running.node, b"k"
    partition = partition_of_hash(key_hash(key), 4)
    feed_id = (await feed.resolve()).feed_id
    request = StreamRequest(feed_id, partition, FailoverLog(), None, 0, 0, None, None, Level.DISK)
    others = set(node.connections)
    async with raw() as connection:
        await connection.hello()
        await connection.ask(Opcode.STREAM_REQUEST, request.encode(1)[16:], 1)
        [broken] = set(node.connections) - others

        def fail(bytes_max):
            raise RuntimeError("it was broken by a test")

        monkeypatch.setattr(broken.rounds, "next_buffers", fail)
        await feed.put(key, b"1")  # which is sent where the write has become durable
        while broken in node.connections:
            await trio.lowlevel.checkpoint()
    await feed.put(key, b"2")
    assert "ended by an internal error" in caplog.text
    assert "it was broken by a test" in caplog.text
