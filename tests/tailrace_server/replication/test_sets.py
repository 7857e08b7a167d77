"""Sets of three nodes: founded, followed, promoted, handed over, deposed, and with disks replaced."""

import collections
import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import re
import shutil
from functools import partial

import pytest
import trio
from tests.conftest import RawClient
from tests.tailrace_server.raw_requests import KEY, PARTITION, block_of, write
from tests.tailrace_server.replication.made_set import (
    REPLICATION,
    MadeNode,
    free_addresses,
    make_config,
    numbered,
    until,
)
from tests.tailrace_server.replication.slow_path import never_now

import tailrace
from tailrace.errors import NotLeader, Overloaded, ProtocolError, TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.model import Level, failover
from tailrace.model.position import Position, Positions
from tailrace.trio.replica import CopyOptions
from tailrace.trio.replica_link import replica_link
from tailrace.wire.messages import WriteFlag, Written, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica
from tailrace_server.config import StorageConfig
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.replication import handover, membership
from tailrace_server.replication.following import Following
from tailrace_server.replication.member import _LOOKS_BEFORE_LEADING_AGAIN as LOOKS_BEFORE_LEADING_AGAIN
from tailrace_server.replication.peer_states import PeerStates
from tailrace_server.replication.promises import TERMS_AHEAD_MAX, answer_promise
from tailrace_server.replication.promotion import Promotion
from tailrace_server.replication.promotion_forecast import forecast_of
from tailrace_server.replication.pulled_node import PulledNode
from tailrace_server.replication.replica_acknowledgements import ReplicaAcknowledgements
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.serving import member_requests
from tailrace_server.serving.member_requests import TURNS_MAX
from tailrace_server.serving.status import status_of
from tailrace_server.state.producers import RESULTS_MAX

pytestmark = pytest.mark.slow


async def put(feed, rows, level="disk"):
    for key, value in rows.items():
        await feed.put(key, value, level=level)


async def read_on(feed, positions):
    async with feed.consume(since=positions) as stream:
        async for _ in stream:
            pass


async def lost_to_all_but(made, leader, rows):
    """The leader takes rows that nobody else gets; then it is killed, and the others are back."""
    others = [node for node in made if node is not leader]
    for node in others:
        await node.kill()
    async with tailrace.connect(leader.url, retry_for=60) as client:
        await put(client.feed("orders"), rows)
    await leader.kill()
    for node in others:
        await node.start()
    return others


@contextlib.asynccontextmanager
async def small_feed(made):
    """Starts a set with a feed of three rows; yields its leader and the feed."""
    await made.start()
    leader = await made.settled()
    async with made.client() as client:
        yield leader, await made.filled(client, numbered(0, 3))


async def test_a_copy_waits_until_a_majority_has_what_the_leader_has(new_set, tmp_path, nursery):
    """A leader that has just begun knows of no row that a majority has it, and clients know of acknowledged ones."""
    async with small_feed(new_set()) as (leader, feed):
        leadership = leader.node.leaderships.system
        hear, leadership.acknowledged = leadership.acknowledged, lambda *_: None
        await feed.put(b"k", b"v", level="disk")
        fetched = []

        async def fetch(visibility):
            copy = await feed.fetch(tmp_path / visibility, visibility=visibility)
            fetched.append((visibility, copy.partitions[0].seq))

        nursery.start_soon(fetch, "quorum")
        with trio.fail_after(30):
            await until(lambda: len(leader.node.waiting))
            await fetch("disk")
            assert fetched == [("disk", 3)], "without a majority the node gives what it has"
            leadership.acknowledged = hear
            await feed.put(b"l", b"v", level="disk")
            await until(lambda: len(fetched) == 2)
    assert fetched[1][1] >= 4


async def test_a_copy_of_level_quorum_is_of_a_node_that_still_leads(new_set, tmp_path, nursery):
    async with small_feed(new_set()) as (leader, feed):
        confirmations = leader.node.leaderships.system.confirmations
        hear, confirmations.answered = confirmations.answered, lambda *_: None
        nursery.start_soon(partial(feed.fetch, tmp_path / "copy", visibility="quorum"))
        with trio.fail_after(30):
            await until(lambda: confirmations.under_way)
            await trio.sleep(0.2)
            assert not (tmp_path / "copy" / "0").exists()
            confirmations.answered = hear
            confirmations._ask(confirmations.number)
            await until((tmp_path / "copy" / "0" / "CHECKPOINT.json").exists)


async def test_a_set_is_founded_once_all_are_there_and_new(new_set):
    made = new_set()
    await made[0].start()
    await made[1].start()
    await until(lambda: made[0].member.peers.asked == {str(made[1].address), str(made[2].address)})
    await until(lambda: made[1].member.peers.asked == {str(made[0].address), str(made[2].address)})
    assert not any(node.leads for node in made)
    await made[2].start()
    assert await made.settled() is made[0]
    assert len({node.node.identity.cluster_id for node in made}) == 1
    assert all(node.member.local.votes for node in made)


async def test_a_client_that_came_before_the_set_was_founded_learns_the_cluster(new_set, tmp_path):
    """A copy that named the id that the directory had before would be refused as one of another cluster later."""
    made = new_set()
    await made[2].start()
    async with tailrace.connect(made[2].url, state="any") as early:
        before = early.cluster_id
        await made[0].start()
        await made[1].start()
        leader = await made.settled()
        async with made.client() as client:
            await client.create_feed("orders", partitions=1)
            await client.feed("orders").put(b"k", b"v", level="quorum")
        await until(lambda: any(feed.info.name == "orders" for feed in made[2].node.feeds))
        await early.feed("orders").fetch(tmp_path / "copy")
        assert early.cluster_id == leader.node.identity.cluster_id != before
    assert tailrace.SegmentReader(tmp_path / "copy").cluster_id == leader.node.identity.cluster_id


def with_list(node, nodes):
    """The configuration of a member that is started with the list of ``nodes`` in this order."""
    return dataclasses.replace(node.config, members=tuple(other.address for other in nodes))


def misfits(node):
    """Who has another list, as the node's status says."""
    said = [re.match(r"(\S+) was started with", text) for text in node.member.progress.split("; ")]
    return {found[1] for found in said if found}


@pytest.mark.parametrize("count", [3, 4])
async def test_members_of_a_set_do_not_start_as_one_of_another_size(new_set, count):
    """Of five the three that are left out may have what was acknowledged at quorum."""
    made = new_set(count=5)
    await made.start()
    async with made.client() as client:
        feed = await made.filled(client, {b"k": b"v"})
        for node in made:
            await node.stop()
        whole = [node.config for node in made]
        for node in made.nodes[:count]:
            node.config = with_list(node, made.nodes[:count])
            with pytest.raises(BadDirectory, match=f"a set of 5 members, and --members names {count}"):
                await node.start()
        for node, config in zip(made, whole, strict=True):
            node.config = config
            await node.start()
        await feed.put(b"k", b"w", level="quorum")


async def test_no_set_is_founded_while_lists_differ_in_their_order(new_set):
    made = new_set()
    a, b, c = made
    right, b.config = b.config, with_list(b, [b, a, c])
    await made.start()
    others = {a: {str(b.address)}, b: {str(a.address), str(c.address)}, c: {str(b.address)}}
    await until(lambda: any(n.leads for n in made) or all(misfits(node) == told for node, told in others.items()))
    assert not any(node.leads for node in made)
    await b.stop()
    b.config = right
    await b.start()
    assert await made.settled() is a
    await until(lambda: not any("--members" in node.member.progress for node in made))


async def test_a_member_with_another_list_neither_follows_nor_leads(members, caplog):
    a, b, c = members
    await c.stop()
    c.config = with_list(c, [b, a, c])
    await c.start()
    told = {a: {str(c.address)}, c: {str(a.address), str(b.address)}}
    await until(lambda: c.member.following or all(misfits(node) == expected for node, expected in told.items()))
    assert c.member.following is None
    await until(lambda: "waits" in c.member.progress)  # it hears of the other lists before it says that it waits
    assert c.member.following is None
    term = a.node.leaderships.system.term
    with pytest.raises(NotLeader, match=r"refused: 1 of the 2 voters .* was started with other --members"):
        await c.promote()
    with pytest.raises(TailraceError, match="other --members"):
        await a.hand_over(c)
    assert (a.leads, a.node.leaderships.system.term) == (True, term)
    said = [record.message for record in caplog.records if "other --members" in record.message]
    assert len([text for text in said if text.startswith(f"{a.address} was")]) == 1, "once, however often it looks"


async def test_a_promise_to_a_node_with_another_list_is_refused(members):
    """Its majority may have nobody in common with this one's."""
    leader = members.leader
    term = leader.node.leaderships.system.term
    promise = {"term": term + 1, "address": "x:1", "placement_id": "00" * 16}
    names = [str(node.address) for node in members]
    for other in (names[::-1], [*names[:2], "x:1"], [*names, "x:1"]):
        for node in members:
            with pytest.raises(TailraceError, match=r"x:1 was started with other --members: .*: nothing is promised"):
                await node.ask(Opcode.PROMISE, members=other, **promise)
    assert [node.member.local.file.now.term for node in members] == [term] * 3
    assert leader.leads


