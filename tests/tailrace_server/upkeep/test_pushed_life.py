"""Random pushes between two storages: forks, compactions, purges, trims, disks that refuse, and kills at any time."""

import random
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace_server.upkeep.pair_life import PairLife, is_noticed, refused
from tests.tailrace_server.upkeep.test_pushed_to_a_follower import offer_of
from tests.tiers import examples

from tailrace.errors import TailraceError
from tailrace.wire.push_messages import DeclineReason, SegmentDecline, SegmentTransit
from tailrace_server.chain import OfferEvent, OfferState, Target, advance, next_link
from tailrace_server.chain.offering import offered, reconnected
from tailrace_server.partition.links import links_of
from tailrace_server.partition.replica_apply import apply_block, follow_log, settle_producers
from tailrace_server.replication import pushed_segments
from tailrace_server.replication.pushed_segments import PushedSegments
from tailrace_server.replication.role import Role
from tailrace_server.upkeep.flushed_segment import lacks_end

STEPS = [
    *("write",) * 9,
    *("flush",) * 7,
    *("push",) * 14,
    *("compact",) * 4,
    *("stream",) * 3,
    *("flush_replica", "trim", "refuse", "fork") * 2,
    "restart",
]
# The lives in which a planted bug is noticed.
LIVES_MAX = 100
# The offers after which a follower has everything, if nothing breaks any more.
OFFERS_MAX = 60


