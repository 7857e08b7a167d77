"""No step of the loop visits all feeds of a node: with ten thousand it would hold up the signs of life."""

import collections
import contextlib
import gc
import weakref
from functools import partial

import pytest
import trio
from tests.tailrace_server.replication.made_set import until
from tests.visits import Visits

from tailrace.errors import NotLeader
from tailrace.trio.replica_link import ReplicaLink
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.replication import following, in_turns, pulled_node, term_branches
from tailrace_server.replication.following import Following
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.replication.replicas import Peer
from tailrace_server.serving import connection as serving
from tailrace_server.stream.rounds import Rounds
from tailrace_server.stream.stream_slot import StreamSlot

FEEDS = 40
# The bound of the visits of one step, in place of the usual ones.
TOGETHER = 4


@pytest.fixture
async def many(members, monkeypatch):
    """A set whose members hold many feeds, and visit few of them in a step."""
    monkeypatch.setattr(pulled_node, "PULLERS_TOGETHER", TOGETHER)
    monkeypatch.setattr(in_turns, "LOOKS_AT_ONCE", TOGETHER)
    monkeypatch.setattr(serving, "CLOSED_TOGETHER", TOGETHER)
    async with members.client() as client:
        for number in range(FEEDS):
            await client.create_feed(f"feed-{number:02}", partitions=1)
    for node in (members[1], members[2]):
        await follows_all(node)
    return members


async def follows_all(node):
    await until(lambda: node.is_up and node.member.following is not None)
    await until(lambda: node.member.following is None or len(node.member.following._pullers) == FEEDS + 1)


async def test_pullers_are_made_in_many_steps(many, monkeypatch):
    follower = many[2]
    with Visits().of(monkeypatch, ReplicaPuller, "__init__") as made:
        follower.member.following.stop()
        await until(lambda: made.total > FEEDS)
    assert made.most <= TOGETHER
    await follows_all(follower)


async def test_feeds_with_the_newest_rows_are_followed_first(many, monkeypatch):
    """Writers at quorum wait for their feeds, and not for all others."""
    made, init = [], ReplicaPuller.__init__

    def noted(puller, node, leadership, feed, *args, **kwargs):
        made.append(feed.info.name)
        init(puller, node, leadership, feed, *args, **kwargs)

    written = ["feed-31", "feed-07", "feed-22"]
    async with many.client() as client:
        for name in written:
            await client.feed(name).put(b"key", b"value", level="quorum")
    for name in written:
        await many.level(name)
    monkeypatch.setattr(ReplicaPuller, "__init__", noted)
    many[2].member.following.stop()
    await until(lambda: len(made) > FEEDS)
    assert made[1:4] == written[::-1]  # the first one is ``_feeds``


async def test_feeds_with_waiting_writes_are_followed_before_the_rest(many, monkeypatch):
    """A write at quorum to a feed that nobody has written to for long waits for that feed, and not for all others."""
    made, told, steps, init = [], [], trio.Semaphore(0), ReplicaPuller.__init__
    begin_first = Following.begin_first

    def noted(puller, node, leadership, feed, *args, **kwargs):
        made.append(feed.info.name)
        init(puller, node, leadership, feed, *args, **kwargs)

    def noted_first(following, feed_ids):
        told.extend(feed_ids)
        begin_first(following, feed_ids)

    monkeypatch.setattr(ReplicaPuller, "__init__", noted)
    monkeypatch.setattr(Following, "begin_first", noted_first)
    monkeypatch.setattr(ReplicaLink, "has_room", lambda link: steps.acquire())
    monkeypatch.setattr(pulled_node, "PULLERS_TOGETHER", 1)
    await many[1].stop()  # else its acknowledgement makes the majority
    many[2].member.following.stop()
    await until(lambda: many[2].member.following is not None and made == ["_feeds"])
    await until(lambda: len(many[2].member.following._to_begin) == FEEDS)
    last = many.leader.node.feeds.named(f"feed-{FEEDS - 1}").info.feed_id
    async with many.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.feed(f"feed-{FEEDS - 1}").put, b"key", b"value", level="quorum"))
        await until(lambda: last in told)
        steps.release()
    assert made == ["_feeds", f"feed-{FEEDS - 1}"]
    for _ in range(2 * FEEDS):  # the feed that came first is in the queue once more
        steps.release()
    await follows_all(many[2])
    assert len(made) == FEEDS + 1


async def test_feeds_that_are_told_first_and_cannot_be_followed(many):
    """Ids that the follower does not know, and feeds that it follows already, change nothing."""
    follower = many[2].member.following
    known = many[2].node.feeds.named("feed-00").info.feed_id
    puller = follower._pullers[known]
    follower.begin_first([bytes(16), known])
    assert not follower._to_begin
    assert follower._pullers[known] is puller


async def test_pullers_are_stopped_in_many_steps(many, monkeypatch):
    follower = many[2].member.following
    with Visits().of(monkeypatch, ReplicaPuller, "stop") as stopped:
        follower.stop()
        await follower.ended.wait()
    assert stopped.total == FEEDS + 1
    assert stopped.most <= TOGETHER


async def test_a_feed_that_is_dropped_before_its_puller_is_made(many, monkeypatch):
    follower = many[2].member.following
    dropped, other = map(many[2].node.feeds.named, ("feed-00", "feed-01"))
    follower._feeds_changed([dropped, other], [])
    with Visits().of(monkeypatch, ReplicaPuller, "__init__") as made:
        follower._feeds_changed([], [dropped, other])
        follower._feeds_changed([dropped], [])
        await until(lambda: other.info.feed_id in follower._pullers)
        assert made.total == 1
    assert dropped.info.feed_id not in follower._pullers