async def test_a_member_does_not_start_on_the_directory_of_another_one(members, tmp_path):
    """It would acknowledge for that one, and its own disk, put back, would vote without what was acknowledged."""
    async with members.client() as client:
        await members.filled(client, numbered(0, 10))
    leader = members.leader
    other, wrong = [node for node in members if node is not leader]
    own = wrong.config
    await other.stop()
    await wrong.stop()
    copy = str(tmp_path / "copy")
    shutil.copytree(other.config.data, copy)
    for data in (other.config.data, copy):
        wrong.config = dataclasses.replace(own, data=data)
        with pytest.raises(BadDirectory, match="the directory, or a copy, of another member"):
            await wrong.start()
    wrong.config = own
    await other.start()
    await wrong.start()
    assert await members.level("orders") is leader


@pytest.mark.parametrize("as_replica", [False, True])
async def test_a_members_directory_does_not_start_outside_of_its_set(members, as_replica):
    """Killed and started alone it would begin a branch of a later term, and come back with its vote."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10))
        leader = members.leader
        node = next(node for node in members if node is not leader)
        await node.kill()
        await put(feed, numbered(10, 10), level="quorum")
        own = node.config
        node.config = dataclasses.replace(own, members=(), replica_of=leader.address if as_replica else None)
        with pytest.raises(BadDirectory, match="belongs to a member of a set of 3, and --members is missing"):
            await node.start()
        node.config = own
        await node.start()
        assert await members.level("orders") is leader
    assert [node.rows("orders") for node in members] == [numbered(0, 20)] * 3


def without_place(data):
    """The directory's MEMBERSHIP does not say which member it is of, as earlier versions wrote it."""
    path = os.path.join(data, membership.FILE_NAME)
    value = json.loads(pathlib.Path(path).read_text())
    del value["checksum"], value["number"]
    pathlib.Path(path).write_text(json.dumps(value | {"checksum": membership._checksum(value)}))


def copies(node):
    """Who has the placement id of another one, as the node's status says."""
    said = [re.match(r"(\S+) has the placement id of", text) for text in node.member.progress.split("; ")]
    return {found[1] for found in said if found}


async def test_two_members_with_one_placement_id_count_as_one(members, tmp_path):
    """One is on a copy of the other one's disk; what the leader and the third disk have acknowledged neither has."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10))
        leader = members.leader
        old, gone = [node for node in members if node is not leader]
        await old.stop()
        await put(feed, numbered(10, 10), level="quorum")
    await leader.stop()
    await gone.stop()
    copy = str(tmp_path / "copy")
    shutil.copytree(old.config.data, copy)
    without_place(copy)
    own = gone.config
    gone.config = dataclasses.replace(own, data=copy)
    await old.start()
    await gone.start()
    for node, other in ((old, gone), (gone, old)):
        await until(lambda node=node, other=other: copies(node) == {str(other.address)})
        assert not forecast_of(node.node.services, node.member.leadership, node.member).succeeds
        with pytest.raises(NotLeader, match=r"refused: 1 of the 2 voters .* has the placement id of this node"):
            await node.promote()
    await gone.stop()
    gone.config = own
    await gone.start()
    await until(lambda: not copies(old))
    await old.promote()
    assert await members.level("orders") is old
    assert old.rows("orders") == numbered(0, 20)


async def test_a_leader_sends_nothing_to_a_second_member_with_one_placement_id(members, tmp_path):
    """The copy comes first to nobody: what it acknowledges would count for the one that is down."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10))
        leader = members.leader
        old, gone = [node for node in members if node is not leader]
        await old.stop()
        await gone.stop()
        copy = str(tmp_path / "copy")
        shutil.copytree(old.config.data, copy)
        without_place(copy)
        own = gone.config
        gone.config = dataclasses.replace(own, data=copy)
        await gone.start()
        await until(lambda: copies(leader) == {str(gone.address)})
        assert not [peer for peer in leader.node.leaderships.system.replicas.peers.values() if peer.is_connected]
        await old.start()
        await put(feed, numbered(10, 10), level="quorum")
        assert leader.leads
        assert copies(leader) == {str(gone.address)}
        await gone.stop()
        gone.config = own
        await gone.start()
        assert await members.level("orders") is leader


def on_older_copies(node):
    """Who is on an older copy of its own directory, as the node's status says."""
    said = [
        re.match(r"(\S+) is on an older copy of its own directory", text) for text in node.member.progress.split("; ")
    ]
    return {found[1] for found in said if found}


def put_back(node, copy):
    shutil.rmtree(node.config.data)
    shutil.copytree(copy, node.config.data)


async def with_older_copy(members, tmp_path, *, stopped):
    """Rows that only the leader and ``old`` have are acknowledged, and ``old`` gets an older copy of its directory."""
    copy = str(tmp_path / "copy")
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10))
        leader = members.leader
        old, third = [node for node in members if node is not leader]
        if stopped:
            await old.stop()
        shutil.copytree(old.config.data, copy)
        if stopped:
            await old.start()
        await third.stop()
        await put(feed, numbered(10, 10), level="quorum")
        told = leader.member.local.known_start
        ends = old.node.storage.journal.synced_end
        await until(lambda: (known := told(old.node.identity.placement_id)) is not None and known.end >= ends)
        await old.kill()
    put_back(old, copy)
    return leader, old, third


@pytest.mark.parametrize("stopped", [True, False])
async def test_an_older_copy_of_a_members_own_directory_does_not_vote(members, tmp_path, monkeypatch, stopped):
    """It is put back while the leader is there, which goes then: the third disk has not those rows either."""
    leader, old, third = await with_older_copy(members, tmp_path, stopped=stopped)
    monkeypatch.setattr(Following, "_begin", lambda following, feed: None)  # the leader goes before it has sent any
    await old.start()
    await until(lambda: on_older_copies(leader) == {str(old.address)})
    await until(lambda: old.member.local.file.now.older is not None)
    await leader.stop()
    await third.start()
    await until(lambda: on_older_copies(third) == {str(old.address)})
    for node in (third, old):
        with pytest.raises(NotLeader, match=r"refused: \d of the 2 voters"):
            await node.promote()
    await old.kill()
    await old.start()
    with pytest.raises(NotLeader, match=r"refused: \d of the 2 voters"):
        await third.promote()
    monkeypatch.undo()
    await leader.start()  # its directory is whole
    assert await members.level("orders") is leader
    assert [node.rows("orders") for node in members] == [numbered(0, 20)] * 3


async def test_an_older_copy_votes_again_once_it_has_caught_up(members, tmp_path):
    leader, old, third = await with_older_copy(members, tmp_path, stopped=True)
    await old.start()
    lost = leader.member.local.known_start(old.node.identity.placement_id)
    await third.start()
    await members.level("orders")
    # It counts as a copy once it has heard of the start that it lost, and no more once it has got all rows.
    await until(lambda: old.member.local.file.now.start.number > lost.number and old.member.local.votes)
    assert old.member.local.file.now.older is None
    await until(lambda: not any(map(on_older_copies, members)))
    await leader.kill()
    await old.promote()
    await until(lambda: third.node.leaderships.system.leader == str(old.address))
    assert old.rows("orders") == numbered(0, 20)
    await leader.start()
    assert await members.level("orders") is old
    assert not any(map(on_older_copies, members))


async def test_the_others_remember_over_a_restart_how_far_a_member_was(members, tmp_path):
    leader, old, third = await with_older_copy(members, tmp_path, stopped=True)
    await leader.stop()
    await leader.start()
    await old.start()
    await until(lambda: on_older_copies(leader) == {str(old.address)})
    await third.start()
    assert await members.level("orders") is leader


@pytest.mark.parametrize("same", [(0, 1), (1, 2), (0, 1, 2)])
async def test_no_set_is_founded_on_copies_of_one_new_directory(new_set, same):
    """As from an image of a machine on which the node was started once."""
    made = new_set()
    await made[same[0]].start()
    await made[same[0]].stop()
    for number in same[1:]:
        shutil.copytree(made[same[0]].config.data, made[number].config.data)
    await made.start()
    await until(lambda: any(node.leads for node in made) or any(copies(node) for node in made))
    await trio.sleep(5 * REPLICATION.poll_s)
    assert not any(node.leads for node in made)
    for number in same[1:]:
        await made[number].stop()
        made[number].replace_disk()
        await made[number].start()
    assert await made.settled() is made[0]


def of_cluster(node):
    """Whose answers count for nothing, as the node's status says, since they are of another cluster."""
    said = [text.partition(" is of another cluster: ") for text in node.member.progress.split("; ")]
    return {address.removeprefix("waits: ") for address, found, _ in said if found}


async def crashed_directory(tmp_path, nursery, *, with_feed=True):
    """The directory of a node that led by itself and crashed three times, so that its terms are higher than a set's."""
    [address] = free_addresses(1)
    lone = MadeNode(make_config(tmp_path / "lone", address), nursery)
    for number in range(3):
        await lone.start()
        if with_feed:
            async with tailrace.connect(lone.url) as client:
                await (await client.create_feed("theirs", partitions=1)).put(b"k", b"%d" % number)
        await lone.kill()
    return lone.config.data


