"""TLS under trio, around another transport, with the same promises: ``send`` never waits and is no checkpoint.

trio.SSLStream cannot do that: its ``send_all`` is async, one task at a time may call it, and a cancelled one breaks the
connection. Answers leave from callbacks here. So the engine works on memory, and the inner transport moves the bytes.

    send ──> plaintext queue ──> engine, SLICE_BYTES at a time ──> inner transport
               files, too            when the inner transport has sent everything

A large send is encrypted in slices, and other tasks have the loop in between.
"""

from __future__ import annotations

import collections
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import trio

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.tls.engine import More, PeerIdentity, TlsEngine, looks_like_tls
from tailrace.tls.failures import bad_host, closed, explain, no_tls
from tailrace.trio.file_part import FilePart
from tailrace.trio.lending import lending_of
from tailrace.trio.transport import Connect, Take, Transport, receive_each

# The bytes that are encrypted in one turn of the loop, 0.1 to 0.3 ms of a processor.
SLICE_BYTES = 256 * 1024
# The ciphertext that is received at a time: OpenSSL's copies of it, and the plaintext, stay in the processor's cache.
RECEIVED_BYTES = 256 * 1024

_T = TypeVar("_T", bytes | memoryview, int)


@runtime_checkable
class ReadyTransport(Transport, Protocol):
    """A Transport that hands over what has arrived without a turn of the loop."""

    receive_bytes_max: int  # of one read
    is_emptied: bool  # the last read took less than it could

    def receive_now(self) -> bytes | memoryview:
        """Returns bytes that have arrived; ``b""`` without any. `receive` tells the end. Never waits or raises."""
        ...


class NotTls(Exception):
    """The first bytes of a peer are none of TLS."""


@runtime_checkable
class SecureTransport(Transport, Protocol):
    """A Transport over TLS."""

    @property
    def peer_identity(self) -> PeerIdentity | None:
        """The verified certificate of the other side; None if it has shown none."""
        ...

    @property
    def handshake_seconds(self) -> float:
        """The seconds from the beginning of the handshake to its end."""
        ...


def peer_identity(transport: Transport) -> PeerIdentity | None:
    """Returns the verified certificate of the other side; None if it has shown none, and without TLS."""
    # To ask whether it is a SecureTransport takes 20 times as long.
    found: PeerIdentity | None = getattr(transport, "peer_identity", None)
    return found


def handshake_seconds(transport: Transport) -> float:
    """Returns the seconds that the handshake took; 0 without TLS."""
    found: float = getattr(transport, "handshake_seconds", 0.0)
    return found


