"""The producers of a partition and their last results, so that a block that is sent again is written once. Pure.

Source: docs/formats/block.md (producer id and seq) and docs/protocol/writes.md ("Resends"). The rules:

    the partition finds                             it decides
    ----------------------------------------------  ---------------------------------------------
    the number among the producer's last results    DUPLICATE: answered with that result
    the number that comes next                      ACCEPT
    no entry, number 1, not flagged as a resend     ACCEPT
    no entry, number 1, resend, none forgotten      ACCEPT (it never arrived, or was lost with its level)
    no entry, flagged resend, some were forgotten   UNKNOWN: it may have been written
    any other number                                OUT_OF_ORDER, with the number that would be next

Producers are forgotten by their age, and when there are too many. A client gives up a resend, by its own clock, before
an entry can be over its age (tailrace.requests.lane). The table does not rely on that, because the clock of a suspended
machine stands still.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.block import BlockHeader
from tailrace.errors import OutcomeUnknown
from tailrace.model import VersionRange
from tailrace.wire.failures import OutOfOrder
from tailrace_server.state.memory import ProducerMemory
from tailrace_server.state.producer_columns import RESULTS_MAX, ProducerColumns, ProducerEntry, ProducerResults

# Writers resend for at most half of this time, and take a new id after half of it.
ENTRY_AGE_S_MAX = 3600.0
# Seconds after any producer was forgotten in which a resend by an unknown producer is refused. A machine that was
# suspended for longer, with its clock, would write a block twice. A longer time hurts new writers after lost links.
FORGOTTEN_AGE_S_MAX = 86_400.0
# Producers of one partition, so that its manifest stays small; `ProducerMemory` (memory.py) bounds those of a node.
PRODUCERS_MAX = 10_000
# A full table forgets one in this many producers at once, the least recently used: each time costs a look at all.
_EVICTED_SHARE = 16
# Fewer results than this are recorded one by one.
_TOGETHER_MIN = 16
# A table is searched for producers over their age when it has grown to this many, and to twice as many, and so on.
_LOOK_AT_MIN = 64


class ResendVerdict(enum.Enum):
    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out of order"
    UNKNOWN = "unknown"


class ResendDecision(NamedTuple):
    """``result`` is set for DUPLICATE, ``expected`` for OUT_OF_ORDER."""

    verdict: ResendVerdict
    result: VersionRange | None = None
    expected: int = 0


def result_of_resend(decision: ResendDecision, header: BlockHeader, partition: int) -> VersionRange:
    """Returns the versions of a block that was written before. Raises OutOfOrder, OutcomeUnknown if it was not."""
    block = f"block {header.producer_seq} of producer {header.producer_id:016x}"
    match decision.verdict:
        case ResendVerdict.OUT_OF_ORDER:
            raise OutOfOrder(
                f"partition {partition}: {block} is out of order, {decision.expected} comes next",
                expected=decision.expected,
            )
        case ResendVerdict.UNKNOWN:
            raise OutcomeUnknown(
                f"partition {partition} has forgotten producers within the last day, by their age or because there "
                f"were too many: {block}, which is sent again, may have been written. Read its keys and write again"
            )
    assert decision.result is not None, "a block that is accepted is written"
    return decision.result


_ACCEPT = ResendDecision(ResendVerdict.ACCEPT)
_UNKNOWN = ResendDecision(ResendVerdict.UNKNOWN)


class ProducerTable:
    """The last results of each producer of one partition. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._columns = ProducerColumns()
        self._look_at = _LOOK_AT_MIN
        self._evicted_at: float | None = None  # when a producer was forgotten last
        self._memory: ProducerMemory | None = None
        self._charged = 0  # bytes that the node's account knows of
        # On a replica: the seq as of which the leader sent this table, ahead of the blocks up to there. They add
        # nothing to it, and may be merged blocks, which name no producer.
        self.leader_seq = 0

    def __len__(self) -> int:
        return self._columns.count

    def decide(self, producer_id: int, number: int, *, resend: bool, now: float) -> ResendDecision:
        """Decides about block ``number`` of a producer; changes nothing."""
        last_number = self._columns.last_number(producer_id)
        if last_number is None:
            evicted = self._evicted_at is not None and now - self._evicted_at < FORGOTTEN_AGE_S_MAX
            if resend and evicted:
                return _UNKNOWN
            return _ACCEPT if number == 1 else ResendDecision(ResendVerdict.OUT_OF_ORDER, expected=1)
        if number == last_number + 1:
            return _ACCEPT
        result = self._columns.result(producer_id, number)
        if result is not None:
            return ResendDecision(ResendVerdict.DUPLICATE, result)
        return ResendDecision(ResendVerdict.OUT_OF_ORDER, expected=last_number + 1)

    def record(self, producer_id: int, number: int, result: VersionRange, now: float) -> None:
        """Records that block ``number`` of a producer was written as ``result``."""
        if result.last_seq <= self.leader_seq:
            return
        columns = self._columns
        if columns.count >= min(self._look_at, PRODUCERS_MAX) and columns.last_number(producer_id) is None:
            self._make_room(now)
        columns.record(producer_id, number, result, now)
        if columns.nbytes != self._charged and self._memory is not None:
            self._charge()
            self._memory.make_some_room(now)

    def record_all(
        self, partition: int, branch: bytes, results: ProducerResults, used_at: npt.NDArray[np.float64]
    ) -> None:
        """Records many blocks of one branch, in order, for a start that reads them from the journal.

        ``used_at`` are their times, which do not fall.
        """
        counts = (results.producers > 0) & (results.lasts > self.leader_seq)
        results, used_at = results.of(counts), used_at[counts]
        if not len(results.numbers):
            return
        columns = self._columns
        is_small = len(results.numbers) < _TOGETHER_MIN
        # If the table becomes full, the order of the producers decides which are forgotten.
        if is_small or columns.count + len(np.unique(results.producers)) >= PRODUCERS_MAX:
            rows = zip(*(column.tolist() for column in (*results, used_at)), strict=True)
            for producer, number, first, last, now in rows:
                self.record(producer, number, VersionRange(partition, branch, first, last), now)
            return
        columns.record_all(partition, branch, results, used_at)
        now = float(used_at[-1])
        if columns.count >= self._look_at:
            self._forget_aged(now)
            self._look_at = max(2 * columns.count, _LOOK_AT_MIN)
        if self._memory is not None:
            self._charge()
            self._memory.make_room(now)

    def _make_room(self, now: float) -> None:
        """Forgets producers that are over their age, and the least recently used ones of a full table."""
        self._forget_aged(now)
        if self._columns.count >= PRODUCERS_MAX:
            self._columns.forget(self._columns.oldest(self._columns.count // _EVICTED_SHARE or 1))
            self._evicted_at = now
        self._look_at = max(2 * self._columns.count, _LOOK_AT_MIN)

    def _forget_aged(self, now: float) -> None:
        aged = now - self._columns.used_at() >= ENTRY_AGE_S_MAX
        if aged.any():
            self._columns.forget(aged)
            self._evicted_at = now

    # The node's account

    def charge_to(self, memory: ProducerMemory | None) -> None:
        """Lets ``memory`` account for this table from now on; None ends it."""
        if self._memory is not None:
            self._memory.charge(self, 0)
        self._memory = memory
        self._charge()

    def _charge(self) -> None:
        self._charged = self._columns.nbytes if self._columns.count else 0
        if self._memory is not None:
            self._memory.charge(self, self._charged)

    def used_at(self) -> npt.NDArray[np.float64]:
        """Returns when each producer was used last."""
        return self._columns.used_at()

    def evict_through(self, used_at: float, now: float) -> None:
        """Forgets the producers that were used at ``used_at`` or before: the node has no room for them."""
        self._forget_aged(now)
        chosen = self._columns.used_at() <= used_at
        if chosen.any():
            self._columns.forget(chosen)
            self._evicted_at = now
        self._charge()

    def drop_above(self, seq: int) -> None:
        """Forgets the results above ``seq``, which belong to a discarded history.

        A producer without results is unknown then: its next block is out of order, and it takes a new id.
        """
        self.leader_seq = min(self.leader_seq, seq)
        self._columns.drop_above(seq)
        self._charge()

    def set_leader_seq(self, seq: int) -> None:
        """Notes that the table is a leader's as of ``seq``, and forgets the results above."""
        self.drop_above(seq)
        self.leader_seq = seq

    def join_told(self, told: ProducerTable, after_seq: int, through_seq: int, now: float) -> None:
        """Takes over the results above ``after_seq`` of ``told``, a leader's table as of ``through_seq``.

        This table has all results up to ``after_seq`` already.
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
        if len(left) > PRODUCERS_MAX:
            ages.append(0.0)
        self.restore(sorted(left, key=lambda entry: -entry.age_s)[-PRODUCERS_MAX:], min(ages, default=None), now)
        self.leader_seq = through_seq

    def snapshot(self, now: float) -> tuple[list[ProducerEntry], float | None]:
        """Returns all entries, least recently used first, and how long ago one was forgotten.

        Entries that are over their age are left out, which forgets them as well. The second value is None if nothing
        was forgotten within ``FORGOTTEN_AGE_S_MAX``.
        """
        entries = self._columns.entries(now)
        left = [entry for entry in entries if entry.age_s < ENTRY_AGE_S_MAX]
        evicted_age_s = math.inf if self._evicted_at is None else max(now - self._evicted_at, 0.0)
        if len(left) < len(entries):
            youngest = min(entry.age_s for entry in entries if entry.age_s >= ENTRY_AGE_S_MAX)
            evicted_age_s = min(evicted_age_s, youngest - ENTRY_AGE_S_MAX)
        return left, evicted_age_s if evicted_age_s < FORGOTTEN_AGE_S_MAX else None

    def restore(self, entries: Iterable[ProducerEntry], evicted_age_s: float | None, now: float) -> None:
        """Replaces all entries by those of a ``snapshot``, with the ages that they had then."""
        self._columns = ProducerColumns.of(entries, now)
        self._evicted_at = None if evicted_age_s is None else now - evicted_age_s
        self._charge()

    def copy(self) -> ProducerTable:
        """Returns a copy that no account counts, to take its ``snapshot`` in another thread."""
        copied = ProducerTable()
        copied._columns, copied._evicted_at = self._columns.copy(), self._evicted_at
        return copied
