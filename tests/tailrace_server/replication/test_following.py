"""A follower's answers, over real sockets: what it holds was written while it led, and its leader is told by hand."""

import json
from functools import partial

import pytest
import trio
from tests.conftest import RawClient
from tests.tailrace_server.raw_requests import KEY, PARTITION, block_of, write
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.replication.replicas import STREAM, VOTERS, HandMade, replica_request

from tailrace.errors import NotDurable, NotLeader, TailraceError, UnknownFeed
from tailrace.link.address import Address
from tailrace.model import EndReason, Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Get, Got, HelloOk, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import LeaderSeqs
from tailrace.wire.stream_messages import ResumeAnswer, RollBack, StreamEnd, StreamOk, StreamRequest
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.partition.writing import write_block
from tailrace_server.replication.following import Following

LEADER = "127.0.0.1:1"


@pytest.fixture
async def feed_id(running, greeted):
    """Of a feed with one row of KEY, which is on this follower's disk; nothing is known of the leader's."""
    feed = running.node.feed_changes.create({"name": "orders", "feed_id": "11" * 16, "partitions": 4})
    await greeted.ask(Opcode.WRITE, write(feed.info.feed_id, block_of(KEY)))
    running.node.leaderships.system.become_follower(2, LEADER)
    return feed.info.feed_id


@pytest.fixture
def partition(running, feed_id):
    return running.node.feeds.of_id(feed_id).partitions[PARTITION]


def request(feed_id, seq=0, log=(), level=Level.MEMORY, **fields):
    made = StreamRequest(feed_id, PARTITION, FailoverLog(log), seq, seq, seq, None, None, level, "follower")
    return made._replace(**fields)


async def nothing_yet(connection):
    """The node has answered all that it can: what is asked for last comes first."""
    frame = await connection.ask(Opcode.STATUS, b"{}", id=99)
    assert frame.id == 99, (frame.opcode, bytes(frame.body)[:100])
    return json.loads(bytes(frame.body))


async def test_hello_tells_who_leads(raw, running, feed_id):
    async with raw() as connection:
        await connection.send(encode_frame(Opcode.HELLO, b'{"versions":[1]}'))
        hello = HelloOk.decode((await connection.receive()).body)
    assert (hello.role, hello.term, hello.leader) == ("follower", 2, LEADER)


async def test_who_needs_the_leader_is_told_where_it_is(greeted, feed_id):
    error = decode_error((await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY, number=2)))).body)
    assert (type(error), error.leader) == (NotLeader, LEADER)
    error = decode_error((await greeted.ask(Opcode.GET, Get(feed_id, Level.MEMORY, [KEY]).encode(1)[16:])).body)
    assert (type(error), error.leader) == (NotLeader, LEADER)


async def test_the_map_of_a_feed_names_the_leader(greeted, feed_id):
    found = json.loads(bytes((await greeted.ask(Opcode.PARTITIONS, b'{"name": "orders"}')).body))
    assert {(p["state"], p["leader"]) for p in found["partitions"]} == {("follower", LEADER)}


# Gets


async def test_a_get_of_a_follower_at_memory(greeted, feed_id):
    frame = await greeted.ask(Opcode.GET, Get(feed_id, Level.MEMORY, [KEY], 1).encode(1)[16:])
    assert Got.decode(frame.body, [KEY])[0].version.seq == 1


async def test_a_get_at_disk_waits_for_the_leaders_disk(greeted, feed_id, partition, running):
    """Hazard 15: this disk has it, but a crash of the leader could still lose it."""
    await greeted.send(Get(feed_id, Level.DISK, [KEY], 1).encode(6))
    await nothing_yet(greeted)
    partition.set_leader_seqs(1, 0)
    running.node.connections.flush()
    assert Got.decode((await greeted.receive()).body, [KEY])[0].version.seq == 1


async def test_a_get_at_quorum_waits_for_what_the_leader_says(greeted, feed_id, partition, running):
    await greeted.send(Get(feed_id, Level.QUORUM, [KEY], 1).encode(6))
    partition.set_leader_seqs(1, 0)
    await nothing_yet(greeted)
    partition.set_leader_seqs(1, 1)
    running.node.connections.flush()
    assert Got.decode((await greeted.receive()).body, [KEY])[0].version.seq == 1