async def test_a_member_on_another_clusters_directory_changes_nothing(tmp_path, nursery, members):
    data = await crashed_directory(tmp_path, nursery)
    rows = numbered(0, 20)
    async with members.client() as client:
        await members.filled(client, rows)
    leader = members.leader
    others = [node for node in members if node is not leader]
    term, own = leader.node.leaderships.system.term, others[1].config.data
    await others[1].stop()
    others[1].config = dataclasses.replace(others[1].config, data=data)
    await others[1].start()
    stranger = others[1]
    names = {str(node.address) for node in members if node is not stranger}
    await until(lambda: leader.node.leaderships.system.term != term or of_cluster(stranger) == names)
    await until(lambda: leader.node.leaderships.system.term != term or of_cluster(leader) == {str(stranger.address)})
    assert (leader.leads, leader.node.leaderships.system.term) == (True, term)
    with pytest.raises(NotLeader, match=r"refused: 0 of the 2 voters .* is of another cluster"):
        await stranger.promote()
    with pytest.raises(TailraceError, match="is of another cluster"):
        await leader.hand_over(stranger)
    assert (leader.leads, leader.node.leaderships.system.term) == (True, term)
    assert all(node.rows("orders") == rows for node in (leader, others[0]))
    await stranger.stop()
    stranger.config = dataclasses.replace(stranger.config, data=own)
    await stranger.start()
    assert await members.level("orders") is leader
    assert leader.node.leaderships.system.term == term


async def test_a_new_directory_joins_no_cluster_while_members_lead_two(tmp_path, nursery, members):
    """Another cluster's node was made to lead at the address of a member; its term is the higher one."""
    data = await crashed_directory(tmp_path, nursery)
    leader = await members.settled()
    stranger, new = [node for node in members if node is not leader]
    await stranger.stop()
    stranger.config = dataclasses.replace(stranger.config, data=data)
    await stranger.start()
    await stranger.promote(force=True)
    await new.stop()
    new.replace_disk()
    await new.start()
    await until(lambda: "members lead clusters" in new.member.progress or new.member.following is not None)
    assert new.member.following is None
    await stranger.stop()
    await until(lambda: new.follows(leader))
    assert new.node.identity.cluster_id == leader.node.identity.cluster_id


async def test_nothing_is_promised_told_or_sent_to_another_cluster(members):
    leader = members.leader
    follower = next(node for node in members if node is not leader)
    term, theirs = leader.node.leaderships.system.term, "ab" * 16
    promise = {"term": term + 1, "address": "x:1", "placement_id": "00" * 16, "cluster_id": theirs}
    for node in members:
        with pytest.raises(TailraceError, match=r"x:1 is of another cluster: .*: nothing is promised"):
            await node.ask(Opcode.PROMISE, **promise)
    with pytest.raises(TailraceError, match="TAKE_OVER: the asker is of cluster abab"):
        await follower.ask(Opcode.TAKE_OVER, term=term, cluster_id=theirs)
    with pytest.raises(TailraceError, match="ACCEPTED_SEQS: the asker is of cluster abab"):
        await leader.ask(Opcode.ACCEPTED_SEQS, feed_ids=[], cluster_id=theirs)
    assert [node.member.local.file.now.term for node in members] == [term] * 3
    assert leader.leads


async def test_nothing_is_taken_from_another_cluster(tmp_path, nursery, members):
    """What a member is told to fetch it asks of an address, where another cluster's node may listen by then."""
    [address] = free_addresses(1)
    lone = MadeNode(make_config(tmp_path / "lone", address), nursery)
    await lone.start()
    follower = next(node for node in members if not node.leads)
    node = follower.node
    replica = Replica(
        node.identity.placement_id, lone.node.leaderships.system.term, str(follower.address), False, b"x" * 16
    )
    listed = node.feeds.system.partitions[0]
    await until(lambda: listed.log)
    log = listed.log
    pulled = PulledNode(node, node.leaderships.system, lone.address, replica)
    puller = ReplicaPuller(node, node.leaderships.system, node.feeds.system, pulled)

    async def pull():
        pulled.begin(lambda: puller)
        await trio.sleep_forever()

    with pytest.raises(TailraceError, match=r"is of another cluster: .*nothing is taken"):
        await pulled.run(pull)
    assert listed.log == log


async def test_nothing_is_sent_to_a_replica_of_another_cluster(members):
    """A replica that does not look at the cluster of the node itself."""
    node = members[0].node
    told = Replica(b"p" * 16, node.leaderships.system.term, "", False, b"x" * 16)
    listed = node.feeds.system
    positions = Positions(bytes(16), listed.info.feed_id, {0: Position.at(failover.FailoverLog(), 0)})
    async with replica_link(members[0].address, told) as link:
        stream = link.copy(listed.info.name, positions, CopyOptions((0,)))
        with pytest.raises(TailraceError, match=r"is of another cluster: .*nothing is sent"):
            await anext(stream)


async def test_what_is_written_at_quorum_is_on_all_soon(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=4)
        await put(feed, numbered(0, 40), level="quorum")
    leader = await members.level("orders")
    assert [node.rows("orders") for node in members] == [numbered(0, 40)] * 3
    for node in members:
        node.node.check()
    assert leader is members[0]


async def test_feeds_come_and_go_on_all(members):
    async with members.client() as client:
        for name in ("one", "two"):
            await (await client.create_feed(name, partitions=2)).put(b"k", b"v", level="quorum")
        await members.level("two")
        await client.drop_feed("one")
        await until(lambda: all(node.seqs("one") is None for node in members))
        again = await client.create_feed("one", partitions=3)
        await again.put(b"k", b"w", level="quorum")
    await members.level("one")
    assert [node.rows("one") for node in members] == [{b"k": b"w"}] * 3


async def test_followers_know_of_a_feed_as_soon_as_it_is_made_and_tell_that_it_was_dropped(members):
    followers = f"{members[1].url},{members[2].address}"
    async with members.client() as client, tailrace.connect(followers, state="follower", retry_for=60) as reader:
        for number in range(5):
            feed = await client.create_feed(f"feed{number}", partitions=2)
            assert len(await reader.feed(f"feed{number}").partitions()) == 2
        await put(feed, numbered(0, 5), level="quorum")
        async with reader.feed("feed4").consume() as stream:
            async for event in stream:
                if isinstance(event, tailrace.SnapshotEnd):
                    break
            positions = stream.positions
        await client.drop_feed("feed4")
        with pytest.raises(tailrace.UnknownFeed):
            await read_on(reader.feed("feed4"), positions)


async def test_a_member_that_was_away_catches_up_from_segments_and_live(members):
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 20), partitions=2)
        await members[2].stop()
        await put(feed, numbered(10, 20), level="quorum")
        for partition in members[0].node.feeds.named("orders").partitions:
            await members[0].node.storage.flusher.flush_all(partition)
        await put(feed, numbered(30, 10), level="quorum")
        await members[2].start()
        await members.level("orders")
        assert members[2].rows("orders") == numbered(0, 40)
        members[2].node.check()


async def test_the_leader_is_killed_and_another_one_promoted(members):
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 20), partitions=4)
        await members[0].kill()
        outcome = await members[1].promote()
        assert outcome["term"] > 1
        assert str(members[0].address) in outcome["may_be_lost"]
        await put(feed, numbered(20, 20), level="quorum")
        await members.level("orders")
        await members[0].start()
        assert await members.level("orders") is members[1]
    assert [node.rows("orders") for node in members] == [numbered(0, 40)] * 3


async def test_a_member_is_healthy_only_while_it_knows_a_leader(members):
    leader = await members.settled()
    one, other = [node for node in members if node is not leader]
    assert status_of(one.node.services)["healthy"]
    await leader.kill()
    await until(lambda: one.member.following is None and "waits" in one.member.progress)
    assert not status_of(one.node.services)["healthy"]
    assert status_of(one.node.services)["failure"].startswith("no leader: this member follows no one")
    await one.promote()
    await until(lambda: all(status_of(node.node.services)["healthy"] for node in (one, other)))


async def test_what_only_the_old_leader_had_is_rolled_back_and_kept_aside(members):
    async with members.client() as client:
        await members.filled(client, numbered(0, 10))
    await lost_to_all_but(members, members[0], {b"lost": b"never replicated", b"0": b"newer, and lost"})
    await members[1].promote()
    async with members.client() as client:
        await put(client.feed("orders"), numbered(10, 5), level="quorum")
    await members[0].start()
    assert await members.level("orders") is members[1]
    assert members[0].rows("orders") == numbered(0, 15)
    members[0].node.check()
    kept = [name for _, _, files in os.walk(os.path.join(members[0].config.data, "lost")) for name in files]
    assert kept


