"""What arrives late at a node that has lost the lead and regained it: its client may have written elsewhere since."""

import contextlib

import trio
from tests.conftest import RawClient
from tests.tailrace_server.raw_requests import KEY, block_of, write
from tests.tailrace_server.replication.made_set import until

from tailrace.errors import NotLeader, Retryable
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode


@contextlib.asynccontextmanager
async def greeted_by(node):
    stream = await trio.open_tcp_stream(node.address.host, node.address.port)
    async with stream:
        yield await RawClient(stream).hello()


async def lead(node):
    await node.promote()
    await until(lambda: node.leads)


async def test_a_write_of_an_earlier_leadership_is_refused(members):
    """The frame was on its way when another node came to lead, where its client wrote a newer value."""
    leader, other, _ = members
    async with members.client() as client, greeted_by(leader) as late:
        feed = await client.create_feed("orders", partitions=4)
        [feed_id] = [one.info.feed_id for one in leader.node.feeds]
        assert (await late.ask(Opcode.WRITE, write(feed_id, block_of(KEY, value=b"first")))).opcode is Opcode.WRITTEN
        await members.level("orders")
        await lead(other)
        await feed.put(KEY, b"new", level="quorum")
        await members.level("orders")
        await lead(leader)
        frames = {
            Opcode.WRITE: write(feed_id, block_of(KEY, number=2, value=b"old")),
            Opcode.DROP_FEED: encode_json(Opcode.DROP_FEED, {"feed_id": feed_id.hex()}, 2)[16:],
        }
        for opcode, body in frames.items():
            await late.send(encode_frame(opcode, body, 2))
            error = await late.error(2)
            assert type(error) is NotLeader
            assert isinstance(error, Retryable)
            assert "connect anew" in str(error)
        assert (await feed.get(KEY, level="quorum")).value == b"new"
        async with greeted_by(leader) as anew:
            body = write(feed_id, block_of(KEY, number=2, value=b"again"))
            assert (await anew.ask(Opcode.WRITE, body)).opcode is Opcode.WRITTEN


async def test_a_client_that_stays_connected_goes_on_after_its_node_has_led_again(members):
    """It is told to connect anew, and does so by itself: each write has one answer."""
    leader, other, _ = members
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        for number in range(3):
            await feed.put(b"k%d" % number, b"v", level="quorum")
            await members.level("orders")
            await lead(other)
            await members.level("orders")
            await lead(leader)
        assert [(await feed.get(b"k%d" % number)).value for number in range(3)] == [b"v"] * 3
