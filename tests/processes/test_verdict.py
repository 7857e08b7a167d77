"""The verdict on histories of a few rows, some as clients were told and some not."""

from __future__ import annotations

import pytest
import trio.testing

from tailrace import Version, VersionRange
from tailrace.model.failover import FailoverEntry, FailoverLog

from .history import Branches, Condition, History, Kind, Row
from .verdict import Verdict
from .violation import Violation

BRANCH = b"first branch...."
NEWER = b"second branch..."


class Tale:
    """A history of one partition. ``rows`` are the rows of the feed in the end."""

    def __init__(self, *rows):
        self.history = History(1)
        self.history.branches[0].started(FailoverLog([FailoverEntry(BRANCH, 1, 0)]), 1, 1, "start")
        self.rows = [Row(key, value, 1) for key, value in rows]

    def asked(self, *changes, condition=None, lasting=True):
        (write,) = self.history.ask(changes, condition, lasting=lasting).values()
        return write

    def written(self, first_seq, *changes, condition=None, lasting=True, branch=BRANCH):
        write = self.asked(*changes, condition=condition, lasting=lasting)
        self.history.acknowledge(write, VersionRange(0, branch, first_seq, first_seq + len(changes) - 1))
        return write

    def refused(self, *changes):
        self.history.refuse(self.asked(*changes))

    def looked(self, key, seq, value=None, floor=None):
        version = None if seq is None else Version(0, BRANCH, seq)
        self.history.look(key, self.history.floors[0] if floor is None else floor, version, value, "a get")

    def judge(self):
        Verdict(self.history, {0: self.rows}).check()

    def fails(self, match):
        with pytest.raises(Violation, match=match):
            self.judge()


A1, A2, B1, NO_A = (b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", None)


def test_all_is_well():
    tale = Tale(A1, A2, B1, NO_A)
    tale.written(1, A1)
    tale.written(2, A2, B1)
    tale.written(4, NO_A)
    tale.looked(b"a", None)
    tale.looked(b"b", 3, b"3")
    tale.judge()


@pytest.mark.parametrize("rows", [(), (A1,), (A1, NO_A), (NO_A,)])
def test_what_was_not_answered_may_be_there_or_not(rows):
    tale = Tale(*rows)
    tale.asked(A1)
    tale.asked(NO_A)
    tale.judge()


def test_an_acknowledged_write_is_lost():
    tale = Tale(A2)
    tale.written(1, A2)
    tale.written(2, A1)
    tale.fails("should be at seq 2")


def test_another_row_stands_where_it_was_told_to_be():
    tale = Tale(A2, A1)
    tale.asked(A2)
    tale.written(1, A1)
    tale.fails("should be at seq 1")


def test_a_write_is_there_twice():
    tale = Tale(A1, B1, A1)
    tale.written(1, A1)
    tale.asked(B1)
    tale.fails("there twice")


def test_a_deletion_is_there_twice():
    tale = Tale(NO_A, NO_A)
    tale.written(1, NO_A)
    tale.fails("nobody has asked for the deletion at 0/2")


def test_a_refused_write_is_there():
    tale = Tale(A1)
    tale.refused(A1)
    tale.fails("was refused, and is there")


def test_nobody_asked():
    Tale(A1).fails("nobody has asked")


@pytest.mark.parametrize("rows", [(A1,), (A1, A2, B1), (B1, A1)])
def test_a_block_is_there_in_part(rows):
    tale = Tale(*rows)
    tale.asked(A2)
    tale.asked(A1, B1)
    tale.fails("should be at|in part")


def test_time_goes_forward():
    tale = Tale(A2, A1)
    tale.written(2, A1)
    tale.asked(A2)
    tale.fails("before what was there")


def test_a_pipeline_keeps_its_order():
    tale = Tale(B1, A1)
    tale.history.pipelines.append([tale.asked(A1), tale.asked(B1)])
    tale.fails("another order")


def test_a_pipelined_row_stands_where_the_flush_says():
    tale = Tale(A1, NO_A, B1)
    tale.written(1, A1)
    deletion = tale.asked(NO_A)
    tale.history.acknowledge_within(deletion, VersionRange(0, BRANCH, 2, 3))
    tale.asked(B1)
    tale.judge()
    tale.history.acknowledge_within(deletion, VersionRange(0, BRANCH, 3, 3))
    tale.fails("nobody has asked for the deletion at 0/2|are lost")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Condition(Kind.IF_ABSENT), False),
        (Condition(Kind.IF_PRESENT), True),
        (Condition(Kind.IF_VERSION, Version(0, BRANCH, 1)), True),
        (Condition(Kind.IF_VERSION, Version(0, BRANCH, 2)), False),
    ],
)
@pytest.mark.parametrize("answered", [True, False])
def test_conditions(condition, holds, answered):
    tale = Tale(A1, B1, A2)
    tale.written(1, A1)
    tale.written(2, B1)
    if answered:
        tale.written(3, A2, condition=condition)
    else:
        tale.asked(A2, condition=condition)
    if holds:
        tale.judge()
    else:
        tale.fails("was made at 3")


