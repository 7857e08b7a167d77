"""A set whose members have as many clients as they serve: the members still reach each other."""

from contextlib import AsyncExitStack

import pytest
import trio
from tests.conftest import RawClient
from tests.tailrace_server.replication.made_set import until

from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Limits

LIMITS = Limits(connections_max=32)


@pytest.fixture
def set_options():
    return {"limits": LIMITS}


async def crowd(stack, node):
    """Opens connections of clients to ``node`` until it refuses one, and gives up the first. They end with ``stack``.

    So an operator gets in.
    """
    clients = []
    while True:
        stream = await stack.enter_async_context(await trio.open_tcp_stream(*node.address))
        client = RawClient(stream)
        await client.send(Hello().encode())
        if (await client.receive()).opcode is Opcode.ERROR:
            await clients[0].stream.aclose()
            return
        clients.append(client)


async def test_a_leader_is_chosen_and_followed_while_clients_are_many(members):
    leader = await members.settled()
    to = next(node for node in members if node is not leader)
    async with AsyncExitStack() as stack:
        for node in members:
            await crowd(stack, node)
        await to.promote()
        await members.settled()
        await until(lambda: to.leads)
        third = next(node for node in members if node not in (leader, to))
        await until(lambda: leader.follows(to) and third.follows(to))
