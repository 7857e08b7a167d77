"""Transfers of pushed segments that break, again and again, beside a leader that compacts what is being sent."""

import os
import threading

import pytest
import trio
from tests.processes.proxy import HOST, open_proxy
from tests.segment_fixtures import flip
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config, until

import tailrace
from tailrace.errors import Overloaded
from tailrace.link.address import Address
from tailrace.wire.push_messages import SegmentAccept
from tailrace_server.config import StorageConfig
from tailrace_server.replication.pushed_segments import PushedSegments
from tailrace_server.segment import Segment
from tailrace_server.serving import segment_offers
from tailrace_server.serving.segment_offers import SegmentOffers
from tailrace_server.serving.segment_sender import SegmentSender
from tailrace_server.upkeep.incoming_segments import IncomingSegment

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
# A segment of so many rows is not whole after a cut in its third part: up to six parts may have been sent by then.
WHOLE = 8
# A follower that is connected again is offered a segment at once; a pause of the leader would be up to five seconds.
STORAGE = StorageConfig(pushed_age_s=3_600.0)


class Pair:
    """A leader, and a replica behind a link that can be cut; a compact feed of one partition in mode segment."""

    def __init__(self, leader, replica, proxy, feed):
        self.leader, self.replica, self.proxy, self.feed = leader, replica, proxy, feed
        self.rows = {}

    @property
    def source(self):
        return self.leader.node.feeds.named("orders").partitions[0]

    @property
    def storage(self):
        return self.leader.node.storage

    async def write(self, count):
        """Writes ``count`` keys anew, a MiB each, and flushes them."""
        rows = {b"%d" % number: os.urandom(MIB) for number in range(count)}
        for key, value in rows.items():
            await self.feed.put(key, value)
        self.rows |= rows
        await self.storage.flusher.flush_all(self.source)

    async def compact(self):
        """Replaces the segments that are there by one that has more."""
        await self.write(5)
        await until(lambda: len(self.source.chain.segments) == 1)

    def exists(self, segment):
        """Whether the segment's file is there."""
        return self.storage.host.disk.exists(segment.path)

    async def level(self):
        await until(lambda: self.replica.seqs("orders") == self.leader.seqs("orders"))
        assert self.replica.rows("orders") == self.leader.rows("orders") == self.rows


@pytest.fixture
async def pair(tmp_path, nursery):
    first, second = free_addresses(2)
    leader = MadeNode(make_config(tmp_path / "leader", first, storage=STORAGE), nursery)
    await leader.start()
    async with open_proxy(tuple(first)) as proxy, tailrace.connect(leader.url) as client:
        behind = make_config(tmp_path / "replica", second, replica_of=Address(HOST, proxy.port), storage=STORAGE)
        replica = MadeNode(behind, nursery)
        await replica.start()
        feed = await client.create_feed("orders", partitions=1, replication="segment")
        await until(lambda: replica.seqs("orders") == [0])
        yield Pair(leader, replica, proxy, feed)
        await replica.stop()


class Cutting:
    """Cuts the link each time that the replica has got ``parts`` parts on one connection."""

    def __init__(self, monkeypatch, pair, parts):
        self.pair = pair
        self.is_on = True
        self.is_cut = trio.Event()
        self.parts, self.left = parts, parts
        self.token = trio.lowlevel.current_trio_token()
        original = IncomingSegment.add

        def counted(incoming, data):
            original(incoming, data)
            self.left -= 1
            if self.is_on and not self.left:
                trio.from_thread.run_sync(self.cut, trio_token=self.token)

        monkeypatch.setattr(IncomingSegment, "add", counted)

    def cut(self):
        self.pair.proxy.cut()
        self.is_cut.set()

    async def came(self):
        """Waits for a cut, and until both sides know of it."""
        await self.is_cut.wait()
        pair, name = self.pair, "orders"
        await until(lambda: not pair.leader.node.feeds.named(name).partitions[0].pushes._watchers)

    def heal(self):
        self.is_cut, self.left = trio.Event(), self.parts
        self.pair.proxy.heal()


