"""``tailrace member``: what it says of the members by a status, and beside a set whose disk is replaced."""

import pytest

from tailrace.cli.errors import CommandFailed
from tailrace.cli.member import phase_of, plan_of, why_unsafe
from tailrace.cli.member_rows import MemberRow, Phase, rows_of

A, B, C, D = ("aa" * 16, "bb" * 16, "cc" * 16, "dd" * 16)
NAMES = ["a:1", "b:1", "c:1"]


def follower(address, disk, **more):
    seen = {"role": "follower", "term": 3, "leader": "a:1", "ready": None}
    return {"address": address, "answers": True, "placement_id": disk} | seen | more


def status(*others, seats=(A, B, C), lag=0):
    """The status of the leader, a:1 on disk A."""
    return {
        "placement_id": A,
        "replication": {
            "role": "leader",
            "term": 3,
            "leader": "",
            "members": NAMES,
            "voters": {"term": 3, "epoch": 2, "seats": list(seats)},
            "others": list(others),
            "replicas": [{"placement_id": D, "lag": lag}],
        },
    }


AWAY = {"address": "c:1", "answers": False}
HERE = follower("b:1", B)


def test_each_member_has_its_disk_its_seat_and_what_it_does():
    found = rows_of(status(HERE, follower("c:1", D), lag=1_000))
    assert [row.votes for row in found] == [True, True, False]
    assert found[0] == MemberRow("a:1", A, A, "leads in term 3")
    assert found[1] == MemberRow("b:1", B, B, "follows a:1")
    assert found[2] == MemberRow("c:1", D, C, "follows a:1, 1,000 mutations behind; has no vote until it has caught up")
    assert rows_of(status(HERE, AWAY))[2].disk == ""


def test_a_node_outside_of_a_set_and_a_set_that_is_not_recorded():
    with pytest.raises(CommandFailed, match="no member of a set"):
        rows_of({"replication": {"members": []}})
    with pytest.raises(CommandFailed, match="not recorded yet"):
        rows_of({"replication": {"members": NAMES, "voters": {"term": 0, "epoch": 0, "seats": []}}})


def test_a_node_that_is_not_added_yet_names_the_members_to_ask():
    told = {"members": NAMES, "is_new": False}
    others = [follower("a:1", A, **told) | {"role": "leader"}, follower("b:1", B, **told), AWAY]
    replication = {"members": [*NAMES, "d:1"], "voters": {"term": 0, "epoch": 0, "seats": []}, "others": others}
    with pytest.raises(
        CommandFailed, match=r"d:1 is no member yet: a:1, b:1, c:1 are.*--node a:1`.*add d:1 --node a:1"
    ):
        rows_of({"replication": replication})
    new = [other | {"is_new": True} for other in others[:2]]
    with pytest.raises(CommandFailed, match="not recorded yet"):
        rows_of({"replication": replication | {"others": [*new, AWAY]}})


@pytest.mark.parametrize(
    ("third", "seats", "says"),
    [
        (follower("c:1", C), (A, B, C), "stop it, move its directory away"),
        (AWAY, (A, B, C), "stop it, move its directory away"),
        (follower("c:1", D), (A, B, C), "the new disk dddddddd catches up"),
        (follower("c:1", D, ready=[3, 2]), (A, B, C), "the old one, cccccccc, still has the vote"),
        (follower("c:1", D, ready=[3, 2]), (A, B, ""), "is about to get it"),
        (follower("c:1", D), (A, B, D), "disk dddddddd of c:1 votes"),
    ],
)
def test_how_far_a_replacement_has_come(third, seats, says):
    phase = phase_of(status(HERE, third, seats=seats), "c:1", C)
    assert says in phase.text
    assert phase.is_over == ("votes" in says)


@pytest.mark.parametrize("old", ["", C, C[:8]])
def test_a_disk_that_has_come_before_the_command_is_not_waited_for_again(old):
    told = status(HERE, follower("c:1", D), seats=(A, B, D))
    assert phase_of(told, "c:1", old) == Phase("disk dddddddd of c:1 votes", is_over=True)


def test_the_record_tells_that_a_disk_is_replaced_though_its_member_does_not_answer():
    assert phase_of(status(HERE, AWAY, seats=(A, B, D)), "c:1", C).is_over
    assert not phase_of(status(HERE, AWAY, seats=(A, B, "")), "c:1", C).is_over


def test_who_waits_is_told_which_disk_votes_and_how_to_call_again():
    waits = phase_of(status(HERE, follower("c:1", C)), "c:1", C[:8]).text
    assert "Disk cccccccc has the vote: if that is the new disk, all is done" in waits
    assert "--disk cccccccc" in waits
    assert "--disk" not in phase_of(status(HERE, AWAY, seats=(A, B, "")), "c:1", "").text


@pytest.mark.parametrize("disk", ["ccccccc", "not a disk", "c" * 33])
def test_a_disk_that_is_none_is_refused(call, disk):
    done = call("member", "replace", "c:1", "--disk", disk)
    assert done.code == 2
    assert "8 to 32 hexadecimal digits" in done.err


def test_the_plan_and_whether_it_is_safe():
    whole = rows_of(status(HERE, follower("c:1", C)))
    assert len(plan_of(whole, "c:1")) == 4
    assert not why_unsafe(whole, "c:1")
    torn = rows_of(status({"address": "b:1", "answers": False}, follower("c:1", D)))
    assert len(plan_of(torn, "c:1")) == 3
    assert why_unsafe(torn, "c:1").startswith("1 of the other members")
    with pytest.raises(CommandFailed, match="d:1 is no member: a:1, b:1, c:1 are"):
        plan_of(whole, "d:1")


def test_a_node_that_is_alone_has_no_members(call):
    done = call("member", "list")
    assert done.code == 1
    assert "no member of a set" in done.err
    assert call("member", "replace", "a:b:c:").code == 2
