"""Checks published batches: the rows of each batch stand in a partition together, whole, and once.

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
    """The rows, ((key, value), ...), that one list of stages has for a partition of a batch, (sink, number)."""

    batch: tuple
    rows: tuple


class StandingRun(NamedTuple):
    """A share that a partition has, at the seqs (``after_seq``, ``last_seq``]."""

    share: Share
    after_seq: int
    last_seq: int


class Batches:
    """The shares of all batches that sinks have asked for; ``in_parts``: they may come in parts."""

    def __init__(self, in_parts=False):
        self._shares = {}  # by the value of its first row, or of each
        self._in_parts = in_parts

    def asked(self, share):
        """Notes a share that is about to be published, or already was."""
        for _, value in share.rows if self._in_parts else share.rows[:1]:
            self._shares[value] = share

    def standing(self, number):
        """Returns a record of the batches of one partition, without any."""
        return (StandingParts if self._in_parts else StandingRuns)(number, self)

    def beginning_with(self, value):
        """Returns the share that a row with ``value`` begins; None: it is no row of a sink."""
        if value is None or not value.startswith(VALUE_PREFIX):
            return None
        if value not in self._shares:
            raise Violation(f"{value!r:.60} stands where no sink has published it")
        return self._shares[value]


class StandingRuns:
    """The rows of one partition that were published together."""

    def __init__(self, number, batches):
        self._number = number
        self._batches = batches
        self._runs = []  # in the order of their seqs
        self._last = {}  # (sink, number): the run

    def append(self, seq, key, value):
        """Adds a row that the partition has taken."""
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
        """Drops the rows above ``high_seq``, which has to lie inside no run."""
        self.check_stands(high_seq, "a start")
        while self._runs and self._runs[-1].last_seq > high_seq:
            del self._last[self._runs.pop().share.batch]

    def of(self, batch):
        """Returns the run of a batch; None: there is none."""
        return self._last.get(batch)

    def stands_at(self, batch, first_seq, last_seq):
        """Returns whether a batch stands at the seqs of an answer."""
        return self._last[batch][1:] == (first_seq - 1, last_seq)

    def newest(self, sink):
        """Returns the last run of a sink; None: there is none."""
        return next((run for run in reversed(self._runs) if run.share.batch[0] == sink), None)

    def check_stands(self, seq, who):
        """Checks that a program that has the rows up to ``seq``, and no others, has no batch in part."""
        for run in reversed(self._runs):
            if run.last_seq <= seq:
                return
            if run.after_seq < seq:
                raise Violation(f"{who} stands at {self._number}/{seq}, within {run.share.batch}: {run[1:]}")


class _Batch:
    """The rows of a batch that a partition has."""

    def __init__(self, share):
        self.wanted = Counter(key for key, _ in share.rows)
        self.shares = {}  # by key: the one that its rows are of
        self.rows = []  # (seq, key)

    def count(self, high_seq):
        return Counter(key for seq, key in self.rows if seq <= high_seq)


class StandingParts:
    """The rows of one partition that were published, if batches come in parts."""

    def __init__(self, number, batches):
        self._number = number
        self._batches = batches
        self._standing = {}  # by batch, the one that began last at the end

    def append(self, seq, key, value):
        """Adds a row that the partition has taken."""
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
        """Drops the rows above ``high_seq``."""
        self.check_stands(high_seq, "a start")
        for id, batch in list(self._standing.items()):
            batch.rows = [row for row in batch.rows if row[0] <= high_seq]
            held = {key for _, key in batch.rows}
            batch.shares = {key: share for key, share in batch.shares.items() if key in held}
            if not batch.rows:
                del self._standing[id]

    def of(self, batch):
        """Returns a batch from its first row to its last; None: it is not whole."""
        found = self._standing.get(batch)
        return None if found is None or found.count(found.rows[-1][0]) != found.wanted else self._run(found)

    def stands_at(self, batch, first_seq, last_seq):
        """Returns whether the seqs of an answer lie inside a batch: an answer may name one part only."""
        run = self._run(self._standing[batch])
        return run.after_seq < first_seq <= last_seq <= run.last_seq

    def newest(self, sink):
        """Returns the last batch of a sink, whole or in part; None: there is none."""
        found = [batch for id, batch in self._standing.items() if id[0] == sink]
        return self._run(max(found, key=lambda batch: batch.rows[-1][0])) if found else None

    @staticmethod
    def _run(batch):
        seqs = [seq for seq, _ in batch.rows]
        return StandingRun(next(iter(batch.shares.values())), seqs[0] - 1, seqs[-1])

    def check_stands(self, seq, who):
        """Checks that a program that has the rows up to ``seq`` has each key whole, in the order of their hashes."""
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
