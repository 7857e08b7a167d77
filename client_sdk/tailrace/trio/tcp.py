"""A Transport over TCP, without a task, thread or cancel scope per message.

It hands bytes to the kernel until that would block, and queues the rest for ``run``, which writes as the peer reads.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from tailrace.errors import Unreachable
from tailrace.link.address import Address
from tailrace.trio.lending import Reader
from tailrace.trio.ready_sockets import ready_sockets
from tailrace.trio.transport import Take, Transport, receive_in_turns

if TYPE_CHECKING:  # programs send no files, and do not load it
    from tailrace.trio.file_part import FilePart

# The first and the largest size of a read, which grows while reads come back full. Idle connections take little memory.
RECEIVE_BYTES_MIN = 16 * 1024
RECEIVE_BYTES_MAX = 1024 * 1024
# The most buffers in one system call (Linux: IOV_MAX is 1,024).
_BUFFERS_MAX = 512
# A socket that sends much is full with this many bytes that the system has not sent: a chunk of a segment leaves by one
# or two calls, which takes a tenth less processor time at both ends. Trio's bound is 16 KiB. Linux and macOS.
_UNSENT_BYTES = 1024 * 1024
_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
# The queue of all connections that have never had one, which takes 760 bytes less for each. Nothing is added to it.
_EMPTY: collections.deque[memoryview | FilePart] = collections.deque()


class TcpTransport:
    """A Transport over a connected TCP socket, which it owns."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._peer = peer
        self._queue = _EMPTY
        self._queued = trio.Event()
        self._expects_bulk = False
        self._closed = False
        self._receive_bytes = RECEIVE_BYTES_MIN
        self.is_emptied = False
        self.receive_bytes_max = RECEIVE_BYTES_MAX
        self._reader: Reader | None = None  # while a task is in ``receive_each``
        self.backlog_bytes = 0
        self.is_broken = False
        self.on_drained: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def lending(self) -> TcpTransport:
        """This transport, as a `LendingTransport`."""
        return self

    def send(self, *buffers: bytes | memoryview) -> None:
        if self.is_broken:
            return
        if not self._queue:
            try:
                if len(buffers) == 1:
                    sent = self._sock.send(buffers[0])
                    if sent == len(buffers[0]):
                        return
                else:
                    sent = self._sock.sendmsg(buffers[:_BUFFERS_MAX])
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self._break()
                return
            buffers = _behind(buffers, sent)
            if not buffers:
                return
        for buffer in buffers:
            view = memoryview(buffer)
            self._enqueue(view)
            self.backlog_bytes += view.nbytes
        self._queued.set()

    def _enqueue(self, waiting: memoryview | FilePart) -> None:
        if self._queue is _EMPTY:
            self._queue = collections.deque()
        self._queue.append(waiting)

    def send_file(self, head: bytes, part: FilePart) -> None:
        """Sends ``head`` and then ``part``, or queues them, as ``send`` does. Closes the part when it has left."""
        if self.is_broken:
            part.close()
            return
        self.expect_bulk()
        if not self._queue:
            self._send_file_now(memoryview(head), part)
            return
        self._enqueue(memoryview(head))
        self._enqueue(part)
        self.backlog_bytes += len(head) + part.nbytes

    def expect_bulk(self) -> None:
        """Has the system take up to _UNSENT_BYTES that it cannot send yet. May be called again."""
        if not self._expects_bulk and _NOTSENT_LOWAT is not None:
            self._expects_bulk = True
            with contextlib.suppress(OSError):  # the peer has gone, and the next call tells
                self._sock.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, _UNSENT_BYTES)

    def _send_file_now(self, head: memoryview, part: FilePart) -> None:
        try:
            # Without MSG_MORE: if sendfile then fills the socket, the system holds the rest back for 200 ms.
            head = head[self._sock.send(head) :]
            if not head:
                part.send(self._sock)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, EOFError):
            part.close()
            self._break()
            return
        if not part.nbytes:
            part.close()
            return
        if head:
            self._enqueue(head)
        self._enqueue(part)
        self.backlog_bytes += len(head) + part.nbytes
        self._queued.set()

    async def receive(self) -> bytes | memoryview:
        # If the last read has emptied the socket, another read would most likely find nothing: wait at once.
        waiting = self.is_emptied
        if not waiting:
            await trio.lowlevel.checkpoint_if_cancelled()
        waited = False
        while not self._closed:
            if waiting:
                try:
                    await trio.lowlevel.wait_readable(self._sock)
                except trio.ClosedResourceError:
                    return b""
                waiting, waited = False, True
                continue
            try:
                data = self._sock.recv(self._receive_bytes)
            except (BlockingIOError, InterruptedError):
                waiting = True
                continue
            self._fit_receive_bytes(len(data))
            if not waited:
                # Having waited was the checkpoint; another one is a pass of the scheduler, 15 µs for every message.
                await trio.lowlevel.cancel_shielded_checkpoint()
            return data
        return b""

    def receive_now(self) -> bytes:
        if self.is_emptied:
            return b""
        try:
            data = self._sock.recv(self._receive_bytes)
        except OSError:  # nothing is there, or the connection has broken, which is its end for ``receive``
            self.is_emptied = True
            return b""
        self._fit_receive_bytes(len(data))
        return data

    def _fit_receive_bytes(self, count: int) -> None:
        """Notes how many bytes a read has found, for the next one."""
        self.is_emptied = count < self._receive_bytes
        if not self.is_emptied:
            self._receive_bytes = min(2 * self._receive_bytes, self.receive_bytes_max)
        elif count < self._receive_bytes // 8 and self._receive_bytes > RECEIVE_BYTES_MIN:
            self._receive_bytes = max(self._receive_bytes // 2, RECEIVE_BYTES_MIN)

    async def receive_each(self, take: Take) -> bool:
        sockets = ready_sockets()
        if sockets is None:
            return await receive_in_turns(self, take)
        if self._closed:
            await trio.lowlevel.checkpoint()
            return False
        reader = self._reader = Reader(sockets, self._sock, self._ready, take)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._end_reader()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if reader.error is not None:
            raise reader.error
        return not reader.has_ended

    def _ready(self) -> bool:
        """Reads once, and hands over what it finds. Returns False if the reading task has to go on."""
        reader = self._reader
        if reader is None:
            return True
        try:
            data = self._sock.recv(self._receive_bytes)
            if len(data) < self._receive_bytes == RECEIVE_BYTES_MIN:  # most often: as ``_fit_receive_bytes``
                self.is_emptied = True
            else:
                self._fit_receive_bytes(len(data))
            if data and reader.take(data):
                return True
            reader.has_ended = not data
        except (BlockingIOError, InterruptedError):
            return True
        except Exception as error:  # also a bug in ``take``, which is its caller's
            reader.error = error
        self._wake_reader()
        return False

    def _wake_reader(self) -> None:
        """Lets ``receive_each`` return, unless it is about to."""
        reader = self._end_reader()
        if reader is not None:
            trio.lowlevel.reschedule(reader.task)

    def _end_reader(self) -> Reader | None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()
        return reader

    def lend(self) -> bool:
        reader = self._reader
        if reader is None:
            return False
        if not reader.is_lent:
            reader.lend()
        return True

    def wait_in_place(self) -> bool:
        reader = self._reader
        return reader is not None and reader.is_lent and (reader.wait or reader.begin_wait()).wait()

    def wait_lent(self) -> Awaitable[None]:
        return trio.lowlevel.wait_readable(self._sock)  # noqa: ASYNC105 - the caller awaits it, in fewer steps

    def read_lent(self) -> bool:
        reader = self._reader
        return reader is not None and reader.is_lent and self._ready()

    def recall(self) -> None:
        trio.lowlevel.notify_closing(self._sock)  # ``run`` waits again

    def take_back(self) -> None:
        if self._reader is not None:
            self._reader.take_back()

    async def receive_into(self, buffers: tuple[memoryview, bytearray]) -> int:
        waited = False
        if not self.is_emptied:
            await trio.lowlevel.checkpoint_if_cancelled()
        while not self._closed:
            if self.is_emptied:  # as in ``receive``
                try:
                    await trio.lowlevel.wait_readable(self._sock)
                except trio.ClosedResourceError:
                    break
                waited = True
            try:
                count = self._sock.recvmsg_into(buffers)[0]
            except (BlockingIOError, InterruptedError):
                self.is_emptied = True
                continue
            self.is_emptied = count < len(buffers[0])
            if not waited:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return count
        return 0

    def receive_into_now(self, buffers: tuple[memoryview, bytearray]) -> int:
        """Receives what has arrived into ``buffers``; 0 without any. `receive_into` tells the end. Never waits."""
        if self.is_emptied or self._closed:
            return 0
        try:
            count = self._sock.recvmsg_into(buffers)[0]
        except OSError:  # as in ``receive_now``
            self.is_emptied = True
            return 0
        self.is_emptied = count < len(buffers[0])
        return count

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        while not self._closed:
            if not self._queue:
                self._queued = trio.Event()
                if self.on_drained is not None:
                    self.on_drained()
                if not self._queue:
                    await self._queued.wait()
                continue
            try:
                await trio.lowlevel.wait_writable(self._sock)
            except trio.ClosedResourceError:
                continue  # closed, or ``recall`` has woken it
            except OSError:
                return
            self._write_queued()

    def _write_queued(self) -> None:
        first = self._queue[0]
        try:
            if isinstance(first, memoryview):
                self._write_buffers()
            else:
                self._write_file(first)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, EOFError):
            self._break()

    def _write_file(self, part: FilePart) -> None:
        self.backlog_bytes -= part.send(self._sock)
        if not part.nbytes:
            self._queue.popleft()
            part.close()

    def _write_buffers(self) -> None:
        """Writes the buffers at the front of the queue, up to the next part of a file."""
        buffers = []
        for waiting in itertools.islice(self._queue, _BUFFERS_MAX):
            if not isinstance(waiting, memoryview):
                break
            buffers.append(waiting)
        sent = self._sock.sendmsg(buffers)
        self.backlog_bytes -= sent
        for buffer in buffers:
            if sent < buffer.nbytes:
                self._queue[0] = buffer[sent:]
                return
            self._queue.popleft()
            sent -= buffer.nbytes

    def _break(self) -> None:
        """Sends nothing more, because the peer has gone. ``receive`` returns the end."""
        self.is_broken = True
        self._drop_queue()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _drop_queue(self) -> None:
        queue, self._queue = self._queue, _EMPTY
        self.backlog_bytes = 0
        for waiting in queue:
            if not isinstance(waiting, memoryview):
                waiting.close()

    def finish(self) -> None:
        with contextlib.suppress(OSError):  # the peer has gone, and ``receive`` reports it
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self.is_broken = True
        self._drop_queue()
        self._queued.set()
        if self._reader is not None:
            self._reader.has_ended = True
            self._wake_reader()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