@pytest.mark.parametrize(
    ("floor", "seq", "value", "well"),
    [
        (0, None, None, True),  # before the first put
        (1, None, None, True),  # between the deletion and the second put
        (0, 1, b"1", True),
        (1, 1, b"1", True),
        (2, 1, b"1", False),  # it was deleted before
        (2, 4, b"2", True),
        (4, None, None, False),  # it has been there ever since
        (4, 4, b"other", False),
        (1, 2, None, False),  # that is a deletion
        (1, 3, b"3", False),  # that is another key
    ],
)
def test_looks(floor, seq, value, well):
    tale = Tale(A1, NO_A, B1, A2)
    for seq_, change in enumerate((A1, NO_A, B1, A2), 1):
        tale.written(seq_, change)
    tale.looked(b"a", seq, value, floor)
    if well:
        tale.judge()
    else:
        tale.fails("a get|a look")


@pytest.mark.parametrize(
    ("floor", "values", "at", "well"),
    [
        (0, {}, None, True),
        (1, {}, None, True),  # the state at 2
        (1, {b"b": b"3"}, None, True),
        (1, {b"b": b"3", b"a": b"1"}, None, False),  # no moment has both
        (3, {}, None, False),
        (1, {b"b": b"3"}, 3, True),
        (1, {b"b": b"3"}, 2, False),
        (4, {b"b": b"3"}, 3, False),
    ],
)
def test_states(floor, values, at, well):
    tale = Tale(A1, NO_A, B1, A2)
    for seq, change in enumerate((A1, NO_A, B1, A2), 1):
        tale.written(seq, change)
    tale.history.look_at_state({0: floor}, values, "an index", None if at is None else {0: at})
    if well:
        tale.judge()
    else:
        tale.fails("an index")


def restarted(tale, base):
    log = FailoverLog([FailoverEntry(NEWER, 2, base), FailoverEntry(BRANCH, 1, 0)])
    tale.history.branches[0].started(log, 1, 1, "second start")


def test_a_version_is_of_the_branch_of_its_seq():
    tale = Tale(A1, B1)
    tale.written(1, A1)
    restarted(tale, 1)
    tale.written(2, B1, branch=NEWER)
    tale.judge()
    tale.history.names.add((0, 1, NEWER))
    tale.fails("was told to be of branch")


def test_an_acknowledged_write_is_above_the_end_of_its_branch():
    tale = Tale(A1, B1)
    tale.written(1, A1)
    tale.written(2, B1)
    restarted(tale, 1)
    tale.fails("of branch|has ended before it")


def test_what_was_not_to_last_may_be_lost_and_does_not_come_back():
    tale = Tale(A1)
    tale.written(1, A1)
    tale.written(2, B1, lasting=False)
    restarted(tale, 1)
    tale.judge()
    tale.rows.append(Row(*B1, 1))
    tale.fails("was refused, and is there")


