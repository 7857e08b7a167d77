"""The promises of each level, and the rows that may be lost in spite of them.

    quorum   never lost under any leader, unless a promotion was forced
    disk     lost at most if another node came to lead, or the same one with another disk; never if the node that
             acknowledged it leads again by itself
    memory   may be lost with any death

At each level a write stands once, as it was written, or nowhere; a write that was surely refused stands nowhere.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.processes.violation import Violation

from .histories import short_place


class Answer(enum.Enum):
    UNKNOWN = "unknown"
    WRITTEN = "written"
    REFUSED = "refused"


class Acknowledged(NamedTuple):
    """The answer to a writer, and its moment. ``versions`` is a VersionRange."""

    level: str
    versions: tuple
    moment: int


@dataclass
class Write:
    """A write to one partition. ``changes`` are (key, value); values are unique, and None for a deletion."""

    place: tuple
    level: str
    changes: tuple
    asked: int
    answer: Answer = Answer.UNKNOWN
    versions: tuple | None = None
    moment: int = 0


@dataclass
class Promises:
    """Records the answers to writers, and compares them in the end with the history that stands."""

    histories: object
    writes: list = field(default_factory=list)
    forced_at: int | None = None  # the moment of the first try to force a promotion
    acknowledged: dict = field(default_factory=dict)  # place -> [(branch, seq)], of all levels, in their order
    lost: dict = field(default_factory=dict)  # level -> how many acknowledged writes were lost
    handovers: set = field(default_factory=set)  # the terms of leaderships that began with a handover
    seen: dict = field(default_factory=dict)  # (place, level, branch, seq) that a reader was shown -> None

    def asked(self, place, level, changes):
        write = Write(place, level, tuple(changes), self.histories.moment())
        self.writes.append(write)
        return write

    def written(self, write, versions):
        write.answer, write.versions, write.moment = Answer.WRITTEN, versions, self.histories.moment()
        self.acknowledged.setdefault(write.place, []).append((versions.branch, versions.last_seq))

    def shown(self, place, level, position):
        """Notes that a reader was shown all rows up to a position: that promises as much as an acknowledgement."""
        if position.seq:
            branch = self.histories.true_branch(place, position.log.branch_at(position.seq), position.seq)
            self.seen[place, level, branch, position.seq] = None

    def count(self, level):
        """Returns how many writes were acknowledged at a level by now."""
        return sum(write.answer is Answer.WRITTEN and write.level == level for write in self.writes)

    def refused(self, write):
        write.answer = Answer.REFUSED

    def handed_over(self, term):
        """Notes a leadership that began with a handover, in which nothing is lost."""
        self.handovers.add(term)

    def force_tried(self):
        """Notes a forced promotion, which may lose rows of any level."""
        if self.forced_at is None:
            self.forced_at = self.histories.moment()

    def floors(self):
        """Returns the number of acknowledgements of each partition by now."""
        return {place: len(told) for place, told in self.acknowledged.items()}

    # In the end

    def judge(self, logs, high_seqs):
        """Checks every promise. ``logs`` and ``high_seqs`` are those of each place.

        Raises:
            Violation: A promise is broken.
        """
        lineages = {place: self.histories.lineage(place, log) for place, log in logs.items()}
        for write in self.writes:
            lineage, high_seq = lineages[write.place], high_seqs[write.place]
            self._check_once(write, lineage, high_seq)
            if write.answer is Answer.WRITTEN:
                self._check_kept(write, lineage, high_seq)
        for place, level, branch, seq in self.seen:
            lineage, high_seq = lineages[place], high_seqs[place]
            if seq <= high_seq and lineage.holds(branch, seq):
                continue
            why = self._why_not_lost(place, level, branch, seq, lineage, high_seq)
            if why:
                raise Violation(
                    f"{short_place(place)}/{seq} of branch {branch.hex()[:8]} was shown at {level}, and is lost, "
                    f"though {why}"
                )
        self._judge_counted(lineages, high_seqs)

    def _judge_counted(self, lineages, high_seqs):
        """Checks that each row that a leader has counted at a majority stands, at whatever level it was written."""
        for (place, branch, seq), machine in self.histories.counted.items():
            lineage = lineages.get(place)
            if lineage is None or (seq <= high_seqs[place] and lineage.holds(branch, seq)):
                continue
            why = self._why_not_lost(place, "quorum", branch, seq, lineage, high_seqs[place])
            if why:
                raise Violation(
                    f"{machine} had counted a majority with {short_place(place)}/{seq} of branch {branch.hex()[:8]}, "
                    f"and it is lost, though {why}"
                )

    def _standing(self, place, change, lineage, high_seq):
        """Returns the seqs of a change in the history that stands."""
        named = self.histories.places.get(place, {}).get(change, [])
        return [seq for branch, seq in named if seq <= high_seq and lineage.holds(branch, seq)]

    def _check_once(self, write, lineage, high_seq):
        for change in write.changes:
            if change[1] is None:
                continue
            seqs = self._standing(write.place, change, lineage, high_seq)
            if len(seqs) > 1:
                raise Violation(f"{short_place(write.place)}: {change} was written once, and stands at {seqs}")
            if seqs and write.answer is Answer.REFUSED:
                raise Violation(f"{short_place(write.place)}: {change} was refused, and stands at {seqs}")

    def _check_kept(self, write, lineage, high_seq):
        _, branch, first_seq, last_seq = write.versions
        rows = self.histories.rows.get(write.place, {})
        for seq, change in zip(range(first_seq, last_seq + 1), write.changes, strict=True):
            row = rows.get((branch, seq))
            if row is None or row[:2] != change:
                raise Violation(f"{change} was acknowledged as {short_place(write.place)}/{seq}, which is {row}")
        if last_seq <= high_seq and lineage.holds(branch, last_seq):
            return
        self.lost[write.level] = self.lost.get(write.level, 0) + 1
        why = self._why_not_lost(write.place, write.level, branch, last_seq, lineage, high_seq)
        if why:
            raise Violation(
                f"{write.changes} was acknowledged at {write.level} as {short_place(write.place)}/{last_seq} of branch "
                f"{branch.hex()[:8]}, and is lost, though {why}; the history is "
                f"{[(b.hex()[:8], term, base) for b, term, base in lineage.forks]} up to {high_seq}"
            )

    def _why_not_lost(self, place, level, branch, seq, lineage, high_seq):
        """Returns why this row must not be lost; "": it may be."""
        if level == "quorum":
            return "no promotion was forced" if self.forced_at is None else ""
        cut = self._first_without(place, branch, seq)
        if cut is not None and cut.term in self.handovers and self._led_with(place, branch, seq, cut.term):
            return f"the leader of term {cut.term}, which lacks it, came to lead by a handover"
        if level == "memory":
            return ""
        if lineage.holds(branch, seq):
            return f"its branch goes on, and ends at {high_seq}"
        writer = self.histories.writers.get(place, {}).get((branch, seq))
        if cut is None:
            return ""
        before = max((it.term for it in self.histories.leaderships if it.term < cut.term), default=0)
        # A term without a leader was a try to lead: the next leader may go on with the branch that it has begun.
        if cut.writer == writer and before == cut.term - 1:
            return (
                f"{cut.writer.machine}, which acknowledged it, has led on its own disk, in term {cut.term}, without it"
            )
        return ""

    def _first_without(self, place, branch, seq):
        """Returns the first leadership after that of ``branch`` that lacks its row; None: all have it."""
        since = self.histories.term_of(place, branch)
        for leadership in sorted(self.histories.leaderships, key=lambda it: it.term):
            log = leadership.logs.get(place) if leadership.term > since else None
            if log is not None and not self.histories.lineage(place, log).holds(branch, seq):
                return leadership
        return None

    def _led_with(self, place, branch, seq, term):
        """Returns whether the last leadership before ``term`` had the row: it wrote it, or began with it."""
        before = max((it for it in self.histories.leaderships if it.term < term), key=lambda it: it.term, default=None)
        log = None if before is None else before.logs.get(place)
        return log is not None and self.histories.lineage(place, log).holds(branch, seq)
