"""A set of three in the hands of a test: its leader is killed and cut off, and all of it loses writes."""

import pytest
from tests.tailrace.testing.test_node import feed_of, next_of

import tailrace
from tailrace.testing import NodeFailed

pytestmark = pytest.mark.slow


async def test_after_a_failover_another_member_leads(tailrace_set):
    former = tailrace_set.leader()
    async with feed_of(tailrace_set) as feed:
        await feed.put(b"k", b"v", level="quorum")
        leader = tailrace_set.failover()
        assert leader is not former
        assert not former.is_running
        assert len(tailrace_set.followers()) == 1
        assert (await feed.get(b"k", level="quorum")).value == b"v"
        with pytest.raises(NodeFailed, match="no majority would be left"):
            tailrace_set.failover()
        tailrace_set.start()
        assert former.is_running
        await feed.put(b"k", b"w", level="quorum")


async def test_a_leader_that_is_cut_off_is_replaced(tailrace_set):
    former = tailrace_set.leader()
    async with feed_of(tailrace_set) as feed:
        with former.cut():
            while tailrace_set.leader() is former:  # it leads on until it knows that no majority hears it
                pass
            await feed.put(b"k", b"v", level="quorum")
        assert (await feed.get(b"k", level="quorum")).value == b"v"


async def test_a_set_that_loses_writes_is_rolled_back(tailrace_set):
    async with feed_of(tailrace_set) as feed, feed.consume() as stream:
        await feed.put(b"k", b"kept", level="quorum")
        await next_of(tailrace.Mutations, stream)
        with tailrace_set.lose_writes():
            await feed.put(b"k", b"lost", level="quorum")
            await next_of(tailrace.Mutations, stream)
        assert (await next_of(tailrace.Rollback, stream)).keys == (b"k",)
        assert (await next_of(tailrace.Mutations, stream)).values() == [b"kept"]


def test_a_member_alone_does_not_lose_writes(tailrace_set):
    with pytest.raises(ValueError, match="lose_writes\\(\\) of the set"), tailrace_set.nodes[0].lose_writes():
        pass
