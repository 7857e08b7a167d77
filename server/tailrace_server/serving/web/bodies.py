"""Reads the bodies of requests, with bounds that hold before anything is read or parsed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace.errors import Overloaded, TooLarge

# The bytes of all bodies that are being read or written. A body has three times its size at most on the way to the
# disk: as it came, as a block, and in the frame.
BODIES_BYTES_MAX = 128 * 1024 * 1024
# Of a body that is refused, so many bytes are passed over, for so long. A client that sends more may be cut off.
PASSED_BYTES_MAX = 64 * 1024 * 1024
PASSED_SECONDS_MAX = 5.0


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
        self._require_room(announced)
        data = bytearray()
        try:
            async with contextlib.aclosing(request.stream()) as parts:
                async for part in parts:
                    _check(len(data) + len(part), bytes_max, what)
                    # Counted as it comes: a client that announces much and sends nothing keeps no one out.
                    self._require_room(len(part))
                    self.nbytes += len(part)
                    data += part
            yield bytes(data)
        finally:
            self.nbytes -= len(data)

    def _require_room(self, nbytes: int) -> None:
        if self.nbytes + nbytes > self._bytes_max:
            raise Overloaded(f"the bodies of other requests have {self.nbytes} bytes: ask again later")


class Unread(Response):
    """An answer to a request whose body was not read: it ends when the body has ended, or after some of it.

    A connection that is closed with something unread is reset, and the client may not read the answer.
    """

    def __init__(self, response: Response) -> None:
        """``response``: the answer, which has a length."""
        super().__init__(response.body, response.status_code)
        self.raw_headers = response.raw_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer, and passes over the body."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with trio.move_on_after(PASSED_SECONDS_MAX):
            await _pass_over(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _pass_over(receive: Receive) -> None:
    passed = 0
    while passed <= PASSED_BYTES_MAX:
        message = await receive()
        passed += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def _check(nbytes: int, bytes_max: int, what: str) -> None:
    if nbytes > bytes_max:
        raise TooLarge(f"{what} may have {bytes_max} bytes at most")
