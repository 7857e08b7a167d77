"""A leader of a set, over real sockets, and replicas made by hand."""

import json

import pytest
import trio
from tests.tailrace_server.raw_requests import KEY, PARTITION, block_of, write
from tests.tailrace_server.replication.conftest import CLUSTER_ID
from tests.tailrace_server.replication.replicas import (
    STREAM,
    SYSTEM_STREAM,
    VOTERS,
    HandMade,
    replica_request,
)

from tailrace.block import Block
from tailrace.errors import NotLeader, Overloaded, ProtocolError, UnknownFeed, VersionConflict
from tailrace.model import EndReason, Level
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Get, Got, HelloOk, WriteFlag, Written, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import LeaderSeqs, Producers
from tailrace.wire.stream_messages import StreamEnd, decode_number
from tailrace_server.replication.voters import Voters
from tailrace_server.upkeep.rollback import roll_back

QUORUM = Level.QUORUM
# So many small blocks of a partition are merged.
WRITES = 200


@pytest.fixture
async def feed_id(running, raw):
    """Of a feed of four partitions; a majority has it, by its word only."""
    feed = running.node.feed_changes.create({"name": "orders", "feed_id": "11" * 16, "partitions": 4})
    await running.node.storage.all_durable()
    [system] = running.node.feeds.system.partitions
    system.set_quorum_seq(system.high_seq)
    return feed.info.feed_id


@pytest.fixture
def partition(running, feed_id):
    return running.node.feeds.of_id(feed_id).partitions[PARTITION]


@pytest.fixture
async def replicas(running, raw):
    """Two replicas that vote, connected, and without streams."""
    async with raw() as one, raw() as other:
        yield [
            HandMade(await connection.hello(), running.node, replica)
            for connection, replica in zip((one, other), VOTERS, strict=True)
        ]


async def answers(connection, id):
    """The next frame that answers request ``id``."""
    frame = await connection.receive()
    assert frame.id == id, (frame.opcode, frame.id)
    return frame


async def nothing_yet(connection):
    """The node has answered all that it can: what is asked for last comes first."""
    frame = await connection.ask(Opcode.STATUS, b"{}", id=99)
    assert frame.id == 99, (frame.opcode, bytes(frame.body)[:100])
    return json.loads(bytes(frame.body))


async def test_hello_tells_the_role(raw, running):
    async with raw() as connection:
        await connection.send(encode_frame(Opcode.HELLO, b'{"versions":[1]}'))
        hello = HelloOk.decode((await connection.receive()).body)
    assert (hello.role, hello.term, hello.leader) == ("leader", 1, "")
    assert hello.levels == ("memory", "disk", "quorum")


# Writes at quorum


async def test_a_write_at_quorum_waits_for_one_of_two_replicas(running, greeted, replicas, feed_id, partition):
    await replicas[0].follow(feed_id)
    await greeted.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY), QUORUM), 5))
    assert Block.parse((await replicas[0].until(Opcode.BLOCK)).body).columns().keys() == [KEY]
    await running.node.storage.all_durable()
    await nothing_yet(greeted)
    assert partition.durable_seq == 1
    await replicas[0].acknowledge(partition)
    assert (await answers(greeted, 5)).opcode is Opcode.WRITTEN


async def test_answers_at_quorum_come_in_order_and_once(greeted, replicas, feed_id, partition):
    await replicas[0].follow(feed_id)
    for number in (1, 2, 3):
        block = block_of(KEY, number=number)
        await greeted.send(encode_frame(Opcode.WRITE, write(feed_id, block, QUORUM), number))
    await nothing_yet(greeted)
    await replicas[0].acknowledge(partition, 2)
    assert [(await answers(greeted, number)).opcode for number in (1, 2)] == [Opcode.WRITTEN] * 2
    await nothing_yet(greeted)
    await replicas[0].acknowledge(partition, 3)
    assert (await answers(greeted, 3)).opcode is Opcode.WRITTEN
    await nothing_yet(greeted)


