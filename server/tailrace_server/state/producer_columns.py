"""The last results of a partition's producers, in columns: 32 bytes a result and about 130 a producer. Pure.

    slots      id -> slot            last number, count of results, used at        one row a producer
    results    in the order of recording: slot, index, number, branch, first, last seq

``index`` counts the results of a producer from 1; those that count are its newest RESULTS_MAX. Older ones stay in the
columns until there are as many of them as of the others; then all columns are rewritten. Of a producer that is alone
for long, the older results are neighbours, and are cut out in 2 µs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.model import VersionRange

# At most 16 blocks of a producer are unanswered in a partition, so no resend is older than the last 16 results.
RESULTS_MAX = 16
# Bytes of a row, including the dictionary and its two integers.
SLOT_BYTES = 130
RESULT_BYTES = 32
# ProducerResults that do not count any more stay until there are this many at least: rewriting costs 80 µs, and 280
# between lone puts, with cold caches.
_SPARE_RESULTS = 128
# The least number of results that are cut out in one piece: fewer would be cut out too often.
_CUT_MIN = _SPARE_RESULTS // 2
# ``nbytes`` grows by this many results at a time, so that an account of it need not change with each result.
_COUNTED_RESULTS = 8

Mask = npt.NDArray[np.bool_]


class ProducerEntry(NamedTuple):
    """A producer: the number of its last block, its last results, and the seconds since it was used."""

    producer_id: int
    last_number: int
    results: tuple[tuple[int, VersionRange], ...]
    age_s: float


class ProducerResults(NamedTuple):
    """Columns of written blocks: their producers, the producers' numbers, and the first and last seqs."""

    producers: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.uint32]
    firsts: npt.NDArray[np.uint64]
    lasts: npt.NDArray[np.uint64]

    def of(self, chosen: Mask) -> ProducerResults:
        """Returns the results of the ``chosen`` rows."""
        return ProducerResults(self.producers[chosen], self.numbers[chosen], self.firsts[chosen], self.lasts[chosen])


