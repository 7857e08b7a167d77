"""A request other than a write, on its way: its frame, its answer and its tries. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tailrace.errors import TailraceError
from tailrace.link.backoff import backoff_seconds
from tailrace.wire.frames import Frame


class Sequence:
    """Requests that the node takes in their order only: one that is refused for now holds up those behind it."""

    __slots__ = ("hold_until", "tries")

    def __init__(self) -> None:
        self.hold_until = 0.0
        self.tries = 0

    def refused(self, now: float, jitter: Callable[[], float]) -> None:
        """One of them has to be sent again; the refusals of those that were sent behind it are the same one."""
        if now >= self.hold_until:
            self.tries += 1
            self.hold_until = now + backoff_seconds(self.tries, jitter)


# Makes a request's frame, with this id; in two buffers where a large body is not to be copied.
Encode: TypeAlias = Callable[[int], bytes | tuple[bytes, bytes | memoryview]]


class Request:
    """Anything but a write: a frame to send, and what makes a result of the answer. ``order``: when it was asked."""

    __slots__ = (
        "deadline",
        "decode",
        "done",
        "encode",
        "hold_until",
        "in_doubt",
        "is_read",
        "order",
        "sent",
        "sequence",
        "tries",
    )

    def __init__(
        self,
        encode: Encode,
        decode: Callable[[Frame], Any],
        done: Callable[[Any, TailraceError | None], None],
        deadline: float,
        *,
        is_read: bool = False,
    ) -> None:
        self.encode = encode
        self.decode = decode
        self.done = done
        self.deadline = deadline
        self.sequence: Sequence | None = None
        self.order = 0
        self.is_read = is_read  # any copy may answer it
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets what was tried: the request is new, or has its answer and asks for more."""
        self.hold_until = 0.0
        self.sent = False
        self.in_doubt = False  # an earlier try of it may have done something
        self.tries = 0
