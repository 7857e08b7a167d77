"""Rows that are stamped ahead of the clock age by the time that the node was up, and never too early."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fake_host import FakeClock
from tests.tiers import examples

from tailrace.model.failover import SEQ_MAX, FailoverEntry, FailoverLog
from tailrace_server.directory.uptime_file import decode, encode, load_uptime, store_uptime, tick_uptime
from tailrace_server.state.ahead import AGE_PARTS, GAP_US_MIN, Ahead, Mark, PartitionPlace

MINUTE = 60_000_000
DAY = 24 * 60 * MINUTE
PLACE = PartitionPlace(bytes(16), 3)
LOG = FailoverLog([(b"u" * 16, 1, 0)])


def test_the_drawing():
    ahead = Ahead()
    ahead.see(PLACE, Mark(LOG.branch, 5, 20 * MINUTE, 20 * MINUTE), LOG, DAY)
    ahead.see(PLACE, Mark(LOG.branch, 8, 80 * MINUTE, 80 * MINUTE), LOG, DAY)
    now_us = 140 * MINUTE
    assert ahead.old_seq(PLACE, LOG, 60 * MINUTE, now_us) == 8
    assert ahead.old_seq(PLACE, LOG, 60 * MINUTE + 1, now_us) == 5
    assert ahead.old_seq(PLACE, LOG, 120 * MINUTE + 1, now_us) == 0
    assert ahead.seq_before(PLACE, LOG, 90 * MINUTE) == 8
    assert ahead.seq_before(PLACE, LOG, 80 * MINUTE) == 5
    assert ahead.seq_before(PLACE, LOG, 20 * MINUTE) == 0
    ahead.forget(PLACE)
    assert ahead.seqs(PLACE) == []


def test_a_mark_of_a_history_that_was_rolled_back_says_nothing():
    ahead = Ahead()
    ahead.see(PLACE, Mark(LOG.branch, 5, 0, 0), LOG, DAY)
    ahead.see(PLACE, Mark(LOG.branch, 9, 0, DAY), LOG, 8 * DAY)
    forked = LOG.with_entry(FailoverEntry(b"v" * 16, 2, 7))
    assert ahead.old_seq(PLACE, forked, DAY, 2 * DAY) == 5
    ahead.see(PLACE, Mark(forked.branch, 8, 0, 2 * DAY), forked, 8 * DAY)
    assert ahead.seqs(PLACE) == [5, 8]


@pytest.mark.parametrize("bad", [[["00", 0]], [["zz", 0, []]], [["00" * 16, 0, [["00", 1, 1, 1]]]], 7])
def test_what_are_no_marks_is_told(bad):
    with pytest.raises((ValueError, TypeError)):
        Ahead.from_json(bad, 0)


def test_marks_are_kept_in_uptime(memory_disk):
    disk, fake_clock = memory_disk(), FakeClock()
    disk.make_directory("/data")
    uptime = load_uptime(disk, "/data", fake_clock)
    fake_clock.advance(100)
    tick_uptime(uptime, fake_clock)
    uptime.ahead.see(PLACE, Mark(LOG.branch, 5, fake_clock.wall_us(), uptime.now_us), LOG, DAY)
    store_uptime(uptime, disk, "/data")
    fake_clock.advance(3_000)  # while the node is down
    later = load_uptime(disk, "/data", fake_clock)
    fake_clock.advance(60)
    tick_uptime(later, fake_clock)
    assert later.ahead.old_seq(PLACE, LOG, MINUTE, later.now_us) == 5
    assert later.ahead.old_seq(PLACE, LOG, MINUTE + 1, later.now_us) == 0
    assert decode(encode(later), later.now_us)[1].seqs(PLACE) == [5]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("up"), st.integers(1, 100)),
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("fork"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["see", "stop", "kill"]), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=examples(300))
@given(STEPS, st.integers(0, 200), st.integers(1, 20))
def test_no_row_counts_as_older_than_it_is(steps, age_min, keep_tens):
    keep_us, age_us = keep_tens * 10 * MINUTE, age_min * MINUTE
    ahead, log, written, stored = Ahead(), LOG, [], (json.dumps([]), 0)
    real_us, up_us, forks = 0, 5 * DAY, 0  # ``written`` has the real time of each seq
    for kind, number in steps:
        if kind == "up":
            real_us, up_us = real_us + number * MINUTE, up_us + number * MINUTE
        elif kind == "write":
            written += [real_us] * number
        elif kind == "fork":
            forks += 1
            base = max(0, len(written) - number)
            written = written[:base]
            log = log.with_entry(FailoverEntry(b"%016d" % forks, forks + 1, base))
        elif kind == "see" and written:
            ahead.see(PLACE, Mark(log.branch_at(len(written)), len(written), real_us, up_us), log, keep_us)
        elif kind == "stop":
            stored = json.dumps(ahead.to_json(up_us)), up_us
            up_us = 0  # another boot of the machine
            ahead = Ahead.from_json(json.loads(stored[0]), up_us)
        elif kind == "kill":
            up_us = 7
            ahead = Ahead.from_json(json.loads(stored[0]), up_us)
        old, before = ahead.old_seq(PLACE, log, age_us, up_us), ahead.seq_before(PLACE, log, real_us - age_us)
        assert old <= len(written)
        assert all(real_us - at >= age_us for at in written[:old])
        assert all(at < real_us - age_us for at in written[:before])


@settings(max_examples=examples(100))
@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=300), st.integers(1, 60))
def test_a_row_goes_an_eighth_of_the_age_late_at_most_and_marks_are_few(minutes, keep_hours):
    keep_us, ahead, written, up_us = keep_hours * 60 * MINUTE, Ahead(), [], 0
    for minute in minutes:
        up_us += minute * MINUTE // 60
        written.append(up_us)
        ahead.see(PLACE, Mark(LOG.branch, len(written), SEQ_MAX, up_us), LOG, keep_us)
        # The compactor sees a partition each minute; here a row may wait for the next one that is written.
        late_us = keep_us // AGE_PARTS + max(later - at for at, later in zip([0, *written], written, strict=False))
        old = ahead.old_seq(PLACE, LOG, keep_us, up_us)
        assert all(up_us - at <= keep_us + late_us for at in written[old:])
        assert len(ahead.seqs(PLACE)) <= 2 * AGE_PARTS + 20


@pytest.mark.slow
def test_marks_get_fewer_the_older_they_are():
    ahead = Ahead()
    for number in range(1, 7 * 24 * 60):
        ahead.see(PLACE, Mark(LOG.branch, number, 0, number * MINUTE), LOG, 7 * DAY)
    assert 10 < len(ahead.seqs(PLACE)) < 40
    assert ahead.seqs(PLACE)[-1] > 7 * 24 * 60 - 2 * GAP_US_MIN // MINUTE
