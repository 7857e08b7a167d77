"""A sink that publishes to a set: whoever leads, each partition takes a batch once, and keeps what a majority has.

It is told the truth in the end: the rows of the history that there is are walked as those of a single node are as they
come (tests/simulation/batches.py). Which promotions there were meanwhile makes no difference, unless one was forced.
"""

from __future__ import annotations

from tests.processes.violation import Violation

from ..checks.batches import Batches
from ..checks.histories import short_place
from .set_clients import FEED, SetProcess
from .sinks import Sink, has_parts, has_sink


def wants_sink(seed, story):
    """Whether a run has a sink: every other seed, and a story that is about one."""
    return has_sink(seed) if story is None else getattr(story, "is_of_a_sink", False)


def wants_parts(seed, story):
    """Whether batches come in parts: every other seed, and a story that is about these."""
    return has_parts(seed) if story is None else getattr(story, "is_of_parts", False)


class Published:
    """What was asked to be published in a set, and what was answered."""

    def __init__(self, world):
        self._world = world
        self._batches = Batches(world.in_parts)
        self._answered = {}  # (partition, batch): where it was said to stand, if anybody was told

    def asked(self, shares):
        for share in shares.values():
            self._batches.asked(share)

    def answered(self, batch, partitions, written):
        """A majority has it, in all of ``partitions``."""
        for number in partitions:
            versions = written.get(number) or self._answered.get((number, batch))
            self._answered[number, batch] = versions

    def runs_of(self, number, history):
        """The runs of a partition's history, that of seq 1 first. Raises Violation where it has one twice."""
        runs = self._batches.standing(number)
        for seq, row in enumerate(history, 1):
            if row is not None:
                runs.append(seq, row.key, row.value)
        return runs

    def check_stands(self, who, number, history):
        """Somebody has been brought to the end of ``history``."""
        self.runs_of(number, history).check_stands(len(history), who)

    def judge(self, leader, logs, high_seqs):
        """``leader``: the node that leads; ``logs`` and ``high_seqs`` are those of each place."""
        world = self._world
        for place, log in logs.items():
            number = place[1]
            history = world.histories.history(place, log, high_seqs[place])
            self.check_stands("the set", number, history)
            runs = self.runs_of(number, history)
            for sink in world.sinks:
                self._check_known(sink.name, leader.feeds.of_id(place[0]).partitions[number], runs)
            if world.promises.forced_at is None:
                self._check_kept(place, runs)

    def _check_known(self, sink, partition, runs):
        last, run = partition.sinks.find(sink), runs.newest(sink)
        known = None if last is None else (last.batch, last.seq, last.is_complete)
        if known != (run and (run.share.batch[1], run.last_seq, runs.of(run.share.batch) is not None)):
            raise Violation(f"partition {partition.id} knows of {sink} {last}, and has {run}")

    def _check_kept(self, place, runs):
        for (number, batch), versions in self._answered.items():
            if number != place[1]:
                continue
            run = runs.of(batch)
            if run is None:
                raise Violation(f"{batch} was answered as published, and {short_place(place)} does not have it")
            if versions is not None and not runs.stands_at(batch, versions.first_seq, versions.last_seq):
                raise Violation(f"{batch} was answered as {versions}, and stands at {short_place(place)}/{run[1:]}")


class SetSink(Sink, SetProcess):
    """Of a set. A stage is of the node that led when it was made, so it may go at any time."""

    feed_name = FEED

    def _machines(self):
        return sorted(self.world.machines, key=lambda machine: not self.world.leads(machine))

    def _partition_of(self, key):
        return self.world.partition_of(key)

    def _keys_to_write(self):
        return self.world.keys["disk"]

    def _may_have_lost(self):
        return self.world.promises.forced_at is not None

    def _about_to_ask(self, shares):
        self.world.published.asked(shares)

    def _told(self, partitions, written):
        self.world.published.answered(self._batch, partitions, written)

    def _check_may_be_gone(self, parts, error):
        """It may: another node leads, or has led."""
