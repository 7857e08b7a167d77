"""Sends the values of keys, with a bound on all that are on their way at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace.errors import Overloaded
from tailrace_server.serving.web.errors import error_answer

# The bytes of all values whose clients have not taken them yet: eight of the longest. Each has twice its size then,
# as it came and in the connection. As many as those of bodies.
VALUES_BYTES_MAX = 128 * 1024 * 1024


class Values:
    """The values that answers of a node have in memory. Only its own methods change its fields."""

    def __init__(self, bytes_max: int = VALUES_BYTES_MAX) -> None:
        """``bytes_max`` bounds all values together."""
        self._bytes_max = bytes_max
        self.nbytes = 0  # counted now

    @contextlib.contextmanager
    def held(self, nbytes: int) -> Iterator[None]:
        """Counts a value while the body runs. Raises Overloaded if other values leave no room for it."""
        if self.nbytes + nbytes > self._bytes_max:
            raise Overloaded(f"the values of other answers have {self.nbytes} bytes: ask again later")
        self.nbytes += nbytes
        try:
            yield
        finally:
            self.nbytes -= nbytes


class ValueAnswer(Response):
    """The answer with a value: it is counted until the client has taken it, or is gone."""

    media_type = "application/octet-stream"

    def __init__(self, value: bytes, headers: Mapping[str, str], values: Values) -> None:
        """``values`` counts it."""
        super().__init__(value, headers=headers)
        self._values = values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the value, or 503 if there is no room for it."""
        try:
            with self._values.held(len(self.body)):
                await super().__call__(scope, receive, send)
        except Overloaded as error:
            refusal = error_answer(error)
            refusal.headers.update({name: value for name, value in self.headers.items() if name.startswith("access-")})
            await refusal(scope, receive, send)
