"""A member that copies segments streams the rows behind them meanwhile: durable, unseen, and applied in their order."""

import dataclasses
import functools
import logging
import os
import types

import pytest
import trio
from tests.tailrace_server.replication import made_set
from tests.tailrace_server.replication.made_set import COPY_ALWAYS, numbered, publish_one, resend_state, until

from tailrace_server.chain import AppliedRange
from tailrace_server.replication import ahead_stream
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.upkeep.ahead_file import AheadDamaged, AheadFile
from tailrace_server.upkeep.received_files import PartitionFiles


@pytest.fixture
def set_options():
    return {"replication": COPY_ALWAYS}


class Gate:
    """Holds the segments that come, after the first ``passes`` parts; ``stored`` has the segments of all that came."""

    def __init__(self):
        self.opened = trio.Event()
        self.reached = trio.Event()
        self.passes = 0
        self.stored = []

    def close(self):
        self.opened, self.reached = trio.Event(), trio.Event()

    def open(self):
        self.opened.set()


@pytest.fixture
def gate(monkeypatch):
    made, store = Gate(), PartitionFiles.store_parts

    async def wait(files, received):
        for part, data in received:
            if len(made.stored) >= made.passes:
                made.reached.set()
                await made.opened.wait()
            await store(files, [(part, data)])
            made.stored.append(part.segment.id)

    monkeypatch.setattr(PartitionFiles, "store_parts", wait)
    return made


@pytest.fixture
def released(monkeypatch):
    """The seqs from which the pulls' own streams of partitions were asked for, after they were held back."""
    seqs, release = [], ReplicaPuller._release

    def noted(puller, partition):
        seqs.append(partition.high_seq)
        release(puller, partition)

    monkeypatch.setattr(ReplicaPuller, "_release", noted)
    return seqs


put = functools.partial(made_set.put, level="disk")


def partition_of(member):
    [partition] = member.node.feeds.named("orders").partitions
    return partition


async def away(members, client, **options):
    """A feed of which the third member has seqs 1 to 50; the leader has two segments more, up to 250."""
    feed = await client.create_feed("orders", partitions=1, **options)
    await put(feed, numbered(0, 50), level="quorum")
    await members.level("orders")
    await members[2].stop()
    await put(feed, numbered(50, 100))
    await members[0].flush()
    await put(feed, numbered(150, 100))
    await members[0].flush()
    return feed


def ranges(member):
    return member.node.storage.ahead.ranges(partition_of(member)).ranges


def ahead_path(member):
    partition = partition_of(member)
    return os.path.join(
        member.node.storage.store.partition_directory(partition.feed_id, partition.id),
        "AHEAD",
    )


async def asked_from(released, seq):
    """The pull's own stream was asked for from ``seq``: the rows up to it did not come again."""
    await until(lambda: released)
    assert released == [seq]


def has_file(member):
    return os.path.exists(ahead_path(member))


def file_bytes(member):
    return os.path.getsize(ahead_path(member))


async def ahead_through(member, seq):
    """Returns once rows up to ``seq`` are durable beyond the prefix."""
    await until(lambda: any(one.last_seq == seq for one in ranges(member)))


def damage(path, place):
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 8)


async def check_level(members, rows):
    assert members.leader.rows("orders") == rows
    for member in members:
        if member.is_up:
            assert member.rows("orders") == rows
            member.node.check()
            await until(lambda member=member: not has_file(member))  # it goes once its rows are durable


async def test_rows_behind_the_segments_are_durable_and_unseen_until_these_are_here(members, gate, released):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, {b"10": b"new", b"60": b"new", b"160": None, b"300": b"new", b"20": None})
        await ahead_through(members[2], 255)
        partition = partition_of(members[2])
        assert ranges(members[2]) == (AppliedRange(250, 255),)
        assert (partition.high_seq, partition.standing()[1]) == (50, 50)
        assert members[2].rows("orders") == numbered(0, 50)
        gate.open()
        await members.level("orders")
        expected = numbered(0, 250) | {b"10": b"new", b"60": b"new", b"300": b"new"}
        del expected[b"160"], expected[b"20"]
        await check_level(members, expected)
        await asked_from(released, 255)
        await put(feed, numbered(400, 5), level="quorum")
        await members.level("orders")
        await check_level(members, expected | numbered(400, 5))


