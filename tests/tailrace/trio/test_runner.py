"""Steps of plans that are no requests."""

import pytest
import trio

import tailrace
from tailrace.errors import Unreachable
from tailrace.requests.plan import AskLeader
from tailrace.trio.host import Host
from tailrace.trio.tcp import connect_tcp


async def test_a_call_that_asks_the_leader_ends_at_its_own_time(running):
    """The leader cannot be connected to, and the time-out of connections is far longer than that of the call."""
    is_lost = False

    async def connect(address):
        if is_lost:
            await trio.sleep_forever()
        return await connect_tcp(address)

    def plan():
        yield AskLeader(lambda _: iter(()))

    async with tailrace.connect(running.url, host=Host(connect=connect), connect_timeout=1e6, retry_for=0.1) as client:
        is_lost = True
        with pytest.raises(Unreachable, match="no node at"):
            await client._runner.run(plan())