async def test_a_get_that_waits_hears_that_its_rows_are_rolled_back(greeted, feed_id, partition, running):
    await greeted.send(Get(feed_id, Level.DISK, [KEY], 1).encode(6))
    await nothing_yet(greeted)
    partition.on_history_changed()
    assert type(await greeted.error(6)) is NotLeader


async def test_a_leader_is_no_follower(greeted, feed_id, running):
    running.node.leaderships.system.become_leader(3)
    error = decode_error((await greeted.ask(Opcode.GET, Get(feed_id, Level.MEMORY, [KEY], 1).encode(1)[16:])).body)
    assert type(error) is NotLeader
    frame = await greeted.ask(Opcode.STREAM_REQUEST, request(feed_id).encode(9)[16:], id=9)
    assert StreamEnd.decode(frame.body).reason is EndReason.WRONG_STATE


# Streams


async def test_a_stream_is_of_the_state_that_was_asked_for(greeted, feed_id):
    frame = await greeted.ask(Opcode.STREAM_REQUEST, request(feed_id, state="leader").encode(9)[16:], id=9)
    end = StreamEnd.decode(frame.body)
    assert (end.reason, end.term) == (EndReason.WRONG_STATE, 2)
    frame = await greeted.ask(Opcode.STREAM_REQUEST, request(feed_id).encode(9)[16:], id=9)
    assert StreamOk.decode(frame.body).high_seq == 1


async def test_a_feed_that_a_follower_has_not_heard_of_yet(greeted, feed_id):
    frame = await greeted.ask(Opcode.STREAM_REQUEST, request(b"x" * 16).encode(9)[16:], id=9)
    assert StreamEnd.decode(frame.body).reason is EndReason.BEHIND


@pytest.fixture
def leader(running, feed_id):
    """The leader that this follower has, with all that `_feeds` tells of taken over."""
    running.node.feed_changes.reconcile()
    made = Leader()
    running.node.leaderships.system.accepted_seqs = made.accepted_seqs
    return made


def system_seqs(running, more=0):
    return [{SYSTEM_FEED_ID: [running.node.feeds.system.partitions[0].high_seq + more]}]


async def test_a_feed_that_was_dropped_is_told_where_the_leader_has_no_more_feeds(greeted, running, feed_id, leader):
    for id in (9, 10, 11):
        await greeted.send(request(bytes([id]) * 16).encode(id))
        await nothing_yet(greeted)
    for id in (9, 10, 11):
        if id < 11:
            await leader.answer(system_seqs(running))
        frame = await greeted.receive()
        assert (frame.id, StreamEnd.decode(frame.body).reason) == (id, EndReason.FEED_DROPPED)
    assert leader.asked == [[SYSTEM_FEED_ID]] * 2, "what comes while the leader is asked shares the next question"


@pytest.mark.parametrize("more", [1, None])
async def test_a_feed_that_may_be_new_is_one_that_a_follower_is_behind_with(greeted, running, feed_id, leader, more):
    """The leader has more feeds, or cannot say."""
    await greeted.send(request(b"x" * 16).encode(9))
    await leader.answer([] if more is None else system_seqs(running, more))
    assert StreamEnd.decode((await greeted.receive()).body).reason is EndReason.BEHIND
    await greeted.send(encode_frame(Opcode.PARTITIONS, b'{"name": "new"}', 5))
    await leader.answer([] if more is None else system_seqs(running, more))
    assert type(await greeted.error(5)) is NotLeader


@pytest.mark.parametrize(("more", "reason"), [(0, EndReason.FEED_DROPPED), (1, EndReason.BEHIND)])
async def test_what_is_explained_of_a_feed_that_is_not_here(greeted, running, feed_id, leader, more, reason):
    """The same as would be answered to a request for a stream."""
    await greeted.send(encode_json(Opcode.EXPLAIN_RESUME, request(b"x" * 16).to_json(), 9))
    await nothing_yet(greeted)
    await leader.answer(system_seqs(running, more))
    frame = await greeted.receive()
    assert (frame.opcode, frame.id) == (Opcode.RESULT, 9)
    assert ResumeAnswer.of_json(decode_json(frame.body, "RESULT")).answer.reason is reason


