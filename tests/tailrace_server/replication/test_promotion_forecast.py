"""What status says of a promotion, by tables and by sets as they are."""

import itertools
import json
import re
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config, until

import tailrace
from tailrace.errors import NotLeader
from tailrace.model import Level
from tailrace_server.replication import promotion_forecast as module
from tailrace_server.replication.election import MemberState
from tailrace_server.replication.promotion_forecast import (
    KnownReplica,
    forecast_of_follower,
    forecast_of_leader,
    forecast_of_lone_node,
    lost_majority,
)
from tailrace_server.serving import status
from tailrace_server.serving.console import http_listener
from tailrace_server.serving.status import status_of

GUIDE = Path(__file__).parents[3] / "docs" / "reference" / "status.md"

ids = itertools.count(1)


def seen(**changes):
    return MemberState(next(ids).to_bytes(16, "big"))._replace(
        **{"votes": True, "term": 3, "held_term": 3, "held": 10} | changes
    )


OWN = seen()

CASES = {
    "all have as much": (
        OWN,
        {"b:1": seen(), "c:1": seen()},
        "granted",
        "3 of 3 members answer with a vote .this node, b:1, c:1., and 2 are needed.*fetch nothing",
    ),
    "one is gone": (OWN, {"b:1": seen(), "c:1": None}, "granted", "c:1 alone .* disk and memory"),
    "one leads": (OWN, {"b:1": seen(), "c:1": seen(leads=True)}, "granted", "c:1 leads, and would step down"),
    "one has more": (OWN, {"b:1": seen(held=14), "c:1": seen(held=12)}, "granted", "about 4 mutations from b:1"),
    "one has a newer history": (
        OWN,
        {"b:1": seen(held=9, held_term=4), "c:1": seen(held=99)},
        "granted",
        "about 0 mutations of a newer history from b:1",
    ),
    "a majority is gone": (
        OWN,
        {"b:1": None, "c:1": None},
        "refused",
        "1 of 3 members .*2 are needed.*b:1, c:1.*quorum among them, that only b:1",
    ),
    "one without a vote": (OWN, {"b:1": seen(votes=False), "c:1": None}, "refused", "without b:1, c:1.*only c:1 had"),
    "none of them votes": (OWN, {"b:1": seen(votes=False), "c:1": seen(votes=False)}, "refused", "all have answered"),
    "this one has no vote": (seen(votes=False), {"b:1": seen(), "c:1": None}, "refused", "this node has no vote yet"),
    "a founder that has not heard": (
        OWN._replace(founders=(b"f" * 16,)),
        {"b:1": seen(votes=False)._replace(placement_id=b"f" * 16), "c:1": None},
        "granted",
        "2 of 3 members",
    ),
    "new, and nobody else": (seen(is_new=True, votes=False), {"b:1": None, "c:1": seen(is_new=True)}, "new", "new"),
    "another one is promoted": (OWN, {"b:1": seen(promoting=True), "c:1": seen()}, "promoting", "b:1 is about to lead"),
}


@pytest.mark.parametrize("name", CASES)
def test_members(name):
    own, others, case, text = CASES[name]
    found = forecast_of_follower(own, others, is_in_set=True)
    assert (found.case, found.succeeds) == (case, case == "granted")
    assert re.search(text, found.text), found.text


REPLICAS = {
    "its leader answers": ({"a:1": seen(leads=True, held=17)}, "replica", "a:1, which leads now.*about 7 mutations"),
    "its leader is gone": ({"a:1": None}, "replica", "writes that a:1 has acknowledged and this node does not have"),
    "its source follows": ({"a:1": seen(), "b:1": seen(leads=True, held=12)}, "replica", "b:1, .*about 2 mutations"),
}


@pytest.mark.parametrize("name", REPLICAS)
def test_plain_replicas(name):
    others, case, text = REPLICAS[name]
    found = forecast_of_follower(OWN, others, is_in_set=False)
    assert (found.case, found.succeeds) == (case, False)
    assert re.search(text, found.text), found.text