class ProducerColumns:
    """The producers of one partition. Times are monotonic seconds."""

    __slots__ = (
        "_branch",
        "_branches",
        "_first",
        "_in_a_row",
        "_index",
        "_last",
        "_last_number",
        "_number",
        "_partition",
        "_results_max",
        "_slot",
        "_slots",
        "_total",
        "_used_at",
        "count",
        "nbytes",
    )

    def __init__(self) -> None:
        self._partition = 0
        self._slots: dict[int, int] = {}
        self._last_number = array("I")
        self._total = array("I")  # results since the columns were rewritten; that many count, and RESULTS_MAX at most
        self._used_at = array("d")
        self._slot = array("I")
        self._index = array("I")
        self._number = array("I")
        self._branch = array("I")
        self._first = array("Q")
        self._last = array("Q")
        self._branches: list[bytes] = []
        self._results_max = _SPARE_RESULTS  # with more of them the columns are rewritten
        self._in_a_row = 0  # the last results that are of one producer, at least
        self._measure()

    def __len__(self) -> int:
        return self.count

    def _measure(self) -> None:
        """Counts the producers, and the bytes of the columns, at most."""
        self.count = len(self._slots)
        self.nbytes = SLOT_BYTES * self.count + RESULT_BYTES * (len(self._slot) | _COUNTED_RESULTS - 1)

    def last_number(self, producer_id: int) -> int | None:
        """Returns the number of a producer's last block; None for a producer that is not known."""
        slot = self._slots.get(producer_id)
        return None if slot is None else self._last_number[slot]

    def result(self, producer_id: int, number: int) -> VersionRange | None:
        """Returns the result of block ``number`` of a producer; None if it is not known."""
        slot = self._slots.get(producer_id)
        if slot is None:
            return None
        rows = (_ints(self._slot) == slot) & (_ints(self._number) == number)
        [found] = np.nonzero(rows & (_ints(self._index) + RESULTS_MAX > self._total[slot]))
        return self._result(int(found[-1])) if found.size else None

    def _result(self, row: int) -> VersionRange:
        return VersionRange(self._partition, self._branches[self._branch[row]], self._first[row], self._last[row])

    def record(self, producer_id: int, number: int, result: VersionRange, now: float) -> None:
        """Adds the result of block ``number``, the producer's last one."""
        slot = self._slots.get(producer_id)
        is_new = slot is None
        if slot is None:
            slot = self._slots[producer_id] = len(self._slots)
            self._last_number.append(number)
            self._total.append(1)
            self._used_at.append(now)
        else:
            self._last_number[slot] = number
            self._total[slot] += 1
            self._used_at[slot] = now
        partition, branch, first, last = result
        if not self._branches or self._branches[-1] != branch:
            self._branches.append(branch)
        self._partition = partition
        self._in_a_row = self._in_a_row + 1 if self._in_a_row and self._slot[-1] == slot else 1
        self._slot.append(slot)
        self._index.append(self._total[slot])
        self._number.append(number)
        self._branch.append(len(self._branches) - 1)
        self._first.append(first)
        self._last.append(last)
        results = len(self._slot)
        if is_new or results % _COUNTED_RESULTS == 0:
            self._measure()
        if results > self._results_max and not self._cut_out():
            self._rewrite(self._live())

    def record_all(
        self, partition: int, branch: bytes, results: ProducerResults, used_at: npt.NDArray[np.float64]
    ) -> None:
        """Adds many results of one branch, in order: the same as ``record`` of each, in a few calls for all.

        ``used_at`` are their times, which do not fall.
        """
        ids = self._slots
        known = len(ids)
        slots = np.array([ids.setdefault(producer, len(ids)) for producer in results.producers.tolist()], np.uint32)
        for column in (self._last_number, self._total, self._used_at):
            column.frombytes(bytes(column.itemsize * (len(ids) - known)))
        order = np.argsort(slots, kind="stable")
        sorted_slots = slots[order]
        is_last = np.append(sorted_slots[1:] != sorted_slots[:-1], True)
        ends = np.flatnonzero(is_last) + 1
        begins = np.concatenate(([0], ends[:-1]))
        chosen = sorted_slots[begins]
        totals = _ints(self._total)
        index = np.empty(len(slots), np.uint32)
        index[order] = np.arange(1, len(slots) + 1) + np.repeat(totals[chosen].astype(np.int64) - begins, ends - begins)
        totals[chosen] += (ends - begins).astype(np.uint32)
        _ints(self._last_number)[chosen] = results.numbers[order][ends - 1]
        np.frombuffer(self._used_at, np.float64)[chosen] = used_at[order][ends - 1]
        del totals  # else the column could not grow
        if not self._branches or self._branches[-1] != branch:
            self._branches.append(branch)
        self._partition = partition
        self._slot.frombytes(slots.tobytes())
        self._index.frombytes(index.tobytes())
        self._number.frombytes(results.numbers.astype(np.uint32).tobytes())
        self._branch.frombytes(np.full(len(slots), len(self._branches) - 1, np.uint32).tobytes())
        self._first.frombytes(results.firsts.astype(np.uint64).tobytes())
        self._last.frombytes(results.lasts.astype(np.uint64).tobytes())
        self._in_a_row = 0
        self._measure()
        if len(self._slot) > self._results_max:
            self._rewrite(self._live())

    def oldest(self, count: int) -> Mask:
        """Returns which ``count`` producers were used least recently."""
        chosen = np.zeros(len(self._slots), bool)
        chosen[np.argsort(self.used_at(), kind="stable")[:count]] = True
        return chosen

    def used_at(self) -> npt.NDArray[np.float64]:
        """Returns when each producer was used last."""
        return np.frombuffer(self._used_at, np.float64).copy() if self._used_at else np.empty(0)

    def forget(self, chosen: Mask) -> None:
        """Forgets these producers."""
        if chosen.any():
            self._rewrite(self._live() & ~chosen[_ints(self._slot)])

    def drop_above(self, seq: int) -> None:
        """Forgets the results above ``seq``, and producers with nothing left."""
        dropped = _longs(self._last) > seq
        if dropped.any():
            self._rewrite(self._live() & ~dropped)

    def entries(self, now: float) -> list[ProducerEntry]:
        """Returns all producers, least recently used first."""
        results: list[list[tuple[int, VersionRange]]] = [[] for _ in self._slots]
        for row in np.nonzero(self._live())[0].tolist():
            results[self._slot[row]].append((self._number[row], self._result(row)))
        ids = list(self._slots)
        order = np.argsort(self.used_at(), kind="stable").tolist()
        return [
            ProducerEntry(ids[slot], self._last_number[slot], tuple(results[slot]), max(now - self._used_at[slot], 0.0))
            for slot in order
        ]

    @classmethod
    def of(cls, entries: Iterable[ProducerEntry], now: float) -> ProducerColumns:
        """Returns columns with these entries of ``entries()``, with the ages that they had then."""
        columns = cls()
        for producer_id, _, results, age_s in entries:
            for number, result in results:
                columns.record(producer_id, number, result, now - age_s)
        return columns

    def copy(self) -> ProducerColumns:
        """Returns a copy, for another thread."""
        copied = ProducerColumns()
        for name in self.__slots__:
            setattr(copied, name, copy(getattr(self, name)))
        return copied

    def _live(self) -> Mask:
        """Returns which rows are results that count."""
        live: Mask = _ints(self._index) + RESULTS_MAX > _ints(self._total)[_ints(self._slot)]
        return live

    def _cut_out(self) -> bool:
        """Cuts out results in a row of one producer that do not count. Returns False, and does nothing, if few are."""
        end = len(self._slot) - RESULTS_MAX
        begin = end + RESULTS_MAX - self._in_a_row
        # With several branches, one that has no results would stay.
        if end - begin < _CUT_MIN or self._branch[begin] != self._branch[-1]:
            return False
        for column in (self._slot, self._index, self._number, self._branch, self._first, self._last):
            del column[begin:end]
        self._in_a_row = RESULTS_MAX
        self._measure()
        return True

    def _rewrite(self, rows: Mask) -> None:
        """Keeps only these results, and the producers that have any."""
        slots: npt.NDArray[Any] = _ints(self._slot)[rows]
        totals = np.bincount(slots, minlength=len(self._slots))
        kept = totals > 0
        totals = totals[kept]
        slots = (np.cumsum(kept) - 1)[slots]
        # The rows of a producer are in the order of its results.
        order = np.argsort(slots, kind="stable")
        ends = np.cumsum(totals)
        index = np.empty(len(slots), np.uint32)
        index[order] = np.arange(1, len(slots) + 1) - np.repeat(ends - totals, totals)
        numbers = _ints(self._number)[rows]
        branches, places = np.unique(_ints(self._branch)[rows], return_inverse=True)
        ids = [id for id, stays in zip(self._slots, kept.tolist(), strict=True) if stays]

        self._slots = dict(zip(ids, range(len(ids)), strict=True))
        self._last_number = _column(numbers[order][ends - 1])
        self._total = _column(totals)
        self._used_at = array("d", self.used_at()[kept].tobytes())
        self._first = array("Q", _longs(self._first)[rows].tobytes())
        self._last = array("Q", _longs(self._last)[rows].tobytes())
        self._slot = _column(slots)
        self._index = _column(index)
        self._number = _column(numbers)
        self._branches = [self._branches[place] for place in branches.tolist()]
        self._branch = _column(places)
        self._results_max = 2 * len(slots) + _SPARE_RESULTS
        self._in_a_row = 0
        self._measure()


# An array of numpy over a column must not be kept: the column cannot grow meanwhile.


def _ints(column: array[int]) -> npt.NDArray[np.uint32]:
    return np.frombuffer(column, np.uint32) if column else np.empty(0, np.uint32)


def _longs(column: array[int]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(column, np.uint64) if column else np.empty(0, np.uint64)


def _column(numbers: npt.NDArray[Any]) -> array[int]:
    return array("I", numbers.astype(np.uint32).tobytes())
