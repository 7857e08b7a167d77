"""What was published, seen from inside: a batch's rows stand in a partition together, whole, and once.

A sink tells each list of stages that it is about to have published, by partition: a `Share`. Any of them may be taken,
since a batch that is run again is cut into other stages. From then on the rows of a partition are walked as they come:

    the first row of a share    a run begins, unless a run of that batch stands here already: twice
    inside of a run             the share's next row has to come, and nothing else
    a sink's row elsewhere      nobody has asked for it to be published

The values that a sink writes are unique, and begin with ``VALUE_PREFIX``. A share begins with a value, not a deletion.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.model.history import Violation

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
    """The shares of all batches that anybody has asked to be published."""

    def __init__(self):
        self._shares = {}  # by the value of its first row

    def asked(self, share):
        """It is about to be published, or already was."""
        self._shares[share.rows[0][1]] = share

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
