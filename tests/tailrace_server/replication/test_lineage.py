"""An older copy of a member's own directory is told from that directory, and no crash or restart looks like one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError
from tailrace_server.replication.lineage import (
    STARTS_MAX,
    Lineage,
    MemberStart,
    known_from_json,
    known_to_json,
    learned,
    line_from_json,
    line_to_json,
    why_older,
)
from tailrace_server.replication.membership import Membership


class Directory:
    """A member's MEMBERSHIP and journal; what was written, and what of it was durable."""

    def __init__(self, rnd):
        self.rnd = rnd
        self.membership = Membership()
        self.durable = self.written = 64
        self.file = 1
        self.start()

    def start(self):
        """After a stop of any kind: a crash keeps anything between what was durable and what was written."""
        end = self.rnd.randint(self.durable, self.written)
        found = self.file, end
        if self.rnd.random() < 0.5:  # a new file, to which what was not known to be durable is copied
            self.file, end = self.file + 1, 64
        self.durable = self.written = end
        self.membership = self.membership.begun(self.rnd.randbytes(8), found)

    def write(self):
        self.written += self.rnd.randint(1, 100)

    def sync(self):
        self.durable = self.written

    def line(self):
        now = self.membership
        return Lineage(now.start._replace(end=(self.file, self.durable)), now.before, now.older is not None)

    def copy(self):
        other = Directory.__new__(Directory)
        other.__dict__.update(self.__dict__)
        return other


def told(directory, known):
    """What another member makes of what the directory tells: why its word does not count, and what is remembered."""
    line = directory.line()
    why = why_older("a", known, line)
    return why, known if why else learned(known, line.now)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
def test_no_crash_or_restart_looks_like_an_older_copy(seed, steps):
    rnd = random.Random(seed)
    directory, known = Directory(rnd), [None, None]
    for _ in range(steps):
        rnd.choice((directory.start, directory.write, directory.write, directory.sync, directory.sync))()
        other = rnd.randrange(2)
        if rnd.random() < 0.7:
            why, known[other] = told(directory, known[other])
            assert not why
        for placement in range(2):  # what others were told is passed on, and is as true of the directory itself
            if known[1 - placement] is not None:
                known[placement] = learned(known[placement], known[1 - placement])
        assert known[0] is None or not why_older("", known[0], directory.line())


@given(seed=st.integers(0, 2**32), restarts=st.integers(1, STARTS_MAX - 1), is_running=st.booleans())
def test_an_older_copy_is_told_however_often_it_is_started(seed, restarts, is_running):
    rnd = random.Random(seed)
    directory, known = Directory(rnd), None
    for _ in range(rnd.randint(0, 5)):
        directory.write()
        directory.sync()
        directory.start()
    copy = directory.copy()
    if not is_running:
        directory.start()
    directory.write()
    directory.sync()
    why, known = told(directory, known)
    assert not why
    for _ in range(restarts):
        copy.start()
        why, known = told(copy, known)
        assert why, "it lacks what was durable, and told"
        assert why_older("", known, copy.line()), "it can tell itself, where it hears of that"
    copy.membership = copy.membership.found_older(known)
    assert told(copy, None)[0], "who has been told nothing hears it from itself"
    copy.start()
    assert told(copy, None)[0], "after a restart, too"
    copy.membership = copy.membership.caught_up(rnd.randbytes(8))
    assert not told(copy, known)[0], "it holds what the leader has"
    copy.start()
    assert not told(copy, known)[0]


@given(seed=st.integers(0, 2**32), restarts=st.integers(1, 4))
def test_a_copy_that_has_caught_up_is_believed_by_those_who_were_told_more_or_were_away(seed, restarts):
    rnd = random.Random(seed)
    directory, told_starts = Directory(rnd), []
    copy = directory.copy()
    for _ in range(rnd.randint(1, 4)):
        for _ in range(2):  # others look at different times, and some were away since
            directory.write()
            directory.sync()
            told_starts.append(directory.line().now)
        copy = directory.copy() if rnd.random() < 0.5 else copy
        directory.start()
    directory.write()
    directory.sync()
    told_starts += [directory.line().now, directory.line().now._replace(end=(directory.file + 1, 64))]
    for _ in range(restarts):
        copy.start()
    copy.membership = copy.membership.found_older(told_starts[-2]).caught_up(rnd.randbytes(8))
    for _ in range(2):
        assert not [known for known in told_starts if why_older("", known, copy.line())]
        copy.start()


@given(seed=st.integers(0, 2**32), lost=st.integers(1, 4), restarts=st.integers(1, 4))
def test_a_copy_that_has_caught_up_is_believed_by_one_that_was_told_of_the_copy_alone(seed, lost, restarts):
    """That one was away while the directory ran, and could not know better. The vote would be lost a second time."""
    rnd = random.Random(seed)
    directory, known = Directory(rnd), []
    copy = directory.copy()
    for _ in range(lost):
        directory.start()
    for _ in range(restarts):
        copy.start()
        known.append(copy.line().now)
    copy.membership = copy.membership.found_older(directory.line().now).caught_up(rnd.randbytes(8))
    for _ in range(2):
        assert not [start for start in known if why_older("", start, copy.line())]
        copy.start()


def test_two_copies_that_both_were_believed_leave_one_that_all_believe():
    rnd = random.Random(1)
    directory = Directory(rnd)
    copy = directory.copy()
    for _ in range(2):
        directory.start()
    copy.start()
    known = [copy.line().now, directory.line().now]  # of one that was away while the directory ran, and of the other
    for _ in range(2):
        for other in range(2):
            if why_older("", known[other], directory.line()):
                before = directory.membership.start
                directory.membership = directory.membership.found_older(known[other]).caught_up(rnd.randbytes(8))
                assert directory.membership.start.number > before.number, "a number that was told is not given again"
            else:
                known[other] = learned(known[other], directory.line().now)
    assert not [start for start in known if why_older("", start, directory.line())]


def test_a_member_of_an_earlier_version_is_believed():
    known = MemberStart(3, b"t" * 8, (1, 100))
    assert not why_older("a", known, None)


def test_what_is_told_comes_over_the_wire_as_it_is():
    line = Lineage(
        MemberStart(3, b"t" * 8, (1, 100)), (MemberStart(2, b"s" * 8, (1, 90)), MemberStart(1, b"r" * 8, (1, 64))), True
    )
    assert line_from_json({"line": line_to_json(line)}, "x") == line
    assert line_from_json({}, "x") is None
    known = {b"p" * 16: line.now}
    assert known_from_json({"known": known_to_json(known)}, "x") == known
    for bad in ({"start": [1], "before": [], "older": False}, {"start": [1, "zz", 0, 0], "before": [], "older": False}):
        with pytest.raises(ProtocolError):
            line_from_json({"line": bad}, "x")
    with pytest.raises(ProtocolError, match="17 earlier starts"):
        line_from_json({"line": line_to_json(line._replace(before=(line.now,) * 17))}, "x")