def accepted(monkeypatch):
    """The offers that are accepted from now on, with the offsets, as a list that grows."""
    found, offered = [], PushedSegments.offered

    async def noted(self, partition, offer, leaders_log):
        answer = await offered(self, partition, offer, leaders_log)
        if isinstance(answer, SegmentAccept):
            found.append((offer.id, answer.offset))
        return answer

    monkeypatch.setattr(PushedSegments, "offered", noted)
    return found


@pytest.mark.long
async def test_connections_shorter_than_a_transfer_beside_compactions_make_progress(pair, monkeypatch):
    offers = accepted(monkeypatch)
    cutting = Cutting(monkeypatch, pair, 3)
    await pair.write(WHOLE)
    for _ in range(4):
        await cutting.came()
        await pair.compact()
        cutting.heal()
    assert pair.replica.seqs("orders") != [0], "no segment has come although 12 MiB were sent, and one has 8"
    cutting.is_on = False
    await pair.level()
    continued = [(id, offset) for id, offset in offers if offset]
    assert len(continued) >= 2
    pair.leader.node.check()


async def test_a_transfer_is_continued_though_no_acknowledgement_has_come(pair, monkeypatch):
    cutting, offers = Cutting(monkeypatch, pair, 3), accepted(monkeypatch)
    await pair.write(WHOLE)
    [first] = pair.source.chain.segments
    with monkeypatch.context() as lost:
        lost.setattr(SegmentOffers, "_acknowledged", lambda *args: None)
        await cutting.came()
    await pair.compact()
    cutting.is_on = False
    cutting.heal()
    await pair.level()
    [(id, offset)] = [(id, offset) for id, offset in offers if offset]
    assert id == first.identity.segment_id
    assert offset >= 3 * MIB


async def test_a_transfer_without_progress_is_kept_no_longer(pair, monkeypatch):
    cutting = Cutting(monkeypatch, pair, 3)
    await pair.write(WHOLE)
    [first] = pair.source.chain.segments
    await cutting.came()
    [(key, broken)] = pair.storage.broken_transfers._broken.items()
    keep = pair.storage.broken_transfers.broke
    keep(pair.source, key[2], broken.link, first, broken.held)
    assert pair.storage.broken_transfers._broken == {key: broken}
    keep(pair.source, key[2], broken.link, first, broken.held + 1)
    [longer] = pair.storage.broken_transfers._broken.values()
    assert longer.checkpoint_id != broken.checkpoint_id
    assert len(pair.storage.checkpoints) == 1


async def test_a_replaced_segment_goes_when_its_transfer_is_complete(pair, monkeypatch):
    cutting = Cutting(monkeypatch, pair, 3)
    await pair.write(WHOLE)
    [first] = pair.source.chain.segments
    await cutting.came()
    await pair.compact()
    await pair.storage.flusher.trim()
    assert pair.exists(first)
    cutting.is_on = False
    cutting.heal()
    await pair.level()
    await until(lambda: not len(pair.storage.checkpoints))  # the leader hears of it after the follower has the rows
    await pair.storage.flusher.trim()
    assert not pair.exists(first)
    assert not pair.storage.pins.retired_bytes


async def test_a_replaced_segment_is_kept_for_its_time_only(pair, monkeypatch):
    cutting = Cutting(monkeypatch, pair, 3)
    await pair.write(WHOLE)
    [first] = pair.source.chain.segments
    await cutting.came()
    await pair.compact()
    clock, checkpoints = pair.storage.host.clock, pair.storage.checkpoints
    monkeypatch.setattr(checkpoints, "_host", Later(clock, 61.0))
    checkpoints.expire()
    await pair.storage.flusher.trim()
    assert not pair.exists(first)
    cutting.is_on = False
    cutting.heal()
    await pair.level()


class Later:
    """A host whose clock is ahead."""

    def __init__(self, clock, seconds):
        self.clock = self
        self._clock, self._seconds = clock, seconds

    def monotonic(self):
        return self._clock.monotonic() + self._seconds


