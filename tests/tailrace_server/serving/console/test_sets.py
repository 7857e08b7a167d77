"""What the nodes of a set show on the console."""

import time

import pytest
from tests.tailrace_server.replication.made_set import make_set, publish_one, put, until
from tests.tailrace_server.serving.console.test_api import asking

import tailrace

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch):
    monkeypatch.setattr("tailrace_server.serving.board.board.INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr("tailrace_server.serving.board.board.SHARE_MAX", 1e9)


@pytest.fixture
async def nodes(tmp_path, nursery):
    made = make_set(tmp_path, nursery)
    await made.start()
    await made.settled()
    return made


async def test_a_leader_and_its_followers(nodes):
    async with nodes.client() as client:
        feed = await nodes.filled(client, {b"a": b"1"})
        leader = await nodes.level("orders")
        names = [str(node.address) for node in nodes]
        async with asking(leader.node) as ask:

            def is_level(value):
                return [replica["state"] for replica in value["replicas"]] == ["current", "current"]

            told = await ask.until("/api/console", is_level)
            assert (told["state"], told["problems"]) == ("moving", [])
            assert (told["role"], told["leader"]) == ("leader", str(leader.address))
            assert sorted(member["name"] for member in told["members"]) == sorted(names)
            states = {member["name"]: member["state"] for member in told["members"]}
            assert states.pop(str(leader.address)) == "leads"
            assert set(states.values()) == {"follows"}
            await publish_one(feed)
            [sink] = (await ask.told("/api/feeds/orders"))["sinks"]
            assert (sink["sink"], sink["last_batch"]) == ("job", 1)
            assert 0 <= time.time() * 1e6 - sink["last_batch_us"] + 1_000 < 60_000_000
            partition = await ask.told("/api/feeds/orders/partitions/0")
            assert len(partition["followers_list"]) == 2
            assert partition["levels"]["quorum"] > 0
        follower = next(node for node in nodes if node is not leader)
        async with asking(follower.node) as ask:
            told = await ask.told("/api/console")
            assert (told["role"], told["leader"]) == ("follower", str(leader.address))
            assert told["replicas"] == []
            states = {member["name"]: member["state"] for member in told["members"]}
            assert (states[str(leader.address)], states[str(follower.address)]) == ("leads", "follows")


async def test_a_follower_that_is_killed_is_named_with_its_reason(nodes):
    async with nodes.client() as client:
        feed = await nodes.filled(client, {b"a": b"1"})
        leader = await nodes.level("orders")
        away = next(node for node in nodes if node is not leader)
        peers = leader.node.leaderships.system.replicas.peers.values()
        await until(lambda: not any(peer.lag(p) for peer in peers for p in leader.node.feeds.partitions()))
        await away.stop()
        await put(feed, {b"%d" % number: b"v" for number in range(5)})
        await until(lambda: None in leader.member.peers.states.values())
        async with asking(leader.node) as ask:

            def is_told(value):
                return {problem["subject"] for problem in value["problems"]} >= {"replica", "member"}

            told = await ask.until("/api/console", is_told)
            assert told["state"] == "stuck"
            [replica] = [each for each in told["replicas"] if each["state"] == "away"]
            assert replica["address"] == str(away.address)
            assert replica["lag_mutations"] == 5
            assert replica["lag_s"] > 0
            [member] = [each for each in told["members"] if each["state"] == "silent"]
            assert member["name"] == str(away.address)
            assert member["reason"]
            assert member["software"] == ""
            others = [each for each in told["members"] if each is not member]
            assert {each["software"] for each in others} == {f"tailrace {tailrace.__version__}"}
            assert {problem["name"] for problem in told["problems"]} == {str(away.address)}
            since = [problem["since_s"] for problem in told["problems"]]
            again = await ask.told("/api/console")
            assert all(problem["since_s"] > min(since) for problem in again["problems"])


async def test_without_a_majority_the_node_has_failed(nodes):
    async with nodes.client() as client:
        await nodes.filled(client, {b"a": b"1"})
        leader = await nodes.level("orders")
        for node in nodes:
            if node is not leader:
                await node.stop()
        async with asking(leader.node) as ask:
            told = await ask.until("/api/console", lambda value: value["state"] == "failed")
            assert [each["subject"] for each in told["problems"] if each["severity"] == "error"] == ["set"]