async def test_a_promotion_without_a_majority_is_refused_and_says_who_is_missing(members):
    async with members.client() as client:
        await members.filled(client, {b"k": b"v"})
    await members[0].kill()
    await members[2].kill()
    term = members[1].member.local.file.now.term
    with pytest.raises(NotLeader, match="--force") as refused:
        await members[1].promote()
    for node in (members[0], members[2]):
        assert str(node.address) in str(refused.value)
    assert members[1].member.local.file.now.term == term  # hopeless: nothing was promised


async def test_one_is_promoted_by_force_and_the_others_come_back_to_it(members):
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10), partitions=2)
        await members[0].kill()
        await members[2].kill()
        outcome = await members[1].promote(force=True)
        assert "quorum" in outcome["may_be_lost"]
        await put(feed, numbered(10, 10), level="disk")
        # The last leader, beside one other member, must not depose it by itself.
        await members[0].start()
        await members[2].start()
        assert await members.level("orders") is members[1]
    assert [node.rows("orders") for node in members] == [numbered(0, 20)] * 3


async def test_all_members_are_restarted_and_the_last_leader_leads_again(members):
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10), partitions=2)
        terms = [log.term for log in members[0].logs("orders")]
        for node in members:
            await node.kill()
        for node in reversed(members.nodes):
            await node.start()
        assert await members.level("orders") is members[0]
        assert [log.term for log in members[0].logs("orders")] > terms
        await put(feed, numbered(10, 10), level="quorum")
        await members.level("orders")
    assert [node.rows("orders") for node in members] == [numbered(0, 20)] * 3


async def test_a_leadership_is_handed_over_under_writes_without_losing_any(members):
    async with members.client() as client:
        feed = await members.filled(client, {b"k": b"v"}, partitions=2)
        branches = [log.branch for log in members[0].logs("orders")]
        written, done = {}, trio.Event()

        async def write():
            number = 0
            while not done.is_set():
                await feed.put(b"%d" % number, b"x", level="disk")
                written[b"%d" % number] = b"x"
                number += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await until(lambda: len(written) > 20)
            answer = await members[0].hand_over(members[1])
            assert answer == {"term": members[1].node.leaderships.system.term, "leader": str(members[1].address)}
            before = len(written)
            await until(lambda: len(written) > before + 20)
            done.set()
        assert await members.level("orders") is members[1]
        assert [log.branch for log in members[1].logs("orders")] == branches
    assert members[2].rows("orders") == written | {b"k": b"v"}


async def test_a_member_whose_disk_was_replaced_has_no_vote_before_it_has_caught_up(members):
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10), partitions=2)
        for node in members:
            await node.kill()
        members[2].replace_disk()
        await members[2].start()
        # Alone with one that has a vote it is no majority.
        await members[1].start()
        with pytest.raises(NotLeader, match="1 of the 2 voters"):
            await members[1].promote()
        with pytest.raises(NotLeader, match="no vote"):
            await members[2].promote()
        await members[0].start()
        await members.level("orders")
        await until(lambda: members[2].member.local.votes)
        await members.level("orders")
        assert members[2].rows("orders") == numbered(0, 10)
        # From now on it counts.
        await members[0].kill()
        await members[1].promote()
        await put(feed, numbered(10, 5), level="quorum")


async def test_a_replaced_disk_has_no_vote_while_a_feed_that_it_was_told_of_is_not_made(members, monkeypatch):
    """The end of the list of feeds is late: by then it holds the row of a feed of which it has nothing."""
    late, told = trio.Event(), trio.Event()
    snapshot_ended, acknowledge = ReplicaPuller._snapshot_ended, ReplicaAcknowledgements.acknowledge

    async def end_late(puller, partition):
        if puller.feed is new.node.feeds.system and partition.high_seq == 2:
            await late.wait()
        await snapshot_ended(puller, partition)

    def note(acknowledgements, partition):
        acknowledge(acknowledgements, partition)
        if partition in new.node.feeds.system.partitions and partition.durable_seq == 2:
            told.set()

    async with members.client() as client:
        await client.create_feed("elder", partitions=1)
        leader = await members.level("elder")
        # So that the row of the next feed comes in a snapshot of its own.
        await leader.node.storage.flusher.flush_all(leader.node.feeds.system.partitions[0])
        await put(await client.create_feed("orders", partitions=1), numbered(0, 10), level="quorum")
    await members.level("orders")
    new = next(node for node in members if node is not leader)
    await new.stop()
    new.replace_disk()
    monkeypatch.setattr(ReplicaPuller, "_snapshot_ended", end_late)
    monkeypatch.setattr(ReplicaAcknowledgements, "acknowledge", note)
    await new.start()
    await until(lambda: told.is_set() or new.member.local.votes)
    await until(lambda: new.seqs("elder") == [0] or new.member.local.votes)
    for _ in range(20):
        await trio.sleep(0.01)
        assert not new.member.local.votes, f"it has {new.seqs('orders')} of the feed that it was told of"
    late.set()
    await until(lambda: new.member.local.votes)
    assert new.seqs("orders") == [10]


async def test_a_member_without_a_vote_that_leads_by_force_has_one_from_then_on(members):
    async with members.client() as client:
        await members.filled(client, {b"k": b"v"})
    for node in members:
        await node.kill()
    members[2].replace_disk()
    await members[1].start()
    await members[2].start()
    await members[2].promote(force=True)
    assert members[2].member.local.votes
    assert members[2].rows("orders") == {b"k": b"v"}
    await members[2].kill()
    await members[2].start()
    assert members[2].member.local.votes
    await members[0].start()
    assert await members.settled() is members[2]


async def test_a_new_node_alone_founds_no_second_set_even_by_force(members):
    for node in members:
        await node.kill()
    members[2].replace_disk()
    await members[2].start()
    with pytest.raises(NotLeader, match="new"):
        await members[2].promote(force=True)


async def test_all_disks_but_one_are_replaced_and_that_one_leads_by_force(members):
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 5))
        for node in members:
            await node.kill()
        for node in (members[0], members[1]):
            node.replace_disk()
        for node in members:
            await node.start()
        await members[2].promote(force=True)
        assert await members.level("orders") is members[2]
        await until(lambda: all(node.member.local.votes for node in members))
        await put(feed, numbered(5, 5), level="quorum")
    await members.level("orders")
    assert [node.rows("orders") for node in members] == [numbered(0, 10)] * 3


