"""What the answers of all connections hold together, while peers do not read and while a disk is slow."""

import contextlib
import dataclasses
import os
import threading

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import Level
from tailrace.wire.messages import Get, Got
from tailrace_server.host.disk import RealFile
from tailrace_server.serving import time_slices
from tailrace_server.serving.answer_memory import SHARE_BYTES, AnswerMemory

ANSWER_BYTES_MAX = 2 << 20
VALUE_BYTES = 256 << 10
KEYS = [b"%d" % number for number in range(8)]


@pytest.fixture
def node_config(node_config):
    limits = dataclasses.replace(node_config.limits, answer_bytes_max=ANSWER_BYTES_MAX)
    return dataclasses.replace(node_config, limits=limits)


@pytest.fixture
async def large(feed, node):
    """The id of a feed whose values are in segments."""
    for key in KEYS:
        await feed.put(key, os.urandom(VALUE_BYTES))
    await feed.put(b"small", b"value")
    feed_id = (await feed.resolve()).feed_id
    for partition in node.feeds.of_id(feed_id).partitions:
        await node.storage.flusher.flush_all(partition)
    return feed_id


@pytest.fixture
def gate(large, monkeypatch):
    """Nothing of a segment is in memory, and a read from the disk waits until this is set."""
    gate, read_at = threading.Event(), RealFile.read_at

    def slow(file, offset, nbytes):
        assert gate.wait(60)
        return read_at(file, offset, nbytes)

    monkeypatch.setattr(RealFile, "read_cached", lambda file, offset, nbytes: None)
    monkeypatch.setattr(RealFile, "read_at", slow)
    yield gate
    gate.set()


@pytest.fixture
def held(node, monkeypatch):
    """All that the account of the node has held, and what it would be if it were summed up each time."""
    seen, account = [], node.services.answer_memory
    change = account.change

    def noted(nbytes):
        change(nbytes)
        seen.append(account.held)
        assert account.held == sum(connection.memory.charged_bytes for connection in node.connections)

    monkeypatch.setattr(account, "change", noted)
    return seen


def gets(feed_id, count, keys=KEYS):
    return b"".join(Get(feed_id, Level.MEMORY, keys).encode(id) for id in range(1, count + 1))


async def read_all(connection, feed_id, count, keys=KEYS):
    """Takes the answers to ``count`` gets, and asks again for what they left out, as a client does."""
    left = dict.fromkeys(range(1, count + 1), tuple(keys))
    while left:
        frame = await connection.receive()
        items = Got.decode(frame.body, list(left[frame.id]))
        assert all(item is not None and len(item.value) == VALUE_BYTES for item in items)
        rest = left[frame.id][len(items) :]
        if rest:
            left[frame.id] = rest
            await connection.send(Get(feed_id, Level.MEMORY, list(rest)).encode(frame.id))
        else:
            del left[frame.id]


async def settle():
    """Lets the node do all that it can without the peers."""
    for _ in range(20):
        await trio.testing.wait_all_tasks_blocked(0.005)


async def connections_of(raw, stack, count):
    made = []
    for _ in range(count):
        connection = await stack.enter_async_context(raw())
        await connection.hello()
        made.append(connection)
    return made


@pytest.mark.parametrize("slice_seconds", [time_slices.SLICE_SECONDS, 0.0])
async def test_many_connections_that_do_not_read_share_one_bound(
    raw, large, node, held, feed, monkeypatch, slice_seconds
):
    """Each of them alone is below its own bound. Others' small requests are answered meanwhile."""
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", slice_seconds)
    async with contextlib.AsyncExitStack() as stack:
        connections = await connections_of(raw, stack, 12)
        for connection in connections:
            await connection.send(gets(large, 10))
        await settle()
        for _ in range(10):
            assert (await feed.get(b"small")).value == b"value"
        # One answer each may have begun before the account was full.
        answer = len(KEYS) * VALUE_BYTES
        assert ANSWER_BYTES_MAX < max(held) <= ANSWER_BYTES_MAX + len(connections) * (SHARE_BYTES + answer)
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(read_all, connection, large, 10)
    await settle()
    assert node.services.answer_memory.held == 0


@pytest.mark.parametrize("reads", [True, False], ids=["a peer that reads", "a peer that is gone"])
async def test_gets_that_wait_for_the_disk_hold_little_of_one_connection(raw, large, node, held, gate, reads):
    async with raw() as connection:
        await connection.hello()
        await connection.send(gets(large, 60))
        await settle()
        assert max(c.waiting.count for c in node.connections) == 60
        gate.set()
        if reads:
            await read_all(connection, large, 60)
        else:
            await settle()
        assert max(held) <= node.config.limits.backlog_bytes_max + 2 * len(KEYS) * VALUE_BYTES
    await settle()
    assert node.services.answer_memory.held == 0


async def test_gets_that_wait_for_the_disk_over_many_connections(raw, large, node, held, gate, feed):
    """They end early with what they have found, and all come to their end once the peers read."""
    async with contextlib.AsyncExitStack() as stack:
        connections = await connections_of(raw, stack, 12)
        for connection in connections:
            await connection.send(gets(large, 6))
        await settle()
        gate.set()
        await settle()
        assert (await feed.get(b"small")).value == b"value"
        assert max(held) <= ANSWER_BYTES_MAX + len(connections) * (SHARE_BYTES + 2 * VALUE_BYTES)
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(read_all, connection, large, 6)
    await settle()
    assert node.services.answer_memory.held == 0


async def test_requests_that_wait_are_bounded_by_their_own_bytes(raw, large, node, held, gate):
    """Keys that do not exist find nothing: what is held are the requests."""
    keys = [b"%d" % number + bytes(4_000) for number in range(500)]
    async with raw() as connection:
        await connection.hello()
        sent = trio.Event()

        async def send():
            await connection.send(gets(large, 20, [b"0", *keys]))
            sent.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await settle()
            waiting = max(c.waiting.count for c in node.connections)
            assert 1 <= waiting <= 1 + node.config.limits.backlog_bytes_max // (500 * 4_000)
            gate.set()
            for _ in range(20):
                frame = await connection.receive()
                assert Got.decode(frame.body, [b"0", *keys])[0] is not None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), max_size=30))
def test_whoever_waits_is_woken_once_it_has_fallen(steps):
    account, holds, woken, waits = AnswerMemory(500), [0] * 4, [], set()

    def wake(number):
        return wakers[number]

    wakers = [lambda number=number: woken.append(number) for number in range(4)]
    for number, nbytes in steps:
        account.change(nbytes - holds[number])
        holds[number] = nbytes
        assert account.held == sum(holds)
        if account.held <= 500:
            assert waits == set(woken)
            waits.clear()
            woken.clear()
        else:
            assert not woken
            account.when_room(wake(number))
            waits.add(number)
        assert account.refuses(SHARE_BYTES + 1) == (account.held > 500)
        assert not account.refuses(SHARE_BYTES)
