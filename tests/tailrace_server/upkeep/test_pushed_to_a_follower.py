"""A follower that lacks rows that its leader keeps, or room: what the leader pushes comes all the same."""

from types import SimpleNamespace

import pytest
from tests.tailrace_server.upkeep.test_received_chain import Pair

from tailrace.errors import NoSpace
from tailrace.wire.push_messages import DeclineReason, SegmentAccept, SegmentDecline, SegmentOffered, SegmentTransit
from tailrace_server.chain import OfferEvent, Target, advance, next_link
from tailrace_server.chain.offering import offered
from tailrace_server.partition.links import links_of
from tailrace_server.replication.ahead_stream import drop_ahead
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

    def segment_of(self, link):
        return next(s for s in self.source.chain.segments if s.identity.segment_id == link.id)

    async def offer(self, link):
        offer = self.offer_of(link, self.segment_of(link))
        return await self.segments.offered(self.partition, offer, self.source.log)

    async def _send(self, link):
        segment, answer = self.segment_of(link), await self.offer(link)
        if not isinstance(answer, SegmentAccept):
            return answer
        part = SegmentTransit(0, self.target.number, 0, memoryview(segment.read_part(0, segment.nbytes)))
        return await self.segments.got_parts(self.partition, [part], self.source.log)

    def offer_of(self, link, segment):
        return offer_of(self.source, link, segment, self.target.number, TERM)


def offer_of(source, link, segment, number, term):
    """The offer of a segment of the leader's partition ``source``."""
    told = {name: value for name, value in link._asdict().items() if name != "placements"}
    return SegmentOffered(
        partition=0,
        number=number,
        term=term,
        placement_id=b"l" * 16,
        trim_seq=source.trim_seq,
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


@pytest.mark.parametrize("is_same", [True, False])
async def test_the_room_of_a_half_file_counts_as_free(pair, monkeypatch, is_same):
    """Otherwise a disk that has room for the rest only would never take it."""
    for _ in range(2):
        await pair.write((b"x", bytes(100_000)))
    first = links_of(pair.source).links[3]
    segment = pair.segment_of(first)
    half = segment.nbytes // 2
    assert isinstance(await pair.offer(first), SegmentAccept)
    part = SegmentTransit(0, pair.target.number, 0, memoryview(segment.read_part(0, half)))
    await pair.segments.got_parts(pair.partition, [part], pair.source.log)
    pair.segments.interrupt()
    monkeypatch.setattr(pair.replica.disk, "free_bytes", lambda _: segment.nbytes - half)
    offered = first if is_same else first._replace(id=b"m" * 16)
    answer = await pair.segments.offered(pair.partition, pair.offer_of(offered, segment), pair.source.log)
    assert answer == SegmentAccept(pair.target.number, half if is_same else 0)
    pair.segments.interrupt()
    larger = pair.offer_of(first, segment)._replace(nbytes=segment.nbytes + 1)
    with pytest.raises(NoSpace):
        await pair.segments.offered(pair.partition, larger, pair.source.log)


async def test_a_half_file_goes_when_the_follower_leads(pair):
    """It would take its room until the node stops: no leader pushes the rest."""
    await pair.write((b"x", bytes(100_000)))
    [*_, last] = links_of(pair.source).links
    assert isinstance(await pair.offer(last), SegmentAccept)
    part = SegmentTransit(0, pair.target.number, 0, memoryview(pair.segment_of(last).read_part(0, 50_000)))
    await pair.segments.got_parts(pair.partition, [part], pair.source.log)
    pair.segments.interrupt()
    half = pair.path(last.id) + ".pushed.new"
    assert pair.replica.disk.exists(half)
    assert await drop_ahead(pair.replica.node.services, [pair.partition]) == []
    assert not pair.replica.disk.exists(half)
