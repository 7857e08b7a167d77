import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.failover import (
    ENTRIES_MAX,
    SEQ_MAX,
    SNAPSHOT_LAST_UNKNOWN,
    FailoverEntry,
    FailoverLog,
    Resume,
    ResumeReason,
    request_bounds,
    resume_point,
)
from tailrace.model.position import Position

U, V, W, X = (letter * 16 for letter in (b"u", b"v", b"w", b"x"))
NOBODY = FailoverLog()
LOG_U = FailoverLog([(U, 1, 0)])
LOG_VU = FailoverLog([(V, 2, 100), (U, 1, 0)])
LOG_WU = FailoverLog([(W, 3, 110), (U, 1, 0)])


@st.composite
def failover_logs(draw, entries_min=0):
    count = draw(st.integers(entries_min, ENTRIES_MAX))
    numbers = st.integers(0, SEQ_MAX)
    bases = sorted(draw(st.sets(numbers, min_size=count, max_size=count)), reverse=True)
    terms = sorted(draw(st.sets(numbers.filter(bool), min_size=count, max_size=count)), reverse=True)
    branches = draw(st.lists(st.binary(min_size=16, max_size=16), min_size=count, max_size=count, unique=True))
    return FailoverLog(zip(branches, terms, bases, strict=True))


def resume(consumer, seq, server, high_seq, *, first=None, last=None, purge=None, purge_seq=0):
    first = seq if first is None else first
    last = seq if last is None else last
    return resume_point(consumer, seq, first, last, purge, server, high_seq, purge_seq)


class TestFailoverLog:
    def test_an_empty_log_knows_no_branch(self):
        assert (NOBODY.branch, NOBODY.term) == (b"", 0)
        with pytest.raises(ValueError, match="knows no branch"):
            NOBODY.branch_at(1)

    def test_the_newest_entry_comes_first(self):
        log = LOG_U.with_entry(FailoverEntry(V, 2, 100))
        assert log == LOG_VU
        assert (log.branch, log.term) == (V, 2)

    def test_a_base_is_the_last_seq_before_its_branch(self):
        log = LOG_VU.with_entry(FailoverEntry(W, 5, 150))
        assert [log.branch_at(seq) for seq in (1, 100, 101, 150, 151, SEQ_MAX)] == [U, U, V, V, W, W]

    def test_below_the_oldest_base_the_oldest_branch_answers(self):
        log = FailoverLog([(W, 3, 150), (V, 2, 100)])
        assert log.branch_at(0) == log.branch_at(100) == log.branch_at(101) == V

    def test_a_new_entry_removes_those_at_or_above_its_base(self):
        log = LOG_VU.with_entry(FailoverEntry(W, 3, 100))
        assert log == FailoverLog([(W, 3, 100), (U, 1, 0)])
        assert log.with_entry(FailoverEntry(X, 4, 50)) == FailoverLog([(X, 4, 50), (U, 1, 0)])
        assert log.with_entry(FailoverEntry(X, 4, 0)) == FailoverLog([(X, 4, 0)])

    def test_a_crash_loop_without_writes_evicts_nothing(self):
        log = LOG_VU
        for term in range(3, 200):
            log = log.with_entry(FailoverEntry(term.to_bytes(16, "big"), term, 120))
        assert [entry.base for entry in log] == [120, 100, 0]

    def test_the_oldest_entries_go(self):
        log = NOBODY
        for term in range(1, ENTRIES_MAX + 11):
            log = log.with_entry(FailoverEntry(term.to_bytes(16, "big"), term, term))
        assert len(log) == ENTRIES_MAX
        assert [entry.term for entry in log] == list(range(ENTRIES_MAX + 10, 10, -1))

    def test_the_term_must_rise_and_the_branch_be_new(self):
        with pytest.raises(ValueError, match="term above 2"):
            LOG_VU.with_entry(FailoverEntry(W, 2, 150))
        with pytest.raises(ValueError, match="in the failover log already"):
            LOG_VU.with_entry(FailoverEntry(U, 3, 150))

    @given(failover_logs())
    def test_json_and_back(self, log):
        assert FailoverLog.from_json(log.to_json()) == log

    @given(failover_logs(entries_min=1), st.integers(0, SEQ_MAX))
    def test_each_seq_has_one_branch(self, log, seq):
        ends = [SEQ_MAX, *(entry.base for entry in log[:-1])]
        covering = [entry.branch for entry, end in zip(log, ends, strict=True) if entry.base < seq <= end]
        assert covering == [log.branch_at(seq)] if seq > log[-1].base else covering == []

    @pytest.mark.parametrize(
        "data",
        [
            None,
            {},
            "uu",
            [["75" * 16, 1]],
            [["75" * 16, 1, 0, 0]],
            [[7, 1, 0]],
            [["zz" * 16, 1, 0]],
            [["75" * 15, 1, 0]],
            [["75" * 16, 0, 0]],
            [["75" * 16, True, 0]],
            [["75" * 16, 1, -1]],
            [["75" * 16, 1, 1.5]],
            [["75" * 16, 1, SEQ_MAX + 1]],
            [["76" * 16, 2, 0], ["75" * 16, 1, 0]],
            [["76" * 16, 1, 5], ["75" * 16, 1, 0]],
            [["75" * 16, 2, 5], ["75" * 16, 1, 0]],
            [[i.to_bytes(16, "big").hex(), i, i] for i in range(ENTRIES_MAX + 1, 0, -1)],
        ],
    )
    def test_what_is_no_log_is_refused(self, data):
        with pytest.raises(ValueError, match=r"failover log|branch"):
            FailoverLog.from_json(data)

    def test_a_log_is_bounded_and_holds_entries_only(self):
        with pytest.raises(ValueError, match="at most 25"):
            FailoverLog((i.to_bytes(16, "big"), i, i) for i in range(ENTRIES_MAX + 1, 0, -1))
        with pytest.raises(ValueError, match="a branch is 16 bytes"):
            FailoverLog([("u" * 16, 1, 0)])


