"""Failover logs: name the history of a partition, and decide the seq at which a consumer resumes. Pure.

    seq      0        100        150         180
             |---u-----|----v-----|
                       |----------|----w-----|      log: [(w, 150), (v, 100), (u, 0)], newest first

A branch is a stretch of history that was written under one leadership; a random name of 16 bytes tells it from every
other. Its **base** is the last seq *before* it: branch i covers base_i < seq <= base_(i+1), and the newest one
everything above its base. A base never moves. (Storing a branch's first seq instead invites an error by one: a
consumer that stands exactly at the fork would be told that it agrees with one row too many.)

A seq alone names no mutation: after a failover the same number stands for another one. Two logs that share a branch
have the same history up to the lower of the two points where each of them left that branch.
"""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BRANCH_BYTES = 16

# A branch costs some 20 bytes in every position of every partition, and a consumer that was away for more than this
# many failovers is served better by a fresh start. The oldest entries go.
ENTRIES_MAX = 25

# Seqs and terms are u64 in the formats. This bound also fits a signed 64-bit integer (SQLite, Arrow, the JVM).
SEQ_MAX = (1 << 63) - 1

# The end of a snapshot whose end is not known: above every seq. A consumer stores this while it
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
        """Makes a log of ``entries`` (branch, term, base), newest first. Raises ValueError for a contradiction."""
        log = super().__new__(cls, (FailoverEntry(*entry) for entry in entries))
        _check_log(log)
        return log

    @property
    def branch(self) -> bytes:
        """The newest branch (16 bytes), to which the leader writes; ``b""`` of an empty log."""
        return self[0].branch if self else b""

    @property
    def term(self) -> int:
        """The term of the newest entry; 0 of an empty log."""
        return self[0].term if self else 0

    def with_entry(self, entry: FailoverEntry) -> FailoverLog:
        """Returns this log with ``entry`` as the newest.

        Branches whose base is at or above the new base are empty and are dropped. So a node that crashes again and
        again without a write does not push out its history. The newest ``ENTRIES_MAX`` entries stay.

        Raises ValueError if the term does not rise or the branch is known already.
        """
        if entry.term <= self.term:
            raise ValueError(f"a new branch needs a term above {self.term}, got {entry.term}")
        if any(entry.branch == known.branch for known in self):
            raise ValueError(f"branch {entry.branch.hex()} is in the failover log already; a new one needs a new name")
        kept = [known for known in self if known.base < entry.base]
        return FailoverLog([entry, *kept][:ENTRIES_MAX])

    def branch_at(self, seq: int) -> bytes:
        """Returns the branch (16 bytes) that covers ``seq``: base < seq <= the next newer entry's base.

        A seq at or below the oldest entry's base, 0 included, counts to the oldest branch: its own branch is no longer
        known, and (oldest branch, such a seq) can name no other mutation. Raises ValueError for an empty log.
        """
        for entry in self:
            if seq > entry.base:
                return entry.branch
        if not self:
            raise ValueError("an empty failover log knows no branch")
        return self[-1].branch

    def has_ended_below(self, branch: bytes, seq: int) -> bool:
        """Tells whether ``branch`` is known to have ended below ``seq``: that version will never exist."""
        return any(older.branch == branch and newer.base < seq for newer, older in itertools.pairwise(self))

    def may_have(self, branch: bytes, seq: int) -> bool:
        """Tells whether a history with this log has (``branch``, ``seq``) or can still get it.

        False also for a branch that is not in the log: it is newer, or lost, or older than ``ENTRIES_MAX`` branches.
        """
        return any(entry.branch == branch for entry in self) and not self.has_ended_below(branch, seq)

    def to_json(self) -> list[list[Any]]:
        """Returns ``[[branch in hex, term, base], ...]``, newest first."""
        return [[entry.branch.hex(), entry.term, entry.base] for entry in self]

    @classmethod
    def from_json(cls, data: Any) -> FailoverLog:
        """Reads the result of `to_json`. Raises ValueError, whose message names the wrong part."""
        if not isinstance(data, list) or len(data) > ENTRIES_MAX:
            raise ValueError(f"a failover log is a list of at most {ENTRIES_MAX} entries")
        return cls(_entry_from_json(item) for item in data)


