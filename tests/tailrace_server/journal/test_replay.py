from __future__ import annotations

import itertools
import random

import pytest

from tailrace_server.journal.replay import BlockCase, JournalRollback, decide_block


def decide(rollbacks=(), flushed=0, held=0, known=False, first=4, last=6, lsn=100):
    return decide_block(
        lsn=lsn,
        first_seq=first,
        last_seq=last,
        rollbacks=rollbacks,
        flushed_seq=flushed,
        held_seq=held,
        known=known,
    )


@pytest.mark.parametrize(
    ("case", "facts"),
    [
        (BlockCase.VOIDED, {"rollbacks": [JournalRollback(200, 5)], "held": 3}),
        (BlockCase.VOIDED, {"rollbacks": [JournalRollback(200, 0)], "flushed": 9, "known": True}),
        (BlockCase.FLUSHED, {"flushed": 6, "held": 6}),
        (BlockCase.FLUSHED, {"flushed": 9, "held": 20, "known": True}),
        (BlockCase.HELD, {"flushed": 5, "held": 6, "known": True}),
        (BlockCase.NEXT, {"held": 3}),
        (BlockCase.NEXT, {"held": 3, "rollbacks": [JournalRollback(200, 6), JournalRollback(50, 0)]}),
        (BlockCase.GAP, {"held": 2}),
        (BlockCase.GAP, {"held": 4}),
        (BlockCase.GAP, {"held": 5, "flushed": 5}),  # a flush takes whole blocks, so none lies astride of it
    ],
)
def test_each_case(case, facts):
    assert decide(**facts) == case


def test_every_input_is_exactly_one_case():
    for voided, flushed, known, held in itertools.product((False, True), (0, 5, 6, 7), (False, True), range(9)):
        is_flushed = flushed >= 6
        table = {
            BlockCase.VOIDED: voided,
            BlockCase.FLUSHED: not voided and is_flushed,
            BlockCase.HELD: not voided and not is_flushed and known,
            BlockCase.NEXT: not voided and not is_flushed and not known and held == 3,
            BlockCase.GAP: not voided and not is_flushed and not known and held != 3,
        }
        assert sum(table.values()) == 1
        rollbacks = [JournalRollback(200, 5)] if voided else []
        assert table[decide(rollbacks, flushed, held, known)]


class History:
    """A partition's life on a follower: blocks, flushes, rollbacks, and files kept alive by other partitions."""

    def __init__(self, rnd):
        self.rnd = rnd
        self.records = []  # ("block", rows) or ("rollback", seq)
        self.rows = []  # (branch, seq), the truth
        self.flushed = 0
        self.branch = 0

    def write(self):
        first = len(self.rows) + 1
        rows = [(self.branch, seq) for seq in range(first, first + self.rnd.randint(1, 3))]
        self.rows += rows
        self.records.append(("block", rows))

    def flush(self):
        ends = [
            rows[-1][1]
            for kind, rows in self.records
            if kind == "block" and rows[-1] in self.rows and rows[-1][1] > self.flushed
        ]
        if ends:
            self.flushed = self.rnd.choice(ends)

    def roll_back(self):
        """To the end of a block that is held, or below the segment, which then goes whole."""
        target = self.rnd.randint(0, len(self.rows))
        if target < self.flushed:
            self.flushed = target = 0
        ends = [r[-1][1] for kind, r in self.records if kind == "block" and r[-1] in self.rows and r[-1][1] <= target]
        target = max([self.flushed, *ends])
        self.rows = self.rows[:target]
        self.records.append(("rollback", target))
        self.branch += 1

    def trim(self):
        """The oldest records may be gone as soon as they have their home elsewhere."""
        while self.records:
            kind, what = self.records[0]
            needed = kind == "block" and what[-1][1] > self.flushed and what[-1] in self.rows
            if needed or self.rnd.random() < 0.5:
                return
            self.records.pop(0)

    def replayed(self):
        rollbacks = [JournalRollback(lsn, what) for lsn, (kind, what) in enumerate(self.records) if kind == "rollback"]
        held, known = self.rows[: self.flushed], set()
        for lsn, (kind, what) in enumerate(self.records):
            if kind == "rollback":
                continue
            case = decide(rollbacks, self.flushed, len(held), tuple(what) in known, what[0][1], what[-1][1], lsn)
            assert case != BlockCase.GAP
            if case == BlockCase.NEXT:
                held += what
                known.add(tuple(what))
        return held


def test_hazard_8_replay_gives_the_history_that_was_taken_over():
    for seed in range(2_000):
        rnd = random.Random(seed)
        history = History(rnd)
        for _ in range(rnd.randint(3, 25)):
            rnd.choice((history.write, history.write, history.flush, history.roll_back, history.trim))()
            assert history.replayed() == history.rows