async def test_they_do_not_count_for_a_majority(members, gate):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await members[1].stop()
        done = trio.Event()
        async with trio.open_nursery() as nursery:

            async def put_one():
                await feed.put(b"new", b"1", level="quorum")
                done.set()

            nursery.start_soon(put_one)
            await ahead_through(members[2], 251)
            await trio.sleep(0.2)
            assert not done.is_set()
            assert partition_of(members[0]).quorum_seq < 251
            gate.open()
        assert done.is_set()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | {b"new": b"1"})


async def test_after_a_kill_only_the_holes_are_fetched(members, gate, released):
    async with members.client() as client:
        feed = await away(members, client)
        gate.passes = 1
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        held = ranges(members[2])
        assert len(held) == 2
        assert len(gate.stored) == 1
        await members[2].kill()
        await put(feed, numbered(305, 5))
        gate.close()
        await members[2].start()
        assert ranges(members[2])[0] == held[0]
        await gate.reached.wait()
        await ahead_through(members[2], 260)  # the stream goes on behind the rows that are here
        assert partition_of(members[2]).high_seq == 50
        gate.open()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 10))
        assert len(gate.stored) == len(set(gate.stored)) == 2, "a segment came twice"
        await asked_from(released, 260)


@pytest.fixture
def unapplied(monkeypatch):
    """Holds rows that have come ahead, when their segments are installed: ``reached`` and ``go_on`` are events."""
    apply, made = ReplicaPuller._apply, types.SimpleNamespace(reached=trio.Event(), go_on=trio.Event())

    async def wait(puller, event):
        if puller.feed.info.name == "orders" and puller._far.holds(getattr(event, "partition", -1)):
            made.reached.set()
            await made.go_on.wait()
        await apply(puller, event)

    monkeypatch.setattr(ReplicaPuller, "_apply", wait)
    return made


async def test_a_kill_before_the_rows_are_applied(members, gate, released, unapplied):
    """The segments are installed, and nothing is missing below the rows: none are fetched after the restart."""
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        gate.open()
        await unapplied.reached.wait()
        assert partition_of(members[2]).high_seq == 250
        await members[2].kill()
        unapplied.go_on.set()
        fetched = len(gate.stored)
        await members[2].start()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5))
        await asked_from(released, 255)
        assert len(gate.stored) == fetched


async def test_rows_of_another_history_that_cannot_be_cut_are_not_applied(
    members, gate, unapplied, caplog, monkeypatch
):
    """Nothing is missing below them, and the next leader does not have the last ones."""
    caplog.set_level(logging.WARNING, "tailrace.server")

    def refuse(file, seq):
        raise OSError("the disk refuses")

    async with members.client() as client:
        feed = await away(members, client)
        await members.level("orders")
        await members[2].start()
        await gate.reached.wait()
        await members[1].stop()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        gate.open()
        await unapplied.reached.wait()
        await members[2].kill()
        await members[0].kill()
        unapplied.go_on.set()
        monkeypatch.setattr(AheadFile, "keep_through", refuse)
        await members[1].start()
        await members[2].start()
        assert partition_of(members[2]).high_seq == 250
        await members[1].promote()
        await put(feed, numbered(400, 3))
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(400, 3))
        assert "drops seqs 251 to 255, which came ahead of the rows below them: they are not of the" in caplog.text


async def test_a_leader_without_the_rows_has_them_dropped(members, gate, caplog):
    """They were only on the old leader's disk, and ahead on this one's: no majority had them."""
    caplog.set_level(logging.WARNING, "tailrace.server")
    async with members.client() as client:
        feed = await away(members, client)
        await members.level("orders")
        await members[1].stop()
        await put(feed, numbered(300, 5))
        await members[2].start()
        await gate.reached.wait()
        await ahead_through(members[2], 255)
        await members[0].kill()
        await members[1].start()
        gate.open()
        await members[1].promote()
        await put(feed, numbered(400, 3))
        await members[0].start()
        await members.level("orders")
        rows = members.leader.rows("orders")
        assert rows == numbered(0, 250) | numbered(400, 3)
        await check_level(members, rows)
        assert "drops seqs 251 to 255, which came ahead" in caplog.text


async def test_a_promotion_does_not_lead_by_them_and_says_so(members, gate):
    async with members.client() as client:
        feed = await away(members, client)
        await members.level("orders")
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        await members[0].kill()
        await members[1].stop()
        answer = await members[2].promote(force=True)
        said = "drops seqs 251 to 255 of partition 0 of feed orders: seqs 51 to 250 are missing before them"
        assert said in answer["steps"]
        assert members[2].rows("orders") == numbered(0, 50)
        assert ranges(members[2]) == ()
        assert not has_file(members[2])


