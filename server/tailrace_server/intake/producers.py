"""What a partition remembers of its producers, so that a block that is sent again is written once. Pure.

Source: docs/formats/block.md (producer id and seq) and docs/streams.md ("Resends"). The rules:

    the partition finds                             it decides
    ----------------------------------------------  ---------------------------------------------
    the number among the producer's last results    DUPLICATE: answered with that result
    the number that comes next                      ACCEPT
    no entry, number 1, not flagged as a resend     ACCEPT
    no entry, number 1, resend, nothing evicted     ACCEPT (it never arrived, or was lost with its level)
    no entry, flagged resend, entries were evicted  UNKNOWN: nobody can tell any more
    any other number                                OUT_OF_ORDER, with the number that would be next
"""

from __future__ import annotations

import collections
import enum
import math
from collections.abc import Iterable
from typing import NamedTuple

from tailrace.block import BlockHeader
from tailrace.errors import OutcomeUnknown
from tailrace.model import VersionRange
from tailrace.wire.failures import OutOfOrder

# At most 16 blocks of a producer are unanswered in a partition, so no resend is older than the last 16 results.
RESULTS_MAX = 16
# Writers resend for far less than this, and take a new id after half of it: forgetting is safe afterwards.
ENTRY_AGE_S_MAX = 3600.0
# About 1 KiB an entry: bounds what writers that come and go can make a partition hold.
PRODUCERS_MAX = 10_000


class Verdict(enum.Enum):
    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out of order"
    UNKNOWN = "unknown"


class Decision(NamedTuple):
    """``result`` where DUPLICATE, ``expected`` where OUT_OF_ORDER."""

    verdict: Verdict
    result: VersionRange | None = None
    expected: int = 0


def result_of_resend(decision: Decision, header: BlockHeader, partition: int) -> VersionRange:
    """What a block of ``partition`` was written as that is not to be written now. Raises OutOfOrder, OutcomeUnknown."""
    block = f"block {header.producer_seq} of producer {header.producer_id:016x}"
    match decision.verdict:
        case Verdict.OUT_OF_ORDER:
            raise OutOfOrder(
                f"partition {partition}: {block} is out of order, {decision.expected} comes next",
                expected=decision.expected,
            )
        case Verdict.UNKNOWN:
            raise OutcomeUnknown(
                f"partition {partition} had to forget producers within the last hour: whether {block} was written "
                "cannot be told"
            )
    assert decision.result is not None, "a block that is accepted is written"
    return decision.result


_ACCEPT = Decision(Verdict.ACCEPT)
_UNKNOWN = Decision(Verdict.UNKNOWN)


class ProducerEntry(NamedTuple):
    """What is remembered of a producer: its last block's number, its last results, and how long ago it was used."""

    producer_id: int
    last_number: int
    results: tuple[tuple[int, VersionRange], ...]
    age_s: float


class _Entry:
    __slots__ = ("last_number", "results", "used_at")

    def __init__(self) -> None:
        self.last_number = 0
        self.results: collections.deque[tuple[int, VersionRange]] = collections.deque(maxlen=RESULTS_MAX)
        self.used_at = 0.0


