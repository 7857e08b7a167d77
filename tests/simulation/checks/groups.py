"""What the members of a group are told, and what their commits lead to: one book for all of them.

Assigned ── the partition begins at the last commit that was answered, or at a later one that was sent
an event ── no later owner of its partition has begun, and it goes on behind the event before it
a commit ── is stored only if no later owner's was known to be stored when it was sent
the end  ── every row of the feed was handed out, and no later one of its key before it
"""

from __future__ import annotations

import collections
from typing import NamedTuple

from tests.processes.violation import Violation


class Place(NamedTuple):
    """A position, as far as two of them are the same place of a history."""

    branch: bytes
    seq: int


BEGINNING = Place(b"", 0)


def place_of(position):
    """Returns the place of a position."""
    return BEGINNING if not position.seq else Place(position.log.branch_at(position.seq), position.seq)


class GroupBook:
    """The partitions of one group, as all members have seen them. Positions are only those of level quorum."""

    def __init__(self, report):
        self._report = report
        # The places at which the next owner may begin: the last one that is known to be stored, then those sent later.
        self._stored = collections.defaultdict(lambda: [BEGINNING])
        self._accepted = collections.Counter()  # the highest generation of a stored commit, by partition
        self._begun = {}  # the highest generation that has begun, and its owner, by partition
        self.handed_out = {}  # the last value of each key

    def assigned(self, who, partition, generation, position):
        """Checks that a partition begins where the owner before has left it."""
        newest, owner = self._begun.get(partition, (0, who))
        if generation == newest and owner != who:
            raise Violation(f"{who} and {owner} are both told to own partition {partition} in generation {generation}")
        place = place_of(position)
        if generation > newest:
            self._begun[partition] = generation, who
            self._report.operation("partition assigned", f"{who} {partition}/{place.seq}")
        if generation >= newest and place not in self._stored[partition]:
            known = ", ".join(str(each.seq) for each in self._stored[partition])
            raise Violation(f"{who} begins partition {partition} at seq {place.seq}, and the commits were {known}")

    def handed(self, who, partition, generation, event):
        """Checks that no later owner has begun, and notes the rows."""
        newest, owner = self._begun.get(partition, (0, who))
        if newest > generation:
            raise Violation(
                f"{who} is given rows of partition {partition} in generation {generation}, and {owner} has begun "
                f"with it in generation {newest}"
            )
        self.handed_out.update(zip(event.keys(), event.values(), strict=True))
        self._report.operation("event of a group", f"{who} {partition}/{event.last_seq}")

    def begins_anew(self, keys):
        """Forgets the rows of a partition that is sent again from the beginning."""
        for key in keys:
            del self.handed_out[key]

    def commit_sent(self, generations, positions):
        """Notes the positions of a COMMIT, which may be stored from now on. Returns what `commit_stored` needs."""
        sent = {}
        for partition, generation in generations.items():
            place, newest = place_of(positions[partition]), self._begun.get(partition, (0, ""))[0]
            sent[partition] = generation, place, max(newest, self._accepted[partition])
            if generation >= newest:  # else the node has to refuse it
                self._stored[partition].append(place)
        return sent

    def commit_stored(self, who, sent):
        """Checks that an answered commit was its owner's to make. From now on the next owner begins there or behind."""
        for partition, (generation, place, known_generation) in sent.items():
            if known_generation > generation:
                raise self._violation(
                    f"{who} has stored a position of partition {partition} in generation {generation}, and had sent it "
                    f"when generation {known_generation} had begun"
                )
            if generation < self._accepted[partition]:
                continue  # it was stored before the next owner's, and the answer was late
            self._accepted[partition] = generation
            known = self._stored[partition]
            if place in known:  # else an earlier answer has told of a later one
                del known[: len(known) - 1 - known[::-1].index(place)]
        self._report.operation("commit of a group")

    def _violation(self, text):
        """Returns a broken promise, which ends the run also if it is noticed inside of the product."""
        self._report.violation = Violation(text)
        return self._report.violation

    def check_all_came(self, items):
        """Checks that the rows of the feed are what was handed out last of their keys."""
        present = {key: value for key, value in self.handed_out.items() if value is not None}
        if present != items:
            wrong = sorted(key for key in present.keys() | items.keys() if present.get(key) != items.get(key))
            raise Violation(
                f"the group was given {wrong[0]!r} as {present.get(wrong[0])!r:.60}, and the feed has "
                f"{items.get(wrong[0])!r:.60}; {len(wrong)} keys differ"
            )
