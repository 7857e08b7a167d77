"""Pushed segments that break, are damaged, or come to a node that is killed at any step."""

import dataclasses
import errno
import os
import random
import threading

import pytest
import trio
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.replication.test_pushed_sets import (
    STORAGE,
    numbered,
    put,
    same_segments,
)

import tailrace
from tailrace.errors import NotLeader, Overloaded, TailraceError
from tailrace.model.failover import FailoverLog
from tailrace.wire.push_messages import DeclineReason, SegmentAccept, SegmentDecline
from tailrace_server.chain import OfferCase, Receiver
from tailrace_server.config import Limits, StorageConfig
from tailrace_server.manifest import ManifestStore
from tailrace_server.replication.following import Following
from tailrace_server.replication.pushed_segments import PushedSegments
from tailrace_server.segment import Segment
from tailrace_server.serving import segment_offers
from tailrace_server.serving.segment_offers import SegmentOffers
from tailrace_server.serving.segment_sender import SegmentSender
from tailrace_server.upkeep.incoming_segments import IncomingSegment
from tailrace_server.upkeep.rollback import roll_back

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


def once(monkeypatch, owner, name, does):
    """Has ``does(original, self, ...)`` called in the place of a method; gives the list of its results."""
    original, calls = getattr(owner, name), []

    def replaced(self, *arguments):
        calls.append(None)
        return does(original, len(calls), self, *arguments)

    monkeypatch.setattr(owner, name, replaced)
    return calls


def answers_of(monkeypatch):
    """All answers to offers from now on, as a list that grows."""
    answers = []
    offered = PushedSegments.offered

    async def noted(self, partition, offer, leaders_log):
        answers.append(await offered(self, partition, offer, leaders_log))
        return answers[-1]

    monkeypatch.setattr(PushedSegments, "offered", noted)
    return answers


@pytest.fixture
async def pushed(new_set):
    """A set with a feed in mode segment, which flushes only if it is told to; and its feed."""
    made = new_set(storage=StorageConfig(pushed_age_s=3_600.0))
    await made.start()
    await made.settled()
    async with made.client() as client:
        yield made, await client.create_feed("orders", partitions=1, replication="segment")


async def flush(node):
    for partition in node.node.feeds.named("orders").partitions:
        await node.node.storage.flusher.flush_all(partition)


async def test_a_damaged_file_is_declined_and_comes_again(pushed, monkeypatch, caplog):
    made, feed = pushed
    leader = await made.settled()

    def damaged(original, number, self, data):
        data = bytes(data)
        return original(self, data[:-1] + bytes([data[-1] ^ 1]) if number == 1 else data)

    once(monkeypatch, IncomingSegment, "add", damaged)
    await put(feed, numbered(0, 20))
    await flush(leader)
    await same_segments(made, "orders")
    assert "is not as the leader told" in caplog.text
    assert "a follower declines segment" in caplog.text
    assert all(node.rows("orders") == numbered(0, 20) for node in made)


async def test_a_transfer_that_broke_is_continued_behind_its_last_byte(pushed, monkeypatch):
    made, feed = pushed
    leader = await made.settled()

    broke = []

    def broken(original, number, self, data):
        if not broke and self.offset >= 2 * MIB:
            broke.append(number)
            raise OSError(errno.EIO, "the disk of a test")
        return original(self, data)

    once(monkeypatch, IncomingSegment, "add", broken)
    answers = answers_of(monkeypatch)
    rows = {b"%d" % number: os.urandom(MIB) for number in range(5)}
    await put(feed, rows)
    await flush(leader)
    await same_segments(made, "orders")
    assert sorted(answer.offset for answer in answers if isinstance(answer, SegmentAccept)) == [0, 0, 2 * MIB]
    assert all(node.rows("orders") == rows for node in made)


async def test_a_repeated_answer_has_no_effect_while_the_next_offer_is_prepared(pushed, monkeypatch):
    made, feed = pushed
    leader = await made.settled()
    errors, reasons = [], []
    answered = SegmentOffers.answered

    def twice(self, stream_id, answer):
        if isinstance(answer, SegmentDecline):
            reasons.append(answer.reason)
        answered(self, stream_id, answer)
        try:
            answered(self, stream_id, answer)
        except TailraceError as error:
            errors.append(error)

    monkeypatch.setattr(SegmentOffers, "answered", twice)
    for number in range(3):
        await put(feed, numbered(10 * number, 10))
        await flush(leader)
    await same_segments(made, "orders")
    partitions = leader.node.feeds.named("orders").partitions
    # The last acknowledgement of a follower comes after its segment is here. Later it would acknowledge it anew.
    sent = [(each.pushes, segment.identity.segment_id) for each in partitions for segment in each.chain.segments]
    await until(lambda: all(len(pushes.placements.get(id, ())) == 2 for pushes, id in sent))
    for partition in partitions:
        partition.pushes.acknowledge(())  # as after a failover: the followers answer that they have all of them
        partition.pushes.chain_changed()
    await until(lambda: len(reasons) == 6)
    await put(feed, numbered(30, 10))
    await flush(leader)
    await same_segments(made, "orders")
    assert set(reasons) == {DeclineReason.EXISTS}
    assert not errors
    assert all(node.rows("orders") == numbered(0, 40) for node in made)