async def open_tcp(host: str, port: int) -> TcpTransport:
    """Connects to ``host``:``port``. Raises Unreachable; the time-out is the caller's cancel scope."""
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError as error:
        raise Unreachable(f"cannot connect to {host}:{port}: {_reason(error)}") from error
    return TcpTransport(take_socket(stream.socket), f"{host}:{port}")


async def connect_tcp(address: Address) -> Transport:
    """Connects to a node over TCP. Raises Unreachable."""
    return await open_tcp(address.host, address.port)


def _behind(buffers: tuple[bytes | memoryview, ...], sent: int) -> tuple[bytes | memoryview, ...]:
    """Returns ``buffers`` without their first ``sent`` bytes."""
    for index, buffer in enumerate(buffers):
        size = len(buffer)
        if sent < size:
            return (memoryview(buffer)[sent:], *buffers[index + 1 :]) if sent else buffers[index:]
        sent -= size
    return ()


def _reason(error: OSError) -> str:
    """Returns the system's text for an error. trio tries every address of a host and groups their errors."""
    causes = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else (error.__cause__,)
    said = dict.fromkeys(os.strerror(cause.errno) for cause in causes if isinstance(cause, OSError) and cause.errno)
    return ", ".join(said) or error.strerror or str(error)


def take_socket(sock: trio.socket.SocketType) -> socket.socket:
    """Returns the plain socket of a trio socket, and detaches it."""
    return socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
