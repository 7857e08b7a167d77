"""``tailrace member add`` and ``remove``: the phases and plans by a status."""

import pytest
from tests.tailrace.cli.test_member import HERE, NAMES, A, B, C, D, follower, status

from tailrace.cli import member_change
from tailrace.cli.errors import CommandFailed
from tailrace.cli.member_change import phase_of_change, plan_of_change, why_not_now, why_nothing_to_do
from tailrace.cli.member_rows import rows_of, seats_of
from tailrace.errors import Overloaded
from tailrace.link.address import parse_address, parse_url

THIRD = follower("c:1", C)


def changed(*others, seats=(A, B, C), names=NAMES, joining=(), leaving=(), doing=""):
    told = status(*others, seats=seats)
    told["replication"]["members"] = [*names, *joining]
    told["replication"]["voters"] |= {"names": list(names), "joining": list(joining), "leaving": list(leaving)}
    told["replication"]["doing"] = doing
    return told


def test_how_far_an_addition_has_come():
    told = changed(HERE, THIRD, follower("d:1", D), joining=["d:1"])
    assert seats_of(rows_of(told)) == 3
    assert [row.change for row in rows_of(told)] == ["", "", "", "joins"]
    assert "d:1 catches up: follows a:1" in phase_of_change(told, "add", "d:1").text
    seated = changed(HERE, THIRD, follower("d:1", D), names=[*NAMES, "d:1"], seats=(A, B, C, D))
    assert phase_of_change(seated, "add", "d:1") == ("disk dddddddd of d:1 votes", True)
    assert not phase_of_change(changed(HERE, THIRD), "add", "d:1").is_over


def test_how_far_a_removal_has_come():
    told = changed(HERE, THIRD, leaving=["c:1"], doing="c:1 is to leave: a majority does not hold all rows yet")
    assert "a majority does not hold all rows yet" in phase_of_change(told, "remove", "c:1").text
    gone = changed(HERE, names=NAMES[:2], seats=(A, B))
    assert phase_of_change(gone, "remove", "c:1") == ("c:1 is no member any more: stop it", True)


def test_a_change_that_is_over_is_nothing_to_do():
    rows = rows_of(changed(HERE, THIRD))
    assert why_nothing_to_do(rows, "add", "c:1") == "c:1 is a member already: nothing to do"
    assert why_nothing_to_do(rows, "remove", "d:1").endswith("nothing to do; the members are a:1, b:1, c:1")
    assert not why_nothing_to_do(rows, "add", "d:1")
    assert not why_nothing_to_do(rows, "remove", "c:1")
    joining = rows_of(changed(HERE, THIRD, follower("d:1", D), joining=["d:1"]))
    assert not why_nothing_to_do(joining, "add", "d:1")
    leaving = rows_of(changed(HERE, THIRD, leaving=["c:1"]))
    assert not why_nothing_to_do(leaving, "remove", "c:1")
    assert not why_nothing_to_do(leaving, "add", "c:1")  # the leader refuses it


def test_the_plans_and_what_is_not_safe():
    rows = rows_of(changed(HERE, THIRD))
    assert plan_of_change(rows, "add", "d:1")[-1].endswith("3 of 4 members then")
    assert len(plan_of_change(rows, "remove", "c:1")) == 3
    assert "hands over" in plan_of_change(rows, "remove", "a:1")[1]
    with pytest.raises(CommandFailed, match="d:1 is no member"):
        plan_of_change(rows, "remove", "d:1")
    assert why_not_now(rows, "remove", "c:1").startswith("2 members are left")
    assert not why_not_now(rows, "add", "d:1")
    names = [*NAMES, "d:1"]
    four = rows_of(changed(HERE, THIRD, follower("d:1", D), names=names, seats=(A, B, C, D)))
    assert not why_not_now(four, "remove", "d:1")
    away = rows_of(changed({"address": "b:1", "answers": False}, THIRD, names=names[:3], seats=(A, B, C)))
    assert why_not_now(away, "remove", "c:1").startswith("2 members are left")


@pytest.mark.parametrize(("action", "name"), [("remove", "d:1"), ("add", "e:1")])
def test_nothing_is_safe_without_a_majority_of_the_present_set(action, name):
    """Of four members two are lost. Without one of the lost the other two would be a majority."""
    gone = [{"address": address, "answers": False} for address in ("c:1", "d:1")]
    rows = rows_of(changed(HERE, *gone, names=[*NAMES, "d:1"], seats=(A, B, C, D)))
    assert why_not_now(rows, action, name).startswith("2 of 4 members answer with a vote, and 3 have to store")


async def test_the_leaders_answer_is_told_as_such(monkeypatch):
    async def leader(*_):
        return parse_address("a:1")

    async def busy(*_):
        raise Overloaded("a majority has not stored it yet")

    monkeypatch.setattr(member_change, "find_leader", leader)
    monkeypatch.setattr(member_change, "ask_node", busy)
    told = await member_change._why_not_begun(parse_url("tailrace://a:1"), {}, None)
    assert told == "a:1, which leads, was asked: a majority has not stored it yet"


@pytest.mark.parametrize("action", ["add", "remove"])
def test_a_node_that_is_alone_has_no_members_to_change(call, action):
    done = call("member", action, "d:1")
    assert done.code == 1
    assert "no member of a set" in done.err
    assert call("member", action, "a:b:c:").code == 2
