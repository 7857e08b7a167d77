"""The plain model: what clients asked for and were told, and what that says about the history of each partition.

A feed's history is a list of rows for each partition. Everything that clients are told is a statement about it:

    a write that was acknowledged      its rows are at the seqs that were told, on that branch
    a write that was refused           its rows are nowhere
    a write without an answer          its rows are together somewhere, once, or nowhere
    a look (get, items, an index)      at some moment not before the look began, this was the state

Only levels that last are believed: all that a node survives, or quorum in a set. A write below that level is gone only
if its branch has ended below it.

Time comes in by one number: ``floors[p]`` is the greatest seq of partition ``p`` that a client was told of and that
lasts. A later write gets a seq above it, and a later look sees everything up to it.

``observe``, ``acknowledge`` and ``look`` check at once what can be checked at once. ``verdict`` judges the whole in the
end.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import trio

from tailrace import Version
from tailrace.model.failover import ENTRIES_MAX, FailoverEntry, FailoverLog
from tailrace.model.hashing import key_hash, partition_of_hash

from .violation import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace import VersionRange


class Row(NamedTuple):
    """A row of a partition's history; its seq is its place, from 1. ``value`` is None if the key was deleted."""

    key: bytes
    value: bytes | None
    timestamp: int


class Answer(enum.Enum):
    """The answer to a writer."""

    NONE = "none, or that the outcome is unknown"
    WRITTEN = "written, and where"
    WRITTEN_WITHIN = "written between two seqs"
    NOT_WRITTEN = "not written"


class Kind(enum.Enum):
    """A condition of a write."""

    IF_ABSENT = "if absent"
    IF_VERSION = "if it is this version"
    IF_PRESENT = "if present"


class Condition(NamedTuple):
    kind: Kind
    version: Version | None = None


@dataclass(slots=True, eq=False)
class Write:
    """The share of one partition in a write: the rows of one block, or one row of a ``feed.writer``."""

    partition: int
    changes: tuple[tuple[bytes, bytes | None], ...]
    floor: int
    condition: Condition | None = None
    lasting: bool = True  # if acknowledged; else it may be lost with its level
    answer: Answer = Answer.NONE
    versions: VersionRange | None = None


class Look(NamedTuple):
    """``key`` was at ``version`` (None: not there), after the partition had come to ``floor``."""

    key: bytes
    partition: int
    floor: int
    version: Version | None
    value: bytes | None = None
    what: str = "a look"


class State(NamedTuple):
    """All keys and values of a partition, after it had come to ``floor``. ``at``: the seq of the state, if known."""

    partition: int
    floor: int
    values: dict[bytes, bytes]
    what: str
    at: int | None = None


def version_name(version: Version) -> tuple[int, int, bytes]:
    """As ``History.names`` has it."""
    return version.partition, version.seq, version.branch


class Branches:
    """All branches of a partition, as its failover logs told them from one start to the next; without a bound."""

    def __init__(self) -> None:
        self.log = FailoverLog()
        self._entries: list[FailoverEntry] = []  # newest first, from all logs
        self._oldest: set[bytes] = set()  # branches that stand for all branches before them

    def started(self, log: FailoverLog, starts_min: int, starts_max: int, what: str) -> None:
        """Notes the log of a start. The term has risen by ``starts_min`` to ``starts_max`` since the last one."""
        before = self.log
        risen = log.term - before.term
        if not starts_min <= risen <= starts_max:
            raise Violation(
                f"{what}: the term went from {before.term} to {log.term}, not by {starts_min} to {starts_max}"
            )
        fresh = [entry for entry in log if entry.term > before.term]
        kept = [entry for entry in before if not fresh or entry.base < fresh[-1].base]
        if list(log) != [*fresh, *kept][: len(log)] or (len(log) < len(fresh) + len(kept) and len(log) < ENTRIES_MAX):
            raise Violation(f"{what}: log {list(log)} does not follow from {list(before)}")
        self._entries = fresh + [entry for entry in self._entries if not fresh or entry.base < fresh[-1].base]
        if log and log[-1].base > 0:
            self._oldest.add(log[-1].branch)
        self.log = log

    def names(self, seq: int) -> set[bytes]:
        """Returns the names that a node may give the branch of ``seq``: its own, or the oldest that the node knew."""
        oldest = {e.branch for e in self._entries if e.branch in self._oldest and seq <= e.base}
        return oldest | {self.branch_at(seq)}

    def branch_at(self, seq: int) -> bytes:
        return next((entry.branch for entry in self._entries if seq > entry.base), b"")


