"""Reads the bodies of requests, with bounds that hold before anything is read or parsed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from tailrace.errors import Overloaded, TooLarge

# The bytes of all bodies that are being read or written. A body has three times its size at most on the way to the
# disk: as it came, as a block, and in the frame.
BODIES_BYTES_MAX = 128 * 1024 * 1024


class Bodies:
    """The bodies that the requests of a node have in memory. Only its own methods change its fields."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        """``bytes_max`` bounds all bodies together."""
        self._bytes_max = bytes_max
        self.nbytes = 0  # counted now

    @contextlib.asynccontextmanager
    async def read(self, request: Request, bytes_max: int, what: str) -> AsyncIterator[bytes]:
        """Reads the body of a request, and counts its bytes until the end of the ``async with``.

        A body that announces its length is refused before any of it is read.

        Args:
            request: The request.
            bytes_max: The most bytes of this body.
            what: What the body is, for the error, such as "a value".

        Raises:
            TooLarge: The body is longer than ``bytes_max``.
            Overloaded: Other bodies leave no room for it.
            ClientDisconnect: The client has gone.
        """
        announced = int(request.headers.get("content-length", "0"))
        _check(announced, bytes_max, what)
        data, counted = bytearray(), 0
        try:
            counted = self._count(announced)
            async with contextlib.aclosing(request.stream()) as parts:
                async for part in parts:
                    _check(len(data) + len(part), bytes_max, what)
                    counted += self._count(max(0, len(data) + len(part) - counted))
                    data += part
            yield bytes(data)
        finally:
            self.nbytes -= counted

    def _count(self, nbytes: int) -> int:
        if self.nbytes + nbytes > self._bytes_max:
            raise Overloaded(f"the bodies of other requests have {self.nbytes} bytes: ask again later")
        self.nbytes += nbytes
        return nbytes


def _check(nbytes: int, bytes_max: int, what: str) -> None:
    if nbytes > bytes_max:
        raise TooLarge(f"{what} may have {bytes_max} bytes at most")


__all__ = ["BODIES_BYTES_MAX", "Bodies", "ClientDisconnect"]