class ProducerTable:
    """The last results of each producer of one partition. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._entries: collections.OrderedDict[int, _Entry] = collections.OrderedDict()  # least recently used first
        self._evicted_at: float | None = None
        # Of a replica: the leader's table as of this seq, which comes before the blocks up to there. They tell nothing
        # more, and may have been merged, so that they tell nothing.
        self.told_through = 0

    def __len__(self) -> int:
        return len(self._entries)

    def decide(self, producer_id: int, number: int, *, resend: bool, now: float) -> Decision:
        """What to do with block ``number`` of a producer; changes nothing."""
        entry = self._entries.get(producer_id)
        if entry is None:
            evicted = self._evicted_at is not None and now - self._evicted_at < ENTRY_AGE_S_MAX
            if resend and evicted:
                return _UNKNOWN
            return _ACCEPT if number == 1 else Decision(Verdict.OUT_OF_ORDER, expected=1)
        if number == entry.last_number + 1:
            return _ACCEPT
        for known, result in entry.results:
            if known == number:
                return Decision(Verdict.DUPLICATE, result)
        return Decision(Verdict.OUT_OF_ORDER, expected=entry.last_number + 1)

    def record(self, producer_id: int, number: int, result: VersionRange, now: float) -> None:
        """Block ``number`` of a producer was written as ``result``."""
        if result.last_seq <= self.told_through:
            return
        entry = self._entries.get(producer_id)
        if entry is None:
            self._expire(now)
            entry = self._entries[producer_id] = _Entry()
        else:
            self._entries.move_to_end(producer_id)
        entry.last_number = number
        entry.results.append((number, result))
        entry.used_at = now

    def _expire(self, now: float) -> None:
        while self._entries:
            oldest = next(iter(self._entries.values()))
            expired = now - oldest.used_at >= ENTRY_AGE_S_MAX
            if not expired:
                if len(self._entries) < PRODUCERS_MAX:
                    return
                self._evicted_at = now
            self._entries.popitem(last=False)

    def drop_above(self, seq: int) -> None:
        """Forgets the results above ``seq``, which are of a history that is none any more.

        A producer with nothing left is unknown then: its next block is out of order, and it takes a new id.
        """
        self.told_through = min(self.told_through, seq)
        for producer_id, entry in list(self._entries.items()):
            kept = [(number, result) for number, result in entry.results if result.last_seq <= seq]
            if not kept:
                del self._entries[producer_id]
            elif len(kept) < len(entry.results):
                entry.results = collections.deque(kept, maxlen=RESULTS_MAX)
                entry.last_number = kept[-1][0]

    def join_told(self, told: ProducerTable, after_seq: int, through_seq: int, now: float) -> None:
        """Takes over what ``told``, a leader's table as of ``through_seq``, has of seqs above ``after_seq``.

        Of those up to ``after_seq`` this one has it all.
        """
        (held, held_age_s), (found, found_age_s) = self.snapshot(now), told.snapshot(now)
        joined = {
            entry.producer_id: entry._replace(results=tuple(r for r in entry.results if r[1].last_seq <= after_seq))
            for entry in held
        }
        for entry in found:
            known = joined[entry.producer_id].results if entry.producer_id in joined else ()
            later = tuple(r for r in entry.results if after_seq < r[1].last_seq <= through_seq)
            joined[entry.producer_id] = entry._replace(results=(known + later)[-RESULTS_MAX:])
        left = [entry._replace(last_number=entry.results[-1][0]) for entry in joined.values() if entry.results]
        ages = [age_s for age_s in (held_age_s, found_age_s) if age_s is not None]
        self.restore(sorted(left, key=lambda entry: -entry.age_s)[-PRODUCERS_MAX:], min(ages, default=None), now)
        self.told_through = through_seq

    def snapshot(self, now: float) -> tuple[list[ProducerEntry], float | None]:
        """All entries, least recently used first, and how long ago one was evicted; what is over its age is left out.

        The age of the last eviction is None where that does not matter any more.
        """
        entries = [
            ProducerEntry(producer_id, entry.last_number, tuple(entry.results), max(now - entry.used_at, 0.0))
            for producer_id, entry in self._entries.items()
            if now - entry.used_at < ENTRY_AGE_S_MAX
        ]
        evicted_age_s = math.inf if self._evicted_at is None else max(now - self._evicted_at, 0.0)
        return entries, evicted_age_s if evicted_age_s < ENTRY_AGE_S_MAX else None

    def restore(self, entries: Iterable[ProducerEntry], evicted_age_s: float | None, now: float) -> None:
        """Remembers what ``snapshot`` gave, with the ages that it had then, in place of what is remembered now."""
        self._entries.clear()
        for producer_id, last_number, results, age_s in entries:
            entry = self._entries[producer_id] = _Entry()
            entry.last_number = last_number
            entry.results.extend(results)
            entry.used_at = now - age_s
        self._evicted_at = None if evicted_age_s is None else now - evicted_age_s
