"""Whatever a node says, clients raise errors of Tailrace only, end, and hold little."""

import asyncio
import contextlib
import random
import socket
import threading

import pytest
import trio
import trio.testing
from tests.tailrace.asyncio.bridge import run as run_under_asyncio

import tailrace
from tailrace import Put, TailraceError, blocking
from tailrace.consuming.subscription import Subscription
from tailrace.indexes import MemoryIndex
from tailrace.link.backoff import FIRST_SECONDS, RECONNECT_GROWTH
from tailrace.link.finder import GREETED_ROUNDS_MAX
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.trio.client import Client
from tailrace.trio.host import Host
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.opcodes import Opcode

from .hostile_node import BRANCH, FEED, LOG, Connection, HostileNode

pytestmark = pytest.mark.slow

STANDS = Positions(bytes(16), FEED, {0: Position.at(LOG, 2), 1: Position.at(FailoverLog(), 0)})


class Uses:
    """What programs do with a client; each gives up after a while."""

    def __init__(self, client, rnd):
        self.client = client
        self.random = rnd
        self.feed = client.feed("orders")

    def all(self):
        uses = [getattr(self, name) for name in dir(self) if name.startswith("use_")]
        self.random.shuffle(uses)
        return uses

    async def use_lists(self):
        await self.client.status()
        await self.client.feeds()
        await self.feed.partitions()

    async def use_feeds(self):
        await self.client.create_feed("orders")
        await self.client.drop_feed("orders")

    async def use_writes(self):
        version = await self.feed.put(b"k", b"v")
        with contextlib.suppress(ValueError):  # the map has another number of partitions than before
            await self.feed.get(b"k", at_least=version)
        await self.feed.delete_if_present(b"k")
        await self.feed.write([Put(b"%d" % number, b"v") for number in range(10)])

    async def use_a_writer(self):
        async with self.feed.writer() as writer:
            for number in range(10):
                await writer.put(b"%d" % number, b"v")

    async def use_a_stage(self):
        async with self.feed.stage() as stage:
            await stage.put(b"k", b"v")
            sealed = await stage.seal()
        await self.feed.publish("sink", 1, [sealed])

    async def use_look_ups(self):
        await self.feed.get_many([b"a", b"b", b"c"])

    async def use_items(self):
        [item async for item in self.feed.items()]

    async def use_positions(self):
        await self.feed.explain_resume(STANDS)

    async def use_a_stream(self):
        since = self.random.choice(["beginning", "now", STANDS])
        how = self.random.choice(["follow", "restart", "stop"])
        async with self.feed.consume(since, on_rollback=how, keys_only=self.random.random() < 0.5) as stream:
            async for event in stream:
                if isinstance(event, tailrace.Mutations):
                    list(event)
                    event.hashes()
                stream.status()
                stream.latest_positions  # noqa: B018 (it must not raise)

    async def use_an_end(self):
        async with self.feed.consume(until=self.random.choice(["now", STANDS])) as stream:
            async for event in stream:
                if isinstance(event, tailrace.Mutations):
                    list(event)

    async def use_an_index(self):
        async with self.feed.follow(MemoryIndex()) as follower:
            while True:
                await follower.barrier()
                version = tailrace.Version(follower.status().partitions[0].partition, BRANCH, 2)
                await follower.wait_for(version)
                await trio.sleep(1)


async def use(use_it):
    with trio.move_on_after(20):
        with contextlib.suppress(TailraceError):
            await use_it()


def run(seed, lies):
    rnd = random.Random(seed)
    node = HostileNode(rnd, lies)

    async def connect(address):
        await trio.lowlevel.checkpoint()
        return Connection(node)

    async def main():
        for _ in range(3):
            with contextlib.suppress(TailraceError):
                async with Client("tailrace://node:1", host=Host(connect=connect, random=rnd), retry_for=5) as client:
                    for one in Uses(client, rnd).all():
                        await use(one)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("lies", [0.0, 0.02, 0.1, 0.4])
def test_clients_raise_errors_of_tailrace_only(lies):
    for seed in range(10):
        run(f"{lies} {seed}", lies)


def test_a_seq_above_all_seqs_ends_in_an_error_of_tailrace():
    """A consumer stored it as its position, and could not ask for the stream again."""
    run("0.1 356", 0.1)


# Without async, over real sockets


@pytest.fixture
def serve():
    """Serves a hostile node at a port of its own, each connection by a thread; gives its URL."""
    with contextlib.ExitStack() as until_the_end:

        def start(node):
            listener = until_the_end.enter_context(socket.create_server(("127.0.0.1", 0)))
            thread = threading.Thread(target=accept, args=(listener, node))
            thread.start()
            until_the_end.callback(thread.join)
            until_the_end.callback(listener.shutdown, socket.SHUT_RDWR)
            return f"tailrace://127.0.0.1:{listener.getsockname()[1]}"

        yield start