@pytest.mark.parametrize("how", ["steps down", "is left"])
async def test_streams_of_replicas_end_in_many_steps(many, monkeypatch, how):
    leader = many.leader
    await until(lambda: len(streams_of(leader)) == 2 * (FEEDS + 1))
    with Visits().of(monkeypatch, StreamSlot, "close") as closed:
        if how == "steps down":
            leader.member.step_down()
        else:
            many[2].member.following.stop()
        await until(lambda: closed.total >= FEEDS + 1)
    assert closed.most <= 2 * TOGETHER  # of two connections
    await until(lambda: any(node.leads for node in many) or how == "is left")


async def test_a_drop_looks_at_the_streams_of_its_feed(many, monkeypatch):
    leader = many.leader
    looked = []
    slots_of = Rounds.slots_of

    def noted(rounds, feed_id):
        found = slots_of(rounds, feed_id)
        looked.extend(found)
        return found

    monkeypatch.setattr(Rounds, "slots_of", noted)
    async with many.client() as client:
        await client.drop_feed("feed-07")
    await until(lambda: len(streams_of(leader)) == 2 * FEEDS)
    assert len(looked) == 2


async def test_a_new_follower_makes_its_feeds_in_many_steps(many, monkeypatch):
    monkeypatch.setattr(following, "CHANGES_AT_ONCE", TOGETHER)
    await many[2].stop()
    many[2].replace_disk()
    with Visits().of(monkeypatch, Catalog, "_create") as created:
        await many[2].start()
        await until(lambda: created.total == FEEDS)
    assert created.most <= TOGETHER
    await follows_all(many[2])
    await until(lambda: many[2].member.local.votes)


async def test_a_vote_is_no_look_at_all_feeds_for_the_news_of_one(many, monkeypatch):
    await many[2].stop()
    many[2].replace_disk()
    with Visits().of(monkeypatch, Following, "_owed") as looks:
        await many[2].start()
        await until(lambda: many[2].is_up and many[2].member.local.votes)
    assert looks.total <= 8 * (FEEDS + 1)  # each is waited for once and looked at once, by two records


async def test_branches_of_a_term_begin_in_many_steps(many, monkeypatch):
    with Visits().of(monkeypatch, term_branches, "begin_branch") as begun:
        await many[1].promote()
    assert begun.total >= FEEDS + 1
    assert begun.most <= TOGETHER


async def test_no_branch_begins_after_a_later_promise(many, monkeypatch):
    """The member that was promised the later term has been told how far this one has come."""
    candidate, terms = many[1], []
    begin_branch = term_branches.begin_branch

    def noted(partition, branch, journal, term, **options):
        terms.append((term, candidate.member.local.file.now.term))
        begin_branch(partition, branch, journal, term, **options)
        if len(terms) == 2 * TOGETHER:
            file = candidate.member.local.file
            file.store(file.now.promised(term + 1))

    monkeypatch.setattr(term_branches, "begin_branch", noted)
    with pytest.raises(NotLeader, match="was promised to another node meanwhile"):
        await candidate.promote()
    assert len(terms) == 2 * TOGETHER
    assert all(term == promised for term, promised in terms)
    monkeypatch.undo()
    await many[0].promote()


async def test_a_probe_of_the_health_of_a_leader_looks_at_no_partition(many, monkeypatch):
    with Visits().of(monkeypatch, Peer, "lag") as looks, Visits().of(monkeypatch, Peer, "missing") as missing:
        assert many.leader.node.health()["healthy"]
    assert looks.total == missing.total == 0


async def test_a_status_counts_what_followers_lack_in_many_steps(many, monkeypatch):
    with Visits().of(monkeypatch, Peer, "lag") as looks, Visits().of(monkeypatch, Peer, "missing") as missing:
        await many.leader.node.status_body()
    assert missing.total == 2 * (FEEDS + 1)
    assert max(looks.most, missing.most) <= 2 * 2 * TOGETHER  # of two followers; their states are told, too


def streams_of(node):
    return [slot for connection in node.node.connections for slot in connection.rounds.slots.values()]


@contextlib.contextmanager
def no_searches():
    """Frees no object of a cycle in the body."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()  # of the nodes, which leave objects out of later searches
    gc.unfreeze()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.callbacks[:] = callbacks


@pytest.mark.parametrize("how", ["stopped", "deposed"])
async def test_an_ended_following_is_freed_without_a_search_for_garbage(many, how):
    """A full search through ten thousand of them holds the loop for seconds."""
    follower = many[2].member
    with no_searches():
        ended = weakref.ref(follower.following)
        parts = [weakref.ref(part) for puller in ended()._pullers.values() for part in parts_of(puller)]
        if how == "stopped":
            follower.following.stop()
        else:
            await many[1].promote()
        await until(lambda: follower.following is not None and follower.following is not ended())
        for member in many:
            if not member.leads:
                await follows_all(member)
        await trio.sleep(0.5)
        left = collections.Counter(type(part()).__name__ for part in parts if part() is not None)
    assert len(parts) == 4 * (FEEDS + 1)
    assert max(left.values(), default=0) <= 1, left  # the one whose rows were committed last


def parts_of(puller):
    return puller, puller._snapshots, puller._pushed, puller._far
