"""A part of a file on its way to a socket: the system sends it from its page cache, past Python unless TLS is on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable


class FilePart:
    """``nbytes`` bytes, those that were not sent yet, of the file with the descriptor ``fileno``, from ``offset`` on.

    The bytes should be in memory: the system waits for the disk otherwise. ``done`` is called once, when the descriptor
    is no longer needed.
    """

    __slots__ = ("_done", "_fileno", "_offset", "nbytes")

    def __init__(self, fileno: int, offset: int, nbytes: int, done: Callable[[], None]) -> None:
        self._fileno = fileno
        self._offset = offset
        self._done: Callable[[], None] | None = done
        self.nbytes = nbytes

    def send(self, sock: socket.socket) -> int:
        """Sends as much as the socket takes, and returns the count of bytes. OSError, BlockingIOError.

        EOFError if the file ends before the part does.
        """
        sent = os.sendfile(sock.fileno(), self._fileno, self._offset, self.nbytes)
        if not sent:
            raise EOFError(f"the file ends at {self._offset}, and {self.nbytes} more bytes were to be sent")
        self._offset += sent
        self.nbytes -= sent
        return sent

    def read(self, nbytes_max: int) -> bytes:
        """Reads as much as ``send`` would send, ``nbytes_max`` bytes at most. OSError; EOFError as ``send``."""
        data = os.pread(self._fileno, min(nbytes_max, self.nbytes), self._offset)
        if not data:
            raise EOFError(f"the file ends at {self._offset}, and {self.nbytes} more bytes were to be sent")
        self._offset += len(data)
        self.nbytes -= len(data)
        return data

    def close(self) -> None:
        """Gives the descriptor back. May be called again."""
        done, self._done = self._done, None
        if done is not None:
            done()
