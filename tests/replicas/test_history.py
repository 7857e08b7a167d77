"""The verdict finds what it has to find."""

from __future__ import annotations

import pytest
import trio.testing
from tests.processes.history import Row
from tests.processes.violation import Violation

from tailrace import Version
from tailrace.model.failover import FailoverLog

from .history import Copy, History, compare, final_state

OLD, NEW = b"o" * 16, b"n" * 16
# OLD has ended at 2; what was at 3 and above on it is gone.
LOG = FailoverLog([(NEW, 2, 2), (OLD, 1, 0)])


def make_copy(*values):
    return Copy({0: [Row(b"k", value, seq) for seq, value in enumerate(values, 1)]}, {0: LOG})


def written(level, branch, seq, value=b"v", base=None):
    history = History()
    history.acknowledge(history.ask(b"k", value, level, base), Version(0, branch, seq))
    return history


@pytest.mark.parametrize("level", ["disk", "quorum"])
def test_what_was_acknowledged_is_there(level):
    history = written(level, OLD, 1)
    history.check(make_copy(b"v"))
    with pytest.raises(Violation, match="lost"):
        history.check(make_copy())


def test_only_what_was_acknowledged_at_disk_may_be_lost_with_its_branch():
    history = written("disk", OLD, 3)
    history.check(make_copy())
    assert history.lost(make_copy()) == 1
    with pytest.raises(Violation, match="lost"):
        written("quorum", OLD, 3).check(make_copy())


def test_it_is_on_the_branch_that_was_told():
    with pytest.raises(Violation, match="another branch"):
        written("quorum", NEW, 1).check(make_copy(b"v"))


def test_it_is_where_was_told():
    history = written("quorum", OLD, 1)
    history.ask(b"k", b"w", "disk")
    with pytest.raises(Violation, match=r"is at \(0, 2\)"):
        history.check(make_copy(b"w", b"v"))


def test_nothing_is_there_twice():
    with pytest.raises(Violation, match="twice"):
        written("quorum", OLD, 1).check(make_copy(b"v", b"v"))


def test_what_was_refused_is_nowhere_and_what_nobody_wrote_is_not_there():
    history = History()
    history.ask(b"k", b"v", "quorum").refused = True
    history.check(make_copy())
    with pytest.raises(Violation, match="refused"):
        history.check(make_copy(b"v"))
    with pytest.raises(Violation, match="nobody"):
        History().check(make_copy(b"v"))


def test_without_an_answer_it_may_be_there_or_not():
    history = History()
    history.ask(b"k", b"v", "quorum")
    history.check(make_copy())
    history.check(make_copy(b"v"))


def test_nothing_comes_between_a_version_and_what_replaces_it():
    history = written("quorum", OLD, 2, b"w", base=Version(0, OLD, 1))
    history.ask(b"k", b"v", "disk")
    history.check(make_copy(b"v", b"w"))
    history = written("quorum", NEW, 3, b"w", base=Version(0, OLD, 1))
    history.ask(b"k", b"v", "disk")
    history.ask(b"k", b"x", "disk")
    with pytest.raises(Violation, match="when the key was at 2"):
        history.check(make_copy(b"v", b"x", b"w"))


def test_what_is_replaced_is_of_the_branch_that_was_known():
    history = written("quorum", NEW, 3, b"w", base=Version(0, NEW, 2))
    history.ask(b"k", b"v", "disk")
    history.ask(b"k", b"x", "disk")
    with pytest.raises(Violation, match="of another branch"):
        history.check(make_copy(b"v", b"x", b"w"))


def test_copies_are_compared_by_rows_and_logs():
    compare("a", make_copy(b"v"), "b", make_copy(b"v"))
    with pytest.raises(Violation, match="1 rows"):
        compare("a", make_copy(b"v"), "b", make_copy(b"v", b"w"))
    with pytest.raises(Violation, match="first that differs is 1"):
        compare("a", make_copy(b"x"), "b", make_copy(b"v"))
    with pytest.raises(Violation, match="logs"):
        compare("a", make_copy(b"v")._replace(logs={0: FailoverLog([(OLD, 1, 0)])}), "b", make_copy(b"v"))


def test_the_state_is_what_the_last_rows_say():
    assert final_state(make_copy(b"v", b"w")) == {b"k": b"w"}
    assert final_state(make_copy(b"v", None)) == {}


async def test_answers_are_waited_for(nursery):
    history = History()
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