async def test_a_promotion_fills_the_holes_from_a_member(members, gate):
    async with members.client() as client:
        feed = await away(members, client)
        await put(feed, numbered(300, 5), level="quorum")
        await members.level("orders")
        await members[2].start()
        await gate.reached.wait()
        await ahead_through(members[2], 255)
        await members[0].kill()
        gate.open()
        await members[2].promote()
        await members[0].start()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5))


async def test_their_bytes_are_bounded(members, gate, released, monkeypatch):
    monkeypatch.setattr(ahead_stream, "AHEAD_BYTES_MAX", 2_000)
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        for first in range(300, 400, 10):
            await put(feed, numbered(first, 10))
        await until(lambda: ranges(members[2]) and ranges(members[2])[0].last_seq > 260)
        await until(lambda: file_bytes(members[2]) > 2_000)
        await put(feed, numbered(400, 100))
        await trio.sleep(0.2)
        last_seq = ranges(members[2])[0].last_seq
        gate.open()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 200))
        await asked_from(released, last_seq)


async def test_a_disk_without_room_for_them_still_gets_the_segments(members, gate, released, monkeypatch):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        members[2].node.storage.space.low = "only a few bytes are free"
        await put(feed, numbered(300, 5))
        await trio.sleep(0.2)
        assert ranges(members[2]) == ()
        members[2].node.storage.space.low = ""
        gate.open()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5))
        await asked_from(released, 250)


async def test_batches_and_flushed_rows_come_ahead_too(members, gate, released):
    """The stream ahead has all kinds of snapshots; what a resend or a batch is known by is there after them."""
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await publish_one(feed)
        await put(feed, numbered(310, 5))
        last_seq = partition_of(members[0]).high_seq
        await ahead_through(members[2], last_seq)
        gate.open()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5) | {b"batch": b"1"} | numbered(310, 5))
        await asked_from(released, last_seq)
        assert resend_state(partition_of(members[2])) == resend_state(partition_of(members[0]))


async def test_a_feed_that_is_dropped_meanwhile(members, gate):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        directory = os.path.dirname(os.path.dirname(ahead_path(members[2])))
        await client.drop_feed("orders")
        await until(lambda: "orders" not in [found.info.name for found in members[2].node.feeds])
        gate.open()
        await until(lambda: not os.path.exists(directory))
        members[2].node.check()


async def test_a_following_that_ends_while_the_files_are_removed_leaves_none(members, gate):
    gate.passes = 1
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        await members[0].stop()
        await until(lambda: members[2].member.following is None)
        partition, storage = partition_of(members[2]), members[2].node.storage
        with trio.CancelScope() as scope:
            scope.cancel()
            await storage.ahead.discard(partition, "")
            await storage.received.discard(partition)
        directory = os.path.dirname(ahead_path(members[2]))
        chain = {os.path.basename(segment.path) for segment in partition.chain.segments}
        assert set(os.listdir(directory)) <= {"MANIFEST", *chain}


async def test_a_later_checkpoint_covers_rows_that_came_ahead(members, gate, released):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await put(feed, numbered(310, 5))
        await ahead_through(members[2], 260)
        await members[2].kill()
        leader = partition_of(members[0])
        await members[0].node.storage.flusher.flush_through(leader, 255)
        gate.close()
        await members[2].start()
        await gate.reached.wait()
        gate.open()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5) | numbered(310, 5))
        await asked_from(released, 260)


async def test_a_checkpoint_beyond_them_replaces_them(members, gate, released):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        await members[2].kill()
        await put(feed, numbered(310, 5))
        await members[0].flush()
        gate.close()
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(320, 5))
        await ahead_through(members[2], 265)
        gate.open()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5) | numbered(310, 5) | numbered(320, 5))
        await asked_from(released, 265)


async def test_a_checkpoint_that_ends_below_them_leaves_a_hole(members, gate, caplog):
    """The new leader has flushed less: nothing fills the seqs between its segments and the rows."""
    caplog.set_level(logging.WARNING, "tailrace.server")
    async with members.client() as client:
        feed = await away(members, client)
        await members.level("orders")
        await put(feed, numbered(300, 5), level="quorum")
        await members[2].start()
        await gate.reached.wait()
        await ahead_through(members[2], 255)
        partition = partition_of(members[1])
        seq = next(iter(partition.tree.blocks_after(0))).seqs[1]
        assert seq < 250
        await members[1].node.storage.flusher.flush_through(partition, seq)
        await members[1].promote()
        gate.open()
        await put(feed, numbered(400, 5))
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5) | numbered(400, 5))


