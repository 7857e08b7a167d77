"""A socket over TLS that never blocks, with the methods of a socket that a link uses.

Not ``ssl.SSLSocket``: it has no ``sendmsg`` and ``recvmsg_into``, and both shells share the engine and its errors.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TypeVar

from tailrace.blocking.guard import raise_foreign
from tailrace.errors import Unreachable
from tailrace.link.address import Address
from tailrace.link.slices import first_slice
from tailrace.tls.engine import TlsEngine, looks_like_tls
from tailrace.tls.failures import bad_host, closed, explain, no_tls

_RECEIVE_BYTES = 256 * 1024

_T = TypeVar("_T", bytes, int)


class TlsSocket:
    """TLS over ``sock``, which is connected, does not block, and is owned by this object. It begins with `shake`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, address: Address) -> None:
        """Raises ProtocolError for a host that no certificate can name."""
        self._sock = sock
        self._where = str(address)
        try:
            self._engine = TlsEngine(context, address.host)
        except ValueError as error:
            raise bad_host(self._where, error) from None
        self._unsent = memoryview(b"")  # ciphertext
        self._has_heard = False
        self.has_unread = False  # the last call took all that it could, and there may be more without the socket

    def fileno(self) -> int:
        """Returns the descriptor, for ``select.poll``."""
        return self._sock.fileno()

    @property
    def has_unsent(self) -> bool:
        """Ciphertext waits until the system takes more."""
        return bool(self._unsent)

    def close(self) -> None:
        """Ends the connection at once."""
        self._sock.close()

    # The handshake

    def shake(self) -> bool:
        """Goes on with the handshake. Returns whether it is complete; if not, call it again once the socket is ready.

        Raises TailraceError, OSError.
        """
        self.flush()
        while True:
            try:
                is_complete = self._engine.shake()
            except ssl.SSLError as error:
                with contextlib.suppress(OSError):
                    self._send_taken()
                raise explain(error, self._where) from None
            self._send_taken()
            if is_complete:
                return True
            try:
                self._feed(closed(self._where))
            except BlockingIOError as error:
                raise_foreign(error)
                return False

    # Reading

    def recv(self, nbytes: int) -> bytes:
        """Returns about ``nbytes`` bytes at most. Raises BlockingIOError without any, TailraceError, OSError."""
        data = self._received(lambda: self._engine.decrypt(nbytes))
        self.has_unread = len(data) >= nbytes or self._engine.is_behind
        return data

    def recvmsg_into(self, buffers: Sequence[memoryview | bytearray]) -> tuple[int]:
        """Receives into ``buffers``, one after the other. Returns the count of bytes. Raises as ``recv``."""
        count = self._received(lambda: self._engine.decrypt_into(buffers))
        self.has_unread = count >= sum(map(len, buffers)) or self._engine.is_behind
        return (count,)

    def _received(self, decrypt: Callable[[], _T]) -> _T:
        self.has_unread = False
        while True:
            try:
                found = decrypt()
            except ssl.SSLError as error:
                raise explain(error, self._where, is_shaken=True) from None
            finally:
                if not self._unsent:
                    self._send_taken()
            if found or self._engine.is_ended:
                return found
            self._feed(Unreachable("the node has closed the connection"))

    def _feed(self, end: Unreachable) -> None:
        data = self._sock.recv(_RECEIVE_BYTES)
        if not data:
            raise end
        if not self._has_heard and not looks_like_tls(data):
            raise no_tls(self._where)
        self._has_heard = True
        self._engine.feed(data)

    # Writing

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Sends some of the bytes of ``buffers``, and returns how many. Raises BlockingIOError, OSError."""
        self.flush()
        if self._unsent:
            raise BlockingIOError
        pieces, nbytes = first_slice(buffers)
        try:
            encrypted = self._engine.encrypted(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except ssl.SSLError as error:
            raise explain(error, self._where, is_shaken=True) from None
        self._send(memoryview(encrypted[0] if len(encrypted) == 1 else b"".join(encrypted)))
        return nbytes

    def flush(self) -> None:
        """Sends the ciphertext that waits, as far as the system takes it. Raises OSError."""
        if self._unsent:
            self._send(self._unsent)

    def _send_taken(self) -> None:
        data = self._engine.take()
        if data:
            self._send(memoryview(data) if not self._unsent else memoryview(bytes(self._unsent) + data))

    def _send(self, data: memoryview) -> None:
        self._unsent = data
        with contextlib.suppress(BlockingIOError):
            self._unsent = data[self._sock.send(data) :]