async def test_nothing_is_at_quorum_by_what_a_lost_leader_has_said(members):
    """It was told of more than had come to the one that leads by force now."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 5))
        await members[0].kill()
        await members[2].kill()
        [partition] = members[1].node.feeds.named("orders").partitions
        partition.set_leader_seqs(8, 8)
        await members[1].promote(force=True)
        await put(feed, numbered(10, 3), level="disk")
        assert partition.high_seq == 8
        assert partition.visible_seq(Level.QUORUM) <= 5


async def test_who_waits_for_a_turn_to_lead_is_bounded(members):
    """Each request is a task that outlives its connection."""
    async with members[1].member.procedure, trio.open_nursery() as nursery:
        refused = []

        async def promote():
            try:
                await members[1].promote()
            except Overloaded as error:
                refused.append(error)

        for _ in range(TURNS_MAX + 3):
            nursery.start_soon(promote)
        await until(lambda: len(refused) == 3)
        nursery.cancel_scope.cancel()


async def test_a_refused_promotion_leaves_a_set_that_goes_on(members):
    """One has promised a term that nobody leads by: the leader learns of it, and leads anew above it."""
    async with members.client() as client:
        feed = await members.filled(client, {b"k": b"v"})
        answer = await members[2].ask(
            Opcode.PROMISE, term=50, address="nobody:1", placement_id="00" * 16, handover=False
        )
        assert answer["promised"]
        await until(lambda: members[0].leads and members[0].node.leaderships.system.term > 50)
        assert await members.level("orders") is members[0]
        await members[1].kill()
        await feed.put(b"k", b"w", level="quorum")  # with the one that had promised more


def sever(one, other):
    """Two nodes do not reach each other from now on."""
    for node, peer in ((one, other), (other, one)):
        network = node.node.host.network

        async def connect(address, *, connect=network.connect, lost=peer.address):
            if Address(*address) == lost:
                raise OSError("severed")
            return await connect(address)

        network.connect = connect


async def test_two_members_that_do_not_reach_each_other_do_not_depose_each_other_for_ever(members, monkeypatch):
    """A third one reaches both. The one that led before hears from it of the later leader, and waits for that."""
    old, new, bridge = members
    looks = collections.Counter()
    look = PeerStates.look

    async def counted(peers, *arguments):
        await look(peers, *arguments)
        looks[peers._node.identity.placement_id] += 1

    async with members.client() as client:
        feed = await members.filled(client, {b"k": b"v"})
        sever(old, new)
        # The link itself stays: it is only that nobody answers on a new one.
        await new.promote()
        await until(lambda: bridge.follows(new))
        monkeypatch.setattr(PeerStates, "look", counted)
        await until(lambda: looks[old.node.identity.placement_id] > 3 * LOOKS_BEFORE_LEADING_AGAIN)
        assert (new.leads, new.node.leaderships.system.term, bridge.node.leaderships.system.term) == (True, 2, 2)
        assert not old.leads
        assert "knows of a later leader" in old.member.progress
        await feed.put(b"k", b"w", level="quorum")


async def test_a_term_that_nobody_comes_to_by_leading_is_refused(members):
    """A promise is for ever, and nobody can lead beyond the highest number."""
    promise = {"address": "nobody:1", "placement_id": "00" * 16}
    for term in (TERMS_AHEAD_MAX + 100, 2**62):
        for node in members:
            with pytest.raises(ProtocolError, match="nothing is promised"):
                await node.ask(Opcode.PROMISE, term=term, **promise)
    assert {node.member.local.file.now.term for node in members} == {1}


async def test_a_set_goes_on_whose_terms_were_driven_up(new_set):
    """In steps that are promised, at one member of five: the others have to believe the one that leads anew."""
    made = new_set(count=5)
    await made.start()
    await made.settled()
    promise = {"address": "nobody:1", "placement_id": "00" * 16}
    for step in (1, 2, 3):
        answer = await made[4].ask(Opcode.PROMISE, term=step * TERMS_AHEAD_MAX, **promise)
        assert answer["promised"]
    await until(lambda: made[0].leads and made[0].node.leaderships.system.term > 3 * TERMS_AHEAD_MAX)
    assert await made.settled() is made[0]


async def test_a_handover_that_ends_half_way_ends_in_one_leader(members):
    """The leader has promised, and the other one never comes to lead."""
    async with members.client() as client:
        feed = await members.filled(client, {b"k": b"v"})
        for node in members:
            await node.ask(Opcode.PROMISE, term=50, address="x:1", placement_id="00" * 16, handover=True)
        await until(lambda: members[0].leads and members[0].node.leaderships.system.term > 50)
        assert await members.level("orders") is members[0]
        await feed.put(b"k", b"w", level="quorum")


async def test_the_other_one_dies_in_the_middle_of_a_handover(members, monkeypatch):
    """The leader has promised, and never writes on that branch again: it leads anew, by promotion."""
    reached = trio.Event()

    async def hang(promotion, kept_branch):
        assert kept_branch
        reached.set()
        await trio.sleep_forever()

    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 5))
        [log] = members[0].logs("orders")
        with monkeypatch.context() as patched:
            patched.setattr(Promotion, "_lead", hang)

            async def hand_over():
                with pytest.raises(Unreachable):
                    await members[0].hand_over(members[1])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(hand_over)
                await reached.wait()
                assert not members[0].leads
                await members[1].kill()
        await until(lambda: members[0].leads)
        assert members[0].logs("orders")[0].branch != log.branch
        await put(feed, numbered(5, 5), level="quorum")
        await members[1].start()
        assert await members.level("orders") is members[0]
    assert [node.rows("orders") for node in members] == [numbered(0, 10)] * 3


async def test_a_handover_to_one_that_is_gone_is_refused_and_the_leader_goes_on(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await feed.put(b"k", b"v", level="quorum")
        await members[2].kill()
        with pytest.raises(TailraceError):
            await members[0].hand_over(members[2])
        assert members[0].leads
        await feed.put(b"k", b"w", level="quorum")


@pytest.fixture
async def patient_set(new_set):
    """One whose members wait for ever for each other; the first of them leads."""
    made = new_set(replication=dataclasses.replace(REPLICATION, ask_timeout_s=10**6, step_timeout_s=10**6))
    await made.start()
    assert await made.settled() is made[0]
    return made


async def test_a_handover_does_not_wait_for_a_third_one_that_is_silent(patient_set, monkeypatch):
    """It is heard of again only once the other one leads."""
    made = patient_set
    silent, is_led = made[2].address, trio.Event()
    look_at = PeerStates._look_at

    async def look_past(peers, address, found):
        if address == silent:
            await is_led.wait()
        await look_at(peers, address, found)

    monkeypatch.setattr(PeerStates, "_look_at", look_past)
    async with made.client() as client:
        feed = await made.filled(client, {b"k": b"v"})
        [log] = made[0].logs("orders")
        await made[2].kill()
        [listener] = await trio.open_tcp_listeners(silent.port, host=silent.host)
        async with listener:  # whoever connects hears nothing
            await made[0].hand_over(made[1])
            await feed.put(b"k", b"w", level="disk")
            await feed.put(b"l", b"q", level="quorum")  # the one that led has to follow
        is_led.set()
        assert made[1].logs("orders") == [log]
        assert await made.level("orders") is made[1]
    assert made[0].rows("orders") == {b"k": b"w", b"l": b"q"}


async def test_a_handover_does_not_wait_for_a_third_one_that_promises_nothing(patient_set, monkeypatch):
    """It says what it is, and hangs: the promises of the leader and of the other one are a majority's."""
    made = patient_set

    async def hang(member, promise):
        if member is made[2].member:
            await trio.sleep_forever()
        return await answer_promise(member, promise)

    monkeypatch.setattr(member_requests, "answer_promise", hang)
    async with made.client() as client:
        feed = await made.filled(client, {b"k": b"v"})
        await made[0].hand_over(made[1])
        await feed.put(b"k", b"w", level="quorum")
        assert await made.level("orders") is made[1]
    assert made[2].rows("orders") == {b"k": b"w"}


@pytest.fixture
def hold_up(monkeypatch):
    """A function after which a node takes no block of another one before something holds."""

    def hold(node, holds):
        take = ReplicaPuller._take

        async def take_later(puller, *arguments):
            if puller._node is node.node.services:
                await until(holds)
            await take(puller, *arguments)

        monkeypatch.setattr(ReplicaPuller, "_take", take_later)
        monkeypatch.setattr(ReplicaPuller, "_take_now", never_now)

    return hold


async def test_writes_go_on_while_a_handover_waits_for_one_that_is_behind(patient_set, hold_up):
    made = patient_set
    goes_on = trio.Event()
    async with made.client() as client:
        feed = await made.filled(client, {b"k": b"v"})
        [log] = made[0].logs("orders")
        hold_up(made[1], goes_on.is_set)
        await put(feed, numbered(0, 10))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made[0].hand_over, made[1])
            await until(lambda: made[0].member.progress.startswith("hands over"))
            await put(feed, numbered(10, 10))
            assert made[0].leads
            goes_on.set()
        assert made[1].logs("orders") == [log]
        assert await made.level("orders") is made[1]
    assert made[1].rows("orders") == numbered(0, 20) | {b"k": b"v"}


async def test_a_handover_pauses_writes_anew_where_the_last_of_them_take_long(patient_set, monkeypatch):
    made = patient_set
    pauses = []

    async def ask_in_vain(node, address, opcode, *arguments):
        if node.leaderships.system.refuses_writes and not pauses:
            pauses.append(opcode)
            await trio.sleep_forever()
        return await asked(node, address, opcode, *arguments)

    asked = handover.ask
    monkeypatch.setattr(handover, "ask", ask_in_vain)
    async with made.client() as client:
        feed = await made.filled(client, {b"k": b"v"})
        await made[0].hand_over(made[1])
        assert pauses == [Opcode.MEMBER]
        await feed.put(b"k", b"w", level="quorum")
        assert await made.level("orders") is made[1]


async def test_a_handover_to_one_that_never_catches_up_fails_and_the_leader_goes_on(new_set, monkeypatch):
    made = new_set(replication=dataclasses.replace(REPLICATION, step_timeout_s=0.2))
    await made.start()
    assert await made.settled() is made[0]
    async with made.client() as client:
        feed = await made.filled(client, {b"k": b"v"})
        monkeypatch.setattr(handover, "ask", never)
        with pytest.raises(Unreachable, match="has not caught up"):
            await made[0].hand_over(made[1])
        await feed.put(b"k", b"w", level="quorum")
        assert await made.level("orders") is made[0]


async def test_writes_go_on_where_the_other_one_does_not_ask_for_the_promise(patient_set, monkeypatch, hold_up):
    """What is written then comes with the promise, and the branch goes on with it."""
    made = patient_set
    goes_on = trio.Event()

    async def take_over_later(member, term):
        await goes_on.wait()
        return await handover.take_over(member, term)

    monkeypatch.setattr(member_requests, "take_over", take_over_later)
    monkeypatch.setattr(handover, "_UNASKED_SECONDS", 0.05)
    async with made.client() as client:
        feed = await made.filled(client, {b"k": b"v"})
        [log] = made[0].logs("orders")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made[0].hand_over, made[1])
            await until(lambda: made[1].member.turns)
            hold_up(made[1], lambda: made[1].member.local.promoting)  # it has to fetch
            await put(feed, numbered(0, 10))
            assert made[0].leads
            goes_on.set()
        assert made[1].logs("orders") == [log]
        assert await made.level("orders") is made[1]
    assert made[1].rows("orders") == numbered(0, 10) | {b"k": b"v"}


