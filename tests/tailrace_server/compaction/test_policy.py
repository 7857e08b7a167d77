"""Which segments are folded, and what that costs over many flushes."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model import FeedInfo
from tailrace_server.compaction.policy import (
    CompactionLimits,
    CompactionPlan,
    PartitionRetention,
    Reason,
    Trim,
    choose,
    tier_of,
    trim,
)
from tailrace_server.manifest import SegmentEntry

COMPACT = PartitionRetention()
HISTORY = PartitionRetention(history=True)
LIMITS = CompactionLimits()
UNIT = LIMITS.tier_bytes_min


def entry(after_seq, last_seq, nbytes, *, rows=None, tombstones=0, oldest=0, newest=0):
    return SegmentEntry(
        id=b"%016d" % last_seq,
        base_id=b"%016d" % after_seq,
        included_ids=(),
        is_major=after_seq == 0,
        deduplicated=False,
        after_seq=after_seq,
        last_seq=last_seq,
        branch=bytes(16),
        nbytes=nbytes,
        rows=last_seq - after_seq if rows is None else rows,
        tombstones=tombstones,
        oldest_timestamp=oldest,
        newest_timestamp=newest,
    )


def chain(*sizes, **more):
    """Segments of these sizes in units of the least tier; a row has 100 bytes."""
    entries, seq = [], 0
    for size in sizes:
        nbytes = round(size * UNIT)
        entries.append(entry(seq, seq + max(1, nbytes // 100), nbytes, **more))
        seq = entries[-1].last_seq
    return entries


def chosen(entries, *, retention=COMPACT, stable_seq=2**62, purge_before_us=None, limits=None):
    return choose(entries, retention=retention, stable_seq=stable_seq, purge_before_us=purge_before_us, limits=limits)


def extent(plan):
    return None if plan is None else (plan.first, plan.last, plan.is_major, plan.reason)


def feed(**members):
    return FeedInfo("orders", bytes(16), 4, "hash", "history", None, None, 60.0, "stream")._replace(**members)


@pytest.mark.parametrize(
    ("info", "retention"),
    [
        (feed(retention="compact", history_age_s=9.0, history_bytes=9), PartitionRetention()),
        (feed(), PartitionRetention(history=True)),
        (feed(history_age_s=1.5), PartitionRetention(history=True, age_us=1_500_000)),
        (feed(history_bytes=4_003), PartitionRetention(history=True, nbytes=1_000)),
    ],
)
def test_what_a_partition_of_a_feed_keeps(info, retention):
    assert PartitionRetention.of(info) == retention


class TestTiers:
    def test_a_tier_is_a_factor_of_four(self):
        assert [tier_of(n, LIMITS) for n in (0, 4 * UNIT - 1, 4 * UNIT, 16 * UNIT - 1, 16 * UNIT)] == [0, 0, 1, 1, 2]

    def test_four_neighbours_of_a_tier_are_folded(self):
        assert extent(chosen(chain(600, 5, 6, 7))) is None
        assert extent(chosen(chain(600, 5, 6, 7, 8))) == (1, 4, False, Reason.TIER)

    def test_all_of_a_tier_are_folded_at_once(self):
        assert extent(chosen(chain(600, 5, 6, 7, 8, 9, 10))) == (1, 6, False, Reason.TIER)

    def test_the_lowest_tier_comes_first(self):
        assert extent(chosen(chain(600, 20, 20, 20, 20, 5, 5, 5, 5))) == (5, 8, False, Reason.TIER)

    def test_a_small_segment_counts_as_large_as_a_newer_one(self):
        assert extent(chosen(chain(600, 5, 1, 1, 6))) == (1, 4, False, Reason.TIER)

    def test_the_oldest_may_be_among_them(self):
        assert extent(chosen(chain(0.3, 0.1, 0.1, 0.1))) == (0, 3, True, Reason.TIER)


class TestShare:
    def test_half_of_the_bytes(self):
        assert chosen(chain(100, 49)) is None
        assert extent(chosen(chain(100, 50))) == (0, 1, True, Reason.SHARE)

    def test_half_of_the_rows_however_small_they_are(self):
        oldest = entry(0, 1_000_000, 100 * UNIT, rows=1_000)
        assert chosen([oldest, entry(1_000_000, 2_000_000, 2 * UNIT, rows=499)]) is None
        assert extent(chosen([oldest, entry(1_000_000, 2_000_000, 2 * UNIT, rows=500)])) == (0, 1, True, Reason.SHARE)

    def test_very_little_is_not_worth_it(self):
        assert chosen(chain(0.1, 0.9)) is None

    def test_it_tells_what_is_read(self):
        entries = chain(100, 50)
        plan = chosen(entries)
        assert (plan.nbytes, plan.rows) == (150 * UNIT, sum(e.rows for e in entries))

    def test_too_many_are_folded_a_part_at_a_time_the_oldest_first(self):
        assert extent(chosen(chain(*[10] * 100))) == (0, LIMITS.inputs_max - 1, True, Reason.SHARE)

    def test_more_rows_than_a_segment_has_are_never_folded(self):
        limits = LIMITS._replace(rows_max=10_000)
        assert chosen(chain(100, 50), limits=limits) is None
        # The oldest is too large, but the newer ones still come together.
        assert extent(chosen(chain(100, 2, 2, 2, 2), limits=limits)) == (1, 4, False, Reason.TIER)


class TestTombstones:
    def test_a_fifth_of_old_ones(self):
        entries = chain(100, rows=1_000, tombstones=200, newest=50)
        assert extent(chosen(entries, purge_before_us=50)) == (0, 0, True, Reason.TOMBSTONES)
        assert chosen(entries, purge_before_us=49) is None
        assert chosen(chain(100, rows=1_000, tombstones=199, newest=50), purge_before_us=50) is None

    def test_nobody_vouches_for_the_clock(self):
        assert chosen(chain(100, rows=1_000, tombstones=1_000), purge_before_us=None) is None

    def test_no_more_is_folded_than_has_enough_of_them(self):
        entries = [
            entry(0, 1_000, 100 * UNIT, rows=1_000, tombstones=0, newest=10),
            entry(1_000, 2_000, 5 * UNIT, rows=300, tombstones=300, oldest=10, newest=20),
            entry(2_000, 3_000, 5 * UNIT, rows=10, tombstones=10, oldest=20, newest=30),
        ]
        assert extent(chosen(entries, purge_before_us=100)) == (0, 1, True, Reason.TOMBSTONES)
        assert chosen(entries, purge_before_us=19) is None

    def test_a_history_keeps_them(self):
        entries = chain(100, rows=1_000, tombstones=1_000)
        assert chosen(entries, retention=HISTORY, purge_before_us=100) is None


class TestStableSeq:
    def test_what_may_still_be_rolled_back_is_not_folded(self):
        entries = chain(600, 5, 6, 7, 8)
        assert chosen(entries, stable_seq=entries[-1].last_seq - 1) is None
        assert chosen(entries, stable_seq=entries[-1].last_seq) is not None


class TestHistory:
    def test_only_tiers_count(self):
        assert chosen(chain(100, 99), retention=HISTORY) is None
        assert extent(chosen(chain(100, 5, 5, 5, 5), retention=HISTORY)) == (1, 4, False, Reason.TIER)

    def test_no_segment_gets_larger_than_an_eighth_of_what_is_kept(self):
        entries = chain(*[5] * 6)
        assert chosen(entries, retention=PartitionRetention(history=True, nbytes=19 * UNIT * 8)) is None
        plan = chosen(entries, retention=PartitionRetention(history=True, nbytes=20 * UNIT * 8))
        assert extent(plan) == (0, 3, True, Reason.TIER)

    def test_a_large_one_in_front_does_not_keep_the_others_apart(self):
        entries = chain(15, 5, 5, 5, 5)
        plan = chosen(entries, retention=PartitionRetention(history=True, nbytes=20 * UNIT * 8))
        assert extent(plan) == (1, 4, False, Reason.TIER)

    def test_no_segment_gets_longer_than_an_eighth_of_the_time(self):
        entries = [entry(n, n + 1, UNIT, oldest=100 * n, newest=100 * n + 90) for n in range(6)]
        assert chosen(entries, retention=PartitionRetention(history=True, age_us=389 * 8)) is None
        plan = chosen(entries, retention=PartitionRetention(history=True, age_us=390 * 8))
        assert extent(plan) == (0, 3, True, Reason.TIER)


class TestTrim:
    def test_nothing_is_bounded(self):
        assert trim(chain(5, 5), before_us=None, bytes_max=None) is None
        assert trim([], before_us=100, bytes_max=0) is None

    def test_by_age_only_what_is_old_as_a_whole(self):
        entries = [entry(n * 10, n * 10 + 10, UNIT, oldest=100 * n, newest=100 * n + 99) for n in range(3)]
        assert trim(entries, before_us=99, bytes_max=None) is None
        assert trim(entries, before_us=100, bytes_max=None) == Trim(1, 10)
        assert trim(entries, before_us=250, bytes_max=None) == Trim(2, 20)
        assert trim(entries, before_us=300, bytes_max=None) == Trim(3, 30)

    def test_by_bytes_at_least_what_was_asked_for_is_kept(self):
        entries = chain(5, 5, 5, 5)
        assert trim(entries, before_us=None, bytes_max=15 * UNIT + 1) is None
        assert trim(entries, before_us=None, bytes_max=15 * UNIT) == Trim(1, entries[0].last_seq)
        assert trim(entries, before_us=None, bytes_max=0) == Trim(4, entries[3].last_seq)

    @settings(deadline=None)
    @given(
        st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), max_size=20),
        st.none() | st.integers(0, 500),
        st.none() | st.integers(0, 2_000),
    )
    def test_what_was_asked_for_is_kept(self, pieces, before_us, bytes_max):
        entries, seq, time = [], 0, 0
        for nbytes, span in pieces:
            entries.append(entry(seq, seq + 1, nbytes, oldest=time, newest=time + span))
            seq, time = seq + 1, time + span
        plan = trim(entries, before_us=before_us, bytes_max=bytes_max)
        kept = entries[plan.segments :] if plan else entries
        assert plan is None or plan.trim_seq == entries[plan.segments - 1].last_seq
        for gone in entries[: len(entries) - len(kept)]:
            old = before_us is not None and gone.newest_timestamp < before_us
            newer = sum(e.nbytes for e in entries if e.last_seq > gone.last_seq)
            assert old or (bytes_max is not None and newer >= bytes_max)
        if kept:
            assert before_us is None or kept[0].newest_timestamp >= before_us
            assert bytes_max is None or sum(e.nbytes for e in kept[1:]) < bytes_max


class Simulation:
    """A partition under flushes, folded whenever the policy says so. A row has ``row_bytes`` bytes.

    ``survivors(segments)`` is how many rows a fold of these segments leaves, each a pair (rows, what the workload knows
    of it); it gives such a pair.
    """

    def __init__(self, survivors, *, row_bytes=100, retention=COMPACT):
        self.survivors = survivors
        self.row_bytes = row_bytes
        self.retention = retention
        self.entries = []
        self.known = []
        self.flushed_bytes = self.written_bytes = 0
        self.segments_max = self.flush_bytes_max = 0
        self.time = 0

    def flush(self, rows, known=None, *, tombstones=0):
        after = self.entries[-1].last_seq if self.entries else 0
        nbytes = rows * self.row_bytes
        self.entries.append(
            entry(after, after + rows, nbytes, rows=rows, tombstones=tombstones, oldest=self.time, newest=self.time)
        )
        self.known.append((rows, known))
        self.time += 1
        self.flushed_bytes += nbytes
        self.written_bytes += nbytes
        self.flush_bytes_max = max(self.flush_bytes_max, nbytes)
        while (
            plan := choose(self.entries, retention=self.retention, stable_seq=2**62, purge_before_us=None)
        ) is not None:
            self.fold(plan)
        self.segments_max = max(self.segments_max, len(self.entries))

    def fold(self, plan):
        assert plan.is_major == (plan.first == 0)
        assert plan.last > plan.first
        span = slice(plan.first, plan.last + 1)
        parts = self.entries[span]
        rows, known = self.survivors(self.known[span])
        nbytes = rows * self.row_bytes
        folded = entry(
            parts[0].after_seq,
            parts[-1].last_seq,
            nbytes,
            rows=rows,
            oldest=parts[0].oldest_timestamp,
            newest=parts[-1].newest_timestamp,
        )
        self.entries[span], self.known[span] = [folded], [(rows, known)]
        self.written_bytes += nbytes

    @property
    def write_amplification(self):
        return self.written_bytes / self.flushed_bytes

    @property
    def nbytes(self):
        return sum(e.nbytes for e in self.entries)

    def tiers(self):
        """How many tiers there are up to the largest segment."""
        return 1 + tier_of(max(e.nbytes for e in self.entries), LIMITS)

    def check(self):
        """The bounds of policy.py."""
        oldest, newer = self.entries[0].nbytes, sum(e.nbytes for e in self.entries[1:])
        assert newer < max(LIMITS.major_share * oldest, UNIT)
        assert len(self.entries) <= 3 * self.tiers()


def all_stay(known):
    """Every key is new."""
    return sum(rows for rows, _ in known), None


def sizes(kind, count):
    rnd = random.Random(f"{kind} of policy")
    draw = {
        "even": lambda: 2_000,
        "uniform": lambda: rnd.randint(1, 20_000),
        "skewed": lambda: max(1, min(200_000, round(math.exp(rnd.gauss(7, 2))))),
        "zigzag": iter([100, 100, 100, 50_000] * count).__next__,
    }[kind]
    return [draw() for _ in range(count)]


@pytest.mark.parametrize("kind", ["even", "uniform", "skewed", "zigzag"])
def test_ten_thousand_flushes_of_new_keys(kind):
    simulation = Simulation(all_stay)
    for rows in sizes(kind, 10_000):
        simulation.flush(rows)
        simulation.check()
    # Between the flushes and half of the oldest lie so many tiers; one write in each, and 3 for the majors.
    flushed = simulation.flushed_bytes
    passes = max(0, tier_of(flushed // 2, LIMITS) - tier_of(flushed // 10_000, LIMITS)) + 1
    assert simulation.write_amplification < 1 + passes + 3
    assert simulation.segments_max <= 3 * simulation.tiers()


@pytest.mark.parametrize("live_rows", [5_000, 100_000])
@pytest.mark.parametrize("kind", ["even", "uniform", "zigzag"])
def test_ten_thousand_flushes_over_the_same_keys(kind, live_rows):
    """Each row overwrites a key that is there: what is on the disk is bounded by what is live."""

    def survivors(known):
        return min(live_rows, sum(rows for rows, _ in known)), None

    simulation = Simulation(survivors)
    for rows in sizes(kind, 10_000):
        simulation.flush(rows)
        simulation.check()
        bound = 1.5 * max(live_rows * simulation.row_bytes, simulation.entries[0].nbytes) + UNIT
        assert simulation.nbytes < bound
        # A segment that has just been flushed is as large as it is, whatever the keys in it.
        assert simulation.entries[0].nbytes <= max(live_rows * simulation.row_bytes, simulation.flush_bytes_max)
    assert simulation.write_amplification < 8


def test_deletions_are_folded_before_half_of_the_rows_are_dead():
    """Values of 1,000 bytes, and tombstones of 30 that delete one each: by bytes alone they would never be enough."""
    live = dead = 0
    entries = []
    for step in range(2_000):
        seq = entries[-1].last_seq if entries else 0
        deletes = step % 40 >= 20
        rows = min(500, live) if deletes else 500
        nbytes = rows * (30 if deletes else 1_000)
        if not rows:
            continue
        entries.append(entry(seq, seq + rows, nbytes, rows=rows, tombstones=rows if deletes else 0))
        live += -rows if deletes else rows
        dead += rows if deletes else 0
        while (plan := chosen(entries)) is not None:
            span = slice(plan.first, plan.last + 1)
            parts = entries[span]
            if plan.is_major:  # the tombstones stay until they are old
                dead = 0
                nbytes, kept = live * 1_000, live
            else:
                nbytes, kept = sum(e.nbytes for e in parts), sum(e.rows for e in parts)
            entries[span] = [entry(parts[0].after_seq, parts[-1].last_seq, nbytes, rows=kept)]
        newer = sum(e.nbytes for e in entries[1:])
        assert newer < UNIT or dead < max(1, 0.5 * entries[0].rows)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6), max_size=150), st.booleans(), st.sampled_from([None, 10**7, 10**9]))
def test_choosing_again_comes_to_an_end_and_bounds_the_segments(rows, history, nbytes):
    simulation = Simulation(all_stay, retention=PartitionRetention(history=history, nbytes=nbytes if history else None))
    for count in rows:
        simulation.flush(count)
        if not history:
            simulation.check()
        elif nbytes is None:
            assert len(simulation.entries) <= 3 * simulation.tiers()
    assert sum(e.rows for e in simulation.entries) == sum(rows)
    for older, newer in zip(simulation.entries, simulation.entries[1:], strict=False):
        assert older.last_seq == newer.after_seq


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["bytes", "age"])
def test_ten_thousand_flushes_of_a_history_that_is_trimmed(bound):
    kept_bytes, kept_us = 40_000_000, 2_000
    retention = PartitionRetention(
        history=True, nbytes=kept_bytes if bound == "bytes" else None, age_us=kept_us if bound == "age" else None
    )
    simulation = Simulation(all_stay, retention=retention)
    for rows in sizes("uniform", 10_000):
        simulation.flush(rows // 10 + 1)
        before_us = simulation.time - kept_us if bound == "age" else None
        gone = trim(simulation.entries, before_us=before_us, bytes_max=retention.nbytes)
        if gone:
            del simulation.entries[: gone.segments], simulation.known[: gone.segments]
        # An eighth more than was asked for, since only whole segments go.
        if bound == "bytes":
            assert simulation.nbytes <= kept_bytes * 9 / 8
        else:
            assert simulation.time - simulation.entries[0].oldest_timestamp <= kept_us * 9 / 8 + 1
        assert len(simulation.entries) <= 100
    assert simulation.write_amplification < 6


def test_a_plan_is_what_it_says():
    assert chosen(chain(100, 50)) == CompactionPlan(
        0, 1, True, Reason.SHARE, 150 * UNIT, sum(e.rows for e in chain(100, 50))
    )