async def test_a_follower_that_has_lost_its_half_gets_the_segment_that_replaced_it(pair, monkeypatch):
    cutting = Cutting(monkeypatch, pair, 3)
    await pair.write(WHOLE)
    [first] = pair.source.chain.segments
    await cutting.came()
    await pair.compact()
    cutting.is_on = False
    await pair.replica.stop()  # the half file goes
    offers = accepted(monkeypatch)
    cutting.heal()
    await pair.replica.start()
    await pair.level()
    assert [(id == first.identity.segment_id, offset) for id, offset in offers] == [(True, 0), (False, 0)]


@pytest.mark.parametrize("drop", [False, True])
async def test_a_segment_is_not_kept_for_a_feed_that_is_dropped(pair, monkeypatch, drop):
    cutting = Cutting(monkeypatch, pair, 3)
    await pair.write(WHOLE)
    partition, storage = pair.source, pair.storage
    await cutting.came()
    [key] = storage.broken_transfers._broken
    assert len(storage.checkpoints) == 1
    if drop:
        async with tailrace.connect(pair.leader.url) as client:
            await client.drop_feed("orders")
        assert not len(storage.checkpoints)
        assert storage.broken_transfers.find(partition, key[2]) is None
        assert not storage.broken_transfers._broken
    else:
        cutting.is_on = False
        cutting.heal()
        await pair.level()
        await until(lambda: not len(storage.checkpoints))  # the leader hears of it after the follower has the rows


async def test_an_offer_over_a_frozen_link_ends_and_is_made_again(pair, monkeypatch):
    monkeypatch.setattr(segment_offers, "ANSWER_SECONDS_MAX", 0.3)
    failed, fail, send = [], SegmentOffers._failed, SegmentOffers._send

    def noted(offers, offering, error):
        failed.append(str(error))
        fail(offers, offering, error)

    def freeze_and_send(offers, *frames):
        if not failed:
            pair.proxy.freeze()  # not earlier: a silent link is closed, and then nothing is offered
        send(offers, *frames)

    monkeypatch.setattr(SegmentOffers, "_failed", noted)
    monkeypatch.setattr(SegmentOffers, "_send", freeze_and_send)
    await pair.write(5)
    await until(lambda: failed)
    assert failed[0] == "a replica has not answered for 0.3 s"
    pair.proxy.heal()
    await pair.level()


async def test_the_leader_finds_its_damaged_segment_when_a_follower_declines_it(pair):
    """The key table is damaged, which the leader itself need not read for long."""
    pair.proxy.cut()
    await pair.write(2)
    [segment] = pair.source.chain.segments
    flip(segment.path, int(segment._places[-1]))
    pair.proxy.heal()
    await until(lambda: pair.storage.damages)
    assert list(pair.storage.damages) == [segment.path]
    assert not pair.leader.node.status()["healthy"]


async def test_a_part_of_an_ended_offer_that_fails_late_leaves_the_next_one_alone(pair, monkeypatch):
    """The next offer is being prepared: its checksum is read. A second one of the same segment must not be begun."""
    token, prepared, is_over, reads, parts, late = trio.lowlevel.current_trio_token(), trio.Event(), [], [], [], []
    goes_on = threading.Event()
    read_checksum, send, failed = Segment.read_checksum, SegmentSender._send, SegmentOffers._part_failed

    def read(self):
        reads.append(self)
        if len(reads) == 2:
            trio.from_thread.run_sync(prepared.set, trio_token=token)
            goes_on.wait()
        return read_checksum(self)

    async def starved(self, part):
        parts.append(part)
        if len(parts) == 2:
            await prepared.wait()
        if len(parts) <= 2:
            raise Overloaded("no file descriptor is free")
        if not is_over:
            is_over.append(part)
            goes_on.set()
        await send(self, part)

    def noted(self, offering, number, error):
        before = offering.target, offering.segment
        failed(self, offering, number, error)
        late.append((before, (offering.target, offering.segment)))

    monkeypatch.setattr(Segment, "read_checksum", read)
    monkeypatch.setattr(SegmentSender, "_send", starved)
    monkeypatch.setattr(SegmentOffers, "_part_failed", noted)
    await pair.write(WHOLE)
    await pair.level()
    [_, (before, after)] = late
    assert before == after
    pair.leader.node.check()
