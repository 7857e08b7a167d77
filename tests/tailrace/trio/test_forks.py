"""A client under trio whose process was forked: each handle refuses in the child, and works in the parent as before."""

from __future__ import annotations

import inspect
import signal

import pyarrow
import pytest
import trio
import trio.testing
from tests.tailrace.blocking.test_forks import in_child

import tailrace
from tailrace import Delete, Put, Version
from tailrace.errors import WrongProcess
from tailrace.indexes import MemoryIndex
from tailrace.requests.outbox import Outbox
from tailrace.trio.room import Room

TABLE = pyarrow.table({"key": [b"k"], "value": [b"of the child"]})
ROWS = [Put(b"%d" % number, b"of the child") for number in range(50)]
PASSED_S = 20.0  # of a call that waits for ever
# Calls that need no node: they look at what the handle has.
LOCAL = {
    *("Client.feed", "Client.level", "Feed.level"),
    *(
        "Stream.has_event",
        "Stream.settle",
        "Stream.ring",
        "Stream.ring_floor",
        "Stream.ring_change",
        "Stream.failover_log",
    ),
    *("Stream.status", "Stream.watch_history", "Follower.status"),
}
# For the writers and followers that are made of them.
INNER = {"Client.call", "Feed.resolve", "Feed.stream", "Stream.for_group"}


def run(function, *arguments):
    """``trio.run`` in a forked process, which has what the parent's run has set for signals."""
    signal.set_wakeup_fd(-1)
    return trio.run(function, *arguments)


async def errors_of(calls):
    """What each of ``calls`` raises, by name: the error's name, and "<hangs>" or "<nothing>" if there is none."""
    found = {}
    for name, call in calls.items():
        try:
            with trio.fail_after(PASSED_S):
                result = call()
                if inspect.isawaitable(result):
                    await result
            found[name] = "<nothing>"
        except trio.TooSlowError:
            found[name] = "<hangs>"
        except Exception as error:
            found[name] = type(error).__name__
    return found


async def entered(manager):
    async with manager:
        pass


async def all_of(iterator):
    async for _ in iterator:
        pass


def calls_of(client, feed, writer, stage, stream, follower, made_before):
    """A call of each public method that asks the node for anything."""
    version = Version(0, bytes(16), 10**9)
    calls = {
        "Client.create_feed": lambda: client.create_feed("another"),
        "Client.feeds": client.feeds,
        "Client.set_feed": lambda: client.set_feed(feed.name, replication="stream"),
        "Client.drop_feed": lambda: client.drop_feed(feed.name),
        "Client.status": client.status,
        "Client.create_token": lambda: client.create_token("t", role="read"),
        "Client.tokens": client.tokens,
        "Client.revoke_token": lambda: client.revoke_token("t"),
        "Client.stream": lambda: feed.consume(),
        "Feed.put": lambda: feed.put(b"k", b"of the child"),
        "Feed.put, with a condition": lambda: feed.put(b"k", b"of the child", if_absent=True),
        "Feed.delete": lambda: feed.delete(b"k"),
        "Feed.delete_if_present": lambda: feed.delete_if_present(b"k"),
        "Feed.write": lambda: feed.write(ROWS),
        "Feed.writer": lambda: entered(feed.writer()),
        "Feed.stage": lambda: entered(feed.stage()),
        "Feed.publish": lambda: feed.publish("sink", 0, []),
        "Feed.get": lambda: feed.get(b"k"),
        "Feed.get_many": lambda: feed.get_many([b"k"]),
        "Feed.items": lambda: all_of(feed.items()),
        "Feed.consume": lambda: entered(feed.consume()),
        "Feed.follow": lambda: entered(feed.follow(MemoryIndex())),
        "Feed.fetch": lambda: feed.fetch("never-made"),
        "Feed.partitions": feed.partitions,
        "Feed.partition_map": feed.partition_map,
        "Feed.park": lambda: feed.park(ROWS),
        "Feed.replay_parked": feed.replay_parked,
        "Feed.write_arrow": lambda: feed.write_arrow(TABLE),
        "Feed.explain_resume": lambda: feed.explain_resume(stream.positions),
        "Writer.put": lambda: writer.put(b"k", b"of the child"),
        "Writer.delete": lambda: writer.delete(b"k"),
        "Writer.write": lambda: writer.write([*ROWS, Delete(b"k")]),
        "Writer.write_arrow": lambda: writer.write_arrow(TABLE),
        "Writer.flush": writer.flush,
        "Stage.put": lambda: stage.put(b"k", b"of the child"),
        "Stage.delete": lambda: stage.delete(b"k"),
        "Stage.write": lambda: stage.write(ROWS),
        "Stage.seal": stage.seal,
        "Stream.__anext__": stream.__anext__,
        "Stream.next": stream.next,
        "Stream.poll": stream.poll,
        "Stream.batches": lambda: all_of(stream.batches()),
        "Stream.commit": stream.commit,
        "Stream.barrier": stream.barrier,
        "Follower.barrier": follower.barrier,
        "Follower.wait_for": lambda: follower.wait_for(version),
    }
    return calls | {f"{type(made).__name__}.__aenter__": made.__aenter__ for made in made_before}