async def test_rows_of_feeds_that_were_not_taken_over_yet_do_not_count(greeted, running, feed_id, leader):
    node = running.node
    node.feeds.write_rows({b"x" * 16: None}, node.storage.journal, now_us=0, now=0.0)
    await greeted.send(request(b"y" * 16).encode(9))
    await leader.answer(system_seqs(running))
    assert StreamEnd.decode((await greeted.receive()).body).reason is EndReason.BEHIND
    node.feed_changes.reconcile()
    await greeted.send(request(b"y" * 16).encode(9))
    await leader.answer(system_seqs(running))
    assert StreamEnd.decode((await greeted.receive()).body).reason is EndReason.FEED_DROPPED


async def test_feeds_that_an_earlier_leader_has_told_of_do_not_count(running, feed_id):
    """Its rows may be others than those of the leader that is followed now, up to the same seq."""
    node = running.node
    node.feed_changes.reconcile()
    seq = node.feeds.system.partitions[0].high_seq
    assert node.feeds.lists_through(seq)
    replica = VOTERS[0]._replace(term=2)
    following = Following(
        node.services, node.leaderships.system, None, Address("127.0.0.1", 1), replica, lambda voters: None
    )
    with pytest.raises((TailraceError, OSError)):
        await following.run()
    assert not node.feeds.lists_through(seq)


class MadePuller:
    """The puller of a feed that a test drives."""

    def __init__(self, node, leadership, feed, pulled, *, on_snapshot, **_):
        self.feed, self._on_snapshot = feed, on_snapshot


@pytest.mark.parametrize("passes", range(8))
async def test_a_feed_that_comes_while_a_following_breaks(running, feed_id, monkeypatch, passes):
    """Its tasks have ended, and the task that waits for them has not run yet: another one is told of feeds."""
    node, failing = running.node, trio.Event()

    class Pulled:
        """A connection whose first puller fails: all tasks end, and the following has not heard of it yet."""

        takes_tasks = True

        def __init__(self, *_):
            self.ended = trio.Event()

        def begin(self, make, *, first):
            assert self.takes_tasks, "a puller begins after a task has failed"
            self.nursery.start_soon(self.pull, make())

        def start(self, task):
            self.nursery.start_soon(task)

        async def pull(self, puller):
            if puller.feed is not node.feeds.system:
                await trio.sleep_forever()
            puller._on_snapshot()
            await trio.lowlevel.checkpoint()
            self.takes_tasks = False
            failing.set()
            raise OSError("the leader has gone")

        async def run(self, body):
            failure = None
            try:
                async with trio.open_nursery() as self.nursery:
                    await body()
            except* OSError as group:
                failure = group.exceptions[0]  # Python 3.11.2 would raise it in a group from here
            if failure is not None:
                raise failure

    monkeypatch.setattr("tailrace_server.replication.following.PulledNode", Pulled)
    monkeypatch.setattr("tailrace_server.replication.following.ReplicaPuller", MadePuller)

    async def follow():
        following = Following(
            node.services,
            node.leaderships.system,
            None,
            Address("127.0.0.1", 1),
            VOTERS[0]._replace(term=2),
            lambda voters: None,
        )
        with pytest.raises(OSError, match="the leader has gone"):
            await following.run()

    for number in range(10):
        failing = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await failing.wait()
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            node.feed_changes.create({"name": f"new{number}", "feed_id": f"{number + 32:02x}" * 16, "partitions": 1})


async def test_names_and_keys_of_a_feed_that_there_is_not(greeted, running, feed_id, leader):
    await greeted.send(encode_frame(Opcode.PARTITIONS, b'{"name": "new"}', 5))
    await leader.answer(system_seqs(running))
    assert type(await greeted.error(5)) is UnknownFeed
    await greeted.send(Get(b"x" * 16, Level.MEMORY, [KEY], 1).encode(6))
    await leader.answer(system_seqs(running))
    assert type(await greeted.error(6)) is UnknownFeed


async def test_a_stream_that_is_closed_while_its_feed_is_asked_for(greeted, running, feed_id, leader):
    await greeted.send(request(b"x" * 16).encode(9))
    frame = await greeted.ask(Opcode.STREAM_CLOSE, b"", id=9)
    assert StreamEnd.decode(frame.body).reason is EndReason.CLOSED
    await leader.answer(system_seqs(running))
    await nothing_yet(greeted)