def test_what_a_stream_has_delivered_stays():
    tale = Tale(A1)
    tale.written(1, A1)
    tale.history.observe(0, 2, Row(*B1, 1), BRANCH)
    tale.fails("not there any more")


def test_a_stream_delivers_what_was_acknowledged():
    tale = Tale(A1)
    tale.written(1, A1)
    with pytest.raises(Violation, match="was acknowledged as"):
        tale.history.observe(0, 1, Row(*A2, 1), BRANCH)


def test_what_was_not_to_last_is_lost_with_its_branch_only():
    tale = Tale()
    tale.written(1, A1, lasting=False)
    tale.fails("should be at seq 1")


def test_what_was_lost_is_counted():
    tale = Tale(A1)
    tale.written(1, A1)
    tale.written(2, B1, lasting=False)
    restarted(tale, 1)
    verdict = Verdict(tale.history, {0: tale.rows})
    verdict.check()
    assert verdict.lost == 1


@pytest.mark.parametrize("lasting", [True, False])
def test_an_acknowledged_write_is_on_the_branch_that_was_told(lasting):
    tale = Tale(A1)
    tale.written(1, A1, branch=NEWER, lasting=lasting)
    tale.fails("of branch" if lasting else "is there")


def test_the_version_that_is_replaced_is_of_the_branch_that_was_told():
    tale = Tale(A1, A2)
    tale.asked(A1)
    tale.asked(A2, condition=Condition(Kind.IF_VERSION, Version(0, NEWER, 1)))
    tale.fails("of another branch")


def test_a_look_is_not_older_than_what_was_known():
    tale = Tale(A1, A2)
    tale.written(1, A1)
    tale.written(2, A2)
    with pytest.raises(Violation, match="was at 0/2, and a get says"):
        tale.looked(b"a", 1)


def test_the_final_state_is_that_of_the_last_rows():
    tale = Tale(A1, B1, A2, (b"b", None))
    assert Verdict(tale.history, {0: tale.rows}).final_state() == {b"a": (0, 3, b"2")}


async def test_answers_are_waited_for(nursery):
    history = History(1)
    done = []

    async def wait():
        await history.more_answers(2)
        done.append(True)

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    history.answered()
    assert not done
    history.answered()
    await trio.testing.wait_all_tasks_blocked()
    assert done


def entries(*branches):
    return FailoverLog([FailoverEntry(bytes([term]) * 16, term, base) for term, base in branches])


@pytest.mark.parametrize(
    ("log", "match"),
    [
        (entries((3, 9), (2, 5), (1, 0)), None),
        (entries((3, 5), (1, 0)), None),  # nothing was written on the second branch
        (entries((2, 5), (1, 0)), "term"),
        (entries((4, 9), (2, 5), (1, 0)), "term"),
        (entries((3, 9), (1, 0)), "does not follow"),
        (entries((3, 9), (2, 6), (1, 0)), "does not follow"),
    ],
)
def test_a_log_follows_from_the_one_before(log, match):
    branches = Branches()
    branches.started(entries((2, 5), (1, 0)), 2, 2, "first")
    if match is None:
        branches.started(log, 1, 1, "second")
        assert branches.branch_at(3) == bytes([1]) * 16
    else:
        with pytest.raises(Violation, match=match):
            branches.started(log, 1, 1, "second")


def test_the_oldest_branch_of_a_log_may_stand_for_those_before_it():
    branches = Branches()
    log = entries((1, 0))
    for term in range(2, 30):
        log = log.with_entry(FailoverEntry(bytes([term]) * 16, term, 10 * term))
        branches.started(log, term if term == 2 else 1, 2, "a start")
    assert branches.branch_at(5) == bytes([1]) * 16
    assert branches.names(5) == {bytes([term]) * 16 for term in (1, 2, 3, 4, 5)}
    assert branches.names(285) == {bytes([28]) * 16}