async def test_a_plain_replica_follows_and_leads_only_by_force(source_and_replica):
    source, replica = source_and_replica
    async with tailrace.connect(source.url, retry_for=60) as client:
        feed = await client.create_feed("orders", partitions=2)
        await put(feed, numbered(0, 10))
        await until(lambda: replica.seqs("orders") == source.seqs("orders"))
    assert replica.rows("orders") == numbered(0, 10)
    assert replica.follows(source)
    with pytest.raises(NotLeader, match="--force"):
        await replica.promote()
    await source.kill()
    await replica.promote(force=True)
    async with tailrace.connect(replica.url, retry_for=60) as client:
        await put(client.feed("orders"), numbered(10, 10))
    await replica.kill()
    await replica.start()
    await until(lambda: replica.leads)
    assert replica.rows("orders") == numbered(0, 20)


async def test_a_leader_that_was_replaced_by_force_follows_its_replica_on_its_old_directory(source_and_replica):
    source, replica = source_and_replica
    async with tailrace.connect(source.url, retry_for=60) as client:
        feed = await client.create_feed("orders", partitions=1)
        await put(feed, numbered(0, 10))
        await until(lambda: replica.seqs("orders") == source.seqs("orders"))
        await replica.kill()
        await put(feed, {b"lost": b"x"})
    await source.kill()
    await replica.start()
    await replica.promote(force=True)
    async with tailrace.connect(replica.url, retry_for=60) as client:
        await put(client.feed("orders"), numbered(10, 5))
    source.config = dataclasses.replace(source.config, replica_of=replica.address)
    await source.start()
    await until(lambda: source.logs("orders") == replica.logs("orders") and source.seqs("orders") == [15])
    assert source.rows("orders") == numbered(0, 15)


async def test_a_set_is_made_of_a_backup(tmp_path, new_set):
    made = new_set()
    await made.start()
    await made.settled()
    async with made.client() as client:
        await put(await client.create_feed("orders", partitions=2), numbered(0, 10), level="quorum")
    await made.level("orders")
    for node in made:
        await node.stop()
    as_member = made[0].config
    made[1].replace_disk()
    made[2].replace_disk()
    made[0].config = dataclasses.replace(as_member, members=(), restored=True)
    await made[0].start()
    await made[0].stop()
    made[0].config = as_member
    await made.start()
    assert [node.member.local.votes for node in made] == [False] * 3
    await until(lambda: all("waits" in node.member.progress for node in made))
    with pytest.raises(NotLeader, match="that none of the members has any more"):
        await made[0].promote()
    await made[0].promote(force=True)
    await until(lambda: all(node.member.local.votes for node in made))
    async with made.client() as client:
        await put(client.feed("orders"), numbered(10, 5), level="quorum")
    await made.level("orders")
    assert [node.rows("orders") for node in made] == [numbered(0, 15)] * 3


async def restored_beside_its_set(members):
    """A member's old backup was started by itself while the set went on, and is started as the member now; the leader.

    Of "orders" the set has 30 rows, the backup 10.
    """
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10))
        leader = members.leader
        old = next(node for node in members if node is not leader)
        await old.stop()
        backup = old.config.data + " of then"
        shutil.copytree(old.config.data, backup)
        await put(feed, numbered(10, 20), level="quorum")
        as_member = dataclasses.replace(old.config, data=backup)
        old.config = dataclasses.replace(as_member, members=(), restored=True)
        await old.start()
        await until(lambda: str(old.address) in misfits(leader) or not leader.leads)
        await old.stop()
        old.config = as_member
        await old.start()
    return leader, old


async def test_an_old_backup_of_a_member_moves_nothing(members):
    term = members[0].node.leaderships.system.term
    leader, old = await restored_beside_its_set(members)
    third = next(node for node in members if node not in (leader, old))
    later = r"has no vote, and holds a history of term \d+, later than "
    await until(lambda: re.search(later, old.member.progress) or leader.node.leaderships.system.term != term)
    # It has been looked at often enough to be taken for one that has promised more.
    await until(
        lambda: leader.node.leaderships.system.term != term or leader.member.peers.states[str(old.address)] is not None
    )
    looks = []
    leader.member.peers.look = partial(counted, looks, leader.member.peers.look)
    await until(lambda: leader.node.leaderships.system.term != term or len(looks) > 2 * LOOKS_BEFORE_LEADING_AGAIN)
    for force in (False, True):
        with pytest.raises(NotLeader, match=f"refused: this node {later}"):
            await old.promote(force=force)
    assert "would be refused" in forecast_of(old.node.services, old.member.leadership, old.member).text
    assert (leader.leads, leader.node.leaderships.system.term) == (True, term)
    assert third.follows(leader)
    assert [node.rows("orders") for node in (leader, third)] == [numbered(0, 30)] * 2
    # Without the leader, the third one is promoted with what a majority has.
    await old.stop()
    old.replace_disk()
    await old.start()
    await members.level("orders")
    assert old.rows("orders") == numbered(0, 30)


async def test_a_node_with_another_list_is_not_forced_while_the_voters_answer(members):
    """An old backup beside the set lists itself too. A member with a wrong list is not forced either."""
    async with members.client() as client:
        await members.filled(client, numbered(0, 10))
    leader = members.leader
    kept = next(node for node in members if node is not leader)
    [address] = free_addresses(1)
    backup = kept.config.data + " of then"
    await kept.stop()
    shutil.copytree(kept.config.data, backup)
    await kept.start()
    alone = dataclasses.replace(kept.config, data=backup, listen=tuple(address), members=(), restored=True)
    old = MadeNode(alone, kept._nursery)
    await old.start()
    await old.stop()
    old.config = dataclasses.replace(alone, members=(*kept.config.members, address), restored=False)
    await old.start()
    forecast = partial(forecast_of, old.node.services, old.member.leadership, old.member)
    await until(lambda: "choose its leader by themselves" in forecast().text)
    await until(lambda: len(misfits(old)) == 3)  # two of the three are a majority already
    for force in (False, True):
        with pytest.raises(NotLeader, match=r"refused: .* --force changes nothing: .* start it with an empty one"):
            await old.promote(force=force)
    assert not old.leads
    await old.stop()
    await kept.stop()
    others = reversed([address for address in kept.config.members if address != kept.address])
    swapped = tuple(address if address == kept.address else next(others) for address in kept.config.members)
    kept.config = dataclasses.replace(kept.config, members=swapped)
    await kept.start()
    await until(lambda: len(misfits(kept)) == 2)
    with pytest.raises(NotLeader, match=r"--force changes nothing: .* Restart this node with their list"):
        await kept.promote(force=True)
    assert leader.leads


async def counted(looks, look, *arguments):
    looks.append(arguments)
    await look(*arguments)


async def test_a_promotion_counts_nothing_that_a_member_without_a_vote_holds(members):
    leader, old = await restored_beside_its_set(members)
    third = next(node for node in members if node not in (leader, old))
    await until(lambda: "waits" in old.member.progress)
    await leader.kill()
    term = third.member.local.file.now.term
    with pytest.raises(NotLeader, match="refused: 1 of the 2 voters"):
        await third.promote()
    await leader.start()
    await until(lambda: leader.leads)
    assert leader.node.leaderships.system.term <= term + 1
    await third.promote()
    assert third.node.leaderships.system.term <= term + 3
    assert third.rows("orders") == numbered(0, 30)


async def test_a_member_whose_directory_crashed_alone_but_is_new_joins_without_a_change_of_term(
    tmp_path, nursery, members
):
    """Nothing was ever in it, but its list of feeds has branches of later terms than the set's."""
    data = await crashed_directory(tmp_path, nursery, with_feed=False)
    async with members.client() as client:
        await members.filled(client, numbered(0, 10))
    leader = members.leader
    term, other = leader.node.leaderships.system.term, next(node for node in members if node is not leader)
    await other.stop()
    other.config = dataclasses.replace(other.config, data=data)
    await other.start()
    await until(
        lambda: leader.node.leaderships.system.term != term or (other.follows(leader) and other.member.local.votes)
    )
    assert (leader.leads, leader.node.leaderships.system.term) == (True, term)
    await members.level("orders")
    assert other.rows("orders") == numbered(0, 10)


def lost_keys(node):
    paths = pathlib.Path(node.config.data, "lost").glob("*/index.jsonl")
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return {key for line in lines for key in line["keys"] if isinstance(key, str)}


async def test_an_old_leader_that_went_on_alone_gives_up_what_it_wrote(source_and_replica):
    """Each start has begun a branch, so its terms are above the new leader's."""
    source, replica = source_and_replica
    async with tailrace.connect(source.url, retry_for=60) as client:
        feed = await client.create_feed("orders", partitions=2)
        await put(feed, numbered(0, 10))
        await until(lambda: replica.seqs("orders") == source.seqs("orders"))
    await source.kill()
    await replica.promote(force=True)
    async with tailrace.connect(replica.url, retry_for=60) as client:
        await put(client.feed("orders"), numbered(10, 5))
    for number in range(4):
        await source.start()
        async with tailrace.connect(source.url, retry_for=60) as client:
            await put(client.feed("orders"), {b"alone %d" % number: b"x", b"3": b"y"})
            await client.create_feed(f"alone-{number}", partitions=1)
        await source.kill()
    source.config = dataclasses.replace(source.config, replica_of=replica.address)
    await source.start()
    assert min(log.term for log in source.logs("orders")) > max(log.term for log in replica.logs("orders"))
    await until(lambda: source.logs("orders") == replica.logs("orders"))
    await until(lambda: source.seqs("orders") == replica.seqs("orders") and len(source.node.feeds) == 1)
    assert source.rows("orders") == numbered(0, 15)
    await until(lambda: source.follows(replica) and "rolled back" in source.member.progress)
    assert {f"alone {number}" for number in range(4)} <= lost_keys(source)
    source.node.check()


