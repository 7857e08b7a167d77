"""Each node trims a history by the time that it was up: a follower may lack rows that its leader keeps, and pushes."""

from types import SimpleNamespace

import pytest
from tests.tailrace_server.upkeep.test_received_chain import Pair

from tailrace.wire.push_messages import DeclineReason, SegmentAccept, SegmentDecline, SegmentOffered, SegmentTransit
from tailrace_server.chain import OfferEvent, Target, advance, next_link
from tailrace_server.chain.offering import offered
from tailrace_server.partition.links import links_of
from tailrace_server.replication.pushed_segments import PushedSegments
from tailrace_server.replication.role import Role

TERM = 1


class PushingPair(Pair):
    """A leader that offers its segments to a replica, as `SegmentOffers` does."""

    def __init__(self, make_engine):
        super().__init__(make_engine)
        self.partition.state = "follower"
        node = self.replica.node
        self.segments = PushedSegments(
            node.services, SimpleNamespace(term=TERM, role=Role.FOLLOWER), node.feeds.named("orders")
        )
        self.target = Target(b"t" * 16)

    async def push(self):
        """Offers segments until the replica has all; gives the answers."""
        answers = []
        while (link := next_link(links_of(self.source), self.target)) is not None:
            self.target = offered(self.target, link)
            answer = await self._send(link)
            answers.append(answer.reason if isinstance(answer, SegmentDecline) else "ack")
            event = OfferEvent[answer.reason.name] if isinstance(answer, SegmentDecline) else OfferEvent.ACK
            if event is OfferEvent.ACK:
                _, self.target = advance(links_of(self.source), self.target, self.target.number, OfferEvent.ACCEPT)
            chain, self.target = advance(links_of(self.source), self.target, self.target.number, event)
            self.source.pushes.acknowledge(chain.links)
            if event is OfferEvent.INVALID:
                break  # it is offered again, for ever
            if event is OfferEvent.OVERLOADED:
                await self.replica.flusher.trim()
                _, self.target = advance(chain, self.target, self.target.number, OfferEvent.RETRY)
        return answers

    async def _send(self, link):
        segment = next(s for s in self.source.chain.segments if s.identity.segment_id == link.id)
        answer = await self.segments.offered(self.partition, self._offer(link, segment), self.source.log)
        if not isinstance(answer, SegmentAccept):
            return answer
        part = SegmentTransit(0, self.target.number, 0, memoryview(segment.read_part(0, segment.nbytes)))
        return await self.segments.got_parts(self.partition, [part], self.source.log)

    def _offer(self, link, segment):
        told = {name: value for name, value in link._asdict().items() if name != "placements"}
        return SegmentOffered(
            partition=0,
            number=self.target.number,
            term=TERM,
            placement_id=b"l" * 16,
            trim_seq=self.source.trim_seq,
            nbytes=segment.nbytes,
            checksum=segment.read_checksum(),
            **told,
        )


@pytest.fixture
async def pair(make_engine):
    """Both have three segments of a row each."""
    pair = PushingPair(make_engine)
    for number in range(3):
        await pair.write((b"k%d" % number, b"v"))
    assert await pair.push() == ["ack"] * 3
    return pair


async def trim(pair, count):
    await pair.replica.node.storage.installer.drop_oldest(pair.partition, count)


@pytest.mark.parametrize("trimmed", [1, 2, 3])
@pytest.mark.parametrize("forgotten", [False, True])
async def test_the_next_segment_comes_to_a_follower_that_has_trimmed_its_own(pair, trimmed, forgotten):
    await trim(pair, trimmed)
    await pair.write((b"x", b"1"))
    if forgotten:  # as after a failover
        pair.source.pushes.acknowledge(())
    answers = await pair.push()
    assert DeclineReason.INVALID not in answers
    assert (pair.partition.high_seq, pair.partition.trim_seq) == (4, trimmed)
    assert pair.replica.get(pair.partition, b"x") == [b"1"]
    pair.partition.check()
    pair.replica.kill()
    assert pair.replica.get(pair.replica.partition(), b"x") == [b"1"]