@pytest.mark.parametrize(
    "replica",
    [
        VOTERS[0]._replace(votes=False),
        VOTERS[0]._replace(address="127.0.0.1:3"),
    ],
    ids=["without a vote", "not of the set"],
)
async def test_an_acknowledgement_that_does_not_count(greeted, raw, running, feed_id, partition, replica):
    async with raw() as connection:
        made = HandMade(await connection.hello(), running.node, replica)
        await made.follow(feed_id)
        await greeted.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY), QUORUM), 5))
        await made.until(Opcode.BLOCK)
        await made.acknowledge(partition)
        await made.handled()
        assert partition.quorum_seq == 0
        [follower] = running.node.leaderships.system.replicas.followers(partition)
        assert follower.to_json(partition, 0)["seq"] == 1
        await nothing_yet(greeted)


async def test_an_acknowledgement_of_another_branch_does_not_count(greeted, replicas, feed_id, partition):
    await replicas[0].follow(feed_id)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    await replicas[0].acknowledge(partition, branch=b"x" * 16)
    await replicas[0].handled()
    assert partition.quorum_seq == 0


async def test_an_acknowledgement_of_what_there_is_not(replicas, feed_id, partition):
    await replicas[0].follow(feed_id)
    await replicas[0].acknowledge(partition, 1)
    error = await replicas[0].connection.error()
    assert type(error) is ProtocolError
    assert "REPLICA_ACK: seq 1" in str(error)


async def test_a_replaced_disk_and_the_old_one_are_not_two(running, raw, greeted, replicas, feed_id, partition):
    """Both at one address, in a set where two others are needed they must not do."""
    running.node.leaderships.system.replicas._needed = 2
    await replicas[0].follow(feed_id)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    await replicas[0].acknowledge(partition)
    await replicas[0].handled()
    async with raw() as connection:
        new = HandMade(await connection.hello(), running.node, VOTERS[0]._replace(placement_id=b"n" * 16))
        await new.follow(feed_id)
        await new.acknowledge(partition)
        await new.handled()
        assert partition.quorum_seq == 0
        await replicas[1].follow(feed_id)
        await replicas[1].acknowledge(partition)
        await replicas[1].handled()
        assert partition.quorum_seq == 1


async def test_a_vote_that_is_gained_counts_what_was_acknowledged_before(replicas, greeted, feed_id, partition):
    replicas[0].replica = VOTERS[0]._replace(votes=False)
    await replicas[0].follow(feed_id)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    await replicas[0].acknowledge(partition)
    await replicas[0].handled()
    assert partition.quorum_seq == 0
    replicas[0].replica = VOTERS[0]
    await replicas[0].follow(feed_id, id=STREAM + 1)
    await replicas[0].handled()
    assert partition.quorum_seq == 1


async def test_a_write_that_waits_hears_that_its_feed_is_dropped(running, greeted, feed_id):
    await greeted.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY), QUORUM), 5))
    await nothing_yet(greeted)
    running.node.feed_changes.drop(feed_id)
    await running.node.storage.all_durable()
    [system] = running.node.feeds.system.partitions
    system.set_quorum_seq(system.high_seq)
    running.node.connections.flush()
    assert type(await greeted.error(5)) is UnknownFeed


async def test_what_waits_ends_with_its_connection(running, raw, greeted, feed_id):
    """A majority is away, and a client comes again and again."""
    async with raw() as connection:
        await connection.hello()
        await connection.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY), QUORUM), 5))
        await connection.send(encode_frame(Opcode.BARRIER, b"cookie"))
        await nothing_yet(connection)
        assert len(running.node.waiting) == 1
    while len(running.node.connections) > 1:
        await trio.lowlevel.checkpoint()
    assert len(running.node.waiting) == 0
    running.node.leaderships.system.step_down(2)
    await nothing_yet(greeted)