async def test_an_offer_without_an_answer_is_made_again(pushed, monkeypatch):
    made, feed = pushed
    leader = await made.settled()
    monkeypatch.setattr(segment_offers, "ANSWER_SECONDS_MAX", 0.2)

    async def lost(original, number, self, *arguments):
        return None if number == 1 else await original(self, *arguments)

    parts = once(monkeypatch, PushedSegments, "got_parts", lost)
    await put(feed, numbered(0, 20))
    await flush(leader)
    await same_segments(made, "orders")
    assert len(parts) > 2
    assert all(node.rows("orders") == numbered(0, 20) for node in made)


async def test_a_full_disk_of_a_follower_keeps_the_leader_waiting(pushed, monkeypatch):
    made, feed = pushed
    leader = await made.settled()
    full = {node for node in made if node is not leader}
    follower = next(iter(full))
    space = follower.node.storage.space
    check_room = space.check_room

    async def checked(nbytes, what):
        if full:
            raise tailrace.NoSpace(f"no space is left for {what}")
        await check_room(nbytes, what)

    monkeypatch.setattr(space, "check_room", checked)
    answers = answers_of(monkeypatch)
    await put(feed, numbered(0, 20))
    await flush(leader)
    await until(lambda: sum(isinstance(answer, SegmentDecline) for answer in answers) >= 2)
    assert follower.seqs("orders") == [0]
    full.clear()
    await same_segments(made, "orders")


async def test_a_segment_that_the_leader_cannot_read_ends_the_stream_of_its_partition(pushed, monkeypatch):
    made, feed = pushed
    leader = await made.settled()
    follower = next(node for node in made if node is not leader)
    await put(feed, numbered(0, 20))

    def unreadable(original, number, self):
        if number <= 2:
            raise self._file.damaged(0, "a test")
        return original(self)

    once(monkeypatch, Segment, "read_checksum", unreadable)
    await flush(leader)
    await until(lambda: leader.node.storage.damages)
    await same_segments(made, "orders")
    assert follower.rows("orders") == numbered(0, 20)


async def test_a_part_without_a_descriptor_is_offered_again(pushed, monkeypatch, caplog):
    made, feed = pushed
    leader = await made.settled()
    rows = {b"%d" % number: os.urandom(MIB) for number in range(4)}
    await put(feed, rows)

    async def starved(original, number, self, part):
        if number == 4:
            raise Overloaded("no file descriptor is free")
        await original(self, part)

    once(monkeypatch, SegmentSender, "_send", starved)
    followings = once(monkeypatch, Following, "run", lambda original, number, self: original(self))
    answers = answers_of(monkeypatch)
    await flush(leader)
    await same_segments(made, "orders")
    assert "is offered again later" in caplog.text
    accepted = [answer.offset for answer in answers if isinstance(answer, SegmentAccept)]
    assert len(accepted) == 3
    assert len(followings) == 0, "the connection has broken"
    assert not leader.node.storage.damages
    assert all(node.rows("orders") == rows for node in made)


async def test_no_more_segments_are_received_than_the_bound_says(new_set, monkeypatch):
    made = new_set(storage=STORAGE, limits=dataclasses.replace(Limits(), incoming_segments_max=2))
    await made.start()
    leader = await made.settled()
    answers = answers_of(monkeypatch)
    most = 0

    def counted(original, number, self, data):
        nonlocal most
        for node in made:
            if node.is_up:
                segments = node.node.storage.incoming._segments.values()
                most = max(most, sum(segment.is_active for segment in segments))
        return original(self, data)

    once(monkeypatch, IncomingSegment, "add", counted)
    async with made.client() as client:
        feed = await client.create_feed("orders", partitions=32, replication="segment")
        async with feed.writer() as writer:
            for key, value in numbered(0, 2_000).items():
                await writer.put(key, value)
        await flush(leader)
        await same_segments(made, "orders")
    assert most <= 2
    assert answers


