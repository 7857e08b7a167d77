"""Whose answers count: clusters, lists of members, and copied directories."""

import pytest

from tailrace.errors import Forbidden, ProtocolError
from tailrace_server.replication.election import MemberState
from tailrace_server.replication.eligibility import require_cluster, why_copy, why_other_cluster, why_other_list
from tailrace_server.replication.peers import members_field, seen_from_json, seen_to_json

ME, OTHER, THIRD = b"m" * 16, b"o" * 16, b"t" * 16
OWN = ("a:1", "b:1", "c:1")


def test_a_node_of_another_cluster_is_not_heard():
    assert why_other_cluster(ME, "b:1", ME) == ""
    assert why_other_cluster(ME, "b:1", OTHER).startswith(f"b:1 is of another cluster: {OTHER.hex()} there, {ME.hex()}")
    require_cluster(ME, {"cluster_id": ME.hex()}, "PROMISE")
    with pytest.raises(Forbidden, match=f"PROMISE: the asker is of cluster {OTHER.hex()}"):
        require_cluster(ME, {"cluster_id": OTHER.hex()}, "PROMISE")


def test_who_has_a_disk_of_its_own_is_heard():
    assert why_copy(ME, "b:1", OTHER, {}) == ""
    assert why_copy(ME, "b:1", OTHER, {"b:1": OTHER, "c:1": THIRD}) == ""
    assert why_copy(ME, "b:1", OTHER, {"b:1": THIRD}) == ""  # its disk was replaced


def test_who_has_the_disk_of_this_node_or_of_another_member_is_not():
    assert "b:1 has the placement id of this node" in why_copy(ME, "b:1", ME, {"b:1": OTHER})
    assert "c:1 has the placement id of b:1" in why_copy(ME, "c:1", OTHER, {"b:1": OTHER})


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
    told = seen_to_json(MemberState(members=OWN, software="tailrace 9.8.7"))
    assert seen_from_json(told).software == "tailrace 9.8.7"
    assert seen_from_json(told | {"software": "x" * 10_000}).software == "x" * 60
    del told["software"]  # of an earlier version
    assert seen_from_json(told).software == ""
    assert seen_from_json(told).members == OWN
    del told["members"]
    assert seen_from_json(told).members == ()


@pytest.mark.parametrize("members", ["a:1", [7], ["x" * 10_000], None])
def test_a_list_that_cannot_be_read(members):
    with pytest.raises(ProtocolError, match="'members'"):
        members_field({"members": members}, "PROMISE")


def test_lists_decide_nothing_once_a_record_names_the_members():
    assert "other --members" in why_other_list(["a:1", "b:1"], "b:1", ["b:1"])
    assert why_other_list(["a:1", "b:1"], "b:1", ["b:1"], is_named=True) == ""
    assert "no member of this set" in why_other_list(["a:1", "b:1"], "b:1", [], is_named=True)
