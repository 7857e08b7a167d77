"""Many feeds on the one connection of a pair of nodes: what fails in one partition holds up nothing else."""

import contextlib
import os

import pytest
import trio
import trio.lowlevel
from tests.tailrace_server.replication.made_set import numbered, until
from tests.tailrace_server.replication.slow_path import never_now

import tailrace
from tailrace.errors import BadBlock, UnknownFeed, Unreachable
from tailrace_server.replication import pulled_node, pulled_snapshots
from tailrace_server.replication.replica_puller import ReplicaPuller

FEEDS = 20
WINDOW_BYTES = 4 * 1024 * 1024


async def put(feed, rows):
    for key, value in rows.items():
        await feed.put(key, value, level="quorum")


def connections(members, number):
    """The connections by which a member pulls from the leader."""
    name = f"replica {members[number].address}"
    return [connection for connection in members[0].node.connections if connection.name == name]


def failing(member):
    return {(each["feed"], each["partition"]) for each in member.node.status()["replication"]["failing"]}


def follows_with_vote(member):
    following = member.member.following
    return following is not None and following._replica.votes


async def made_feeds(client, count=FEEDS, partitions=2):
    return [await client.create_feed(f"feed-{number}", partitions=partitions) for number in range(count)]


async def test_a_pair_has_one_connection_for_all_feeds(members):
    async with members.client() as client:
        for feed in await made_feeds(client):
            await put(feed, numbered(0, 2))
    for number in range(FEEDS):
        await members.level(f"feed-{number}")
    for number in (1, 2):
        [connection] = connections(members, number)
        assert len(connection.rounds.slots) == 2 * FEEDS + 1


async def test_a_feed_without_events_has_no_task(members):
    async with members.client() as client:
        feeds = await made_feeds(client)
        pullers = members[2].member.following._pullers
        await until(lambda: len(pullers) == FEEDS + 1)
        await until(lambda: not any(puller._tasks.are_running for puller in pullers.values()))
        await put(feeds[3], numbered(0, 2))
        await members.level("feed-3")


