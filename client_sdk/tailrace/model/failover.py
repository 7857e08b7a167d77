"""Which history a partition's mutations belong to, and where a consumer may go on. Pure; used by both ends.

    seq      0        100        150         180
             |---u-----|----v-----|
                       |----------|----w-----|      log: [(w, 150), (v, 100), (u, 0)], newest first

A branch is a stretch of history that was written under one leadership; a random name of 16 bytes tells it from every
other. Its **base** is the last seq *before* it: branch i covers base_i < seq <= base_(i+1), and the newest one
everything above its base. A base never moves. (Storing a branch's first seq instead invites an error by one: a
consumer that stands exactly at the fork would be told that it agrees with one row too many.)

A seq alone names nothing: after a failover the same number stands for another mutation. Two logs that share a branch
have the same history up to the lower of the two points where each of them left that branch.
"""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.model.values import BRANCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A branch costs some 20 bytes in every position of every partition, and a consumer that was away for more than this
# many failovers is served better by a fresh start. The oldest entries go.
ENTRIES_MAX = 25

# Seqs and terms are u64 in the formats; this is what a signed 64-bit integer (SQLite, Arrow, the JVM) holds as well.
SEQ_MAX = (1 << 63) - 1

# How a position says that it does not know where its snapshot ends: above everything. A consumer stores this while it
# is in the middle of a rollback.
SNAPSHOT_LAST_UNKNOWN = SEQ_MAX


class FailoverEntry(NamedTuple):
    """A branch (16 bytes), the term that it began with, and its base: the last seq before it."""

    branch: bytes
    term: int
    base: int


class FailoverLog(tuple[FailoverEntry, ...]):
    """The branches of one partition, newest first; immutable. Empty: nothing is known yet.

    Terms and bases fall strictly from each entry to the next older one, and no branch is there twice.
    """

    __slots__ = ()

    def __new__(cls, entries: Iterable[Sequence[Any]] = ()) -> FailoverLog:
        """A log of ``entries`` (branch, term, base), newest first. ValueError where they are no failover log."""
        log = super().__new__(cls, (FailoverEntry(*entry) for entry in entries))
        _check_log(log)
        return log

    @property
    def branch(self) -> bytes:
        """The newest branch (16 bytes), the one that is being written; ``b""`` of an empty log."""
        return self[0].branch if self else b""

    @property
    def term(self) -> int:
        """The term of the newest entry; 0 of an empty log."""
        return self[0].term if self else 0

    def with_entry(self, entry: FailoverEntry) -> FailoverLog:
        """This log with ``entry`` as the newest.

        Branches whose base is at or above the new one hold nothing any more and go, so a node that crashes again and
        again without a write does not push out its history. Of what is left the newest ``ENTRIES_MAX`` stay.
        ValueError where the term does not rise or the branch is known already.
        """
        if entry.term <= self.term:
            raise ValueError(f"a new branch needs a term above {self.term}, got {entry.term}")
        if any(entry.branch == known.branch for known in self):
            raise ValueError(f"branch {entry.branch.hex()} is in the failover log already; a new one needs a new name")
        kept = [known for known in self if known.base < entry.base]
        return FailoverLog([entry, *kept][:ENTRIES_MAX])

    def branch_at(self, seq: int) -> bytes:
        """The branch (16 bytes) that covers ``seq``: base < seq <= the next newer entry's base.

        For seqs at or below the oldest entry's base, 0 included, the oldest: their own branch is no longer known, and
        (oldest branch, such a seq) can name no other mutation. ValueError of an empty log.
        """
        for entry in self:
            if seq > entry.base:
                return entry.branch
        if not self:
            raise ValueError("an empty failover log knows no branch")
        return self[-1].branch

    def has_ended_below(self, branch: bytes, seq: int) -> bool:
        """Whether ``branch`` is known to have ended below ``seq``: nothing will ever have that version."""
        return any(older.branch == branch and newer.base < seq for newer, older in itertools.pairwise(self))

    def may_have(self, branch: bytes, seq: int) -> bool:
        """Returns whether a history with this log has (``branch``, ``seq``) or can still get it.

        False also for a branch that is not in the log: it is newer, or lost, or older than ``ENTRIES_MAX`` branches.
        """
        return any(entry.branch == branch for entry in self) and not self.has_ended_below(branch, seq)

    def to_json(self) -> list[list[Any]]:
        """``[[branch in hex, term, base], ...]``, newest first."""
        return [[entry.branch.hex(), entry.term, entry.base] for entry in self]

    @classmethod
    def from_json(cls, data: Any) -> FailoverLog:
        """The inverse of `to_json`. ValueError where ``data`` is anything else, and says what is wrong with it."""
        if not isinstance(data, list) or len(data) > ENTRIES_MAX:
            raise ValueError(f"a failover log is a list of at most {ENTRIES_MAX} entries")
        return cls(_entry_from_json(item) for item in data)


class ResumeReason(enum.Enum):
    """Why a consumer has to go on where `resume_point` says. The value is its name on the wire."""

    STANDS = "stands"  # at its own seq: all that it has is in the server's history
    NOTHING_STORED = "nothing_stored"  # at 0: the consumer has no history to compare
    NO_COMMON_BRANCH = "no_common_branch"  # at 0: none of its branches is known here
    HALF_SNAPSHOT = "half_snapshot"  # at the start of its snapshot, whose end is not in the server's history
    FORKED = "forked"  # at the last seq that both histories have
    PURGED = "purged"  # at 0: deletions that it has not seen are gone here


class Resume(NamedTuple):
    """Where a consumer goes on: it holds everything up to ``seq``, and gets what is above."""

    seq: int
    why: ResumeReason