LEADERS = {
    "all hold all": (
        [KnownReplica("b:1", True, 0), KnownReplica("c:1", True, 0)],
        3,
        "b:1, c:1 hold all that is at quorum$",
    ),
    "one is behind": (
        [KnownReplica("b:1", True, 0), KnownReplica("c:1", True, 5)],
        3,
        "b:1 holds all.*c:1 lacks about 5",
    ),
    "one has no vote": (
        [KnownReplica("b:1", True, 0), KnownReplica("c:1", False, 0)],
        3,
        "b:1 holds all.*c:1 has no vote",
    ),
    "one is away": (
        [KnownReplica("b:1", True, 0), KnownReplica("c:1", True, 0, connected=False)],
        3,
        "gone: b:1 holds all.*; c:1 is not connected, and had all that is at quorum$",
    ),
    "all are away": (
        [KnownReplica("b:1", True, 0, connected=False), KnownReplica("c:1", True, 4, connected=False)],
        3,
        "no node that could lead is connected; b:1 is .* had all .*; c:1 is .* lacks about 4 mutations. "
        r"No majority: 1 of 3 members .*2 are needed \(not connected: b:1, c:1\)",
    ),
    "all are away, and it is forced": (
        [KnownReplica("b:1", True, 0, connected=False), KnownReplica("c:1", True, 4, connected=False)],
        3,
        "^leads already, .*refused without a majority. With --force it leads, and could lose .* only b:1, c:1 had",
    ),
    "they have not come": (
        [KnownReplica(name, False, None, connected=False) for name in ("b:1", "c:1")],
        3,
        "is connected; b:1 is not connected; c:1 is not connected. No majority: 1 of 3",
    ),
    "nobody follows": ([], 0, "no node follows it, so none can be promoted$"),
    "a plain replica": ([KnownReplica("b:1", False, 0)], 0, "b:1 holds all that is at disk$"),
    "a plain replica is behind": ([KnownReplica("b:1", False, 2)], 0, "no node that could lead.*b:1 lacks about 2"),
}


@pytest.mark.parametrize("name", LEADERS)
def test_leaders(name):
    followers, members, text = LEADERS[name]
    found = forecast_of_leader(OWN, followers, members)
    assert (found.case, found.succeeds) == ("leads", False)
    assert re.search(text, found.text), found.text


def test_only_a_leader_with_failover_by_hand_lets_writes_wait_for_a_majority():
    away = [KnownReplica(name, True, 0, connected=False) for name in ("b:1", "c:1")]
    waits = "(not connected: b:1, c:1); writes at level quorum and changes of feeds wait"
    assert lost_majority(OWN, away, 3).endswith(waits)
    assert lost_majority(OWN._replace(asks=True), away, 3).endswith("2 are needed (not connected: b:1, c:1)")


def test_a_node_that_is_alone_is_not_promoted():
    found = forecast_of_lone_node([])
    assert (found.case, found.succeeds) == ("alone", False)
    assert re.search("^nothing to promote: .*by itself.*no node follows it, so none can be promoted$", found.text)
    assert forecast_of_lone_node([KnownReplica("b:1", False, 0)]).text.endswith("gone: b:1 holds all that is at disk")


answers = st.builds(
    lambda votes, leads, promoting, held, is_new: seen(
        votes=votes and not is_new, leads=leads and not is_new, promoting=promoting, held=held, is_new=is_new
    ),
    *[st.booleans()] * 3,
    st.integers(0, 5),
    st.booleans(),
)


@given(answers, st.dictionaries(st.sampled_from("bcde"), st.none() | answers, min_size=1), st.booleans())
def test_it_succeeds_where_a_majority_votes_and_names_all_who_are_silent(own, others, is_in_set):
    found = forecast_of_follower(own, others, is_in_set=is_in_set)
    cases = re.findall(r"^\| (\w+) \|", module.__doc__, re.MULTILINE)[1:]
    assert found.case in cases
    voters = own.votes + sum(other.votes for other in others.values() if other is not None)
    if found.succeeds:
        assert is_in_set
        assert 2 * voters > len(others) + 1
    elif is_in_set and found.case not in ("new", "promoting"):
        assert 2 * voters <= len(others) + 1
        assert "--force" in found.text.lower()
    if found.case in ("granted", "refused"):
        assert all(name in found.text for name, other in others.items() if other is None)