async def test_nothing_to_delete_is_told_once_a_majority_has_what_says_so(greeted, replicas, feed_id, partition):
    await replicas[0].follow_feeds()
    await replicas[0].follow(feed_id)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY, value=None)), id=4)
    block = block_of(KEY, number=2, value=None)
    await greeted.send(encode_frame(Opcode.WRITE, write(feed_id, block, QUORUM, WriteFlag.IF_PRESENT), 5))
    await replicas[0].confirm_next()
    await nothing_yet(greeted)
    await replicas[0].acknowledge(partition, 1)
    assert Written.decode((await answers(greeted, 5)).body).first_seq == 0


@pytest.mark.parametrize("flag", [WriteFlag.IF_ABSENT, WriteFlag.IF_PRESENT])
async def test_a_condition_that_does_not_hold_is_told_at_quorum_by_who_leads(
    greeted, replicas, feed_id, partition, flag
):
    """All that it tells of is at quorum: what a later leader has taken this node may not know."""
    await replicas[0].follow_feeds()
    await replicas[0].follow(feed_id)
    value = b"value" if flag is WriteFlag.IF_ABSENT else None
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY, value=value)), id=4)
    await replicas[0].acknowledge(partition)
    await replicas[0].handled()
    await greeted.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=2), QUORUM, flag), 5))
    await nothing_yet(greeted)
    await replicas[0].confirm_next()
    frame = await answers(greeted, 5)
    if flag is WriteFlag.IF_ABSENT:
        assert type(decode_error(frame.body)) is VersionConflict
    else:
        assert Written.decode(frame.body).first_seq == 0


@pytest.mark.parametrize("exist_ok", [True, False])
async def test_that_a_feed_is_there_already_is_told_by_who_leads(greeted, replicas, running, feed_id, exist_ok):
    await replicas[0].follow_feeds()
    await replicas[0].acknowledge(running.node.feeds.system.partitions[0], id=SYSTEM_STREAM)
    await replicas[0].handled()
    body = json.dumps({"name": "orders", "feed_id": "22" * 16, "partitions": 4, "exist_ok": exist_ok}).encode()
    await greeted.send(encode_frame(Opcode.CREATE_FEED, body, 5))
    await nothing_yet(greeted)
    await replicas[0].confirm_next()
    assert (await answers(greeted, 5)).opcode is (Opcode.RESULT if exist_ok else Opcode.ERROR)


async def test_that_a_feed_was_dropped_already_is_told_by_who_leads(greeted, replicas, running, feed_id):
    await replicas[0].follow_feeds()
    await replicas[0].acknowledge(running.node.feeds.system.partitions[0], id=SYSTEM_STREAM)
    await replicas[0].handled()
    await greeted.send(encode_frame(Opcode.DROP_FEED, json.dumps({"feed_id": "22" * 16}).encode(), 5))
    await nothing_yet(greeted)
    await replicas[0].confirm_next()
    assert (await answers(greeted, 5)).opcode is Opcode.RESULT


async def test_a_stream_that_ends_as_it_begins_leaves_nothing_behind(running, replicas, feed_id, partition):
    """Else a replica could make its leader grow by asking for such streams."""
    await replicas[0].connection.send(replica_request(feed_id, end_seq=0).encode(STREAM))
    await replicas[0].until(Opcode.STREAM_END)
    await replicas[0].handled()
    assert running.node.leaderships.system.replicas.peers == {}
    assert not partition.watchers.is_watched


async def test_a_directory_that_comes_from_another_address_leaves_its_vote_behind(running, replicas, feed_id):
    for replica in replicas:
        await replica.follow(feed_id)
    replicas[0].replica = VOTERS[0]._replace(address=VOTERS[1].address)
    await replicas[0].follow(feed_id, id=STREAM + 1)
    assert [peer.placement_id for peer in running.node.leaderships.system.replicas.voters()] == [VOTERS[0].placement_id]


