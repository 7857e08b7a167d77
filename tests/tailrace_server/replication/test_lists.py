import pytest

from tailrace.errors import ProtocolError
from tailrace_server.replication.lists import why_other_list
from tailrace_server.replication.peers import members_field, seen_from_json, seen_to_json
from tailrace_server.replication.situation import Seen

OWN = ("a:1", "b:1", "c:1")


@pytest.mark.parametrize("told", [OWN[::-1], OWN[:2], (*OWN, "d:1"), ("a:1", "b:1", "d:1")])
def test_a_list_that_differs(told):
    expected = f"b:1 was started with other --members: {','.join(told)} there, a:1,b:1,c:1 here"
    assert why_other_list(OWN, "b:1", told) == expected


@pytest.mark.parametrize(("own", "told"), [(OWN, OWN), ((), OWN), ((), ()), (OWN, list(OWN))])
def test_lists_that_agree_and_those_of_nodes_without_a_set(own, told):
    assert why_other_list(own, "b:1", told) == ""


def test_a_node_without_a_list_is_no_member():
    assert why_other_list(OWN, "b:1", ()) == "b:1 was started without --members, and is no member of this set"


def test_what_is_said_of_a_long_list_is_short():
    assert len(why_other_list(OWN, "b:1", ["x" * 99] * 1000)) < 500


def test_the_list_is_told_and_an_answer_without_one_is_read():
    told = seen_to_json(Seen(members=OWN))
    assert seen_from_json(told).members == OWN
    del told["members"]
    assert seen_from_json(told).members == ()


@pytest.mark.parametrize("members", ["a:1", [7], ["x" * 10_000], None])
def test_a_list_that_cannot_be_read(members):
    with pytest.raises(ProtocolError, match="'members'"):
        members_field({"members": members}, "PROMISE")