class TestResumePoint:
    def test_nothing_stored(self):
        assert resume(NOBODY, 0, LOG_U, 100) == Resume(0, ResumeReason.NOTHING_STORED)
        assert resume(NOBODY, 50, LOG_U, 100) == Resume(0, ResumeReason.NOTHING_STORED)

    def test_no_common_branch(self):
        assert resume(FailoverLog([(X, 1, 0)]), 50, LOG_VU, 200) == Resume(0, ResumeReason.NO_COMMON_BRANCH)
        assert resume(LOG_U, 50, NOBODY, 200) == Resume(0, ResumeReason.NO_COMMON_BRANCH)

    def test_the_same_history(self):
        assert resume(LOG_VU, 120, LOG_VU, 200) == Resume(120, ResumeReason.STANDS)
        assert resume(LOG_VU, 200, LOG_VU, 200) == Resume(200, ResumeReason.STANDS)

    def test_the_server_has_less_of_the_same_branch(self):
        assert resume(LOG_U, 101, LOG_U, 100) == Resume(100, ResumeReason.FORKED)

    def test_exactly_at_a_base(self):
        assert resume(LOG_U, 100, LOG_VU, 150) == Resume(100, ResumeReason.STANDS)
        assert resume(LOG_U, 101, LOG_VU, 150) == Resume(100, ResumeReason.FORKED)

    def test_nothing_was_written_after_the_fork(self):
        assert resume(LOG_U, 100, LOG_VU, 100) == Resume(100, ResumeReason.STANDS)
        assert resume(LOG_U, 101, LOG_VU, 100) == Resume(100, ResumeReason.FORKED)
        assert resume(LOG_VU, 100, LOG_VU, 100) == Resume(100, ResumeReason.STANDS)

    def test_hazard_17_the_whole_log_finds_what_one_branch_cannot(self):
        assert resume(LOG_VU, 105, LOG_WU, 120) == Resume(100, ResumeReason.FORKED)
        assert resume(FailoverLog(LOG_VU[:1]), 105, LOG_WU, 120) == Resume(0, ResumeReason.NO_COMMON_BRANCH)

    def test_the_consumers_own_fork_counts_too(self):
        """It left u at 100, whatever the old leader that comes back has of u."""
        assert resume(LOG_VU, 105, LOG_U, 150) == Resume(100, ResumeReason.FORKED)
        assert resume(LOG_VU, 90, LOG_U, 150) == Resume(90, ResumeReason.STANDS)

    def test_two_forks_while_away(self):
        server = FailoverLog([(W, 3, 150), (V, 2, 100), (U, 1, 0)])
        assert resume(LOG_U, 130, server, 200) == Resume(100, ResumeReason.FORKED)
        server = FailoverLog([(W, 3, 80), (U, 1, 0)])  # v forked at 100 and was lost again
        assert resume(LOG_U, 130, server, 200) == Resume(80, ResumeReason.FORKED)
        assert resume(LOG_VU, 130, server, 200) == Resume(80, ResumeReason.FORKED)

    def test_half_a_snapshot_that_the_server_has_whole(self):
        assert resume(LOG_U, 50, LOG_VU, 200, first=20, last=100) == Resume(50, ResumeReason.STANDS)

    def test_half_a_snapshot_whose_end_is_of_another_history(self):
        assert resume(LOG_U, 50, LOG_VU, 200, first=20, last=101) == Resume(20, ResumeReason.HALF_SNAPSHOT)
        assert resume(LOG_U, 20, LOG_VU, 200, first=20, last=101) == Resume(20, ResumeReason.STANDS)

    def test_half_a_snapshot_that_began_above_the_fork(self):
        assert resume(LOG_U, 120, LOG_VU, 200, first=110, last=130) == Resume(100, ResumeReason.FORKED)

    def test_more_branches_than_a_log_holds(self):
        server = LOG_U
        for number in range(ENTRIES_MAX):
            server = server.with_entry(FailoverEntry(number.to_bytes(16, "big"), number + 2, 100 + number))
        assert resume(LOG_U, 50, server, 200) == Resume(0, ResumeReason.NO_COMMON_BRANCH)
        known = FailoverLog([(server[-1].branch, 2, 100), (U, 1, 0)])
        assert resume(known, 50, server, 200) == Resume(50, ResumeReason.STANDS)

    def test_purge_seq_on_either_side(self):
        assert resume(LOG_U, 50, LOG_U, 100, purge_seq=50) == Resume(50, ResumeReason.STANDS)
        assert resume(LOG_U, 50, LOG_U, 100, purge_seq=51) == Resume(0, ResumeReason.PURGED)
        assert resume(LOG_U, 0, LOG_U, 100, purge_seq=51) == Resume(0, ResumeReason.STANDS)

    def test_a_purge_above_the_point_to_roll_back_to(self):
        assert resume(LOG_U, 130, LOG_VU, 200, purge_seq=100) == Resume(100, ResumeReason.FORKED)
        assert resume(LOG_U, 130, LOG_VU, 200, purge_seq=101) == Resume(0, ResumeReason.PURGED)

    def test_a_first_fill_goes_on_while_nothing_is_purged(self):
        assert resume(LOG_U, 50, LOG_U, 100, first=0, last=100, purge=70, purge_seq=70).seq == 50
        assert resume(LOG_U, 50, LOG_U, 100, first=0, last=100, purge=70, purge_seq=71).why is ResumeReason.PURGED

    @pytest.mark.parametrize("bounds", [(-1, -1, 5), (5, 6, 7), (5, 3, 4), (5, 5, SEQ_MAX + 1)])
    def test_numbers_that_contradict_each_other(self, bounds):
        seq, first, last = bounds
        with pytest.raises(ValueError, match="cannot be in a snapshot"):
            resume_point(LOG_U, seq, first, last, None, LOG_U, 100, 0)

    @given(
        failover_logs(entries_min=1),
        st.integers(0, ENTRIES_MAX),
        st.integers(0, ENTRIES_MAX),
        st.lists(st.integers(0, SEQ_MAX), min_size=3, max_size=3).map(sorted),
        st.integers(0, SEQ_MAX),
        st.integers(0, SEQ_MAX),
    )
    def test_it_never_leads_upwards(self, log, consumer_lacks, server_lacks, bounds, high_seq, purge_seq):
        first, seq, last = bounds
        consumer, server = FailoverLog(log[consumer_lacks:]), FailoverLog(log[server_lacks:])
        result = resume_point(consumer, seq, first, last, None, server, high_seq, purge_seq)
        assert 0 <= result.seq <= seq
        assert (result.seq == seq) or result.why is not ResumeReason.STANDS

    @pytest.mark.slow
    def test_every_input_of_a_small_world_agrees_with_a_walk_seq_by_seq(self):
        """Both logs spelled out as the branch of every seq; the common history is what they have in common."""
        logs = [
            FailoverLog(entries)
            for count in (1, 2, 3)
            for branches in itertools.permutations((U, V, W), count)
            for bases in itertools.combinations(range(4), count)
            if (entries := list(zip(branches, range(count, 0, -1), bases[::-1], strict=True)))
        ]
        checked = 0
        for consumer, server in itertools.product(logs, logs):
            for high, last in itertools.product(range(5), range(5)):
                if high < server[0].base:
                    continue
                upper = walked_upper(consumer, server, high, last)
                for first, seq in itertools.combinations_with_replacement(range(last + 1), 2):
                    expected = 0 if upper is None else seq if last <= upper else first if first <= upper else upper
                    assert resume(consumer, seq, server, high, first=first, last=last).seq == expected
                    checked += 1
        assert checked > 100_000