async def test_the_leader_has_no_second_vote(running, raw, greeted, feed_id, partition):
    """Something at its own address says that it is a replica with a vote."""
    async with raw() as connection:
        own = VOTERS[0]._replace(address=running.url.removeprefix("tailrace://"))
        made = HandMade(await connection.hello(), running.node, own)
        await made.follow(feed_id)
        await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
        await made.acknowledge(partition)
        await made.handled()
        assert partition.quorum_seq == 0


async def test_a_feed_is_made_once_a_majority_has_it_in_the_list(greeted, replicas, running):
    await replicas[0].follow_feeds()
    body = json.dumps({"name": "more", "feed_id": "22" * 16, "partitions": 2}).encode()
    await greeted.send(encode_frame(Opcode.CREATE_FEED, body, 5))
    await replicas[0].until(Opcode.BLOCK)
    await nothing_yet(greeted)
    [system] = running.node.feeds.system.partitions
    await replicas[0].acknowledge(system, id=SYSTEM_STREAM)
    assert (await answers(greeted, 5)).opcode is Opcode.RESULT
    assert [p.needs_quorum for p in running.node.feeds.named("more").partitions] == [True] * 2


async def test_a_write_waits_for_the_row_that_made_its_feed_too(greeted, replicas, running):
    """A failover that loses the row loses the feed, and all that is in it."""
    body = json.dumps({"name": "more", "feed_id": "22" * 16, "partitions": 4}).encode()
    await greeted.send(encode_frame(Opcode.CREATE_FEED, body, 4))
    await nothing_yet(greeted)
    partition = running.node.feeds.named("more").partitions[PARTITION]
    await replicas[0].follow(partition.feed_id)
    await replicas[0].follow_feeds()
    await greeted.send(encode_frame(Opcode.WRITE, write(partition.feed_id, block_of(KEY), QUORUM), 5))
    await nothing_yet(greeted)
    await running.node.storage.all_durable()
    await replicas[0].acknowledge(partition)
    await replicas[0].handled()
    await nothing_yet(greeted)
    assert (partition.quorum_seq, partition.visible_seq(QUORUM)) == (0, 0)
    [system] = running.node.feeds.system.partitions
    await replicas[0].acknowledge(system, id=SYSTEM_STREAM)
    assert {(await greeted.receive()).id for _ in range(2)} == {4, 5}
    assert partition.visible_seq(QUORUM) == 1


async def drop(connection, feed_id, id):
    await connection.send(encode_frame(Opcode.DROP_FEED, json.dumps({"feed_id": feed_id.hex()}).encode(), id))
    await nothing_yet(connection)


async def test_a_feed_is_there_until_a_majority_has_it_that_it_was_dropped(greeted, replicas, running, feed_id):
    [system] = running.node.feeds.system.partitions
    await replicas[0].follow_feeds()
    await drop(greeted, feed_id, 4)
    await drop(greeted, feed_id, 5)
    assert system.high_seq == 2
    assert feed_id in running.node.feeds
    assert (await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=6)).opcode is Opcode.WRITTEN
    again = json.dumps({"name": "orders", "feed_id": "22" * 16, "partitions": 2}).encode()
    await greeted.send(encode_frame(Opcode.CREATE_FEED, again, 7))
    assert type(await greeted.error(7)) is Overloaded
    await replicas[0].acknowledge(system, id=SYSTEM_STREAM)
    assert [(await answers(greeted, id)).opcode for id in (4, 5)] == [Opcode.RESULT] * 2
    assert feed_id not in running.node.feeds
    await greeted.send(encode_frame(Opcode.CREATE_FEED, again, 8))
    await nothing_yet(greeted)
    await replicas[0].acknowledge(system, id=SYSTEM_STREAM)
    assert (await answers(greeted, 8)).opcode is Opcode.RESULT


