"""A request other than a write, on its way: its frame, answer and tries; and the answer for a caller. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from tailrace.errors import Retryable, TailraceError, Unreachable
from tailrace.link.backoff import backoff_seconds
from tailrace.wire.frames import Frame

_T = TypeVar("_T")


class Sequence:
    """Requests that the node takes in their order only: one that is refused for now delays those behind it."""

    __slots__ = ("hold_until", "tries")

    def __init__(self) -> None:
        self.hold_until = 0.0
        self.tries = 0

    def refused(self, now: float, jitter: Callable[[], float]) -> None:
        """A request has to be sent again. Refusals of the requests behind it count as the same refusal."""
        if now >= self.hold_until:
            self.tries += 1
            self.hold_until = now + backoff_seconds(self.tries, jitter)


# Called once with the answer to a request or a step: its result, or the error.
Answered: TypeAlias = Callable[[Any, TailraceError | None], None]

# Makes a request's frame with this id. Two buffers avoid a copy of a large body.
Encode: TypeAlias = Callable[[int], bytes | tuple[bytes, bytes | memoryview]]


class Request:
    """A request other than a write: makes its frame, and reads its answer. ``order`` rises with each request.

    Subclasses have ``encode``, ``decode`` and ``done`` as methods. Fields with bound methods would refer to the object
    itself, so that only the collector of cycles could free it.
    """

    __slots__ = ("deadline", "hold_until", "in_doubt", "order", "sent", "sequence", "tries")

    is_read = False  # a follower may answer it
    encode: Encode
    decode: Callable[[Frame], Any]
    done: Answered

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.sequence: Sequence | None = None
        self.order = 0
        self.hold_until, self.sent, self.in_doubt, self.tries = 0.0, False, False, 0  # as `begin_anew`, without a call

    def begin_anew(self) -> None:
        """Forgets earlier tries: the request is new, or has its answer and asks for more."""
        self.hold_until = 0.0
        self.sent = False
        self.in_doubt = False  # an earlier try may have had an effect
        self.tries = 0


class PlainRequest(Request):
    """A request whose frame and answer are functions of its caller."""

    __slots__ = ("decode", "done", "encode")

    def __init__(self, encode: Encode, decode: Callable[[Frame], Any], done: Answered, deadline: float) -> None:
        super().__init__(deadline)
        self.encode = encode
        self.decode = decode
        self.done = done


def given_up(
    last_error: TailraceError | None, uncertain: bool, in_doubt: bool = False, *, is_read: bool = False
) -> TailraceError:
    """Returns the error of a request that has no answer in time.

    Args:
        last_error: The last error of the connection or of an answer, if there is one.
        uncertain: The node may have the request.
        in_doubt: An earlier try may have had an effect.
        is_read: It is a look-up.
    """
    if isinstance(last_error, Retryable) and not isinstance(last_error, Unreachable) and not uncertain:
        return last_error
    if last_error is not None:
        text = str(last_error)
    elif uncertain:
        what = "look-ups at level quorum wait" if is_read else "writes at level quorum and changes of feeds wait"
        text = (
            f"the node has the request and has not answered in time; in a set, {what} for a majority of the members, "
            "and `tailrace status` shows who is missing"
        )
    else:
        text = "no answer in time"
    return Unreachable(f"given up: {text}", outcome="unknown" if uncertain or in_doubt else "not sent")


class Reply(Generic[_T]):
    """Holds the answer to a request: a result or an error. A session calls ``done`` once."""

    __slots__ = ("error", "finished", "result")

    def __init__(self) -> None:
        self.finished = False
        self.result: _T | None = None
        self.error: TailraceError | None = None

    def done(self, result: _T | None, error: TailraceError | None) -> None:
        """Takes the answer."""
        self.finished, self.result, self.error = True, result, error

    def get(self) -> _T:
        """Returns the result, or raises the error. Call it only when ``finished``."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result