def replication(node):
    return status_of(node.node.services)["replication"]


def promotion(node):
    return replication(node)["promotion"]


def forecast(node):
    """The case, and whether it would succeed."""
    told = replication(node)
    return told["promotion_case"], told["promotion_succeeds"]


async def test_a_leader_does_not_count_on_followers_that_are_gone(members):
    first, second, third = members
    async with members.client() as client:
        feed = await members.filled(client, {b"k": b"v"})
        await until(lambda: all_have_all(first))
        await second.kill()
        await third.kill()
        replicas = first.node.leaderships.system.replicas.voters()
        await until(lambda: not any(peer.streams for peer in replicas))
        for number in range(5):
            await feed.put(b"%d" % number, b"v", level="disk")
    told = replication(first)
    assert "gone: no node that could lead is connected; " in told["promotion"]
    assert f"{third.address} is not connected, and had all that is at quorum" in told["promotion"]
    assert "No majority: 1 of 3 members are here with a vote, and 2 are needed" in told["promotion"]
    told = await http_status(first)
    assert not told["healthy"]
    away = ", ".join(sorted(str(node.address) for node in (second, third)))
    assert f"not connected: {away}); writes at level quorum and changes of feeds wait" in told["failure"]
    replication_of_first = told["replication"]
    assert [(r["connected"], r["lag"], r["partitions"]) for r in replication_of_first["replicas"]] == [
        (False, 5, 0)
    ] * 2


async def test_the_term_of_a_handover_that_keeps_the_branch_is_told(members):
    first, second, _ = members
    async with members.client() as client:
        await members.filled(client, {b"k": b"v"})
    await first.hand_over(second)
    told = status_of(second.node.services)
    [state] = told["feeds"][0]["states"]
    assert second.logs("orders")[0].term < second.node.leaderships.system.term, "the branch was kept"
    assert state["term"] == told["replication"]["term"] == second.node.leaderships.system.term


async def test_a_set_tells_all_over_http(members):
    async with members.client() as client:
        await members.filled(client, {b"k": b"v"}, partitions=2)
    leader = members.leader
    await until(lambda: all_have_all(leader))
    await until(lambda: all(sum(p.quorum_seq for p in orders(node)) == 1 for node in members))
    answers = [await http_status(node) for node in members]
    for node, answer in zip(members, answers, strict=True):
        told, [feed] = answer["replication"], answer["feeds"]
        assert told.keys() == documented("replication")
        assert told["term"] == leader.node.leaderships.system.term
        assert [state["id"] for state in feed["states"]] == [0, 1]
        for state in feed["states"]:
            assert state.keys() == documented("states")
            assert state["role"] == told["role"] == ("leader" if node is leader else "follower")
            assert state["term"] == told["term"]
        assert sum(state["quorum"] for state in feed["states"]) == 1
    answer = answers[members.nodes.index(leader)]
    told, [feed] = answer["replication"], answer["feeds"]
    assert (told["promotion_case"], told["promotion_succeeds"]) == ("leads", False)
    others = sorted(str(node.address) for node in members if node is not leader)
    assert sorted(replica["address"] for replica in told["replicas"]) == others
    for replica in told["replicas"]:
        assert replica.keys() == documented("replicas")
        assert (replica["connected"], replica["lag"]) == (True, 0)
    for state in feed["states"]:
        assert sorted(follower["address"] for follower in state["followers"]) == others
        assert all(follower.keys() == documented("followers") for follower in state["followers"])


async def test_so_many_states_are_told(running, monkeypatch):
    for name in ("a", "b", "c"):
        running.node.feed_changes.create({"name": name, "feed_id": name * 32, "partitions": 2})
    monkeypatch.setattr(status, "STATES_MAX", 3)
    feeds = status_of(running.node.services)["feeds"]
    assert [[state["id"] for state in feed["states"]] for feed in feeds] == [[0, 1], [0], []]
    assert [len(feed["terms"]) for feed in feeds] == [2, 2, 2]


