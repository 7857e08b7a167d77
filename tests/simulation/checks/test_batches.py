"""Which rows of batches the simulator accepts."""

import pytest
from tests.processes.violation import Violation

from .batches import VALUE_PREFIX, Batches, Share, StandingRuns

BATCH = ("sink", 0)
ROWS = ((b"a", VALUE_PREFIX + b"1"), (b"b", None), (b"a", VALUE_PREFIX + b"2"))
AGAIN = ((b"a", VALUE_PREFIX + b"3"), (b"b", VALUE_PREFIX + b"4"), (b"a", None))


@pytest.fixture
def runs():
    """Of partition 0, for which one batch was asked for in two ways."""
    batches = Batches()
    batches.asked(Share(BATCH, ROWS))
    batches.asked(Share(BATCH, AGAIN))
    return StandingRuns(0, batches)


def append(runs, first_seq, rows):
    for seq, row in enumerate(rows, first_seq):
        runs.append(seq, *row)


def test_a_batch_among_rows_of_others(runs):
    append(runs, 1, [(b"a", b"of a writer"), *ROWS, (b"b", None)])
    assert runs.of(BATCH)[1:] == runs.newest("sink")[1:] == (1, 4)
    for seq in (0, 1, 4, 5):
        runs.check_stands(seq, "a program")


@pytest.mark.parametrize("seq", [2, 3])
def test_no_program_stands_within_a_batch(runs, seq):
    append(runs, 1, [(b"a", b"of a writer"), *ROWS])
    with pytest.raises(Violation, match=f"a program stands at 0/{seq}, within"):
        runs.check_stands(seq, "a program")


def test_a_batch_that_has_only_begun_is_within_already(runs):
    append(runs, 1, ROWS[:1])
    with pytest.raises(Violation, match="within"):
        runs.check_stands(1, "a program")


def test_a_batch_is_there_once_in_whatever_pieces(runs):
    append(runs, 1, ROWS)
    with pytest.raises(Violation, match="and again at 4"):
        append(runs, 4, AGAIN)


def test_nothing_comes_between_the_rows_of_a_batch(runs):
    with pytest.raises(Violation, match="inside of"):
        append(runs, 1, [ROWS[0], (b"b", b"of a writer")])


def test_two_lists_of_stages_are_not_mixed(runs):
    with pytest.raises(Violation, match="inside of"):
        append(runs, 1, [*ROWS[:2], AGAIN[0]])


def test_rows_that_no_sink_has_published(runs):
    with pytest.raises(Violation, match="no sink has published"):
        append(runs, 1, [(b"a", VALUE_PREFIX + b"staged")])


def test_a_crash_takes_all_of_a_batch_or_nothing(runs):
    append(runs, 1, [(b"a", b"of a writer"), *ROWS])
    with pytest.raises(Violation, match="a start stands at 0/3"):
        runs.cut(3)
    runs.cut(1)
    assert runs.of(BATCH) is None
    append(runs, 2, AGAIN)
    assert runs.of(BATCH)[1:] == (1, 4)
