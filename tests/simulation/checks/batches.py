"""What was published, seen from inside: a batch's rows stand in a partition together, whole, and once.

A sink tells each list of stages that it is about to have published, by partition: a `Share`. Any of them may be taken,
since a batch that is run again is cut into other stages. From then on the rows of a partition are walked as they come:

    the first row of a share    a run begins, unless a run of that batch stands here already: twice
    inside of a run             the share's next row has to come, and nothing else
    a sink's row elsewhere      nobody has asked for it to be published

The values that a sink writes are unique, and begin with ``VALUE_PREFIX``. A share begins with a value, not a deletion.

In some runs batches come in parts. Then a sink writes no deletions, so that each row tells whose it is. All rows of a
key come from one share, in its order. If a program stands somewhere, it has each key of a batch whole or not at all,
those with the lower hashes first.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tests.processes.violation import Violation

from tailrace.model.hashing import key_hash

VALUE_PREFIX = b"sink "


class Share(NamedTuple):
    """What a partition gets of a batch, (sink, number), by one list of stages: ((key, value), ...)."""

    batch: tuple
    rows: tuple


class StandingRun(NamedTuple):
    """A share that a partition has, at the seqs (``after_seq``, ``last_seq``]."""

    share: Share
    after_seq: int
    last_seq: int


class Batches:
    """The shares of all batches that anybody has asked to be published; ``in_parts``: they may come in parts."""

    def __init__(self, in_parts=False):
        self._shares = {}  # by the value of its first row, or of each
        self._in_parts = in_parts

    def asked(self, share):
        """It is about to be published, or already was."""
        for _, value in share.rows if self._in_parts else share.rows[:1]:
            self._shares[value] = share

    def standing(self, number):
        """What a partition has of them, nothing yet."""
        return (StandingParts if self._in_parts else StandingRuns)(number, self)

    def beginning_with(self, value):
        """The share that such a row begins; None where no row of a sink is meant."""
        if value is None or not value.startswith(VALUE_PREFIX):
            return None
        if value not in self._shares:
            raise Violation(f"{value!r:.60} stands where nobody has asked for it to be published")
        return self._shares[value]


class StandingRuns:
    """Of one partition: which of its rows were published together."""

    def __init__(self, number, batches):
        self._number = number
        self._batches = batches
        self._runs = []  # in the order of their seqs
        self._last = {}  # (sink, number): the run

    def append(self, seq, key, value):
        """The partition has taken a row."""
        if self._runs and seq <= self._runs[-1].last_seq:
            share, after_seq, _ = self._runs[-1]
            if share.rows[seq - after_seq - 1] != (key, value):
                raise Violation(f"{self._number}/{seq} is {key!r}: {value!r:.60}, inside of {share.batch}")
            return
        share = self._batches.beginning_with(value)
        if share is None:
            return
        if share.batch in self._last:
            raise Violation(
                f"{share.batch} is there at {self._number}/{self._last[share.batch][1:]}, and again at {seq}"
            )
        if share.rows[0] != (key, value):
            raise Violation(f"{self._number}/{seq} is {key!r}: {value!r:.60}, published was {share.rows[0]}")
        run = StandingRun(share, seq - 1, seq - 1 + len(share.rows))
        self._runs.append(run)
        self._last[share.batch] = run

    def cut(self, high_seq):
        """The partition has no more than this: the ends of its runs, if any, are at or below it."""
        self.check_stands(high_seq, "a start")
        while self._runs and self._runs[-1].last_seq > high_seq:
            del self._last[self._runs.pop().share.batch]

    def of(self, batch):
        """The run of a batch; None where it has none here."""
        return self._last.get(batch)

    def stands_at(self, batch, first_seq, last_seq):
        """Whether a batch that is here is where somebody was told that it was written."""
        return self._last[batch][1:] == (first_seq - 1, last_seq)

    def newest(self, sink):
        """The last run of a sink; None where it has none here."""
        return next((run for run in reversed(self._runs) if run.share.batch[0] == sink), None)

    def check_stands(self, seq, who):
        """Somebody has everything up to ``seq``, and nothing else: no part of a batch."""
        for run in reversed(self._runs):
            if run.last_seq <= seq:
                return
            if run.after_seq < seq:
                raise Violation(f"{who} stands at {self._number}/{seq}, within {run.share.batch}: {run[1:]}")


class _Batch:
    """The rows of a batch that a partition has: their seqs, and of each key where they lie in the share."""

    def __init__(self, share):
        self.wanted = Counter(key for key, _ in share.rows)
        self.shares = {}  # by key: the one that its rows are of
        self.rows = []  # (seq, key)

    def count(self, high_seq):
        return Counter(key for seq, key in self.rows if seq <= high_seq)


class StandingParts:
    """Of one partition, where batches come in parts."""

    def __init__(self, number, batches):
        self._number = number
        self._batches = batches
        self._standing = {}  # by batch, the one that began last at the end

    def append(self, seq, key, value):
        """The partition has taken a row."""
        share = self._batches.beginning_with(value)
        if share is None:
            return
        batch = self._standing.setdefault(share.batch, _Batch(share))
        place = sum(known == key for _, known in batch.rows)
        if batch.shares.setdefault(key, share) is not share or place >= batch.wanted[key]:
            raise Violation(f"{share.batch} has {key!r} {batch.wanted[key]} times, and again at {self._number}/{seq}")
        if [row for row in share.rows if row[0] == key][place] != (key, value):
            raise Violation(f"{self._number}/{seq} is {key!r}: {value!r:.60}, out of its order in {share.batch}")
        batch.rows.append((seq, key))

    def cut(self, high_seq):
        """The partition has no more than this."""
        self.check_stands(high_seq, "a start")
        for id, batch in list(self._standing.items()):
            batch.rows = [row for row in batch.rows if row[0] <= high_seq]
            held = {key for _, key in batch.rows}
            batch.shares = {key: share for key, share in batch.shares.items() if key in held}
            if not batch.rows:
                del self._standing[id]

    def of(self, batch):
        """Where a batch stands, from its first row to its last; None where it is not all here."""
        found = self._standing.get(batch)
        return None if found is None or found.count(found.rows[-1][0]) != found.wanted else self._run(found)

    def stands_at(self, batch, first_seq, last_seq):
        """Whether a batch that is here is where somebody was told that it was written, as a part of it was."""
        run = self._run(self._standing[batch])
        return run.after_seq < first_seq <= last_seq <= run.last_seq

    def newest(self, sink):
        """The last batch of a sink of which something is here; None where it has none."""
        found = [batch for id, batch in self._standing.items() if id[0] == sink]
        return self._run(max(found, key=lambda batch: batch.rows[-1][0])) if found else None

    @staticmethod
    def _run(batch):
        seqs = [seq for seq, _ in batch.rows]
        return StandingRun(next(iter(batch.shares.values())), seqs[0] - 1, seqs[-1])

    def check_stands(self, seq, who):
        """Raises Violation if somebody who has everything up to ``seq`` has a part of a key, or lacks a lower one."""
        for id, batch in self._standing.items():
            if batch.rows[0][0] > seq or (batch.rows[-1][0] <= seq and len(batch.rows) == batch.wanted.total()):
                continue
            held = batch.count(seq)
            hashes = [(key_hash(key), held[key] == count) for key, count in batch.wanted.items()]
            is_cut = any(0 < held[key] < count for key, count in batch.wanted.items())
            if is_cut or sorted(hashes) != sorted(hashes, key=lambda entry: (not entry[1], entry[0])):
                raise Violation(f"{who} stands at {self._number}/{seq}, within a part of {id}: {sorted(held.items())}")


def check_last_batch(sink, partition, runs):
    """Checks that a partition remembers the last batch of a sink, as far as that batch stands in ``runs``.

    Raises:
        Violation: The partition remembers another batch, or another end of it.
    """
    last, run = partition.sinks.find(sink), runs.newest(sink)
    known = None if last is None else (last.batch, last.seq, last.is_complete)
    if known != (run and (run.share.batch[1], run.last_seq, runs.of(run.share.batch) is not None)):
        raise Violation(f"partition {partition.id} knows of {sink} {last}, and has {run}")