class PushedLife(PairLife):
    """``broken`` is the link and the segment of a transfer that broke, as `BrokenTransfers` keeps them."""

    def __init__(self, chance):
        super().__init__(chance, retention=chance.choice(["compact", "compact", "history"]))
        self.leadership = SimpleNamespace(term=self.term, role=Role.FOLLOWER)
        self.target = Target(b"t" * 16)
        self.broken = None
        self.segments = self.new_segments()

    def new_segments(self):
        node = self.replica.node
        return PushedSegments(node.services, self.leadership, node.feeds.named("orders"))

    # The connection

    async def follow(self):
        """The follower asks for its stream: it rolls back, and takes the leader's log."""
        await self.segments.settle(self.partition)
        if self.partition.high_seq:
            await self.roll_back_to_common()
        follow_log(self.partition, self.source.log, self.replica.node.storage.journal)
        self.replica.sync(self.partition)
        self.reconnect()

    def reconnect(self):
        self.segments.interrupt()
        settle_producers(self.partition, self.replica.node.storage.journal, 0.0)
        target = Target(self.target.placement, number=self.target.number)
        chain, self.target = reconnected(links_of(self.source), target, self.partition.high_seq)
        self.source.pushes.acknowledge(chain.links)

    # Steps

    async def step(self, name):
        match name:
            case "write":
                self.write()
            case "flush":
                await self.flush()
            case "push":
                await self.push()
            case "compact":
                await self.compact(self.leader, self.source)
            case "stream":
                self.stream_rows()
            case "flush_replica":
                with refused():
                    await self.replica.flusher.flush_all(self.partition)
            case "trim":
                await self.trim()
            case "refuse":
                self.refuse()
            case "fork":
                self.heal()
                await self.fork()
                self.leadership.term = self.term
                await self.follow()
            case "restart":
                await self.begin_anew()

    async def begin_anew(self):
        self.restart()
        self.segments = self.new_segments()
        await self.follow()

    def stream_rows(self):
        """The feed was in mode stream for a while: rows came as blocks."""
        for block in self.source.tree.blocks_after(0):
            if block.header.first_seq == self.partition.high_seq + 1 and self.chance.random() < 0.8:
                apply_block(self.partition, block, self.replica.node.storage.journal, 0.0)
                self.replica.sync(self.partition)

    async def trim(self):
        """Either trims: a follower by its own uptime, and both all of it, if the feed was in mode stream then."""
        self.heal()
        engine, partition = self.chance.choice([(self.leader, self.source), (self.replica, self.partition)])
        count = len(partition.chain.segments)
        if self.is_history and count:
            await engine.node.storage.installer.drop_oldest(partition, self.chance.randint(1, count))
            await engine.flusher.trim()

    # Pushes

    async def push(self, *, breaks=True):
        """Offers the next segment, if there is one, and sends it. Returns False if there is none."""
        if lacks_end(self.source) and self.partition.high_seq < self.source.flushed_seq:
            await self.leader.flusher.flush_end(self.source)
        if self.broken is not None and not self.source.log.may_have(self.broken[0].branch, self.broken[0].last_seq):
            self.end_broken()
        link = next_link(links_of(self.source), self.target, self.broken and self.broken[0])
        if link is None:
            return False
        if self.broken is not None and link is self.broken[0]:
            segment = self.broken[1]
        else:
            self.end_broken()
            segment = next(s for s in self.source.chain.segments if s.identity.segment_id == link.id)
        pins = self.leader.node.storage.pins
        pins.pin(segment)
        try:
            self.target = offered(self.target, link)
            answer = await self.send(link, segment, breaks)
        finally:
            pins.unpin(segment)
        if answer is None:
            await self.broke()
        else:
            await self.answered(answer)
        return True

    async def send(self, link, segment, breaks):
        """Gives the last answer; None if the connection breaks before."""
        offer = offer_of(self.source, link, segment, self.target.number, self.term)
        answer = await self.asked(self.segments.offered(self.partition, offer, self.source.log))
        if isinstance(answer, SegmentDecline):
            return answer
        _, self.target = advance(links_of(self.source), self.target, self.target.number, OfferEvent.ACCEPT)
        begin = offset = answer.offset
        while not isinstance(answer, SegmentDecline) and (answer is None or answer.offset < segment.nbytes):
            if breaks and self.chance.random() < 0.15:
                if offset > begin:
                    self.keep_broken(link, segment)
                return None
            if breaks and self.chance.random() < 0.1:
                await self.compact(self.leader, self.source)
            nbytes = segment.nbytes if self.chance.random() < 0.6 else self.chance.randint(1, 2_000)
            nbytes = min(nbytes, segment.nbytes - offset)
            part = SegmentTransit(0, self.target.number, offset, memoryview(segment.read_part(offset, nbytes)))
            answer = await self.asked(self.segments.got_parts(self.partition, [part], self.source.log))
            offset += nbytes
        return answer

    async def asked(self, step):
        """The follower's answer. An error of its own is one, as `PushedPartitions` makes it."""
        try:
            return await step
        except (TailraceError, OSError) as error:
            self.segments.forget(self.partition)
            why = self.replica.node.storage.receive_failures.failed(self.partition, error)
            return SegmentDecline(self.target.number, DeclineReason.OVERLOADED, why)

    async def answered(self, answer):
        declined = isinstance(answer, SegmentDecline)
        event = OfferEvent[answer.reason.name] if declined else OfferEvent.ACK
        chain, self.target = advance(links_of(self.source), self.target, self.target.number, event)
        self.source.pushes.acknowledge(chain.links)
        if event is not OfferEvent.OVERLOADED:
            self.end_broken()
        if self.target.state is OfferState.PAUSED:
            _, self.target = advance(chain, self.target, self.target.number, OfferEvent.RETRY)
            self.replica.clock.advance(40.0)
            await self.replica.flusher.trim()

    async def broke(self):
        if self.chance.random() < 0.4:
            await self.begin_anew()
        self.reconnect()

    def keep_broken(self, link, segment):
        self.end_broken()
        self.broken = link, segment
        self.leader.node.storage.pins.pin(segment)

    def end_broken(self):
        broken, self.broken = self.broken, None
        if broken is not None:
            self.leader.node.storage.pins.unpin(broken[1])


async def live(steps, chance):
    life = PushedLife(chance)
    await life.follow()
    for name in steps:
        await life.step(name)
        life.check()
    life.heal()
    await life.flush()
    for _ in range(OFFERS_MAX):
        if not await life.push(breaks=False):
            break
    assert life.partition.high_seq == life.source.high_seq
    life.check()
    life.restart()
    assert life.partition.high_seq == life.source.high_seq
    assert life.partition.log == life.source.log


@settings(max_examples=examples(30))
@given(st.lists(st.sampled_from(STEPS), min_size=20, max_size=60), st.integers(0, 2**32 - 1))
def test_a_follower_has_what_its_history_says_and_comes_to_the_end(steps, seed):
    trio.run(live, steps, random.Random(seed))


@pytest.mark.slow
@pytest.mark.planted
def test_a_trim_seq_that_is_not_taken_over_is_noticed(monkeypatch):
    """Planted: the follower has no rows of the leader's trimmed beginning, and would count as having them."""
    monkeypatch.setattr(pushed_segments, "_trim_seq", lambda partition, chain, offer: partition.trim_seq)
    assert is_noticed(live, STEPS, LIVES_MAX)
