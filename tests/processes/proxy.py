"""A network link that can be cut, frozen and healed: a relay on loopback in front of one address.

cut      every connection is reset, and so is each new one
freeze   nothing passes and nothing is closed: both sides hear nothing
mute     as freeze, in one direction: one side hears the other, and is not heard
heal     bytes that a freeze has held pass, and new connections get through
forget   the present connections hear nothing any more, for ever, and are not closed; new ones pass

`BadNetwork` is such a link in a thread of its own, for tests without async.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import struct
import threading
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RECEIVE_BYTES = 64 * 1024
# With it a close is a reset: a peer that only sees an end of the stream may think that the other side left on purpose.
RESET = struct.pack("ii", 1, 0)
HOST = "127.0.0.1"


# Bytes after which a `BadNetwork` breaks a connection: powers of ten, towards the node and back. Some breaks fall into
# the greetings. Most bytes go towards the node; an answer has 56.
BUDGETS = (1.5, 6.8), (2.0, 4.2)


class Proxy:
    """A relay to ``target``; listens at ``port`` while ``run`` runs. It holds at most 64 KiB for each direction.

    While ``cutting``, each connection breaks after a number of bytes that ``rnd`` decides, anywhere in a frame.
    """

    def __init__(self, target: tuple[str, int], rnd: random.Random | None = None, width: int = 1) -> None:
        """``width``: how many times as many bytes as usual a connection passes on before it breaks."""
        self.target = target
        self._width = width
        self.cutting = rnd is not None
        self.cuts = 0  # connections that broke after their number of bytes
        self._random = rnd or random.Random()
        self.port = 0
        self.connections = 0  # since the start
        self.resets = 0
        self._is_cut = False
        self._there, self._back = _Way(), _Way()
        self._open: set[_Pair] = set()

    def cut(self) -> None:
        """Resets every connection, now and until it is healed."""
        self._is_cut = True
        self._there.thaw()
        self._back.thaw()
        for pair in list(self._open):
            self.resets += 1
            pair.reset()

    def freeze(self) -> None:
        """Lets nothing pass, not even the start of a connection."""
        self._is_cut = False
        self._there.freeze()
        self._back.freeze()

    def mute(self, *, there: bool) -> None:
        """Lets nothing pass towards the target (``there``), or nothing from it. No connection starts meanwhile."""
        self._is_cut = False
        (self._there if there else self._back).freeze()

    def heal(self) -> None:
        """Lets everything pass again."""
        self._is_cut = False
        self._there.thaw()
        self._back.thaw()

    def forget(self) -> None:
        """Lets nothing pass on the present connections, as a router that has forgotten them."""
        for pair in self._open:
            pair.is_forgotten = True

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Relays until it is cancelled, and resets the connections that are left."""
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, listeners[0], nursery)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                for pair in list(self._open):
                    pair.reset()

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:  # one connection's trouble, or no descriptors for a moment
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        await trio.sleep(0.05)
                    continue
                nursery.start_soon(self._relay, stream)

    async def _relay(self, client: trio.SocketStream) -> None:
        pair = _Pair(client)
        self._open.add(pair)
        self.connections += 1
        try:
            with pair.scope:
                if self._is_cut:
                    pair.reset()
                    return
                await self._there.open()
                await self._back.open()
                try:
                    pair.server = await trio.open_tcp_stream(*self.target)
                except OSError:
                    return
                there, back = (int(self._width * 10 ** self._random.uniform(least, most)) for least, most in BUDGETS)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._forward, pair, pair.client, pair.server, self._there, there)
                    nursery.start_soon(self._forward, pair, pair.server, pair.client, self._back, back)
        finally:
            self._open.discard(pair)
            pair.close()

    async def _forward(
        self, pair: _Pair, source: trio.SocketStream, sink: trio.SocketStream, way: _Way, budget: int
    ) -> None:
        try:
            while data := await source.receive_some(RECEIVE_BYTES):
                await way.open()
                if pair.is_forgotten:
                    continue
                await sink.send_all(data[:budget] if self.cutting else data)
                budget = max(budget - len(data), 0)
                if self.cutting and not budget:
                    self.cuts += 1
                    pair.reset()
                    return
            await way.open()
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pair.reset()


class _Way:
    """One direction of a link."""

    def __init__(self) -> None:
        self._thawed = trio.Event()
        self._thawed.set()

    def freeze(self) -> None:
        if self._thawed.is_set():
            self._thawed = trio.Event()

    def thaw(self) -> None:
        self._thawed.set()

    async def open(self) -> None:
        """Waits until it is not frozen."""
        await self._thawed.wait()


class _Pair:
    """The two sides of a connection."""

    def __init__(self, client: trio.SocketStream) -> None:
        self.client = client
        self.server: trio.SocketStream | None = None
        self.is_forgotten = False
        self.scope = trio.CancelScope()

    def reset(self) -> None:
        """Ends it on both sides as a broken network does."""
        for stream in (self.client, self.server):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.scope.cancel()

    def close(self) -> None:
        for stream in (self.client, self.server):
            if stream is not None:
                stream.socket.close()


@contextlib.asynccontextmanager
async def open_proxy(target: tuple[str, int]) -> AsyncIterator[Proxy]:
    """A relay that runs while the body does."""
    proxy = Proxy(target)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()


class BadNetwork:
    """A `Proxy` in front of a node's port that breaks connections while ``cutting``; it runs until ``close``."""

    def __init__(self, port: int, seed: int, width: int = 1) -> None:
        self._proxy = Proxy((HOST, port), random.Random(seed), width)
        self._started, self._closed = threading.Event(), trio.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run,))
        self._thread.start()
        self._started.wait()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._proxy.run)
            self._started.set()
            await self._closed.wait()
            nursery.cancel_scope.cancel()

    @property
    def url(self) -> str:
        return f"tailrace://{HOST}:{self._proxy.port}"

    @property
    def cutting(self) -> bool:
        return self._proxy.cutting

    @cutting.setter
    def cutting(self, cutting: bool) -> None:
        self._proxy.cutting = cutting

    @property
    def cuts(self) -> int:
        return self._proxy.cuts

    @property
    def connections(self) -> int:
        return self._proxy.connections

    def freeze(self) -> None:
        """Lets nothing pass."""
        trio.from_thread.run_sync(self._proxy.freeze, trio_token=self._token)

    def heal(self) -> None:
        """Lets everything pass again."""
        trio.from_thread.run_sync(self._proxy.heal, trio_token=self._token)

    def close(self) -> None:
        """Resets every connection, and ends the thread."""
        trio.from_thread.run_sync(self._closed.set, trio_token=self._token)
        self._thread.join()
