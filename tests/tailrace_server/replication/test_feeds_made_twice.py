"""Two leaders make the feed of one request: its answer was lost with the first leader, and the client asks again."""

import contextlib

import trio
from tests.conftest import RawClient
from tests.tailrace_server.raw_requests import KEY, block_of, write
from tests.tailrace_server.replication.made_set import until

from tailrace.model import Level
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import FRAME_HEADER_BYTES, encode_frame
from tailrace.wire.opcodes import Opcode

FEED_ID = b"f" * 16
CREATION = encode_json(Opcode.CREATE_FEED, {"name": "orders", "feed_id": FEED_ID.hex(), "partitions": 4}, 1)


@contextlib.asynccontextmanager
async def greeted_by(node):
    stream = await trio.open_tcp_stream(node.address.host, node.address.port)
    async with stream:
        yield await RawClient(stream).hello()


async def made_alone(leader, rows):
    """Lets a leader that no other member hears make the feed, and take rows at level disk; then it dies."""
    async with greeted_by(leader) as client:
        await client.send(CREATION)
        await until(lambda: FEED_ID in leader.node.feeds)
        for number in range(1, 1 + rows):
            body = write(FEED_ID, block_of(KEY, number=number, value=b"alone"))
            await client.send(encode_frame(Opcode.WRITE, body, 1 + number))
        await until(lambda: sum(p.durable_seq for p in leader.node.feeds.of_id(FEED_ID).partitions) == rows)
    await leader.kill()


async def lead(node):
    await node.promote()
    await until(lambda: node.leads)


async def test_rows_at_quorum_stand_above_those_that_the_first_leader_took_alone(members):
    """The second leader makes the feed again in its term. The first one, which has more rows, promises to the third."""
    first, second, third = members
    await second.stop()
    await third.stop()
    await made_alone(first, rows=2)
    await second.start()
    await third.start()
    await lead(second)
    async with greeted_by(second) as client:
        answer = await client.ask(Opcode.CREATE_FEED, CREATION[FRAME_HEADER_BYTES:])
        assert answer.opcode is Opcode.RESULT
        body = write(FEED_ID, block_of(KEY, value=b"kept"), level=Level.QUORUM)
        assert (await client.ask(Opcode.WRITE, body)).opcode is Opcode.WRITTEN
    await second.stop()
    await first.start()
    await lead(third)
    async with members.client() as client:
        assert (await client.feed("orders").get(KEY, level="quorum")).value == b"kept"