async def test_a_follower_whose_memory_is_full_goes_on(new_set):
    made = new_set()
    small = StorageConfig(memory_bytes_max=256 * 1024)
    made[2].config = dataclasses.replace(made[2].config, storage=small)
    await made.start()
    await made.settled()
    async with made.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        async with feed.writer(level="disk") as writer:
            for number in range(300):
                await writer.put(b"%d" % number, bytes(10_000))
        await made.level("orders")
    assert made[2].node.storage.memory.used < 256 * 1024
    made[2].node.check()


async def test_a_replica_of_another_cluster_is_not_taken_over(tmp_path, nursery):
    first, second = free_addresses(2)
    source = MadeNode(make_config(tmp_path / "source", first), nursery)
    other = MadeNode(make_config(tmp_path / "other", second), nursery)
    await source.start()
    await other.start()
    async with tailrace.connect(other.url, retry_for=60) as client:
        await (await client.create_feed("mine", partitions=1)).put(b"k", b"v")
    await other.stop()
    replica = MadeNode(make_config(tmp_path / "other", second, replica_of=first), nursery)
    await replica.start()
    await until(lambda: "cluster" in replica.member.progress)
    assert replica.rows("mine") == {b"k": b"v"}


async def test_a_set_of_two_needs_both(new_set):
    made = new_set(count=2)
    await made.start()
    await made.settled()
    await made[0].kill()
    with pytest.raises(NotLeader, match="1 of the 2 voters"):
        await made[1].promote()
    await made[0].start()
    assert await made.settled() is made[0]


async def test_one_that_is_behind_is_promoted_and_fetches_from_another_member(members):
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10), partitions=2)
        await members[1].kill()
        await put(feed, numbered(5, 20), level="quorum")
        await client.create_feed("later", partitions=1)
        await put(client.feed("later"), numbered(0, 3), level="quorum")
        await members.level("later")
        await members[0].kill()
        await members[1].start()
        outcome = await members[1].promote()
        assert any("fetches" in step for step in outcome["steps"])
        assert members[1].rows("orders") == numbered(0, 25)
        assert members[1].rows("later") == numbered(0, 3)
        await put(feed, numbered(25, 5), level="quorum")
        await members[0].start()
        assert await members.level("orders") is members[1]
    assert [node.rows("orders") for node in members] == [numbered(0, 30)] * 3


async def test_a_segment_that_reaches_beyond_the_fork_goes_whole_and_comes_again(members):
    """A rollback can only stand where a segment ends; what it drops below the fork the new leader has."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 5))
        [partition] = members[0].node.feeds.named("orders").partitions
        await members[0].node.storage.flusher.flush_all(partition)
        await put(feed, numbered(5, 5), level="quorum")
        await members.level("orders")
        for node in members.nodes[1:]:
            await node.kill()
        await put(feed, {b"lost": b"x", b"7": b"lost"})
        partition.needs_quorum = False  # as where memory is short: it is flushed all the same
        await members[0].node.storage.flusher.flush_all(partition)
        assert partition.flushed_seq == 12
        await members[0].kill()
        for node in members.nodes[1:]:
            await node.start()
        await members[1].promote()
        await put(feed, numbered(10, 5), level="quorum")
        await members[0].start()
        assert await members.level("orders") is members[1]
    assert members[0].rows("orders") == numbered(0, 15)
    members[0].node.check()


async def test_a_new_member_is_filled_from_folded_segments(members):
    """What is superseded in a run is not sent: it becomes a segment of its own, whole."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        leader = await members.settled()
        [partition] = leader.node.feeds.named("orders").partitions
        for turn in range(8):
            await put(feed, numbered(0, 3) | numbered(10 * turn, 3), level="quorum")
            await feed.delete(b"1", level="quorum")
            await leader.node.storage.flusher.flush_all(partition)
        await until(lambda: any(segment.identity.deduplicated for segment in partition.chain.segments))
        await put(feed, numbered(100, 3), level="quorum")
        expected = leader.rows("orders")
        await members[2].kill()
        members[2].replace_disk()
        await members[2].start()
        await members.level("orders")
        await until(lambda: members[2].member.local.votes)
    [filled] = members[2].node.feeds.named("orders").partitions
    assert any(segment.identity.deduplicated for segment in filled.chain.segments)
    assert members[2].rows("orders") == expected
    members[2].node.check()


async def test_a_leader_that_has_promised_writes_nothing_more(members):
    """Whatever it was told: the branch is the other one's."""
    async with members.client() as client, members.client(retry_for=2) as impatient:
        await members.filled(client, {b"k": b"v"})
        for node in members.nodes[1:]:
            await node.kill()
        answer = await members[0].ask(Opcode.PROMISE, term=50, address="x:1", placement_id="00" * 16, handover=True)
        [feed_id] = [f.info.feed_id.hex() for f in members[0].node.feeds]
        assert answer["partitions"][feed_id] == [[1, 1]]
        with pytest.raises(TailraceError):
            await impatient.feed("orders").put(b"k", b"lost", level="disk")
    assert members[0].rows("orders") == {b"k": b"v"}
    assert not members[0].leads


async def never(*_):
    await trio.sleep_forever()