async def test_a_follower_that_holds_nothing_yet(greeted, feed_id, partition):
    partition.log = FailoverLog()
    frame = await greeted.ask(Opcode.STREAM_REQUEST, request(feed_id).encode(9)[16:], id=9)
    assert StreamEnd.decode(frame.body).reason is EndReason.BEHIND


async def test_nobody_is_rolled_back_by_a_follower_that_is_behind(greeted, feed_id, partition):
    """Hazard 16: a consumer further on on the same branch, and one of a later term."""
    newest = partition.log[0]
    for log, seq in (([newest], 100), ([(b"v" * 16, newest.term + 5, 1), newest], 1)):
        frame = await greeted.ask(Opcode.STREAM_REQUEST, request(feed_id, seq, log).encode(9)[16:], id=9)
        assert StreamEnd.decode(frame.body).reason is EndReason.BEHIND


async def test_a_leader_rolls_back_who_is_further_on(greeted, feed_id, partition, running):
    running.node.leaderships.system.become_leader(3)
    asked = request(feed_id, 100, [partition.log[0]], state="leader")
    frame = await greeted.ask(Opcode.STREAM_REQUEST, asked.encode(9)[16:], id=9)
    assert frame.opcode is Opcode.ROLLBACK
    assert RollBack.decode(frame.body).seq == 1