def accept(listener, node):
    threads = []
    with contextlib.suppress(OSError):
        while True:
            sock, _ = listener.accept()
            threads.append(threading.Thread(target=converse, args=(sock, node)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def converse(sock, node):
    decoder = FrameDecoder()
    with sock, contextlib.suppress(OSError):
        while data := sock.recv(1 << 16):
            for frame in decoder.receive_data(data):
                answer = node.answer(frame)
                if answer is None:
                    return
                sock.sendall(answer)


def write_in_batches(feed):
    with feed.writer() as writer:
        for number in range(10):
            writer.put(b"%d" % number, b"v")


def stage(feed):
    with feed.stage() as staged:
        staged.put(b"k", b"v")
        sealed = staged.seal()
    feed.publish("sink", 1, [sealed])


def read(client, **wanted):
    with client.stream(Subscription("orders", **wanted)) as stream:
        for _ in range(20):
            event = stream.next(0.01)
            if isinstance(event, tailrace.Mutations):
                list(event)
            stream.status()
            stream.latest_positions  # noqa: B018 (it must not raise)
            if stream.finished:
                return


BLOCKING_USES = [
    lambda client, feed: client.status(),
    lambda client, feed: client.feeds(),
    lambda client, feed: feed.partitions(),
    lambda client, feed: client.create_feed("orders"),
    lambda client, feed: client.drop_feed("orders"),
    lambda client, feed: feed.put(b"k", b"v"),
    lambda client, feed: feed.get_many([b"a", b"b", b"c"]),
    lambda client, feed: feed.write([Put(b"%d" % number, b"v") for number in range(10)]),
    lambda client, feed: write_in_batches(feed),
    lambda client, feed: stage(feed),
    lambda client, feed: read(client),
    lambda client, feed: read(client, until="now"),
    lambda client, feed: read(client, since=STANDS, stored=(STANDS,)),
]


@pytest.mark.parametrize("lies", [0.02, 0.1, 0.4])
def test_blocking_clients_raise_errors_of_tailrace_only(serve, lies):
    for seed in range(2):
        url = serve(HostileNode(random.Random(f"{lies} {seed}"), lies))
        for use_it in BLOCKING_USES:
            with (
                contextlib.suppress(TailraceError),
                blocking.connect(url, connect_timeout=0.3, retry_for=0.1) as client,
            ):
                use_it(client, client.feed("orders"))


# Under asyncio, over real sockets


class UsesOfAsyncio(Uses):
    """The same, for a client for asyncio."""

    async def use_an_index(self):
        async with self.feed.follow(MemoryIndex()) as follower:
            await follower.barrier()
            await follower.wait_for(tailrace.Version(follower.status().partitions[0].partition, BRANCH, 2))


USES_OF_ASYNCIO = [name for name in dir(UsesOfAsyncio) if name.startswith("use_")]


@pytest.mark.parametrize("lies", [0.02, 0.1, 0.4])
def test_clients_for_asyncio_raise_errors_of_tailrace_only(serve, lies):
    async def use_all(url, rnd):
        for name in USES_OF_ASYNCIO:
            with contextlib.suppress(TailraceError, TimeoutError):
                async with tailrace.asyncio.connect(url, connect_timeout=0.3, retry_for=0.1) as client:
                    async with asyncio.timeout(0.3):
                        await getattr(UsesOfAsyncio(client, rnd), name)()

    for seed in range(2):
        rnd = random.Random(f"{lies} {seed}")
        run_under_asyncio(use_all, serve(HostileNode(rnd, lies)), rnd)


# Peers that hang up


def connections_in(seconds, say):
    """How often a client and its consumer connect in so many seconds of virtual time to a node that says ``say``."""
    count = 0

    class HangsUp(HostileNode):
        def answer(self, frame):
            return b"".join(self.right(frame)) if frame.opcode in say else None

    async def connect(address):
        nonlocal count
        count += 1
        return Connection(HangsUp(random.Random(1), 0.0))

    async def main():
        with trio.move_on_after(seconds), contextlib.suppress(TailraceError):
            async with Client("tailrace://node:1", host=Host(connect=connect), retry_for=2 * seconds) as client:
                with contextlib.suppress(TailraceError):
                    async with client.feed("orders").consume() as stream:
                        async for _ in stream:
                            pass
                await trio.sleep_forever()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return count


@pytest.mark.parametrize("say", [{Opcode.HELLO}, {Opcode.HELLO, Opcode.PARTITIONS}])
def test_a_peer_that_says_hello_and_hangs_up_is_asked_ever_less_often(say):
    """A client and a consumer: 20 ms, 30 ms, ... a quarter of a second, half of that at least."""
    longest = FIRST_SECONDS * RECONNECT_GROWTH ** (GREETED_ROUNDS_MAX - 1)
    assert 10 < connections_in(60, say) < 2 * (60 / (longest / 2) + 10)