class TlsTransport:
    """A Transport over TLS, which owns ``inner``. Its handshake is complete.

    ``explained`` makes the error of a failure that a TailraceError describes; others are an OSError.
    """

    def __init__(
        self,
        inner: Transport,
        engine: TlsEngine,
        handshake_seconds: float,
        explained: Callable[[ssl.SSLError], Exception],
    ) -> None:
        self._inner = inner
        self._engine = engine
        self._explained = explained
        self._plain: collections.deque[memoryview | FilePart] = collections.deque()
        self._plain_bytes = 0
        self._wake = trio.Event()
        self._finishes = False
        self._closed = False
        self.peer_identity = engine.peer_identity()
        self.handshake_seconds = handshake_seconds
        self.on_drained: Callable[[], None] | None = None
        inner.on_drained = self._inner_drained
        self._ready = inner if isinstance(inner, ReadyTransport) else None
        self.lending = lending_of(inner)  # which hands its bytes to ``receive_each``
        if self._ready is not None:
            self._ready.receive_bytes_max = RECEIVED_BYTES

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def backlog_bytes(self) -> int:
        return self._plain_bytes + self._inner.backlog_bytes

    @property
    def is_broken(self) -> bool:
        return self._closed or self._inner.is_broken

    # Sending

    def send(self, *buffers: bytes | memoryview) -> None:
        if self.is_broken:
            return
        for buffer in buffers:
            view = memoryview(buffer)
            if view.nbytes:
                self._plain.append(view)
                self._plain_bytes += view.nbytes
        self._begin()

    def send_file(self, head: bytes, part: FilePart) -> None:
        """Sends ``head`` and then ``part``, or queues them, as ``send`` does. Closes the part when it has left."""
        if self.is_broken:
            part.close()
            return
        self._plain.extend((memoryview(head), part))
        self._plain_bytes += len(head) + part.nbytes
        self._begin()

    def expect_bulk(self) -> None:
        """Has the system take more bytes that it cannot send yet, as `TcpTransport`. May be called again."""
        expect_bulk = getattr(self._inner, "expect_bulk", None)
        if expect_bulk is not None:
            expect_bulk()

    def _begin(self) -> None:
        """Encrypts a slice at once, if nothing is before it. ``run`` goes on with the rest."""
        if self._inner.backlog_bytes or self._wake.is_set():
            return
        self._encrypt_slice()
        if self._plain and not self._inner.backlog_bytes:
            self._wake.set()

    def _encrypt_slice(self) -> None:
        if not self._plain:
            return
        try:
            pieces = self._engine.encrypted(self._next_slice())
        except (OSError, EOFError):  # ssl.SSLError is an OSError
            self.close()
            return
        self._inner.send(*pieces)

    def _next_slice(self) -> bytes | memoryview:
        """Takes the first bytes of the queue, SLICE_BYTES at most."""
        pieces: list[bytes | memoryview] = []
        room = SLICE_BYTES
        while self._plain and room:
            first = self._plain[0]
            if isinstance(first, FilePart):
                piece: bytes | memoryview = first.read(room)
                is_over = not first.nbytes
            else:
                piece = first[:room]
                is_over = len(piece) == len(first)
                if not is_over:
                    self._plain[0] = first[room:]
            pieces.append(piece)
            room -= len(piece)
            self._plain_bytes -= len(piece)
            if is_over:
                self._plain.popleft()
                if isinstance(first, FilePart):
                    first.close()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        failure: OSError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._encrypt)
            try:
                await self._inner.run()
            except OSError as error:  # raised below, outside of the nursery, which would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    @trio.lowlevel.enable_ki_protection
    async def _encrypt(self) -> None:
        """Encrypts what waits, a slice in a turn, while the inner transport takes it."""
        while True:
            await self._wake.wait()
            while self._plain and not self._inner.backlog_bytes:
                self._encrypt_slice()
                await trio.lowlevel.checkpoint()
            self._wake = trio.Event()
            if not self._inner.backlog_bytes:  # else the inner transport calls when it has sent that
                self._inner_drained()

    def _inner_drained(self) -> None:
        if self._plain:
            self._wake.set()
        elif self._finishes:
            self._inner.finish()
        elif self.on_drained is not None:
            self.on_drained()

    # Receiving

    async def receive(self) -> bytes | memoryview:
        return await self._received(lambda: self._engine.decrypt_view(more=self._more()), b"")

    async def receive_into(self, buffers: tuple[memoryview, bytearray]) -> int:
        """Receives some bytes into ``buffers``, as `PlacingTransport.receive_into`."""
        return await self._received(lambda: self._engine.decrypt_into(buffers, self._more()), 0)

    def _more(self) -> More | None:
        """Returns what receives more without waiting; None if most likely nothing is there."""
        return None if self._ready is None or self._ready.is_emptied else self._ready.receive_now

    async def receive_each(self, take: Take) -> bool:
        """Hands over the bytes as they come, as `HandingTransport.receive_each`."""
        engine = self._engine
        while True:
            while (
                engine.has_data or engine.is_ended or self._closed
            ):  # left by the last call, or before others had turns
                data = await self.receive()
                if not data:
                    return False
                if not take(data):
                    return True
            is_stopped = await self._receive_each(take)
            if is_stopped or not engine.is_behind:
                return is_stopped

    async def _receive_each(self, take: Take) -> bool:
        """Hands over bytes until ``take`` returns False, the end comes, or many small records are there."""
        engine, is_stopped = self._engine, False

        def decrypted(received: bytes | memoryview) -> bool:
            nonlocal is_stopped
            engine.feed(received)
            while data := self._decrypt(engine.decrypt_view, b""):
                if not take(data):
                    is_stopped = True
                    return False
                if engine.is_behind:
                    return False
            return not engine.is_ended

        await receive_each(self._inner, decrypted)
        return is_stopped

    async def _received(self, decrypt: Callable[[], _T], nothing: _T) -> _T:
        engine = self._engine
        if engine.has_data or engine.is_ended or self._closed:
            await trio.lowlevel.checkpoint_if_cancelled()
            found = nothing if self._closed else self._decrypt(decrypt, nothing)
            if found or engine.is_ended or self._closed:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return found
        while True:
            data = await self._inner.receive()
            if not data:
                return nothing
            engine.feed(data)
            found = self._decrypt(decrypt, nothing)
            if found or engine.is_ended:
                return found

    def _decrypt(self, decrypt: Callable[[], _T], nothing: _T) -> _T:
        try:
            return decrypt()
        except ssl.SSLError as error:
            if self._finishes:
                return nothing  # the rest is read for the peer's sake only, which else would not see the last bytes
            raise self._explained(error) from None
        finally:
            self._send_control()

    def _send_control(self) -> None:
        """Sends alerts and new keys. If the peer does not read, they wait in the engine for the next slice."""
        if not self._inner.backlog_bytes:
            data = self._engine.take()
            if data:
                self._inner.send(data)

    # Ending

    def finish(self) -> None:
        self._finishes = True
        self._engine.end()
        self._inner.send(self._engine.take())
        if not self._inner.backlog_bytes:
            self._inner.finish()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        queue, self._plain = self._plain, collections.deque()
        self._plain_bytes = 0
        for waiting in queue:
            if isinstance(waiting, FilePart):
                waiting.close()
        self._inner.close()