async def test_a_drop_that_a_failover_has_lost_has_taken_nothing(greeted, running, feed_id, partition):
    node = running.node
    [system] = node.feeds.system.partitions
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    await drop(greeted, feed_id, 6)
    node.leaderships.system.step_down(2)
    assert await roll_back(node.storage, system, 1, system.log, node.leaderships.system.on_shortfall) == 1
    node.feed_changes.reconcile()
    assert node.feeds.of_id(feed_id).partitions[PARTITION] is partition
    assert (partition.is_dropped, partition.high_seq) == (False, 1)


# Stepping down


async def test_who_waits_for_a_majority_hears_that_the_node_leads_no_more(running, greeted, feed_id):
    await greeted.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY), QUORUM), 5))
    await nothing_yet(greeted)
    running.node.leaderships.system.become_follower(2, "127.0.0.1:1")
    error = await greeted.error(5)
    assert (type(error), error.leader) == (NotLeader, "127.0.0.1:1")
    running.node.leaderships.system.step_down(3)
    running.node.leaderships.system.become_leader(4)
    await nothing_yet(greeted)


async def test_a_leader_that_steps_down_ends_streams_and_takes_no_more(running, greeted, replicas, feed_id):
    await replicas[0].follow(feed_id)
    running.node.leaderships.system.step_down(2)
    error = decode_error((await replicas[0].until(Opcode.ERROR)).body)  # one for all streams of the connection
    assert type(error) is NotLeader
    assert running.node.leaderships.system.replicas.peers == {}
    for opcode, body in (
        (Opcode.WRITE, write(feed_id, block_of(KEY))),
        (Opcode.WRITE, write(bytes(16), block_of(KEY))),
        (Opcode.CREATE_FEED, b'{"name": "more", "feed_id": "22222222222222222222222222222222"}'),
        (Opcode.DROP_FEED, b'{"feed_id": "11111111111111111111111111111111"}'),
        (Opcode.GET, Get(feed_id, Level.DISK, [KEY]).encode(1)[16:]),
        (Opcode.ACCEPTED_SEQS, b'{"feed_ids": []}'),
    ):
        error = decode_error((await greeted.ask(opcode, body)).body)
        assert (type(error), error.leader) == (NotLeader, None), opcode
    assert running.node.feeds.of_id(feed_id).partitions[PARTITION].high_seq == 0


async def test_an_acknowledgement_that_crosses_the_end_of_its_connection(running, replicas, feed_id, partition):
    await replicas[0].follow(feed_id)
    running.node.leaderships.system.step_down(2)
    await replicas[0].acknowledge(partition, 0)
    await replicas[0].until(Opcode.ERROR)
    assert await replicas[0].connection.receive() is None
    await replicas[1].handled()


async def test_streams_of_replicas_end_with_the_term_they_were_opened_in(running, greeted, replicas, feed_id):
    await replicas[0].follow(feed_id)
    running.node.leaderships.system.become_leader(2)
    await replicas[0].until(Opcode.ERROR)
    replicas[1].replica = VOTERS[1]._replace(term=2)
    await replicas[1].follow(feed_id, id=STREAM + 1)


async def test_writes_are_refused_while_a_handover_is_under_way(running, greeted, feed_id):
    running.node.leaderships.system.pause_writes()
    error = decode_error((await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)))).body)
    assert type(error) is Overloaded
    assert "handover" in str(error)
    running.node.leaderships.system.resume_writes()
    assert (await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)))).opcode is Opcode.WRITTEN


# What replicas are told


async def test_the_leaders_seqs_come_behind_the_blocks(greeted, replicas, feed_id, partition):
    await replicas[0].follow(feed_id)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    frame = await replicas[0].until(Opcode.LEADER_SEQS)
    assert (frame.id, LeaderSeqs.decode(frame.body)) == (STREAM, (PARTITION, 1, 0))
    await replicas[0].acknowledge(partition)
    assert LeaderSeqs.decode((await replicas[0].until(Opcode.LEADER_SEQS)).body) == (PARTITION, 1, 1)