STEPS = {
    "part": (IncomingSegment, "add"),
    "whole file": (IncomingSegment, "finish"),
    "manifest": (ManifestStore, "write"),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
async def test_a_follower_that_is_killed_at_a_step_gets_the_segment_again(pushed, monkeypatch, step, after):
    made, feed = pushed
    leader = await made.settled()
    await put(feed, numbered(0, 20))
    await flush(leader)
    await same_segments(made, "orders")
    victim = next(node for node in made if node is not leader)
    token, reached = trio.lowlevel.current_trio_token(), trio.Event()
    owner, name = STEPS[step]
    original = getattr(owner, name)
    data = victim.config.data

    def killed(self, *arguments):
        path = getattr(self, "path", "") or getattr(self, "_root", "")
        if reached.is_set() or not str(path).startswith(data):
            return original(self, *arguments)
        if after:
            original(self, *arguments)
        trio.from_thread.run_sync(reached.set, trio_token=token)
        raise OSError(errno.EIO, "killed by a test")

    monkeypatch.setattr(owner, name, killed)
    await put(feed, numbered(20, 20))
    await flush(leader)
    await reached.wait()
    await victim.kill()
    await victim.start()
    await same_segments(made, "orders")
    for node in made:
        node.node.check()
        assert node.rows("orders") == numbered(0, 40)


async def churn(made, client, rnd, steps):
    """Random writes, kills, promotions, handovers and changes of the mode; gives what was on all nodes once."""
    feed = await client.create_feed("orders", partitions=2, replication="segment")
    shipped, written, mode = {}, {}, "segment"
    for number in range(steps):
        step = rnd.choice(("put", "put", "put", "flush", "kill", "start", "promote", "hand over", "mode", "level"))
        up = [node for node in made if node.is_up]
        down = [node for node in made if not node.is_up]
        leaders = [node for node in up if node.leads]
        if step == "put" and leaders:
            rows = numbered(1_000 * number, rnd.randint(1, 20))
            written |= rows
            await put(feed, rows)
        elif step == "flush" and leaders:
            await flush(leaders[0])
        elif step == "kill" and len(up) == 3:
            await rnd.choice(up).kill()
        elif step == "start" and down:
            await down[0].start()
        elif step in ("promote", "hand over") and len(up) >= 2:
            others = [node for node in up if not node.leads]
            try:
                if step == "promote" or not leaders:
                    await rnd.choice(others).promote()
                else:
                    await leaders[0].hand_over(rnd.choice(others))
            except (NotLeader, TailraceError):
                pass  # such as a member without a vote
        elif step == "mode" and leaders:
            mode = rnd.choice(("segment", "stream"))
            await client.set_feed("orders", replication=mode)
        elif step == "level":
            for node in down:
                await node.start()
            leader = next((node for node in made if node.leads), None) or made[0]
            if not leader.leads:
                with_vote = next(node for node in made if node.member.local.votes)
                await with_vote.promote()
            await flush(await made.settled())
            await made.level("orders")
            shipped |= leader.rows("orders")
    return feed, shipped, written


@pytest.mark.parametrize("seed", range(4))
async def test_all_nodes_come_to_the_same_rows_after_a_churn(new_set, seed):
    rnd = random.Random(seed)
    made = new_set(storage=STORAGE)
    await made.start()
    await made.settled()
    async with made.client() as client:
        feed, shipped, written = await churn(made, client, rnd, 40)
        for node in made:
            if not node.is_up:
                await node.start()
        if not any(node.leads for node in made):
            await next(node for node in made if node.member.local.votes).promote()
        await client.set_feed("orders", replication="segment")
        await put(feed, numbered(10**6, 5))
        leader = await made.settled()
        await flush(leader)
        await made.level("orders")
        rows = leader.rows("orders")
        assert rows == rows | shipped | numbered(10**6, 5)
        assert rows.items() <= (written | numbered(10**6, 5)).items()
        for node in made:
            node.node.check()
            assert node.rows("orders") == rows


def is_there(segment):
    return os.path.exists(segment.path)


def files_are_there(node):
    return all(is_there(s) for p in node.node.feeds.named("orders").partitions for s in p.chain.segments)


async def rolled_back_and_pushed_again(made, follower, monkeypatch):
    """A follower goes back to 0 and gets its segments again. The trimmer has not come to the first files yet."""
    flusher, trim = follower.node.storage.flusher, follower.node.storage.flusher.trim
    monkeypatch.setattr(flusher, "trim", trio.lowlevel.checkpoint)
    partition = follower.node.feeds.named("orders").partitions[0]
    await roll_back(follower.node.storage, partition, 0, FailoverLog(), lambda *_: None)
    follower.member.step_down()  # it follows again from seq 0
    return trim


async def test_a_file_that_is_about_to_be_removed_is_not_taken_for_a_new_one(pushed, monkeypatch):
    """The trimmer removes the file of a rolled-back segment after the same segment was pushed again."""
    made, feed = pushed
    leader = await made.settled()
    await put(feed, numbered(0, 20))
    await flush(leader)
    await same_segments(made, "orders")
    follower = next(node for node in made if node is not leader)
    answers = answers_of(monkeypatch)
    trim = await rolled_back_and_pushed_again(made, follower, monkeypatch)
    await until(lambda: follower.seqs("orders") == [20] or len(answers) >= 2)
    await trim()
    assert files_are_there(follower)
    await same_segments(made, "orders")
    await trim()
    assert files_are_there(follower)
    follower.node.check()
    assert follower.rows("orders") == numbered(0, 20)


@pytest.mark.parametrize("declined", ["at the end", "never"])
async def test_a_file_that_is_still_being_read_outlives_that_it_is_pushed_again(pushed, monkeypatch, declined):
    """A reader has the rolled-back segment pinned when the same segment is pushed again, and declined or installed."""
    made, feed = pushed
    leader = await made.settled()
    await put(feed, numbered(0, 20))
    await flush(leader)
    await same_segments(made, "orders")
    follower = next(node for node in made if node is not leader)
    partition = follower.node.feeds.named("orders").partitions[0]
    [segment] = partition.chain.segments
    pins = follower.node.storage.pins
    pins.pin(segment)
    if declined == "at the end":
        judged = []
        case_of = Receiver.case_of

        def exists(self, offer):
            judged.append(offer)
            return OfferCase.EXISTS if len(judged) == 2 else case_of(self, offer)

        monkeypatch.setattr(Receiver, "case_of", exists)
    trim = await rolled_back_and_pushed_again(made, follower, monkeypatch)
    if declined == "at the end":
        await until(lambda: len(judged) == 2)
        await trio.sleep(0.2)
        assert is_there(segment)
        monkeypatch.undo()
        follower.member.step_down()  # acknowledgements above its seq are forgotten
    await same_segments(made, "orders")
    pins.unpin(segment)
    await trim()
    assert files_are_there(follower)
    assert follower.rows("orders") == numbered(0, 20)


def of_partition_0(incoming, node):
    return incoming.path.startswith(node.config.data) and os.path.basename(os.path.dirname(incoming.path)) == "0"


@pytest.fixture
async def two_pushed(new_set):
    """A set with a feed of two partitions in mode segment, which flushes only if it is told to; and its feed."""
    made = new_set(storage=StorageConfig(pushed_age_s=3_600.0))
    await made.start()
    await made.settled()
    async with made.client() as client:
        yield made, await client.create_feed("orders", partitions=2, replication="segment")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (RuntimeError("a bug of a test"), "report the error"),
        (OSError(errno.EIO, "the disk of a test"), "check this node's disk"),
    ],
)
async def test_a_partition_that_cannot_install_fails_alone_and_is_tried_again(
    two_pushed, monkeypatch, caplog, error, advice
):
    made, feed = two_pushed
    leader = await made.settled()
    follower = next(node for node in made if node is not leader)
    following, healed = follower.member.following, []

    def fails(original, number, self):
        if of_partition_0(self, follower) and not healed:
            raise error
        return original(self)

    tries = once(monkeypatch, IncomingSegment, "finish", fails)
    await put(feed, numbered(0, 20))
    await flush(leader)
    await until(lambda: follower.seqs("orders")[1] == leader.seqs("orders")[1])
    await put(feed, numbered(20, 20))
    await flush(leader)
    await until(lambda: follower.seqs("orders")[1] == leader.seqs("orders")[1])
    await until(lambda: len(tries) >= 6)
    assert follower.seqs("orders")[0] == 0
    assert follower.member.following is following
    status = follower.node.status()
    [failing] = status["replication"]["failing"]
    assert (failing["feed"], failing["partition"]) == ("orders", 0)
    assert "of a test" in failing["why"]
    assert not status["healthy"]
    assert "partition 0 of feed orders cannot follow" in status["failure"]
    assert advice in caplog.text
    healed.append(True)
    await same_segments(made, "orders")
    assert follower.member.following is following
    assert follower.node.status()["replication"]["failing"] == []
    assert follower.node.status()["healthy"]
    assert all(node.rows("orders") == numbered(0, 40) for node in made)


async def test_a_partition_that_waits_for_the_disk_holds_up_no_other_one(two_pushed, monkeypatch):
    made, feed = two_pushed
    leader = await made.settled()
    follower = next(node for node in made if node is not leader)
    go_on = threading.Event()

    def waits(original, number, self):
        if of_partition_0(self, follower):
            go_on.wait()
        return original(self)

    once(monkeypatch, IncomingSegment, "finish", waits)
    try:
        await put(feed, numbered(0, 20))
        await flush(leader)
        await until(lambda: follower.seqs("orders")[1] == leader.seqs("orders")[1])
        assert follower.seqs("orders")[0] == 0
    finally:
        go_on.set()
    await same_segments(made, "orders")