class ResumeReason(enum.Enum):
    """The reason for the seq that `resume_point` returns. The value is its name on the wire."""

    STANDS = "stands"  # at its own seq: all that it has is in the server's history
    NOTHING_STORED = "nothing_stored"  # at 0: the consumer has no history to compare
    NO_COMMON_BRANCH = "no_common_branch"  # at 0: none of its branches is known here
    HALF_SNAPSHOT = "half_snapshot"  # at the start of its snapshot, whose end is not in the server's history
    FORKED = "forked"  # at the last seq that both histories have
    PURGED = "purged"  # at 0: deletions that it has not seen are gone here


class Resume(NamedTuple):
    """The point at which a consumer resumes: it holds everything up to ``seq``, and receives later mutations."""

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
    """Returns the point at which a consumer may resume from a server's copy of a partition.

    The point is at most ``seq``. If it is lower, the consumer rolls back to it first. It is one of: ``seq``,
    ``snapshot_first``, the last seq that both histories have, 0.

    ``consumer`` is the log that the consumer stored last. It has everything up to ``seq``, and its snapshot takes it
    from ``snapshot_first`` to ``snapshot_last`` (all three equal between snapshots), as `request_bounds` returns them.
    ``purge`` is the purge seq that the node told when the consumer began at 0, None above it. ``server``, ``high_seq``
    and ``purge_seq`` are the server's: the purge seq is the highest seq of a row that this copy lacks, without having a
    newer row of the same key.

    Raises ValueError if the numbers contradict each other.
    """
    _check_bounds(seq, snapshot_first, snapshot_last)
    resume = _resume_in_history(consumer, seq, snapshot_first, snapshot_last, server, high_seq)
    # The seq at which the stream resumes must not be below a purged deletion. A first fill may continue if no row was
    # purged since it began: the rows that are lacking now were lacking from its beginning.
    if 0 < resume.seq < purge_seq and purge != purge_seq:
        return Resume(0, ResumeReason.PURGED)
    return resume


def request_bounds(seq: int, snapshot_first: int, snapshot_last: int, ring_top_seq: int = 0) -> tuple[int, int, int]:
    """Returns the bounds of a consumer's request, (seq, first, last) for `resume_point`, from its stored position.

    ``ring_top_seq`` is the highest seq in its ring of recent mutations, 0 without one. A server sees only the request,
    so the consumer makes three adjustments. Rows that were applied without their position count as promised. A
    snapshot without an applied row does not count. In the middle of a rollback (`SNAPSHOT_LAST_UNKNOWN`) the consumer
    stands at the seq to which it rolls back.
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
    # A snapshot may leave out rows that later rows of it supersede: half of a snapshot is a state that never existed.
    if first <= upper:
        return Resume(first, ResumeReason.STANDS if first == seq else ResumeReason.HALF_SNAPSHOT)
    return Resume(upper, ResumeReason.FORKED)


def common_seq(consumer: FailoverLog, last: int, server: FailoverLog, high_seq: int) -> int | None:
    """Returns the last seq that both have of the newest branch that both know; None if they share no branch.

    ``last`` is the last seq that the consumer was promised, ``high_seq`` the last seq that the server has.
    """
    server_ends = _branch_ends(server, high_seq)
    for branch, end in _branch_ends(consumer, last).items():
        if branch in server_ends:
            return min(end, server_ends[branch])
    return None


def _branch_ends(log: FailoverLog, newest_end: int) -> dict[bytes, int]:
    """Returns the last seq of each branch, newest first: the base of the next newer one, or ``newest_end``."""
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