def documented(name):
    """The members of an object of status, as the guide lists them."""
    text = GUIDE.read_text().split(f"## `{name}`\n")[1].split("\n#")[0]
    return set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))))


def all_have_all(leader):
    """Both followers have acknowledged every row, those of the list of feeds as well."""
    partitions, voters = list(leader.node.feeds.partitions()), leader.node.leaderships.system.replicas.voters()
    return len(voters) == 2 and not any(peer.missing(partitions, Level.MEMORY) for peer in voters)


def orders(node):
    return node.node.feeds.named("orders").partitions


async def http_status(node):
    async with http_listener(node.node, ("127.0.0.1", 0)) as address, await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(b"GET /api/status HTTP/1.0\r\n\r\n")
        answer = b"".join([part async for part in stream])
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_a_set_before_and_after_its_leader_is_gone(members):
    first, second, third = members
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        for number in range(10):
            await feed.put(b"%d" % number, b"v", level="quorum")
        await members.level("orders")
    await until(lambda: "hold all that is at quorum" in promotion(first))
    assert promotion(first).startswith("leads already")
    assert str(second.address) in promotion(first)
    await until(lambda: f"{first.address} leads, and would step down" in promotion(second))
    assert promotion(second).startswith("would succeed: 3 of 3 members")
    assert (forecast(first), forecast(second)) == (("leads", False), ("granted", True))
    await first.kill()
    await until(lambda: f"What {first.address} alone" in promotion(second))
    assert promotion(second).startswith("would succeed: 2 of 3 members")
    assert status_of(second.node.services)["replication"]["doing"].startswith("waits")
    await third.kill()
    await until(lambda: promotion(second).startswith("would be refused: 1 of 3 members"))
    with pytest.raises(NotLeader):
        await second.promote()
    others = status_of(second.node.services)["replication"]["others"]
    assert [(other["address"], other["answers"]) for other in others] == [
        (address, False) for address in sorted([str(first.address), str(third.address)])
    ]
    await third.start()
    await until(lambda: promotion(second).startswith("would succeed"))
    await second.promote()
    assert promotion(second).startswith("leads already")
    assert f"{first.address} is not connected" in promotion(second), "who has not come yet is named, too"


async def test_how_much_would_be_fetched_is_told(members):
    first, second, third = members
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await members.level("orders")
        await second.kill()
        for number in range(7):
            await feed.put(b"%d" % number, b"v", level="quorum")
        await first.kill()
    await second.start()
    await until(lambda: f"fetch about 7 mutations from {third.address}" in promotion(second))
    await second.promote()
    assert second.seqs("orders") == [7]


@pytest.mark.slow
async def test_a_plain_replica_and_its_leader(tmp_path, nursery):
    first, second = free_addresses(2)
    source = MadeNode(make_config(tmp_path / "source", first), nursery)
    replica = MadeNode(make_config(tmp_path / "replica", second, replica_of=first), nursery)
    await source.start()
    await replica.start()
    async with tailrace.connect(source.url, retry_for=20) as client:
        await (await client.create_feed("orders", partitions=1)).put(b"k", b"v")
    await until(lambda: f"{second} holds all that is at disk" in promotion(source))
    told = replication(source)
    assert (told["promotion_case"], told["promotion_succeeds"], told["term"]) == ("alone", False, 1)
    await until(lambda: f"{first}, which leads now, has and this node does not: about 0" in promotion(replica))
    assert replication(replica)["term"] == source.logs("orders")[0].term
    await replica.stop()
    await until(lambda: promotion(source).endswith("no node follows it, so none can be promoted"))
    [state] = status_of(source.node.services)["feeds"][0]["states"]
    assert (state["role"], state["term"], state["durable"], state["visible"]) == ("leader", 1, 1, 1)
    assert (len(state["branches"]), state["followers"]) == (1, [])
    await replica.start()
    await until(lambda: forecast(replica) == ("replica", False))
    await source.kill()
    await until(lambda: f"{first} has acknowledged" in promotion(replica))
    await replica.promote(force=True)
    assert promotion(replica).startswith("leads already")
