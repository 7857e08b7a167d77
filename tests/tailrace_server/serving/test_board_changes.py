"""What a console is sent of a view that has changed."""

import pytest

from tailrace_server.serving.board.changes import Shown, same


def page(*rows, **members):
    return {"consumers": [dict(row) for row in rows], **members}


def row(id, **members):
    return {"id": id, "lag_s": 0.0, "age_s": 1.0, "sent": 5} | members


def test_the_whole_comes_first_and_then_nothing():
    shown = Shown("consumers")
    value = page(row("a"), total=1)
    assert shown.update(value, 0.0) == {"type": "value", "value": value}
    assert shown.update(page(row("a", age_s=3.0), total=1), 2.0) is None


def test_only_changed_rows_come():
    shown = Shown("consumers")
    shown.update(page(row("a"), row("b"), total=2), 0.0)
    message = shown.update(page(row("a"), row("b", sent=6), total=2), 2.0)
    assert message == {"type": "changes", "set": {}, "rows": [row("b", sent=6)]}


def test_rows_that_come_go_and_move():
    shown = Shown("consumers")
    shown.update(page(row("a"), row("b"), total=2), 0.0)
    message = shown.update(page(row("b"), row("c"), total=2), 2.0)
    assert message == {"type": "changes", "set": {}, "rows": [row("c")], "gone": ["a"], "order": ["b", "c"]}
    assert shown.update(page(row("c"), row("b"), total=3), 4.0) == {
        "type": "changes",
        "set": {"total": 3},
        "order": ["c", "b"],
    }


def test_ages_come_with_every_change():
    """A page counts them up from the moment at which the last message of the view came."""
    shown = Shown("overview")
    shown.update({"state": "moving", "uptime_s": 5.0, "problems": []}, 0.0)
    assert shown.update({"state": "moving", "uptime_s": 7.0, "problems": []}, 2.0) is None
    message = shown.update({"state": "stuck", "uptime_s": 9.0, "problems": []}, 4.0)
    assert message == {"type": "changes", "set": {"state": "stuck", "uptime_s": 9.0}}


def test_a_lag_that_grows_by_itself_is_no_change():
    shown = Shown("consumers")
    shown.update(page(row("a", lag_s=4.0)), 0.0)
    assert shown.update(page(row("a", lag_s=6.0)), 2.0) is None
    assert shown.update(page(row("a", lag_s=104.0)), 100.0) is None
    message = shown.update(page(row("a", lag_s=50.0)), 102.0)
    assert message["rows"] == [row("a", lag_s=50.0)]
    assert shown.update(page(row("a", lag_s=0.0)), 104.0)["rows"] == [row("a", lag_s=0.0)]


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ({"problems": [{"text": "x", "since_s": 1.0}]}, {"problems": [{"text": "x", "since_s": 3.0}]}, True),
        ({"problems": [{"text": "x", "since_s": 1.0}]}, {"problems": [{"text": "y", "since_s": 3.0}]}, False),
        ({"problems": [1]}, {"problems": [1, 2]}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"since_s": None}, {"since_s": 1.0}, False),
        ({"lag_s": None}, {"lag_s": 0.0}, False),
    ],
)
def test_nested_values(old, new, is_same):
    assert same("", old, new, 2.0) is is_same


def test_a_failure_is_told_once_and_the_whole_comes_after_it():
    shown = Shown("overview")
    assert shown.fail("UnknownFeed", "no") == {"type": "failed", "error": "UnknownFeed", "message": "no"}
    assert shown.fail("UnknownFeed", "no") is None
    assert shown.update({"state": "moving"}, 0.0) == {"type": "value", "value": {"state": "moving"}}
    assert shown.fail("UnknownFeed", "no")["type"] == "failed"