async def test_the_block_leaves_before_it_is_on_the_leaders_disk(running, greeted, replicas, feed_id, partition):
    await replicas[0].follow(feed_id)
    seen = []
    pump = next(c for c in running.node.connections if c.replica is not None).transport
    send = pump.send

    def noting(*data):
        seen.append(partition.durable_seq)
        send(*data)

    pump.send = noting
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    assert seen[0] == 0


async def test_producers_are_told_where_blocks_do_not_tell_them(running, greeted, replicas, feed_id, partition):
    for number in range(1, WRITES + 1):
        await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY, number=number)), id=5)
    partition.replace_tree(partition.tree.merge_aged(partition.high_seq, [entry.base for entry in partition.log]))
    assert len(list(partition.tree.blocks_after(0))) < WRITES, "some are one by now"
    await replicas[0].follow(feed_id)
    assert (await replicas[0].until(Opcode.SNAPSHOT_START)).id == STREAM
    frame = await replicas[0].connection.receive()
    assert frame.opcode is Opcode.PRODUCERS, "before the first block: the replica may be the leader before the last"
    told = Producers.decode(frame.body)
    assert (frame.id, told.partition, told.seq) == (STREAM, PARTITION, WRITES)
    assert [entry[:2] for entry in told.value["entries"]] == [[f"{77:016x}", WRITES]]
    frame = await replicas[0].connection.receive()
    while frame.opcode is Opcode.BLOCK:
        frame = await replicas[0].connection.receive()
    assert frame.opcode is Opcode.SNAPSHOT_END


async def test_a_replica_of_a_later_term_is_refused_and_told_of(running, greeted, feed_id):
    heard = []
    running.node.leaderships.system.on_higher_term = heard.append
    await greeted.send(replica_request(feed_id, VOTERS[0]._replace(term=7)).encode(STREAM))
    assert type(await greeted.error(STREAM)) is NotLeader
    assert heard == [7]


async def test_a_replica_of_an_earlier_term_is_refused(running, greeted, feed_id):
    """It would keep that it follows a leader whom it does not follow."""
    heard = []
    running.node.leaderships.system.on_higher_term = heard.append
    await greeted.send(replica_request(feed_id, VOTERS[0]._replace(term=0)).encode(STREAM))
    assert type(await greeted.error(STREAM)) is NotLeader
    assert heard == []


# Whether it still leads


async def test_a_barrier_comes_back_once_a_majority_says_who_leads(greeted, replicas):
    await replicas[0].follow_feeds()
    await greeted.send(encode_frame(Opcode.BARRIER, b"cookie"))
    number = decode_number((await replicas[0].until(Opcode.LEADER_CHECK)).body, "")
    await nothing_yet(greeted)
    await replicas[0].confirm(number - 1)
    await replicas[0].handled()
    await nothing_yet(greeted)
    await replicas[0].confirm(number)
    frame = await greeted.receive()
    assert (frame.opcode, bytes(frame.body)) == (Opcode.BARRIER_REACHED, b"cookie")


async def test_who_was_not_asked_says_nothing(greeted, replicas, feed_id):
    """It has not looked whether it promised anybody else since the question came."""
    await replicas[0].follow(feed_id)
    await greeted.send(encode_frame(Opcode.BARRIER, b"cookie"))
    await nothing_yet(greeted)
    await replicas[0].confirm(1)
    await replicas[0].handled()
    await nothing_yet(greeted)


async def test_a_replica_that_comes_later_is_asked_too(greeted, replicas):
    await greeted.send(encode_frame(Opcode.BARRIER, b"cookie"))
    await nothing_yet(greeted)
    await replicas[1].follow_feeds()
    number = decode_number((await replicas[1].until(Opcode.LEADER_CHECK)).body, "")
    await replicas[1].confirm(number)
    assert (await greeted.receive()).opcode is Opcode.BARRIER_REACHED