CUTS = {
    "": "the leader has another history above seq 255",
    "error": "seqs 51 to 250 are missing before them",
    "damage": "it is damaged",
}


@pytest.mark.parametrize("fault", CUTS)
async def test_another_leader_while_a_member_with_rows_ahead_is_down(
    members, gate, released, caplog, monkeypatch, fault
):
    """It reads the file at its start, and drops what the new leader does not have before it asks for anything.

    If the file cannot be cut, all of its rows are dropped.
    """
    caplog.set_level(logging.WARNING, "tailrace.server")
    error = {"error": OSError("the disk refuses"), "damage": AheadDamaged("it is damaged")}.get(fault)
    if error is not None:

        def refuse(file, seq):
            raise error

        monkeypatch.setattr(AheadFile, "keep_through", refuse)
    async with members.client() as client:
        feed = await away(members, client)
        await members.level("orders")
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5), level="quorum")
        await members[1].stop()
        await put(feed, numbered(310, 5))
        await ahead_through(members[2], 260)
        await members[2].kill()
        await members[0].kill()
        await members[1].start()
        gate.close()
        gate.open()
        released.clear()
        await members[2].start()
        assert ranges(members[2]) == (AppliedRange(250, 260),)
        await members[1].promote()
        await members[1].flush()
        await put(feed, numbered(400, 3))
        await members.level("orders")
        await members[0].start()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5) | numbered(400, 3))
        assert f"which came ahead of the rows below them: {CUTS[fault]}" in caplog.text


async def test_a_following_that_ends_at_any_moment(members, gate):
    """Rows that came ahead are there for the next one, which goes on; the member has all rows in the end."""
    gate.open()
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        expected = numbered(0, 250)
        for number in range(12):
            gate.close()
            await put(feed, numbered(1_000 + 10 * number, 10))
            expected |= numbered(1_000 + 10 * number, 10)
            await trio.sleep(0.01 * number)
            if members[2].member.following is not None:
                members[2].member.following.stop()
            gate.open()
        await members.level("orders")
        await check_level(members, expected)


async def test_compactions_of_the_leader_meanwhile(members, gate, released):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        partition = partition_of(members[0])
        oldest = partition.chain.segments[0].identity.segment_id
        for first in range(0, 80, 10):
            await put(feed, numbered(first, 10), level="quorum")
            await members[0].flush()
        await until(lambda: partition.chain.segments[0].identity.segment_id != oldest)
        await put(feed, {b"1": None})
        await ahead_through(members[2], 331)
        gate.open()
        await members.level("orders")
        rows = numbered(0, 250)
        del rows[b"1"]
        await check_level(members, rows)
        await asked_from(released, 331)


async def test_damaged_rows_come_again(members, gate, released, monkeypatch):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        path = ahead_path(members[2])
        damage(path, file_bytes(members[2]) - 20)
        gate.open()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5))
        await until(lambda: released)
        assert released[0] >= 250


async def test_a_file_that_cannot_be_used_does_not_keep_a_node_from_starting(members, gate):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        path = ahead_path(members[2])
        await members[2].kill()
        damage(path, 0)
        gate.open()
        await members[2].start()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5))


async def test_rows_that_a_follower_need_not_copy_segments_for_are_streamed_again(members, gate, released, caplog):
    """The rule says stream now: the hole is streamed, and so are the rows above it."""
    caplog.set_level(logging.WARNING, "tailrace.server")
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await gate.reached.wait()
        await put(feed, numbered(300, 5))
        await ahead_through(members[2], 255)
        await members[2].kill()
        replication = dataclasses.replace(members[2].config.replication, catch_up_bytes_min=1 << 30)
        members[2].config = dataclasses.replace(members[2].config, replication=replication)
        gate.open()
        await members[2].start()
        await members.level("orders")
        await check_level(members, numbered(0, 250) | numbered(300, 5))
        await asked_from(released, 50)
        assert (
            "drops seqs 251 to 255, which came ahead of the rows below them: seqs 51 to 250 are missing" in caplog.text
        )