async def connect_tls(connect: Connect, context: ssl.SSLContext, address: Address) -> TlsTransport:
    """Connects to a node by ``connect``, and then by TLS.

    Raises Unreachable; Forbidden or ProtocolError if no retry can mend it. The time-out is the caller's.
    """
    where = str(address)
    try:
        engine = TlsEngine(context, address.host)
    except ValueError as error:
        raise bad_host(where, error) from None
    inner = await connect(address)
    began_at = trio.current_time()
    try:
        try:
            await _shake(inner, engine)
        except NotTls:
            raise no_tls(where) from None
        except ssl.SSLError as error:
            raise explain(error, where) from None
        except EOFError:
            raise closed(where) from None

        def explained(error: ssl.SSLError) -> TailraceError:
            return explain(error, where, is_shaken=True)

        return TlsTransport(inner, engine, trio.current_time() - began_at, explained)
    except BaseException:
        inner.close()
        raise


async def accept_tls(inner: Transport, context: ssl.SSLContext) -> TlsTransport:
    """Shakes hands with a client on ``inner``, which stays the caller's if that fails. The time-out is the caller's.

    Raises NotTls, ssl.SSLError, or EOFError if the client has closed the connection.
    """
    began_at = trio.current_time()
    engine = TlsEngine(context)
    await _shake(inner, engine)
    return TlsTransport(inner, engine, trio.current_time() - began_at, _broken)


def _broken(error: ssl.SSLError) -> ConnectionError:
    return ConnectionError(f"TLS failed: {error.reason or error}")


async def _shake(inner: Transport, engine: TlsEngine) -> None:
    is_first = True
    while True:
        try:
            is_complete = engine.shake()
        finally:
            data = engine.take()  # an alert, if it failed
            if data:
                inner.send(data)
        if is_complete:
            return
        received = await inner.receive()
        if not received:
            raise EOFError("the peer has closed the connection")
        if is_first and not looks_like_tls(received):
            raise NotTls
        is_first = False
        engine.feed(received)