async def test_who_has_no_vote_is_not_asked(greeted, replicas):
    replicas[0].replica = VOTERS[0]._replace(votes=False)
    await replicas[0].follow_feeds()
    await greeted.send(encode_frame(Opcode.BARRIER, b"cookie"))
    await nothing_yet(greeted)
    await replicas[0].confirm(1)
    await replicas[0].handled()
    await nothing_yet(greeted)


async def test_barriers_that_wait_are_lost_with_the_leadership(running, greeted):
    for cookie in (b"1", b"2"):
        await greeted.send(encode_frame(Opcode.BARRIER, cookie))
    await nothing_yet(greeted)
    running.node.leaderships.system.step_down(2)
    for cookie in (b"1", b"2"):
        frame = await greeted.receive()
        assert (frame.opcode, bytes(frame.body)) == (Opcode.BARRIER_LOST, cookie)


async def test_that_there_is_no_such_feed_is_told_once_a_majority_says_who_leads(greeted, replicas):
    """A later leader may have made it."""
    await replicas[0].follow_feeds()
    asked = [
        encode_frame(Opcode.PARTITIONS, b'{"name": "new"}', 5),
        replica_request(b"x" * 16)._replace(replica=None).encode(6),
        Get(b"x" * 16, QUORUM, [KEY]).encode(7),
    ]
    for frame in asked:
        await greeted.send(frame)
        number = decode_number((await replicas[0].until(Opcode.LEADER_CHECK)).body, "")
        await nothing_yet(greeted)
        await replicas[0].confirm(number)
        frame = await greeted.receive()
        if frame.id == 6:
            assert StreamEnd.decode(frame.body).reason is EndReason.FEED_DROPPED
        else:
            assert type(decode_error(frame.body)) is UnknownFeed


async def test_a_replica_hears_at_once_that_there_is_no_such_feed(greeted):
    """Without it there may be no majority that says who leads."""
    frame = await greeted.ask(Opcode.STREAM_REQUEST, replica_request(b"x" * 16).encode(9)[16:], id=9)
    assert StreamEnd.decode(frame.body).reason is EndReason.FEED_DROPPED
    frame = await greeted.ask(Opcode.PARTITIONS, b'{"name": "new", "replica": true}')
    assert type(decode_error(frame.body)) is UnknownFeed


def ask_the_leader(level="memory", id=5):
    return encode_json(Opcode.PARTITIONS, {"name": "orders", "leader": True, "level": level}, id)


@pytest.mark.parametrize("level", ["memory", "disk", "quorum"])
async def test_a_map_of_the_leader_comes_once_a_majority_says_who_leads(greeted, replicas, feed_id, partition, level):
    """And once its rows have the level. It is the map of the moment of the request."""
    await replicas[0].follow_feeds()
    await replicas[0].follow(feed_id)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    before = partition.high_seq
    await greeted.send(ask_the_leader(level, 6))
    number = decode_number((await replicas[0].until(Opcode.LEADER_CHECK)).body, "")
    await nothing_yet(greeted)
    await replicas[0].confirm(number)
    if level == "quorum":
        await replicas[0].handled()
        await nothing_yet(greeted)
        await replicas[0].acknowledge(partition)
    found = json.loads(bytes((await answers(greeted, 6)).body))
    assert found["partitions"][PARTITION]["high_seq"] == before


async def test_a_map_of_the_leader_that_steps_down(greeted, replicas, running, feed_id):
    await greeted.send(ask_the_leader())
    await nothing_yet(greeted)
    running.node.leaderships.system.step_down(2)
    assert type(await greeted.error(5)) is NotLeader
    await greeted.send(ask_the_leader())
    assert type(await greeted.error(5)) is NotLeader
    assert (await greeted.ask(Opcode.PARTITIONS, b'{"name": "orders"}')).opcode is Opcode.RESULT, (
        "any node may be asked"
    )


