"""What a client runs on can be handed over: then it opens no socket, starts no thread, and repeats itself."""

import functools
import random
import threading

import trio

import tailrace
from tailrace.indexes import MemoryIndex
from tailrace.requests.lane import Lanes, random_producer_id
from tailrace.trio.host import Host
from tailrace.trio.tcp import connect_tcp


class Inline:
    """A worker that works on the spot."""

    def __init__(self, name):
        self.name = name
        self.calls = []

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")

    async def run(self, function, *args):
        inner = function.func if isinstance(function, functools.partial) else function
        self.calls.append(inner.__qualname__)
        await trio.lowlevel.checkpoint()
        return function(*args)

    def post(self, function, *args):
        function(*args)


async def test_an_index_works_where_the_host_says(running):
    workers = []

    def worker(name):
        workers.append(Inline(name))
        return workers[-1]

    index = MemoryIndex()
    async with tailrace.connect(running.url, host=Host(worker=worker)) as client:
        feed = await client.create_feed("orders", partitions=2)
        await feed.put(b"k", b"v")
        async with feed.follow(index) as follower:
            await follower.barrier()
            assert not [thread for thread in threading.enumerate() if "tailrace index" in thread.name]
    assert index.state == {b"k": b"v"}
    (made,) = workers
    assert made.calls[0] == "start"
    assert made.calls[1].endswith(".open")
    assert "Applier.apply" in made.calls
    assert made.calls[-2].endswith(".close")
    assert made.calls[-1] == "stop"


async def test_every_connection_is_made_by_the_host(running):
    connects = []

    async def connect(address):
        connects.append(address.port)
        return await connect_tcp(address)

    async with tailrace.connect(running.url, host=Host(connect=connect)) as client:
        feed = await client.create_feed("orders", partitions=2)
        await feed.put(b"k", b"v")
        async with feed.consume() as stream:
            assert await anext(stream)
    assert connects == [running.config.listen[1]] * 2  # that of the requests, and that of the stream


async def test_ids_come_from_the_hosts_randomness(running):
    async with tailrace.connect(running.url, host=Host(random=random.Random(7))) as client:
        await client.create_feed("orders", partitions=2)
        (info,) = await client.feeds()
        lane = client._core.lanes[info.feed_id, 0]
    again = random.Random(7)
    assert info.feed_id == again.randbytes(16)
    assert lane._producer_id == random_producer_id(again)


def test_without_a_host_ids_do_not_repeat():
    ids = {Lanes()[b"f" * 16, 0]._producer_id for _ in range(100)}
    assert len(ids) == 100
