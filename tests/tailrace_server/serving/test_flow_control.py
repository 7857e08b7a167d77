"""Consumers that do not take what is there for them, over real connections: what status says, and what they hold."""

import dataclasses
import os

import pytest
import trio

from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamRequest, decode_seq, encode_number

NOOP_SECONDS = 1.0
# Far beyond what a busy machine lets this process wait at once: who is not slow is not taken for it.
SLOW_SECONDS = 1.0
STREAM = 9


@pytest.fixture
def node_config(node_config):
    limits = dataclasses.replace(node_config.limits, noop_interval_s=NOOP_SECONDS, slow_after_s=SLOW_SECONDS)
    return dataclasses.replace(node_config, limits=limits)


class Reader:
    """A consumer of one partition whose client says NOOP all the time, and reads only when it is told to."""

    def __init__(self, raw_client, node):
        self.client = raw_client
        port = raw_client.stream.socket.getsockname()[1]
        (self.connection,) = [c for c in node.connections if c.transport.peer == f"127.0.0.1:{port}"]
        self.node = node
        self._sending = trio.Lock()

    async def send(self, frame):
        async with self._sending:
            await self.client.send(frame)

    @property
    def status(self):
        (found,) = [c for c in self.node.status()["connections"] if c["peer"] == self.connection.transport.peer]
        return found

    async def until(self, slow):
        while self.status["slow"] != slow:
            await trio.lowlevel.checkpoint()

    async def stay_alive(self):
        while True:
            await self.send(encode_frame(Opcode.NOOP))
            await trio.sleep(NOOP_SECONDS / 2)

    async def read_through(self, last_seq):
        """Takes everything, and grants what it was sent."""
        while True:
            frame = await self.client.receive()
            if frame.opcode is Opcode.BLOCK:
                await self.send(encode_number(Opcode.CREDIT, len(frame.body)))
            elif frame.opcode is Opcode.SNAPSHOT_END and decode_seq(frame.body, "SNAPSHOT_END")[1] >= last_seq:
                return


@pytest.fixture
async def consume(raw, node, client, nursery):
    """A function from a window and the sizes of values to the `Reader` of a feed that has them."""
    contexts = []

    async def start(window_bytes, sizes):
        feed = await client.create_feed("read", partitions=1)
        for number, size in enumerate(sizes):
            await feed.put(b"%d" % number, os.urandom(size))
        context = raw()
        connection = await context.__aenter__()
        contexts.append(context)
        await connection.hello(window_bytes=window_bytes)
        reader = Reader(connection, node)
        nursery.start_soon(reader.stay_alive)
        feed_id = (await feed.resolve()).feed_id
        request = StreamRequest(feed_id, 0, FailoverLog(), 0, 0, 0, None, None, Level.DISK)
        await connection.send(request.encode(STREAM))
        return reader

    yield start
    nursery.cancel_scope.cancel()


async def test_who_grants_nothing_more_is_shown_as_slow(consume):
    reader = await consume(1, [100] * 3)
    while not reader.status["outstanding_bytes"]:
        await trio.lowlevel.checkpoint()
    assert not reader.status["slow"], "it may be about to grant more"
    await reader.until(slow=True)
    await reader.read_through(3)
    assert not reader.status["slow"]


async def test_who_does_not_read_is_shown_as_slow_with_room_in_its_window(consume):
    """What the system holds for the connection is less than a window."""
    reader = await consume(64 << 20, [1 << 20] * 30)
    await reader.until(slow=True)
    status = reader.status
    assert status["backlog_bytes"]
    assert status["outstanding_bytes"] < 30 << 20
    await reader.read_through(30)
    assert not reader.status["slow"]


async def test_who_has_taken_everything_is_not_slow(consume):
    """The window is full, and there is nothing to be sent."""
    reader = await consume(1, [100])
    while not reader.status["outstanding_bytes"]:
        await trio.lowlevel.checkpoint()
    for _ in range(20):
        await trio.sleep(SLOW_SECONDS / 15)
        assert not reader.status["slow"]


async def test_who_takes_little_at_a_time_is_not_slow(consume):
    reader = await consume(1, [100] * 25)
    for _ in range(20):
        await trio.sleep(SLOW_SECONDS / 15)
        await reader.send(encode_number(Opcode.CREDIT, 1_000))
        assert not reader.status["slow"]