def walked_upper(consumer, server, high, last):
    """The end of the newest common branch, by counting up one seq at a time while both sides still have it."""
    common = [entry.branch for entry in consumer if entry.branch in {known.branch for known in server}]
    if not common:
        return None

    def ends_at(log, seq, end):
        newer = [entry for entry in log if entry.term > next(e.term for e in log if e.branch == common[0])]
        return seq >= (min(entry.base for entry in newer) if newer else end)

    seq = 0
    while not ends_at(consumer, seq, last) and not ends_at(server, seq, high):
        seq += 1
    return seq


class TestRequestBounds:
    def test_inside_a_snapshot(self):
        assert request_bounds(50, 20, 100) == (50, 20, 100)

    def test_between_snapshots(self):
        assert request_bounds(50, 50, 50) == (50, 50, 50)

    def test_a_snapshot_of_which_nothing_was_applied(self):
        assert request_bounds(50, 50, 100) == (50, 50, 50)

    def test_rows_that_were_applied_without_their_position(self):
        assert request_bounds(50, 50, 50, ring_top_seq=60) == (50, 50, 60)
        assert request_bounds(50, 50, 100, ring_top_seq=60) == (50, 50, 100)
        assert request_bounds(50, 20, 55, ring_top_seq=60) == (50, 20, 60)

    def test_in_the_middle_of_a_rollback(self):
        assert request_bounds(50, 50, SNAPSHOT_LAST_UNKNOWN) == (50, 50, 50)
        assert request_bounds(50, 50, SNAPSHOT_LAST_UNKNOWN, ring_top_seq=60) == (50, 50, 50)

    def test_bounds_that_contradict_each_other(self):
        with pytest.raises(ValueError, match="cannot be in a snapshot"):
            request_bounds(50, 60, 70)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_which_versions_a_history_has(steps):
    """Against a list of the branch of each seq, through forks that each lose the newest rows."""
    rows, log, written = [], FailoverLog(), set()
    for term, (count, lost) in enumerate(steps, 1):
        branch = bytes([term]) * 16
        del rows[max(len(rows) - lost, 0) :]
        log = log.with_entry(FailoverEntry(branch, term, len(rows)))
        rows += [branch] * count
        written |= {(branch, seq) for seq, at in enumerate(rows, 1) if at == branch}
        here = Position.at(log, len(rows))
        for branch_of, seq in written:
            is_there = seq <= len(rows) and rows[seq - 1] == branch_of
            assert here.has(branch_of, seq) == is_there
            assert log.may_have(branch_of, seq) == (is_there or branch_of == branch)
        assert log.may_have(branch, len(rows) + 1)
        assert not log.may_have(b"unknown of here.", 1)


def test_a_consumer_inside_a_snapshot_has_what_it_had_at_its_start():
    log = FailoverLog([(b"u" * 16, 1, 0)])
    inside = Position.at(log, 90, 50, 100)
    assert inside.has(b"u" * 16, 50)
    assert not inside.has(b"u" * 16, 51)
    assert not Position.at(log, 50, 50, SNAPSHOT_LAST_UNKNOWN).has(b"u" * 16, 1), "lost rows are still there"
    assert not Position.at(FailoverLog(), 0).has(b"u" * 16, 0)
