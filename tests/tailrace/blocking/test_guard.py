"""The guard of a blocking connection, without a connection."""

import pytest

from tailrace.blocking.guard import Guard
from tailrace.errors import TailraceError, WrongProcess


def test_steps_follow_each_other():
    guard = Guard()
    for _ in range(2):
        guard.check()
        guard.check_and_begin()
        assert guard.is_broken  # as the next caller would find it
        guard.end()
        assert not guard.is_broken


@pytest.mark.parametrize("begin", [Guard.check, Guard.check_and_begin])
def test_no_step_follows_one_that_has_not_ended(begin):
    guard = Guard()
    guard.check_and_begin()
    with pytest.raises(TailraceError, match="interrupted in the middle of a step"):
        begin(guard)


@pytest.mark.parametrize("begin", [Guard.check, Guard.check_and_begin])
def test_no_step_begins_in_a_forked_process(begin):
    guard = Guard()
    guard._forked_from = 1
    with pytest.raises(WrongProcess):
        begin(guard)
    assert not guard.is_broken
