"""Feeds over the HTTP of any node of a set."""

import pytest
from tests.tailrace_server.replication.made_set import make_set
from tests.tailrace_server.serving.web.conftest import opened_web
from tests.tailrace_server.serving.web.test_events import following, seqs_of

import tailrace
from tailrace.link.address import Address

pytestmark = pytest.mark.slow


@pytest.fixture
async def nodes(tmp_path, nursery):
    made = make_set(tmp_path, nursery)
    await made.start()
    await made.settled()
    return made


def follower_of(nodes):
    return next(node for node in nodes if not node.leads)


async def test_a_follower_passes_requests_on_to_the_leader(nodes):
    async with nodes.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await nodes.level("orders")
        async with opened_web(follower_of(nodes).node) as web:
            put = await web("PUT", "/feeds/orders/keys/k", b"v")
            assert put.code == 200
            assert (await feed.get(b"k")).value == b"v"
            assert (await web("GET", "/feeds/orders/keys/k")).body == b"v"
            assert (await web("DELETE", "/feeds/orders/keys/k", if_match=put.headers["etag"])).code == 200


async def test_requests_go_to_the_next_leader(nodes):
    async with nodes.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        leader, follower = await nodes.level("orders"), follower_of(nodes)
        async with opened_web(follower.node) as there, opened_web(leader.node) as here:
            assert [(await web("PUT", "/feeds/orders/keys/k", b"1")).code for web in (here, there)] == [200, 200]
            await leader.hand_over(follower)
            await nodes.settled()
            assert [(await web("PUT", "/feeds/orders/keys/k", b"2")).code for web in (here, there)] == [200, 200]
            assert (await feed.get(b"k")).value == b"2"


async def test_without_a_leader_a_client_is_asked_to_come_again(nodes, monkeypatch):
    monkeypatch.setattr("tailrace_server.serving.web.clients.CONNECT_SECONDS", 0.2)
    monkeypatch.setattr("tailrace_server.serving.web.clients.RETRY_SECONDS", 0.2)
    leader, follower = nodes.leader, follower_of(nodes)
    await leader.kill()
    async with opened_web(follower.node) as web:
        answer = await web("PUT", "/feeds/orders/keys/k", b"v")
        assert (answer.code, answer.json["error"], answer.headers["retry-after"]) == (503, "Unreachable", "1")
        assert str(Address(*follower.node.listening)) in answer.json["message"]
    assert issubclass(tailrace.Unreachable, tailrace.Retryable)


async def test_a_batch_is_written_once_across_a_handover(nodes):
    async with nodes.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        leader, follower = await nodes.level("orders"), follower_of(nodes)
        body = b'{"key": "a", "value": "1"}\n{"key": "b", "value": "2"}\n'
        path = "/feeds/orders?producer=app&batch=0"
        async with opened_web(follower.node) as there, opened_web(leader.node) as here:
            first = await there("POST", path, body)
            assert (first.code, first.json["present"]) == (200, [])
            await leader.hand_over(follower)
            await nodes.settled()
            for web in (here, there):
                again = await web("POST", path, body)
                assert (again.code, again.json["written"]) == (200, [])
                assert again.json["present"] == sorted(each["partition"] for each in first.json["written"])
        assert sum(info.high_seq for info in await feed.partitions()) == 2


async def test_events_go_on_at_another_node(nodes):
    async with nodes.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await feed.put(b"a", b"1")
        leader = await nodes.level("orders")
        async with opened_web(leader.node) as web, following(web) as told:
            assert await told.rows(1) == [("a", "1")]
            id = await told.id_at(await seqs_of(feed))
        await feed.put(b"a", b"2")
        await nodes.level("orders")
        for node in nodes:
            async with opened_web(node.node) as web, following(web, last_event_id=id) as told:
                assert await told.rows(1) == [("a", "2")]
