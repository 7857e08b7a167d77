"""Plans: the steps of the client's calls, without I/O. Each shell carries out the same plans.

    plan ──step──> shell: queues the step's request, moves bytes, waits
         <─answer── the result, or the error raised at the ``yield``

A plan is a generator. It yields a step, is resumed with the step's result, and returns the result of the call. A trio
shell carries out a step with ``await``, a blocking shell by waiting, and no logic is written twice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from tailrace.block import Block
from tailrace.errors import TailraceError, Unreachable
from tailrace.model import Level, Version, VersionRange
from tailrace.requests.lane import Lane, WriteRequest
from tailrace.requests.look_up_parts import DIVIDED_KEYS_MIN, LookUpParts
from tailrace.requests.parts import Places
from tailrace.requests.request import Answered, Request
from tailrace.requests.session import RequestSession
from tailrace.wire.opcodes import Opcode

_T = TypeVar("_T")


class RequestStep(Protocol):
    """A step that a session carries out."""

    def queue(self, session: RequestSession, done: Answered, deadline: float) -> Sequence[Request | WriteRequest]:
        """Queues the step's requests and returns them. ``done`` is called once, with the answer to all of them."""
        ...


class Call(NamedTuple):
    """Sends a metadata request. The result is the JSON object of the answer."""

    opcode: Opcode
    value: dict[str, Any]

    def queue(self, session: RequestSession, done: Answered, deadline: float) -> Sequence[Request | WriteRequest]:
        return (session.call(self.opcode, self.value, done, deadline),)


class LookUp(NamedTuple):
    """Looks up keys. The result is a list with an `Item` or None for each key."""

    feed_id: bytes
    level: Level
    keys: list[bytes]

    def queue(self, session: RequestSession, done: Answered, deadline: float) -> Sequence[Request | WriteRequest]:
        feed_id, level, keys = self
        if len(keys) < DIVIDED_KEYS_MIN:
            return (session.get(feed_id, level, keys, done, deadline),)
        return LookUpParts(keys, done).begin(lambda part, found: session.get(feed_id, level, part, found, deadline))


class WriteBlock(NamedTuple):
    """Writes a block. The result is the `VersionRange` of its rows."""

    lane: Lane
    block: Block
    level: Level | None
    flags: int = 0
    if_version: Version | None = None
    feed: str = ""  # its name, for spans

    def queue(self, session: RequestSession, done: Answered, deadline: float) -> Sequence[Request | WriteRequest]:
        lane, block, level, flags, if_version, feed = self
        return (session.write(lane, block, level, done, deadline, flags, if_version, feed),)


class WriteRow(NamedTuple):
    """Writes a row without conditions; value None deletes. The result is the `VersionRange` of the row alone."""

    lane: Lane
    key: bytes
    value: bytes | None
    hash_: int
    level: Level | None
    feed: str = ""  # its name, for spans

    def queue(self, session: RequestSession, done: Answered, deadline: float) -> Sequence[Request | WriteRequest]:
        lane, key, value, hash_, level, feed = self
        return (session.write_row(lane, key, value, hash_, level, done, deadline, feed),)


class WriteBlocks(NamedTuple):
    """Writes one block to each of several partitions. The result is a dict of their `VersionRange` by partition.

    The answer comes after all blocks have theirs. If a block fails, the answer is the first error in the order of the
    blocks, with a note of the partitions that were written.
    """

    blocks: list[tuple[Lane, Block]]
    level: Level | None
    feed: str = ""  # its name, for spans

    def queue(self, session: RequestSession, done: Answered, deadline: float) -> Sequence[Request | WriteRequest]:
        if not self.blocks:
            done({}, None)
        answers = _Answers(len(self.blocks), done)
        return [
            session.write(lane, block, self.level, partial(answers.take, number), deadline, feed=self.feed)
            for number, (lane, block) in enumerate(self.blocks)
        ]


class _Answers:
    """Joins the answers to several blocks into one."""

    def __init__(self, count: int, done: Answered) -> None:
        self._answers: list[VersionRange | TailraceError | None] = [None] * count
        self._left = count
        self._done = done

    def take(self, number: int, versions: VersionRange | None, error: TailraceError | None) -> None:
        """Takes the answer to block ``number``; the last answer completes the step."""
        self._answers[number] = versions if error is None else error
        self._left -= 1
        if self._left:
            return
        written = [answer for answer in self._answers if isinstance(answer, VersionRange)]
        failure = next((answer for answer in self._answers if isinstance(answer, TailraceError)), None)
        if failure is None:
            self._done({versions.partition: versions for versions in written}, None)
            return
        # A client that closes gives the same error to all requests, and the note is of this step alone.
        failure = copy.copy(failure)
        taken = ", ".join(f"{r.partition} (seqs {r.first_seq} to {r.last_seq})" for r in written)
        failure.add_note(f"of this batch, these partitions took their share: {taken or 'none'}")
        self._done(None, failure)


class FetchParts(NamedTuple):
    """Fetches parts of the files of a checkpoint: (segment id, offset, bytes) of each.

    ``receive`` is called with the number of a part and its next bytes, as they arrive. If a connection breaks, the next
    one goes on behind them. The answer comes after all parts: their bytes together, or the first error among them.
    Bytes that arrive in one of ``places`` begin it, and it has no others.
    """

    checkpoint_id: bytes
    parts: list[tuple[bytes, int, int]]
    receive: Callable[[int, memoryview], None]
    places: Places | None = None

    def queue(self, session: RequestSession, done: Answered, deadline: float) -> Sequence[Request | WriteRequest]:
        if not self.parts:
            done(0, None)
        from tailrace.wire.segment_messages import SegmentFetch

        gathered = _Gathered(len(self.parts), sum(nbytes for _, _, nbytes in self.parts), done)
        requests = []
        for number, part in enumerate(self.parts):
            fetch = SegmentFetch(self.checkpoint_id, *part)
            requests.append(
                session.fetch(
                    fetch, partial(self.receive, number), partial(gathered.take, number), deadline, self.places
                )
            )
        return requests


class _Gathered:
    """Waits for the answers to several requests. The answer to all is ``result``, or the first error among them."""

    def __init__(self, count: int, result: int, done: Answered) -> None:
        self._errors: list[TailraceError | None] = [None] * count
        self._left = count
        self._result = result
        self._done = done

    def take(self, number: int, _: None, error: TailraceError | None) -> None:
        """Takes the answer to request ``number``; the last answer completes the step."""
        self._errors[number] = error
        self._left -= 1
        if not self._left:
            failure = next(filter(None, self._errors), None)
            self._done(self._result if failure is None else None, failure)


class Pause(NamedTuple):
    """Waits before the next try."""

    seconds: float
    reason: str

    def require(self, left_s: float) -> None:
        """Raises Unreachable, with ``reason``, if the pause is longer than the ``left_s`` seconds of the call."""
        if self.seconds > left_s:
            raise Unreachable(f"{self.reason} in time")


class Continue(NamedTuple):
    """Tells that the node has made progress: the time-out of the call begins anew."""


class AskLeader(NamedTuple):
    """Carries out another plan with a client of its own that asks only the leader. The result is that plan's."""

    plan: Callable[[RequestSession], Plan[Any]]


WITHOUT_REQUEST = (Pause, Continue, AskLeader)  # steps that ask the node nothing

Step: TypeAlias = Call | LookUp | WriteBlock | WriteRow | WriteBlocks | Pause | Continue | AskLeader
Plan: TypeAlias = Generator[Step, Any, _T]
