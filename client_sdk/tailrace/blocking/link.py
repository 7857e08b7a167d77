"""The blocking shell of a request session: connects, reconnects, moves the bytes while somebody waits."""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import time
from collections.abc import Callable

from tailrace.address import Address
from tailrace.backoff import backoff_seconds
from tailrace.errors import Forbidden, ProtocolError, TailraceError, Unreachable
from tailrace.requests.session import RequestSession

# How often deadlines and held requests are looked at while somebody waits.
TICK_SECONDS = 0.05
RECEIVE_BYTES = 256 * 1024
_BUFFERS_MAX = 512


class BlockingLink:
    """Keeps a session connected while ``run_until`` runs. Not safe for two threads at once."""

    def __init__(self, session: RequestSession, addresses: tuple[Address, ...], connect_timeout_s: float) -> None:
        self._session = session
        self._addresses = addresses
        self._connect_timeout_s = connect_timeout_s
        self._sock: socket.socket | None = None
        self._out: collections.deque[memoryview] = collections.deque()
        self._tries = 0
        self._next_try = 0.0

    def run_until(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """Moves bytes until ``done()``; False where ``deadline`` (monotonic seconds) came first.

        Raises what no retry can mend: Forbidden, or a ProtocolError of the greeting.
        """
        while not done():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            self._step(TICK_SECONDS if deadline is None else min(TICK_SECONDS, deadline - now))
        return True

    def push(self) -> None:
        """Sends what can be sent without waiting, and takes what has arrived."""
        if self._sock is not None:
            self._step(0.0)

    def close(self) -> None:
        """Ends the connection."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._out.clear()

    def _step(self, timeout_s: float) -> None:
        try:
            if self._sock is None and not self._connect(timeout_s):
                return
            self._move(timeout_s)
        except (TailraceError, OSError) as error:
            self._lost(error)
        self._session.expire()

    def _connect(self, timeout_s: float) -> bool:
        wait_s = self._next_try - time.monotonic()
        if wait_s > 0:
            time.sleep(min(wait_s, timeout_s))
            return False
        address = self._addresses[self._tries % len(self._addresses)]
        try:
            self._sock = socket.create_connection(address, timeout=self._connect_timeout_s)
        except OSError as error:
            raise Unreachable(f"cannot connect to {address}: {error.strerror or error}") from error
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setblocking(False)
        self._session.connection_made()
        return True

    def _move(self, timeout_s: float) -> None:
        """Sends what is queued and reads once; waits for the socket for ``timeout_s`` at most."""
        assert self._sock is not None
        self._out.extend(memoryview(buffer) for buffer in self._session.data_to_send())
        self._write()
        readable, writable, _ = select.select([self._sock], [self._sock] if self._out else [], [], timeout_s)
        if writable:
            self._write()
        if readable:
            data = self._sock.recv(RECEIVE_BYTES)
            if not data:
                raise Unreachable("the node has closed the connection")
            self._session.receive_data(data)
            if self._session.is_open:
                self._tries = 0

    def _write(self) -> None:
        assert self._sock is not None
        while self._out:
            buffers = [self._out[index] for index in range(min(len(self._out), _BUFFERS_MAX))]
            try:
                sent = self._sock.sendmsg(buffers)
            except (BlockingIOError, InterruptedError):
                return
            while sent:
                first = self._out.popleft()
                if sent < first.nbytes:
                    self._out.appendleft(first[sent:])
                    break
                sent -= first.nbytes

    def _lost(self, error: Exception) -> None:
        greeted = self._session.peer is not None
        with contextlib.suppress(OSError):
            self.close()
        self._session.connection_lost(error if isinstance(error, TailraceError) else Unreachable(str(error)))
        if isinstance(error, Forbidden) or (isinstance(error, ProtocolError) and not greeted):
            raise error
        self._tries += 1
        self._next_try = time.monotonic() + backoff_seconds(self._tries)
