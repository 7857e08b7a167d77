"""A replica that is told of thousands of partitions by one read lets others have the loop in between."""

import pytest
import trio

from tailrace.link.address import Address
from tailrace.wire.replica_messages import LeaderSeqs, Replica
from tailrace_server.replication import replica_puller as taking
from tailrace_server.replication.pulled_node import PulledNode
from tailrace_server.replication.replica_puller import ReplicaPuller

EVENTS = 60


class Told:
    """A stream of which everything has arrived already, as by one read."""

    finished = True

    def __init__(self, events):
        self.events = list(events)

    def next_event(self):
        return self.events.pop(0) if self.events else None

    def has_event(self):
        return bool(self.events)


@pytest.fixture
def puller(running):
    node, leadership = running.node.services, running.node.leaderships.system
    feed = running.node.feed_changes.create({"name": "orders", "feed_id": "11" * 16, "partitions": EVENTS})
    replica = Replica(b"r" * 16, 1, "127.0.0.1:1", False, running.node.identity.cluster_id)
    pulled = PulledNode(node, leadership, Address("127.0.0.1", 1), replica)
    return ReplicaPuller(node, leadership, feed, pulled)


async def turns_beside(work):
    """How many turns of the loop another task has while ``work`` runs."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        await work()
        nursery.cancel_scope.cancel()
    return turns


async def test_what_one_read_tells_is_handled_in_turns(puller, monkeypatch):
    monkeypatch.setattr(taking, "TURN_SECONDS", 0.0, raising=False)
    told = Told(LeaderSeqs(number, 0, 0) for number in range(EVENTS))
    assert await turns_beside(lambda: puller._take_all(told)) >= EVENTS / 2
    assert not told.events


async def test_a_replica_that_is_stopped_between_two_turns_takes_nothing_more(puller, monkeypatch):
    monkeypatch.setattr(taking, "TURN_SECONDS", 0.0, raising=False)
    told = Told(LeaderSeqs(number, 0, 0) for number in range(EVENTS))
    taken = []
    for partition in puller.feed.partitions:
        partition.set_leader_seqs = lambda durable_seq, quorum_seq, partition=partition: taken.append(partition)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(puller._take_all, told)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        puller.stop()
        count = len(taken)
    assert 0 < len(taken) == count < EVENTS
