"""What a report prints."""

from .report import Report


def test_changes_of_leader_are_printed_for_each_minute_and_for_the_worst_run():
    total = Report()
    assert "changes of leader" not in str(total)
    for changes in (0, 1, 0):
        run = Report()
        run.calm(30.0, changes)
        total.add(run)
    assert "changes of leader from 10 s after a lasting cut on: 1 in 90 s, 2 a minute in one run at most" in str(total)