async def test_who_has_promised_takes_and_acknowledges_nothing_of_the_leader_before(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await feed.put(b"k", b"v", level="quorum")
        leader = await members.level("orders")
        leader.member.peers.look = never  # it does not learn of the promises
        promise = {"term": 50, "address": "x:1", "placement_id": "00" * 16, "handover": False}
        answer = await members[1].ask(Opcode.PROMISE, **promise)
        [feed_id] = [f.info.feed_id.hex() for f in leader.node.feeds]
        await put(feed, numbered(0, 10), level="quorum")  # with the third one
        assert answer["partitions"][feed_id] == [[1, 1]]
        assert members[1].seqs("orders") == [1]
        refused = await members[1].ask(Opcode.PROMISE, **promise)
        assert (refused["promised"], refused["term"], refused["partitions"]) == (False, 50, {})
        await members[2].ask(Opcode.PROMISE, **promise)
        with trio.move_on_after(0.3) as scope:
            await feed.put(b"k", b"w", level="quorum")
        assert scope.cancelled_caught
        with trio.move_on_after(0.3) as scope:  # nor does anybody say any more that it leads
            await feed.get(b"k", level="quorum")
        assert scope.cancelled_caught
        assert leader.leads


async def test_two_who_are_promoted_at_once_end_in_one_leader(members):
    async with members.client() as client:
        feed = await members.filled(client, {b"k": b"v"})
        await members[0].kill()
        outcomes = []

        async def promote(node):
            try:
                outcomes.append((await node.promote())["term"])
            except TailraceError as error:
                outcomes.append(error)

        async with trio.open_nursery() as nursery:
            for node in members.nodes[1:]:
                nursery.start_soon(promote, node)
        terms = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert len(terms) == len(set(terms))
        if not terms:  # each has refused the other: an operator tries again
            await members[1].promote()
        await members.settled()
        await feed.put(b"k", b"w", level="quorum")


async def test_every_write_at_quorum_survives_whoever_is_killed_and_promoted(members):
    """Round after round the leader is killed under writes, another one promoted, and the old one comes back."""
    written = {}
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        done = trio.Event()

        async def write():
            number = 0
            while not done.is_set():
                key, value = b"%d" % (number % 50), b"%d" % number
                await feed.put(key, value, level="quorum")
                written[key] = value
                number += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for turn in range(4):
                leader = await members.settled()
                before = dict(written)
                await until(lambda before=before: written != before)
                await leader.kill()
                other = members[(members.nodes.index(leader) + 1 + turn % 2) % 3]
                await other.promote()
                await leader.start()
            done.set()
        await members.level("orders")
    assert [node.rows("orders") for node in members] == [written] * 3
    for node in members:
        node.node.check()


async def test_who_leads_by_force_forgets_what_a_majority_had_of_what_it_lacks(members):
    """A follower may be told that seqs are at quorum which have not come to it: the new branch gives them out again."""
    async with members.client() as client:
        feed = await members.filled(client, {b"k": b"v"})
        [partition] = members[2].node.feeds.named("orders").partitions
        await members[0].kill()
        await members[1].kill()
        partition.set_leader_seqs(9, 9)
        await members[2].promote(force=True)
        with trio.move_on_after(0.3) as scope:
            await feed.put(b"k", b"w", level="quorum")
        assert scope.cancelled_caught, "nobody else has it"
        assert partition.durable_seq == 2
        assert partition.quorum_seq <= 1


async def test_who_went_back_below_what_it_acknowledged_helps_nobody_to_lead_who_lacks_it(members, monkeypatch):
    """One and another make a majority for rows 5 to 9; the one goes back to nothing, and the other is gone."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await put(feed, numbered(0, 5), level="quorum")
        await members.level("orders")
        [partition] = members[0].node.feeds.named("orders").partitions
        for turn in range(2):
            await members[0].node.storage.flusher.flush_all(partition)
            await put(feed, {b"x": b"%d" % turn}, level="quorum")
        await members.level("orders")
        await members[2].kill()
        await put(feed, numbered(5, 5), level="quorum")
        await members[0].node.storage.flusher.flush_all(partition)
        await members[1].kill()
        await put(feed, {b"lost": b"x", b"7": b"lost"})
        partition.needs_quorum = False  # as of a run that came folded: the fourth segment is folded with the others
        await members[0].node.storage.flusher.flush_all(partition)
        await until(lambda: [segment.identity.deduplicated for segment in partition.chain.segments] == [True])
        # Its manifest is written, and that there is such a feed: else the start would take all of it from the journal.
        async with members[0].node.storage.installer.holding(partition):
            await members[0].node.storage.flusher.write_feeds()
        await members[0].kill()
        # From here on nobody gets any rows.
        with monkeypatch.context() as patched:
            patched.setattr(ReplicaPuller, "_take", never)
            patched.setattr(ReplicaPuller, "_take_now", never_now)
            for node in members.nodes[1:]:
                await node.start()
            await members[1].promote()
            await members[0].start()
            await until(lambda: members[0].seqs("orders") == [0] and members[2].follows(members[1]))
            await members[1].kill()
            for node in (members[2], members[0]):
                with pytest.raises(NotLeader, match=r"had acknowledged partition 0 .* up to seq 12"):
                    await node.promote()
            await members[0].kill()
            await members[0].start()  # it is durable
            with pytest.raises(NotLeader, match=f"{members[0].address} had acknowledged"):
                await members[2].promote()
            await members[1].start()
            await members.settled()
        for node in (members[0], members[2]):
            await node.kill()
            await node.start()
        await put(feed, numbered(10, 1), level="quorum")
        await members.level("orders")
        assert members[0].rows("orders") == numbered(0, 11) | {b"x": b"1"}
        await members[1].kill()
        await members[2].promote()
        assert members[0].member.local.file.now.owes == ()
        await put(feed, numbered(11, 1), level="quorum")


async def test_who_starts_anew_since_the_logs_share_nothing_owes_what_it_acknowledged(members, monkeypatch):
    """While a follower is away its leader is restarted more often than a failover log has entries."""
    monkeypatch.setattr(failover, "ENTRIES_MAX", 3)
    leader, away, third = members
    rows = numbered(0, 20)
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await members.level("orders")
        await third.kill()
        await put(feed, rows, level="quorum")
    await away.kill()
    # From here on nobody gets any rows.
    with monkeypatch.context() as patched:
        patched.setattr(ReplicaPuller, "_take", never)
        patched.setattr(ReplicaPuller, "_take_now", never_now)
        await third.start()
        for number in range(4):
            await leader.kill()
            await leader.start()
            await until(lambda: leader.leads)
            async with tailrace.connect(leader.url) as client:
                await client.feed("orders").put(b"restarts", b"%d" % number, level="disk")
        await away.start()
        await until(lambda: away.seqs("orders") == [0])
        await leader.kill()
        for node in (away, third):
            with pytest.raises(NotLeader, match=r"had acknowledged partition 0 .* up to seq 20"):
                await node.promote()
    await leader.start()
    await members.level("orders")
    assert away.rows("orders") == rows | {b"restarts": b"3"}
    await leader.kill()
    await third.promote()
    assert away.member.local.file.now.owes == ()
    assert third.rows("orders") == rows | {b"restarts": b"3"}


@pytest.mark.parametrize("hidden_looks", [1, 10**9])
async def test_a_leader_that_comes_back_deposes_nobody_who_leads_by_force(members, monkeypatch, hidden_looks):
    """It cannot see the one that leads, when it decides or for as long as it tries; the other one knows nothing."""
    back, forced, unknowing = members
    looks = 0
    look_at = PeerStates._look_at

    async def look_past(peers, address, found):
        nonlocal looks
        if address == forced.address and peers._node.config in (back.config, unknowing.config):
            looks += peers._node.config is back.config
            if peers._node.config is unknowing.config or looks <= hidden_looks:
                found[str(address)] = None
                return
        await look_at(peers, address, found)

    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await put(feed, numbered(0, 5), level="quorum")
        await members.level("orders")
    await back.kill()
    await unknowing.kill()
    term = (await forced.promote(force=True))["term"]
    tries = []
    run = Promotion.run

    async def try_to_lead(promotion):
        tries.append(promotion._member.node)
        return await run(promotion)

    with monkeypatch.context() as patched:
        patched.setattr(PeerStates, "_look_at", look_past)
        patched.setattr(Promotion, "run", try_to_lead)
        await unknowing.start()
        await back.start()
        await until(lambda: back.node.services in tries and not back.member.local.promoting)
        assert not back.leads
        if hidden_looks == 1:
            await until(lambda: back.follows(forced))
            assert forced.node.leaderships.system.term == term, "nobody was asked for a promise"
    assert await members.level("orders") is forced


async def test_a_promotion_waits_once_for_a_leader_that_is_silent(new_set, monkeypatch):
    """It has not answered the first question, whose time-out is short: its promise is not waited for as well."""
    for_ever = dataclasses.replace(REPLICATION, step_timeout_s=10**6)
    made = new_set(replication=for_ever)
    await made.start()
    silent = (await made.settled()).address
    look_at = PeerStates._look_at

    async def look_past(peers, address, found):
        if address == silent:
            found[str(address)] = None
        else:
            await look_at(peers, address, found)

    async with made.client() as client:
        await (await client.create_feed("orders", partitions=1)).put(b"k", b"v", level="quorum")
    await made.level("orders")
    await made[0].kill()
    monkeypatch.setattr(PeerStates, "_look_at", look_past)
    [listener] = await trio.open_tcp_listeners(silent.port, host=silent.host)
    async with listener:  # whoever connects hears nothing
        outcome = await made[1].promote()
    assert str(silent) in outcome["may_be_lost"]
    assert any(f"{silent} did not (no answer)" in step for step in outcome["steps"])
    assert await made.level("orders") is made[1]


@contextlib.asynccontextmanager
async def raw_connection(node):
    stream = await trio.open_tcp_stream(node.address.host, node.address.port)
    async with stream:
        yield await RawClient(stream).hello()


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_who_leads_with_a_part_of_a_snapshot_recognises_what_it_has_of_it(members, monkeypatch, is_restarted):
    """Its blocks are merged, and tell of no producer; the leader is gone before their snapshot ends."""
    leader, _, late = members
    async with members.client() as client:
        await client.create_feed("orders", partitions=4)
    await members.level("orders")
    await late.kill()
    [feed_id] = [feed.info.feed_id for feed in leader.node.feeds]
    partition = leader.node.feeds.of_id(feed_id).partitions[PARTITION]
    blocks = [block_of(KEY, number=number) for number in range(1, 201)]
    async with raw_connection(leader) as connection:
        for block in blocks:
            level = Level.QUORUM if block is blocks[-1] else Level.MEMORY
            await connection.ask(Opcode.WRITE, write(feed_id, block, level))
    partition.replace_tree(partition.tree.merge_aged(partition.high_seq, partition.merge_cuts))
    merged = [block for block in partition.tree.blocks_after(0) if not block.header.producer_id]
    assert merged[-1].header.last_seq > len(blocks) - RESULTS_MAX
    monkeypatch.setattr(ReplicaPuller, "_snapshot_ended", never)
    await late.start()
    await until(lambda: late.is_up and late.seqs("orders") is not None and sum(late.seqs("orders")) == len(blocks))
    await leader.kill()
    if is_restarted:
        await late.kill()
        await late.start()
    await late.promote()
    async with raw_connection(late) as connection:
        for number, block in list(enumerate(blocks, 1))[-RESULTS_MAX:]:
            frame = await connection.ask(Opcode.WRITE, write(feed_id, block, Level.DISK, WriteFlag.RESEND))
            assert frame.opcode is Opcode.WRITTEN, decode_error(frame.body)
            assert Written.decode(frame.body).last_seq == number
    assert sum(late.seqs("orders")) == len(blocks)


@pytest.mark.parametrize("led", [False, True])
async def test_a_member_that_cannot_write_its_membership_goes_on(members, monkeypatch, led):
    """On a full disk, if another one comes to lead: it takes nothing, and follows once it can write that down."""
    async with members.client() as client:
        await members.filled(client, numbered(0, 10))
    first, second, third = members.leader, *[node for node in members if node is not members.leader]
    full, other = (first, second) if led else (second, third)

    def refuse(membership):
        raise OSError(errno.ENOSPC, "no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(full.member.local.file, "store", refuse)
        await other.promote()
        await until(lambda: not full.is_up or "no space is left" in full.member.progress)
        assert not full.leads
    await until(lambda: full.follows(other))
    assert await members.level("orders") is other