async def test_a_stream_at_disk_shows_what_the_leader_has_on_its_disk(greeted, feed_id, partition, running):
    await greeted.send(request(feed_id, level=Level.DISK).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    await nothing_yet(greeted)
    partition.set_leader_seqs(1, 0)
    running.node.connections.flush()
    assert (await greeted.receive()).opcode is Opcode.SNAPSHOT_START


async def test_streams_end_before_their_history_changes(greeted, feed_id, partition, running):
    await greeted.send(request(feed_id, 1, [partition.log[0]]).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    partition.on_history_changed()
    assert StreamEnd.decode((await greeted.receive()).body).reason is EndReason.HISTORY_CHANGED


async def test_streams_go_on_with_another_leader(greeted, feed_id, partition, running):
    await greeted.send(request(feed_id, 1, [partition.log[0]]).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    running.node.leaderships.system.step_down(3)
    running.node.leaderships.system.become_follower(4, "127.0.0.1:2")
    await nothing_yet(greeted)
    running.node.leaderships.system.become_leader(5)
    assert StreamEnd.decode((await greeted.receive()).body).reason is EndReason.WRONG_STATE


async def test_one_that_is_promoted_fetches_of_a_follower(greeted, feed_id, partition, running):
    """It asks under a later term, and no seqs are told to it: nobody leads."""
    asked = replica_request(feed_id, state="follower", end_seq=1)
    made = HandMade(greeted, running.node)
    await greeted.send(asked._replace(replica=asked.replica._replace(term=9)).encode(STREAM))
    await made.until(Opcode.BLOCK)
    await made.until(Opcode.STREAM_END)
    assert running.node.leaderships.system.replicas.peers == {}


# Barriers


class Leader:
    """Answers how far it has come once a test says so."""

    def __init__(self):
        self.asked = []
        self._answers = []

    async def accepted_seqs(self, feed_ids):
        self.asked.append(feed_ids)
        answer = trio.Event(), []
        self._answers.append(answer)
        await answer[0].wait()
        if not answer[1]:
            raise NotLeader("it leads no more")
        return answer[1][0]

    async def answer(self, seqs):
        await trio.testing.wait_all_tasks_blocked()
        await until(lambda: self._answers)  # the request may still be on its way
        event, said = self._answers.pop(0)
        said += seqs
        event.set()


@pytest.fixture
async def streaming(greeted, feed_id, partition, running):
    """A connection with a stream that has had all that this follower holds, and its leader."""
    leader = Leader()
    running.node.leaderships.system.accepted_seqs = leader.accepted_seqs
    await greeted.send(request(feed_id, 1, [partition.log[0]]).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    return leader


def seqs_of(feed_id, seq):
    seqs = [0] * 4
    seqs[PARTITION] = seq
    return [{feed_id: seqs}]


async def barrier(connection, cookie):
    await connection.send(encode_frame(Opcode.BARRIER, cookie))


async def test_a_barrier_waits_for_what_the_leader_has_accepted(greeted, streaming, feed_id, running, partition):
    """Hazard 11: this follower has nothing more, and its leader has."""
    await barrier(greeted, b"1")
    await nothing_yet(greeted)
    assert streaming.asked == [[feed_id]]
    await streaming.answer(seqs_of(feed_id, 2))
    await nothing_yet(greeted)
    write_block(partition, block_of(KEY, number=2), running.node.storage.journal, now_us=0, now=0.0)
    running.node.connections.flush()
    frames = [await greeted.receive() for _ in range(3)]
    assert [frame.opcode for frame in frames] == [Opcode.SNAPSHOT_START, Opcode.BLOCK, Opcode.BARRIER_REACHED]


async def test_a_barrier_comes_back_where_all_is_here(greeted, streaming, feed_id):
    await barrier(greeted, b"1")
    await nothing_yet(greeted)
    await streaming.answer(seqs_of(feed_id, 1))
    frame = await greeted.receive()
    assert (frame.opcode, bytes(frame.body)) == (Opcode.BARRIER_REACHED, b"1")


async def test_barriers_that_come_while_the_leader_is_asked_share_the_next_question(greeted, streaming, feed_id):
    for cookie in (b"1", b"2", b"3"):
        await barrier(greeted, cookie)
        await nothing_yet(greeted)
    await streaming.answer(seqs_of(feed_id, 1))
    assert bytes((await greeted.receive()).body) == b"1"
    await nothing_yet(greeted)
    await streaming.answer(seqs_of(feed_id, 1))
    assert [bytes((await greeted.receive()).body) for _ in range(2)] == [b"2", b"3"]
    assert len(streaming.asked) == 2


async def test_barriers_are_lost_where_the_leader_cannot_say(greeted, streaming, feed_id):
    await barrier(greeted, b"1")
    await nothing_yet(greeted)
    await streaming.answer([])
    frame = await greeted.receive()
    assert (frame.opcode, bytes(frame.body)) == (Opcode.BARRIER_LOST, b"1")


async def test_barriers_are_lost_with_a_stream_that_ends_while_the_leader_is_asked(
    greeted, streaming, feed_id, partition, running
):
    await barrier(greeted, b"1")
    await barrier(greeted, b"2")
    await nothing_yet(greeted)
    partition.on_history_changed()
    assert [(await greeted.receive()).opcode for _ in range(3)] == [Opcode.STREAM_END, *[Opcode.BARRIER_LOST] * 2]
    await streaming.answer(seqs_of(feed_id, 1))
    await nothing_yet(greeted)
    await barrier(greeted, b"3")
    assert bytes((await greeted.receive()).body) == b"3", "there is no stream that it would have to wait for"


# A node that is in no set


@pytest.fixture
async def greeted_alone(nursery, open_member):
    """A node that is alone, and a connection to it."""
    running = await nursery.start(partial(open_member, in_set=False))
    async with await trio.open_tcp_stream(*running.config.listen) as stream:
        yield running, await RawClient(stream).hello()


async def test_the_leader_of_a_plain_replica(greeted_alone):
    running, connection = greeted_alone
    feed_id = running.node.feed_changes.create({"name": "orders", "feed_id": "11" * 16, "partitions": 4}).info.feed_id
    replica = HandMade(connection, running.node)
    await connection.send(replica_request(feed_id, replica.replica._replace(term=0)).encode(STREAM))
    await replica.until(Opcode.STREAM_OK)
    assert (await connection.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)).opcode is not Opcode.ERROR
    frame = await replica.until(Opcode.LEADER_SEQS)
    assert LeaderSeqs.decode(frame.body) == (PARTITION, 1, 0)
    await replica.acknowledge(running.node.feeds.of_id(feed_id).partitions[PARTITION])
    await replica.handled()
    for opcode, body in (
        (Opcode.WRITE, write(feed_id, block_of(KEY, number=2), Level.QUORUM)),
        (Opcode.GET, Get(feed_id, Level.QUORUM, [KEY]).encode(1)[16:]),
    ):
        assert type(decode_error((await connection.ask(opcode, body)).body)) is NotDurable
    await barrier(connection, b"1")
    assert (await connection.receive()).opcode is Opcode.BARRIER_REACHED