def resume_point(
    consumer: FailoverLog,
    seq: int,
    snapshot_first: int,
    snapshot_last: int,
    purge: int | None,
    server: FailoverLog,
    high_seq: int,
    purge_seq: int,
) -> Resume:
    """Where a consumer may go on with a server's copy of a partition. At most ``seq``; below it, it rolls back first.

    ``consumer`` is the log that the consumer stored last. It has everything up to ``seq``, and its snapshot takes it
    from ``snapshot_first`` to ``snapshot_last`` (all three equal between snapshots), as `request_bounds` gives them.
    ``purge`` is the purge seq that it was told when it began at 0, None where it is past that. ``server``,
    ``high_seq`` and ``purge_seq`` are the server's: the purge seq is the highest seq of a row that this copy lacks
    although nothing newer of the row's key is there.

    The result is one of: ``seq``, ``snapshot_first``, the last seq that both histories have, 0. ValueError where the
    numbers contradict each other.
    """
    _check_bounds(seq, snapshot_first, snapshot_last)
    resume = _resume_in_history(consumer, seq, snapshot_first, snapshot_last, server, high_seq)
    # It is the seq at which the stream would go on that must not be below a purged deletion. A first fill may go on
    # as long as nothing was purged since it began: what is lacking now was lacking from its very beginning.
    if 0 < resume.seq < purge_seq and purge != purge_seq:
        return Resume(0, ResumeReason.PURGED)
    return resume


def request_bounds(seq: int, snapshot_first: int, snapshot_last: int, ring_top_seq: int = 0) -> tuple[int, int, int]:
    """What a consumer asks with, from what it has stored: (seq, first, last) for `resume_point`.

    ``ring_top_seq`` is the highest seq in its ring of recent mutations, 0 without one. A server sees only what it is
    sent, so the consumer makes these adjustments: rows that were applied without their position count as promised; a
    snapshot of which nothing was applied is none; and in the middle of a rollback (`SNAPSHOT_LAST_UNKNOWN`) it stands
    where it rolls back to.
    """
    _check_bounds(seq, snapshot_first, snapshot_last)
    if snapshot_last == SNAPSHOT_LAST_UNKNOWN or (seq == snapshot_first and ring_top_seq <= seq):
        return seq, seq, seq
    return seq, snapshot_first, max(snapshot_last, ring_top_seq)


def _resume_in_history(
    consumer: FailoverLog, seq: int, first: int, last: int, server: FailoverLog, high_seq: int
) -> Resume:
    if not consumer:
        return Resume(0, ResumeReason.NOTHING_STORED)
    upper = common_seq(consumer, last, server, high_seq)
    if upper is None:
        return Resume(0, ResumeReason.NO_COMMON_BRANCH)
    if last <= upper:
        return Resume(seq, ResumeReason.STANDS)
    # A snapshot may leave out what is superseded further up in it: half of one is a state that never was.
    if first <= upper:
        return Resume(first, ResumeReason.STANDS if first == seq else ResumeReason.HALF_SNAPSHOT)
    return Resume(upper, ResumeReason.FORKED)


def common_seq(consumer: FailoverLog, last: int, server: FailoverLog, high_seq: int) -> int | None:
    """The last seq that both have of the newest branch that both know; None where there is no such branch.

    ``last`` is all that the consumer was promised, ``high_seq`` the last seq that the server has.
    """
    server_ends = _branch_ends(server, high_seq)
    for branch, end in _branch_ends(consumer, last).items():
        if branch in server_ends:
            return min(end, server_ends[branch])
    return None


def _branch_ends(log: FailoverLog, newest_end: int) -> dict[bytes, int]:
    """The last seq of each branch, newest first: the base of the next newer one, ``newest_end`` for the newest."""
    ends = {}
    end = newest_end
    for entry in log:
        ends[entry.branch] = end
        end = entry.base
    return ends


def _check_bounds(seq: int, first: int, last: int) -> None:
    if not 0 <= first <= seq <= last <= SEQ_MAX:
        raise ValueError(f"a consumer at seq {seq} cannot be in a snapshot from {first} to {last}")


def _check_log(log: FailoverLog) -> None:
    if len(log) > ENTRIES_MAX:
        raise ValueError(f"a failover log has at most {ENTRIES_MAX} entries, not {len(log)}")
    for entry in log:
        _check_entry(entry)
    for newer, older in itertools.pairwise(log):
        if newer.term <= older.term or newer.base <= older.base:
            raise ValueError(
                f"terms and bases of a failover log fall from each entry to the next older one; "
                f"({newer.term}, {newer.base}) is followed by ({older.term}, {older.base})"
            )
    if len({entry.branch for entry in log}) != len(log):
        raise ValueError("a failover log names one of its branches twice")


def _check_entry(entry: FailoverEntry) -> None:
    if not isinstance(entry.branch, bytes) or len(entry.branch) != BRANCH_BYTES:
        raise ValueError(f"a branch is {BRANCH_BYTES} bytes, not {entry.branch!r:.100}")
    for name, number, least in (("term", entry.term, 1), ("base", entry.base, 0)):
        if type(number) is not int or not least <= number <= SEQ_MAX:
            raise ValueError(f"the {name} of a branch is an integer of {least} to {SEQ_MAX}, not {number!r:.100}")


def _entry_from_json(item: Any) -> FailoverEntry:
    if not isinstance(item, list) or len(item) != len(FailoverEntry._fields) or not isinstance(item[0], str):
        raise ValueError(f"an entry of a failover log is [branch in hex, term, base], not {item!r:.100}")
    branch, term, base = item
    try:
        return FailoverEntry(bytes.fromhex(branch), term, base)
    except ValueError:
        raise ValueError(f"branch {branch!r:.100} is not hexadecimal") from None
