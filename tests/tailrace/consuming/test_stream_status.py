"""What a stream says that it waits for: the rows of the table, and the life of streams of both shells."""

from __future__ import annotations

import pickle

import pytest
import trio
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace import WaitsFor, blocking
from tailrace.consuming.partition import PartitionStatus
from tailrace.consuming.session import Subscription
from tailrace.consuming.stream_status import SessionStatus, stream_status
from tailrace.errors import StreamEnded, Unreachable
from tailrace.model import EndReason, Level

A, B = "10.0.0.1:4700", "10.0.0.2:4700"
GONE = Unreachable("the connection broke")


def partition(id, state, reason, since):
    return PartitionStatus(id, state, reason, since, None, 7, 0)


OPEN = (partition(0, "open", "", 10.0), partition(1, "in snapshot", "", 12.0))
LACKING = (OPEN[0], partition(1, "waiting", "behind: it is at 3", 15.0), partition(2, "requested", "asked", 14.0))


def session(**fields):
    of_all = {"is_open": True, "is_linked": True, "since": 5.0, "came_at": None, "failure": None}
    return SessionStatus(**{**of_all, "partitions": OPEN, "positions": None, **fields})


@pytest.mark.parametrize(
    ("known", "end", "waits_for", "since", "reason"),
    [
        (session(), (StreamEnded("closed", reason=EndReason.CLOSED), 20.0), WaitsFor.NOTHING, 20.0, "closed"),
        (session(is_open=False, is_linked=False), None, WaitsFor.NODE, 5.0, "no node was asked before"),
        (session(is_open=False, is_linked=False, failure=(GONE, 4.0)), None, WaitsFor.NODE, 5.0, str(GONE)),
        (session(is_linked=False, partitions=LACKING), None, WaitsFor.FEED, 5.0, f"{A} has not told"),
        (
            session(partitions=LACKING, came_at=16.0),
            None,
            WaitsFor.STREAMS,
            14.0,
            "2 of 3 partitions have no stream; partition 2: asked",
        ),
        (session(came_at=16.0), None, WaitsFor.PROGRAM, 16.0, "events have come"),
        (session(failure=(GONE, 4.0)), None, WaitsFor.MUTATIONS, 12.0, f"{A} serves every partition"),
    ],
)
def test_the_first_row_that_fits(known, end, waits_for, since, reason):
    status = stream_status(known, A, (B,), end)
    assert (status.waits_for, status.since) == (waits_for, since)
    assert status.reason.startswith(reason)
    assert status.node == (A if known.is_open else None)
    assert status.asks == ((A,) if known.is_open else (A, B))
    assert (status.last_error, status.last_error_at) == (known.failure or (None, None))


def test_the_partitions_by_state():
    status = stream_status(session(partitions=LACKING), A, (), None)
    assert status.states == {"open": (0,), "waiting": (1,), "requested": (2,)}


def test_a_status_stays_as_it_was():
    status = stream_status(session(), A, (), None)
    with pytest.raises(AttributeError):
        status.since = 0.0
    assert pickle.loads(pickle.dumps(status)) == status


async def waits(stream, waits_for):
    """Returns the stream's status once it waits for this."""
    await until(lambda: stream.status().waits_for is waits_for)
    return stream.status()


async def read(stream):
    async for _ in stream:
        pass


async def test_the_life_of_a_stream(running, feed):
    address = running.url.removeprefix("tailrace://")
    async with feed.consume() as stream, trio.open_nursery() as nursery:
        first = stream.status()
        assert first.waits_for is WaitsFor.MUTATIONS
        assert (first.node, first.asks, first.last_error) == (address, (address,), None)
        assert first.states == {"open": (0, 1, 2, 3)}
        assert first.positions == stream.positions
        await feed.put(b"k", b"v")
        nursery.start_soon(read, stream)
        await stream.barrier()
        await running.stop()
        lost = await waits(stream, WaitsFor.NODE)
        assert (lost.node, lost.asks) == (None, (address,))
        assert lost.last_error is not None
        assert lost.since >= first.since
        assert lost.states == {"waiting": (0, 1, 2, 3)}
        assert sum(lost.positions.seqs().values()) == 1
        await running.start()
        again = await waits(stream, WaitsFor.MUTATIONS)
        assert again.node == address
        assert again.last_error is not None
        assert again.since >= lost.since
        nursery.cancel_scope.cancel()
    ended = stream.status()
    assert ended.waits_for is WaitsFor.NOTHING
    assert "closed" in ended.reason
    assert ended.since >= again.since


async def test_a_loop_that_takes_no_events_is_waited_for(running, feed):
    async with feed.consume() as stream:
        await feed.put(b"k", b"v")
        async for event in stream:
            if isinstance(event, tailrace.SnapshotStart):
                break
        assert stream.has_event()
        assert stream.status().waits_for is WaitsFor.PROGRAM


async def test_a_follower_tells_of_its_stream(running, feed):
    async with feed.follow(tailrace.indexes.MemoryIndex()) as follower:
        await follower.barrier()
        assert follower.status().waits_for is WaitsFor.MUTATIONS
        await running.kill()
        assert (await waits(follower, WaitsFor.NODE)).last_error is not None
        await running.start()
        await waits(follower, WaitsFor.MUTATIONS)


async def test_without_async(running, feed):
    def statuses():
        wanted = Subscription(feed.name, "beginning", None, None, Level.DISK, "follow")
        with blocking.connect(running.url) as client, client.stream(wanted) as stream:
            before = stream.status()
            while stream.next(0.1) is not None:
                pass
            yield before, stream.status()
        yield stream.status()

    (before, during), after = await trio.to_thread.run_sync(list, statuses())
    assert before.asks == (running.url.removeprefix("tailrace://"),)
    assert during.waits_for is WaitsFor.MUTATIONS
    assert after.waits_for is WaitsFor.NOTHING


async def test_a_stream_whose_leader_has_no_majority_waits_for_the_feed(members):
    """Its end has to have everything that was acknowledged, so a majority has to confirm the leader."""
    leader = await members.settled()
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await members.level("orders")
        for node in members:
            if node is not leader:
                await node.kill()
        stream = feed.consume(until="now")

        async def enter():
            async with stream:
                raise AssertionError("it has begun")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter)
            status = await waits(stream, WaitsFor.FEED)
            nursery.cancel_scope.cancel()
        assert status.node == str(leader.address)
        assert (status.partitions, status.positions) == ((), None)