async def test_feeds_are_created_and_dropped_while_their_node_is_followed(members):
    async with members.client() as client:
        feeds = await made_feeds(client)
        await put(feeds[0], numbered(0, 2))
        await members.level("feed-0")
        [connection] = connections(members, 2)
        for number in range(1, FEEDS, 2):
            await client.drop_feed(f"feed-{number}")
        await until(lambda: len(connection.rounds.slots) == FEEDS + 1)
        await until(lambda: len(members[2].member.following._pullers) == FEEDS // 2 + 1)
        again = await client.create_feed("feed-1", partitions=3)
        await put(again, numbered(0, 5))
        await members.level("feed-1")
        assert connections(members, 2) == [connection]


async def fails_in_many_ways(members, client, monkeypatch):
    """A damaged segment, a trimmed history, and a dropped feed, beside healthy feeds; the third member begins anew."""
    damaged, _, healthy = await made_feeds(client, 3)
    trimmed = await client.create_feed("trimmed", partitions=1, retention="history")
    dropped = await client.create_feed("dropped", partitions=1)
    for feed in (damaged, healthy, trimmed, dropped):
        await put(feed, numbered(0, 20))
    await members.level("trimmed")
    await members[2].stop()
    await put(trimmed, numbered(100, 10))
    [history] = await members[0].flush("trimmed")
    await put(trimmed, numbered(200, 10))
    await members[0].flush("trimmed")
    await members[0].node.storage.installer.drop_oldest(history, 1)
    broken, _ = await members[0].flush("feed-0")
    os.truncate(broken.chain.segments[0].path, 100)
    members[2].replace_disk()
    await members[2].start()
    await until(lambda: members[2].is_up and members[2].seqs("feed-2") is not None)
    await client.drop_feed("dropped")
    return broken


async def check_healthy(members, client, broken):
    """All but the damaged partition follow, on one connection, and status tells of that one."""
    for number in range(3, 6):
        await put(client.feed("feed-2"), numbered(10 * number, 10))
    following = members[2].member.following
    await until(lambda: members[2].seqs("feed-2") == members[0].seqs("feed-2"))
    await until(lambda: members[2].seqs("trimmed") == members[0].seqs("trimmed"))
    await until(lambda: members[2].seqs("feed-0")[1] == members[0].seqs("feed-0")[1])
    await until(lambda: members[2].seqs("dropped") is None)
    await until(lambda: failing(members[2]) == {("feed-0", broken.id)})
    assert members[2].seqs("feed-0")[0] == 0
    [connection] = connections(members, 2)
    assert members[2].member.following is following
    return connection


async def test_what_fails_in_one_partition_holds_up_no_other(members, monkeypatch):
    async with members.client() as client:
        broken = await fails_in_many_ways(members, client, monkeypatch)
        await until(lambda: follows_with_vote(members[2]))  # it connects anew with its vote
        connection = await check_healthy(members, client, broken)
        await put(client.feed("feed-2"), numbered(100, 10))
        await until(lambda: members[2].seqs("feed-2") == members[0].seqs("feed-2"))
        assert connections(members, 2) == [connection]


async def ends_all(puller, stream, event):
    """A bug: one partition's failure ends the others."""
    raise Unreachable("a partition has failed")


async def test_the_check_above_finds_a_failure_that_ends_the_others(members, monkeypatch):
    monkeypatch.setattr(ReplicaPuller, "_stream_failed", ends_all)
    async with members.client() as client:
        broken = await fails_in_many_ways(members, client, monkeypatch)
        is_healthy = False
        with trio.move_on_after(3), contextlib.suppress(AssertionError):
            await until(lambda: follows_with_vote(members[2]))
            await check_healthy(members, client, broken)
            is_healthy = True
        assert not is_healthy


@pytest.mark.parametrize("error", [BadBlock("it does not fit"), RuntimeError("a bug")], ids=["refused", "bug"])
async def test_a_block_that_cannot_be_applied_is_its_partitions_alone(members, monkeypatch, error):
    """It is told in status, and asked for again until it fits."""
    apply_block, is_bad = pulled_snapshots.apply_block, True
    async with members.client() as client:
        feeds = await made_feeds(client, 2)
        await members.level("feed-1")
        bad = members[2].node.feeds.named("feed-0").partitions

        def apply(partition, *arguments):
            if is_bad and partition is bad[0]:
                raise error
            apply_block(partition, *arguments)

        monkeypatch.setattr(pulled_snapshots, "apply_block", apply)
        [connection] = connections(members, 2)
        for feed in feeds:
            await put(feed, numbered(0, 20))
        await until(lambda: members[2].seqs("feed-1") == members[0].seqs("feed-1"))
        await until(lambda: members[2].seqs("feed-0")[1] == members[0].seqs("feed-0")[1])
        await until(lambda: failing(members[2]) == {("feed-0", 0)})
        assert bad[0].high_seq == 0
        is_bad = False
        await until(lambda: members[2].seqs("feed-0") == members[0].seqs("feed-0"))
        await until(lambda: not failing(members[2]))
        assert connections(members, 2) == [connection]


async def test_rows_that_wait_hold_up_no_other_feed_and_no_sign_of_life(members, hold_rows):
    """The leader asks its replicas whether they follow, and needs the answer of one that handles rows slowly."""
    async with members.client() as client:
        slow, fast = await made_feeds(client, 2)
        await members.level("feed-1")
        held = [hold_rows(members[number], "feed-0") for number in (1, 2)]
        await slow.put(b"k", b"v", level="disk")
        await held[1].reached.wait()
        await put(fast, numbered(0, 20))
        await members.level("feed-1")
        assert await fast.get(b"1", level="quorum")  # a majority confirms the leader
        for each in held:
            each.release()
        await members.level("feed-0")


@pytest.fixture
def small_window(monkeypatch):
    """Connections of replicas have a window of 4 MiB: a feed that is held up fills it with little."""
    monkeypatch.setattr(pulled_node, "WINDOW_BYTES", WINDOW_BYTES)


@pytest.fixture
def hold_feeds(monkeypatch):
    """A function: from then on no follower applies a row of these feeds before the event that it returns is set."""
    take, names, released, reached = ReplicaPuller._take, set(), trio.Event(), set()

    async def wait(puller, event):
        name = puller.feed.info.name
        if name in names and not released.is_set():
            reached.add((puller._node, name))
            await released.wait()
        await take(puller, event)

    monkeypatch.setattr(ReplicaPuller, "_take", wait)
    monkeypatch.setattr(ReplicaPuller, "_take_now", never_now)

    def hold(*held):
        names.update(held)
        return released, reached

    return hold


async def fill_window(feed, level):
    """Writes half more than the window. A block has 1 MiB at most, also if the leader merges some."""
    async with feed.writer(level=level, batch_bytes=64 * 1024) as writer:
        for number in range(WINDOW_BYTES * 3 // 2 // 10_000):
            await writer.put(b"%d" % number, os.urandom(10_000))


async def test_feeds_that_are_held_up_leave_room_in_the_window(small_window, members, hold_feeds):
    """As by a flush or rollback that takes long, on both followers: a majority needs the rows of the other feed."""
    async with members.client() as client:
        first, second, fast = await made_feeds(client, 3, partitions=3)
        await members.level("feed-2")
        released, reached = hold_feeds("feed-0", "feed-1")
        for slow in (first, second):
            await fill_window(slow, "disk")
        await until(lambda: len(reached) == 4)
        await fill_window(fast, "quorum")
        released.set()
        for number in range(3):
            await members.level(f"feed-{number}")
    slots = [slot for number in (1, 2) for each in connections(members, number) for slot in each.rounds.slots.values()]
    assert all(slot.under_way_bytes < 16 * 1024 for slot in slots), "what was handled is credited"


async def test_a_feed_that_the_leader_does_not_know_ends_alone(members, monkeypatch):
    """As one of which the follower hears first, in a moment of another leader."""
    async with members.client() as client:
        feeds = await made_feeds(client, 2)
        await members.level("feed-1")
        [connection] = connections(members, 2)
        puller = members[2].member.following._pullers[(await feeds[0].resolve()).feed_id]

        def unknown():
            raise UnknownFeed("there is no such feed")

        monkeypatch.setattr(puller._stream, "next_event", unknown)
        await feeds[0].put(b"k", b"v", level="quorum")
        await until(lambda: puller._stopped)
        await put(feeds[1], numbered(0, 20))
        await until(lambda: members[2].seqs("feed-1") == members[0].seqs("feed-1"))
        assert connections(members, 2) == [connection]


async def test_a_candidate_that_fetches_many_feeds_says_so_once(members, caplog):
    first, second, third = members
    async with members.client() as client:
        feeds = await made_feeds(client, partitions=1)
        await members.level(f"feed-{FEEDS - 1}")
        await third.kill()
        for feed in feeds:
            await put(feed, numbered(0, 2))
    await first.kill()
    await third.start()
    await third.promote()
    assert [third.seqs(f"feed-{number}") for number in range(FEEDS)] == [[2]] * FEEDS
    [said] = [record.message for record in caplog.records if "fetches" in record.message]
    assert said.endswith(f"fetches {FEEDS} partitions of {FEEDS} feeds from {second.address}")


@pytest.mark.long
async def test_thousands_of_feeds_come_on_one_connection(source_and_replica):
    """What takes longer for each feed, the more feeds there are, would not end in time."""
    source, replica = source_and_replica
    count = 2_500
    for number in range(count):
        source.node.feed_changes.create({"name": f"feed-{number}", "feed_id": f"{number + 1000:032x}", "partitions": 1})
        if number % 100 == 0:
            source.node.connections.turn_ended()
            await trio.lowlevel.checkpoint()
    source.node.connections.turn_ended()

    def is_level():
        peers = list(source.node.leaderships.system.replicas.peers.values())
        return [len(peer.acknowledged) for peer in peers if len(peer.streams) == count + 1] == [count + 1]

    await until(is_level)
    async with tailrace.connect(source.url) as client:
        for number in (0, count // 2, count - 1):
            await client.feed(f"feed-{number}").put(b"k", b"v")
            await until(lambda number=number: replica.seqs(f"feed-{number}") == [1])
        await replica.stop()
        await until(lambda: not source.node.leaderships.system.replicas.peers)
        await replica.start()
        await until(is_level)
        await client.drop_feed("feed-7")
        await until(lambda: replica.seqs("feed-7") is None)
    assert len([c for c in source.node.connections if c.name.startswith("replica")]) == 1
    assert not failing(replica)
