"""The batches of a set: under any leaders each partition has a batch once, and keeps a batch that was answered.

The rows of the history that stands are walked in the end, as those of one node are when they come (`batches.py`).
Promotions in between make no difference, unless one was forced.
"""

from __future__ import annotations

from tests.processes.violation import Violation

from .batches import Batches
from .histories import short_place


class Published:
    """The batches that were to be published, and the answers."""

    def __init__(self, in_parts):
        self._batches = Batches(in_parts)
        self._answered = {}  # (partition, batch): the versions of an answer; None if no answer told any

    def asked(self, shares):
        """Notes that a batch is about to be published, by partition."""
        for share in shares.values():
            self._batches.asked(share)

    def answered(self, batch, partitions, written):
        """Notes that a batch was answered as published in all of ``partitions``."""
        for number in partitions:
            versions = written.get(number) or self._answered.get((number, batch))
            self._answered[number, batch] = versions

    def _runs_of(self, number, history):
        """Returns the batches that stand in a partition's history, whose first row is that of seq 1.

        Raises:
            Violation: A batch stands there twice.
        """
        runs = self._batches.standing(number)
        for seq, row in enumerate(history, 1):
            if row is not None:
                runs.append(seq, row.key, row.value)
        return runs

    def check_stands(self, who, number, history):
        """Checks that a program that has all of ``history``, and nothing else, has no part of a batch only."""
        runs = self._runs_of(number, history)
        runs.check_stands(len(history), who)
        return runs

    def check(self, place, history, *, may_lose):
        """Checks the history of one partition, and returns the batches that stand in it.

        Raises:
            Violation: A batch stands in part or twice, or, unless it may be lost, not where an answer said.
        """
        runs = self.check_stands("the set", place[1], history)
        for (number, batch), versions in self._answered.items():
            if number != place[1] or may_lose:
                continue
            run = runs.of(batch)
            if run is None:
                raise Violation(f"{batch} was answered as published, and {short_place(place)} does not have it")
            if versions is not None and not runs.stands_at(batch, versions.first_seq, versions.last_seq):
                raise Violation(f"{batch} was answered as {versions}, and stands at {short_place(place)}/{run[1:]}")
        return runs