async def test_a_map_at_a_level_that_does_not_exist(greeted, feed_id):
    await greeted.send(ask_the_leader("tape"))
    error = await greeted.error()
    assert type(error) is ProtocolError
    assert "field 'level' is 'tape'" in str(error)


async def test_a_get_at_quorum_waits_for_a_majority_twice(greeted, replicas, feed_id, partition):
    """The row has to be there, and the node has to lead: else another one may have written the key since."""
    await replicas[0].follow_feeds()
    await replicas[0].follow(feed_id)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    await greeted.send(Get(feed_id, QUORUM, [KEY]).encode(6))
    number = decode_number((await replicas[0].until(Opcode.LEADER_CHECK)).body, "")
    await replicas[0].confirm(number)
    await replicas[0].handled()
    await nothing_yet(greeted)
    await replicas[0].acknowledge(partition)
    [item] = Got.decode((await answers(greeted, 6)).body, [KEY])
    assert item.version.seq == 1


async def test_accepted_seqs_are_told_once_a_majority_says_who_leads(greeted, replicas, feed_id):
    await replicas[0].follow_feeds()
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    value = {"feed_ids": [feed_id.hex()], "cluster_id": CLUSTER_ID.hex()}
    await greeted.send(encode_frame(Opcode.ACCEPTED_SEQS, json.dumps(value).encode(), 6))
    number = decode_number((await replicas[0].until(Opcode.LEADER_CHECK)).body, "")
    await nothing_yet(greeted)
    await replicas[0].confirm(number)
    expected = [0] * 4
    expected[PARTITION] = 1
    assert json.loads(bytes((await answers(greeted, 6)).body)) == {"seqs": {feed_id.hex(): expected}}


async def test_status_tells_of_roles_and_followers(running, greeted, replicas, feed_id, partition):
    await replicas[0].follow(feed_id)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    await replicas[0].acknowledge(partition)
    await replicas[0].handled()
    status = await nothing_yet(greeted)
    assert (status["replication"]["role"], status["replication"]["term"]) == ("leader", 1)
    [replica] = status["replication"]["replicas"]
    assert (replica["address"], replica["votes"], replica["connected"]) == (VOTERS[0].address, True, True)
    [system] = running.node.feeds.system.partitions
    assert replica["lag"] == system.high_seq > 0, "of what it has never acknowledged it lacks all"
    state = status["feeds"][0]["states"][PARTITION]
    assert (state["role"], state["durable"], state["quorum"], state["visible"]) == ("leader", 1, 1, 1)
    [follower] = state["followers"]
    assert (follower["seq"], follower["lag"], follower["votes"]) == (1, 0, True)


async def test_rows_are_held_by_a_majority_of_the_present_record_only(running, greeted, feed_id, partition, replicas):
    """A row is at quorum with one replica of two. Then the set has a fourth member, and one is to leave."""
    leadership, own = running.node.leaderships.system, running.node.identity.placement_id
    one, other = replicas
    ids = [replica.placement_id for replica in VOTERS]
    three = Voters(leadership.term, 1, (own, *ids), ("a:1", "b:2", "c:3"))
    leadership.count_by(three, own)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    await running.node.storage.all_durable()
    for replica in replicas:
        await replica.follow_feeds()
        await replica.follow(feed_id)
        [system] = running.node.feeds.system.partitions
        await replica.acknowledge(system, id=SYSTEM_STREAM)
    await one.acknowledge(partition)
    await one.handled()
    assert partition.quorum_seq == partition.high_seq
    leaving = three.with_joining("d:4").with_seat(3, b"d" * 16).with_leaving("b:2")
    leadership.count_by(leaving, own)
    assert partition.quorum_seq == partition.high_seq
    assert not leadership.is_held()
    await other.acknowledge(partition)
    await other.handled()
    assert leadership.is_held()