@dataclass
class History:
    """See the module. ``partitions`` is the number of partitions."""

    partitions: int
    writes: list[Write] = field(default_factory=list)
    pipelines: list[list[Write]] = field(default_factory=list)  # writes of one partition that come in this order
    looks: list[Look] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.answers = 0
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._tickets = itertools.count()
        numbers = range(self.partitions)
        self.floors = dict.fromkeys(numbers, 0)
        self.branches = {number: Branches() for number in numbers}
        self.seen: dict[tuple[int, int], Row] = {}  # rows that streams of a level that lasts have delivered
        self._place: dict[bytes, tuple[int, int]] = {}
        self._told: dict[tuple[int, int], tuple[bytes, bytes | None]] = {}
        self.last_version: Version | None = None  # of the last write that was acknowledged, and lasts
        self.names: set[tuple[int, int, bytes]] = set()  # (partition, seq, branch) that a client was told
        self._newest: dict[bytes, int] = {}  # the greatest seq of each key that a client was told of

    def partition_of(self, key: bytes) -> int:
        return partition_of_hash(key_hash(key), self.partitions)

    # Answers. Everything in a run waits by their number, so that the machine's speed does not matter.

    def answered(self) -> None:
        """Counts an answer to a writer."""
        self.answers += 1
        while self._waiting and self._waiting[0][0] <= self.answers:
            heapq.heappop(self._waiting)[2].set()

    async def more_answers(self, count: int) -> None:
        """Waits for this number of further answers."""
        event = trio.Event()
        heapq.heappush(self._waiting, (self.answers + count, next(self._tickets), event))
        await event.wait()

    # Writes

    def ask(
        self,
        changes: Sequence[tuple[bytes, bytes | None]],
        condition: Condition | None = None,
        *,
        lasting: bool = True,
    ) -> dict[int, Write]:
        """Notes a write that is about to be sent; returns the share of each partition."""
        shares: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for key, value in changes:
            shares.setdefault(self.partition_of(key), []).append((key, value))
        writes = {
            partition: Write(partition, tuple(share), self.floors[partition], condition, lasting)
            for partition, share in shares.items()
        }
        self.writes += writes.values()
        return writes

    def acknowledge(self, write: Write, versions: VersionRange) -> None:
        """Notes that the write was answered with these versions."""
        partition, branch, first_seq, last_seq = versions
        if partition != write.partition or last_seq - first_seq + 1 != len(write.changes):
            raise Violation(f"{versions} is the answer to {len(write.changes)} rows of partition {write.partition}")
        write.answer, write.versions = Answer.WRITTEN, versions
        if write.lasting:
            for seq, (key, value) in enumerate(write.changes, first_seq):
                told = self._told.setdefault((partition, seq), (key, value))
                seen = self.seen.get((partition, seq))
                if told != (key, value) or (seen is not None and seen[:2] != told):
                    raise Violation(f"{partition}/{seq} was answered as {(key, value)}; it is {seen or told}")
                self.names.add((partition, seq, branch))
                self._newest[key] = max(self._newest.get(key, 0), seq)
            self.reached(partition, last_seq)
            self.last_version = Version(partition, branch, last_seq)
        self.answered()

    def acknowledge_within(self, write: Write, versions: VersionRange) -> None:
        """Notes that the write has one of these versions."""
        write.answer, write.versions = Answer.WRITTEN_WITHIN, versions
        self.reached(write.partition, versions.first_seq)
        self.answered()

    def refuse(self, write: Write) -> None:
        """Notes that the write was not made."""
        write.answer = Answer.NOT_WRITTEN

    # Looks

    def look(self, key: bytes, floor: int, version: Version | None, value: bytes | None, what: str) -> None:
        """Notes the version and value of ``key`` that a client got, after its partition had come to ``floor``."""
        partition = self.partition_of(key)
        self.looks.append(Look(key, partition, floor, version, value, what))
        if version is not None:
            if version.partition != partition:
                raise Violation(f"{what}: key {key!r} of partition {partition} is at {version}")
            newest = self._newest.get(key, 0)
            if version.seq < newest <= floor:
                raise Violation(f"{key!r} was at {partition}/{newest}, and {what} says {version}")
            self._newest[key] = max(newest, version.seq)
            self.names.add(version_name(version))
            self.reached(partition, version.seq)

    def look_at_state(
        self, floors: dict[int, int], values: dict[bytes, bytes], what: str, at: dict[int, int] | None = None
    ) -> None:
        """Notes all keys and values that a client has."""
        parts: dict[int, dict[bytes, bytes]] = {partition: {} for partition in floors}
        for key, value in values.items():
            parts[self.partition_of(key)][key] = value
        for partition, part in parts.items():
            seq = None if at is None else at.get(partition, 0)
            self.states.append(State(partition, floors[partition], part, what, seq))

    def observe(self, partition: int, seq: int, row: Row, branch: bytes) -> None:
        """Notes a row that a stream of a level that lasts has delivered."""
        self.names.add((partition, seq, branch))
        seen = self.seen.setdefault((partition, seq), row)
        if seen != row:
            raise Violation(f"{partition}/{seq} was delivered as {seen}, and now as {row}")
        told = self._told.get((partition, seq))
        if told is not None and told != row[:2]:
            raise Violation(f"{partition}/{seq} was acknowledged as {told}, and is delivered as {row}")
        if row.value is not None:
            place = self._place.setdefault(row.value, (partition, seq))
            if place != (partition, seq):
                raise Violation(f"one write is there twice: at {place[0]}/{place[1]} and at {partition}/{seq}")
        self.reached(partition, seq)

    # Time

    def reached(self, partition: int, seq: int) -> None:
        """Notes that a client was told of ``seq``."""
        if seq > self.floors[partition]:
            self.floors[partition] = seq