async def test_every_handle_refuses_in_a_forked_process(running, client, feed):
    await feed.write([Put(b"%d" % number, b"v") for number in range(200)])
    made_before = [tailrace.connect(running.url), feed.consume(), feed.follow(MemoryIndex())]
    async with (
        feed.writer(linger_s=60.0) as writer,
        feed.stage() as stage,
        feed.consume() as stream,
        feed.follow(MemoryIndex()) as follower,
    ):
        await writer.put(b"of the parent", b"v")
        await stage.put(b"staged", b"v")
        await stream.__anext__()
        calls = calls_of(client, feed, writer, stage, stream, follower, made_before)
        leave = {type(made).__name__: lambda made=made: made.__aexit__(None, None, None) for made in (writer, stage)}
        leave |= {type(made).__name__: lambda made=made: made.__aexit__(None, None, None) for made in (stream, client)}

        def work():
            refused = run(errors_of, calls)
            return [refused, run(errors_of, leave)]

        refused, left = await trio.to_thread.run_sync(lambda: in_child(work)())
        assert refused == dict.fromkeys(calls, "WrongProcess")
        assert set(left.values()) == {"<nothing>"}
        # The parent has noticed nothing.
        await writer.flush()
        assert (await feed.get(b"of the parent")).value == b"v"
        assert (await feed.get(b"1")).value == b"v"
        await follower.barrier()
        await feed.publish("sink", 0, [await stage.seal()])
        assert (await feed.get(b"staged")).value == b"v"
    assert await feed.get(b"k") is None


async def test_a_task_that_waits_for_room_at_the_fork_holds_up_no_refusal(nursery):
    """The child has a copy of the locks of the parent's tasks, which are never released there."""
    room = Room()
    outbox = Outbox(1, batch_bytes=1, batch_rows=1, bytes_max=1, send=lambda block, settle: None, kick=lambda: None)
    outbox.add(b"k", b"v")
    nursery.start_soon(room.enter, outbox)
    await trio.testing.wait_all_tasks_blocked()
    outbox.refuse(WrongProcess("as in a child"))
    with trio.fail_after(PASSED_S), pytest.raises(WrongProcess):
        await room.enter(outbox)
    nursery.cancel_scope.cancel()


async def test_a_client_of_the_child_works(running, client, feed):
    await feed.put(b"k", b"v")

    async def use():
        async with tailrace.connect(running.url) as mine:
            return (await mine.feed(feed.name).get(b"k")).value.decode()

    assert await trio.to_thread.run_sync(lambda: in_child(lambda: run(use))()) == "v"


def test_every_public_method_is_called():
    """By inspection, so that a new method has to be told here what it does after a fork."""
    kinds = (tailrace.Client, tailrace.Feed, tailrace.Writer, tailrace.Stage, tailrace.Stream, tailrace.Follower)
    names = {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name != "check_process"
    }
    called = {name.partition(",")[0] for name in calls_of(*[_Anything()] * 6, [])}
    assert names - LOCAL - INNER - called == set()


class _Anything:
    """Has every attribute."""

    def __getattr__(self, name):
        return self
