"""A replica's session, of one feed and of several, against frames that are made by hand."""

import pytest
from tests.tailrace.consuming.test_session import CLUSTER, FEED, LOG_U, LOG_V, Conversation, U, V, talk

from tailrace.consuming.events import Agreed, Mutations, Rollback, SnapshotEnd, SnapshotStart, StreamFailed
from tailrace.consuming.replica_session import ASKED_MAX, REQUESTS_MAX, ReplicaSession
from tailrace.consuming.subscription import Subscription
from tailrace.errors import (
    Forbidden,
    NotLeader,
    Overloaded,
    ProtocolError,
    StreamEnded,
    TailraceError,
    UnknownFeed,
    Unreachable,
)
from tailrace.link.address import Address
from tailrace.link.finder import Finder
from tailrace.model import EndReason, Level
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import FRAME_BODY_BYTES_MAX, FrameDecoder, encode_frame
from tailrace.wire.messages import Hello, HelloOk, encode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import LeaderSeqs, Producers, Replica, ReplicaAck
from tailrace.wire.stream_messages import (
    RollBack,
    SnapshotStartMessage,
    StreamEnd,
    StreamOk,
    StreamRequest,
    decode_number,
    encode_number,
)

REPLICA = Replica(b"p" * 16, 3, "node-b:4700", True, b"c" * 16)


class ReplicaConversation(Conversation):
    """A session that copies feeds, and what a node would say to it. ``requests`` are those of the first feed."""

    def __init__(self, *, state="leader", window_bytes=8 << 20):
        self.now = 100.0
        self.state = state
        self.checks = []  # the numbers of the LEADER_CHECKs
        self.session = ReplicaSession(
            Hello(window_bytes=window_bytes),
            Finder((Address("node-a", 1),), state, lambda: 0.0).check,
            self.checks.append,
            lambda: self.now,
            lambda: 0.5,
        )
        self.decoder = FrameDecoder()
        self.requests = {}  # partition -> (stream id, StreamRequest), the last one
        self.maps = []  # the ids of the requests for partition maps
        self.feeds = []

    def sent(self):
        names = []
        for frame in self.frames():
            names.append(frame.opcode.name)
            if frame.opcode is Opcode.STREAM_REQUEST:
                request = StreamRequest.decode(frame.body)
                key = request.partition if request.feed_id == FEED else (request.feed_id, request.partition)
                self.requests[key] = (frame.id, request)
            elif frame.opcode is Opcode.PARTITIONS:
                self.maps.append(frame.id)
            elif frame.opcode is Opcode.CREDIT:
                names[-1] = ("CREDIT", decode_number(frame.body, ""))
        return names

    def frames(self):
        return self.decoder.receive_data(b"".join(self.session.data_to_send()))

    def hello(self, *, window_bytes=8 << 20, cluster=CLUSTER, role=None, **fields):
        assert self.sent() == ["HELLO"]
        self.hear(
            HelloOk(1, "0" * 32, cluster.hex(), "", 1000, 10.0, (), window_bytes, role or self.state, **fields).encode()
        )

    def copy(self, positions=(), *, partitions=(0,), feed=FEED, name="orders", **wanted):
        """Asks for a feed."""
        since = Positions(bytes(16), feed, dict(positions))
        asked = Subscription(
            name,
            since,
            wanted.pop("until", None),
            None if partitions is None else frozenset(partitions),
            Level.MEMORY,
            state=self.state,
            replica=REPLICA,
            feed_id=feed,
            **wanted,
        )
        self.feeds.append(self.session.copy(asked))
        return self.feeds[-1]

    def map(self, high_seqs, feed=FEED):
        partitions = [{"id": id, "high_seq": seq} for id, seq in enumerate(high_seqs)]
        self.hear(
            encode_json(Opcode.RESULT, {"feed": {"feed_id": feed.hex()}, "partitions": partitions}, self.maps.pop(0))
        )

    @property
    def streams(self):
        return self.feeds[0]

    def events(self, streams=None):
        """All that is handed out now of a feed, each handled before the next."""
        found, streams = [], streams or self.streams
        while (event := streams.next_event()) is not None:
            found.append(event)
        return found


def conversation(positions=None, *, partitions=(0,), state="leader", **wanted):
    """A session that has asked for the streams of a feed."""
    made = ReplicaConversation(state=state)
    made.hello()
    made.copy(positions or {}, partitions=partitions, **wanted)
    made.sent()
    return made


def begun(positions=None, *, partitions=(0,), log=LOG_U, **wanted):
    made = conversation(positions, partitions=partitions, **wanted)
    for partition in made.requests:
        made.agree(partition, log=log)
    made.events()
    return made


def test_requests_name_the_replica_and_the_state():
    made = conversation({0: Position.at(LOG_U, 5)}, state="follower", until={0: 7})
    request = StreamRequest(FEED, 0, LOG_U, 5, 5, 5, None, 7, Level.MEMORY, "follower", replica=REPLICA)
    assert made.requests[0][1] == request


def test_what_was_agreed_comes_first():
    made = conversation({0: Position.at(LOG_U, 5)})
    made.agree(log=LOG_V, high_seq=9)
    made.start(5, 9, branch=V)
    agreed, started = made.events()
    assert agreed == Agreed(0, LOG_V, 9)
    assert isinstance(started, SnapshotStart)
    assert made.streams.failover_log(0) == LOG_V


def test_a_snapshot_with_all_that_a_node_stores_of_it():
    made = begun()
    made.hear(SnapshotStartMessage(0, False, U, 0, 9, 4).encode(made.id()))
    made.block(2, 3)
    made.hear(Producers(0, 9, {"a": [1]}).encode(made.id()))
    made.end(9)
    made.hear(LeaderSeqs(0, 9, 4).encode(made.id()))
    start, mutations, producers, end, seqs = made.events()
    assert (start.first_seq, start.last_seq, start.complete, start.purge_seq) == (1, 9, False, 4)
    assert isinstance(mutations, Mutations)
    assert (mutations.first_seq, mutations.block.header.rows) == (2, 3)
    assert producers == Producers(0, 9, {"a": [1]})
    assert isinstance(end, SnapshotEnd)
    assert end.last_seq == 9
    assert seqs == LeaderSeqs(0, 9, 4)


def test_a_snapshot_whose_rest_is_read_from_a_segment_goes_on_where_the_replica_stands():
    made = begun()
    made.start(0, 6)
    made.block(1, 3)
    made.start(0, 9, complete=False)
    made.block(5, 2)
    made.end(9)
    first, _, again, rows, _ = made.events()
    assert (first.first_seq, first.last_seq, first.complete) == (1, 6, True)
    assert (again.first_seq, again.last_seq, again.complete) == (4, 9, False)
    assert rows.first_seq == 5


def test_a_run_that_is_announced_again_before_any_of_it():
    made = begun()
    for last_seq in (6, 9):
        made.start(0, last_seq, complete=False)
    assert [event[1:3] for event in made.events()] == [(1, 6), (1, 9)]


@pytest.mark.parametrize("complete", [False, True])
def test_a_run_that_is_announced_again_in_its_middle(complete):
    made = begun()
    made.start(0, 6, complete=False)
    made.block(1, 3)
    made.start(0, 9, complete=complete)
    failed = made.events()[-1]
    assert failed[:2] == (0, EndReason.ERROR)
    assert "announced again at seq 3" in failed.message
    assert made.sent() == ["STREAM_CLOSE"]


def test_one_run_after_the_other():
    made = begun()
    for after_seq in (0, 3):
        made.start(after_seq, after_seq + 3, complete=False)
        made.block(after_seq + 2, 1)
        made.end(after_seq + 3)
    assert [event.first_seq for event in made.events()] == [1, 2, 1, 4, 5, 4]


def test_blocks_give_their_credit_back():
    made = begun()
    made.start(0, 3)
    nbytes = made.block(1, 3)
    made.events()
    made.session._window_bytes = 4
    assert ("CREDIT", nbytes) in made.sent()


@pytest.mark.parametrize(
    ("frame", "in_snapshot"),
    [
        (LeaderSeqs(0, 1, 1).encode, True),
        (Producers(0, 9, {}).encode, True),
        (lambda _: encode_number(Opcode.LEADER_CHECK, 1), False),
    ],
)
def test_an_ordinary_consumer_is_told_none_of_this(frame, in_snapshot):
    made = talk(high_seqs=(9,))
    if in_snapshot:
        made.start(0, 9)
        made.events()
    made.hear(frame(made.id()))
    with pytest.raises(ProtocolError):
        made.events()


def test_producers_outside_of_a_snapshot():
    made = begun()
    made.hear(Producers(0, 9, {}).encode(made.id()))
    [failed] = made.events()
    assert "PRODUCERS for partition 0, whose stream is open" in failed.message


@pytest.mark.parametrize("message", [LeaderSeqs(1, 1, 1), Producers(1, 9, {})])
def test_messages_of_another_partition(message):
    made = begun(partitions=(0, 1))
    made.start(0, 9)
    made.events()
    made.hear(message.encode(made.id(0)))
    [failed] = made.events()
    assert "of partition 1 on the stream of 0" in failed.message


# Acknowledgements and checks


def test_an_acknowledgement_goes_on_the_stream_of_its_partition():
    made = begun(partitions=(0, 1))
    made.sent()
    made.streams.acknowledge(1, U, 7)
    [frame] = made.frames()
    assert (frame.opcode, frame.id) == (Opcode.REPLICA_ACK, made.id(1))
    assert ReplicaAck.decode(frame.body) == (1, U, 7)


def test_nothing_is_acknowledged_where_no_stream_is_open():
    made = conversation()
    made.streams.acknowledge(0, U, 7)
    made.streams.acknowledge(5, U, 7)
    assert made.frames() == []
    made.agree()
    made.events()
    made.streams.leave()
    made.sent()
    made.streams.acknowledge(0, U, 7)
    assert made.frames() == []


def test_a_check_is_told_of_before_the_events_that_wait_and_answered_with_its_number():
    made = begun()
    made.start(0, 9)
    made.hear(encode_number(Opcode.LEADER_CHECK, 12))
    assert made.checks == [12]
    made.session.confirm(12)
    [frame] = made.frames()
    assert (frame.opcode, frame.id) == (Opcode.LEADER_CONFIRM, 0)
    assert decode_number(frame.body, "") == 12
    assert len(made.events()) == 1


# Rollbacks


def rolled_back(seq, *, at=5):
    made = conversation({0: Position.at(LOG_U, at)})
    made.hear(RollBack(0, seq, LOG_V, "forked").encode(made.id()))
    return made


@pytest.mark.parametrize(("seq", "point"), [(3, 3), (3, 1), (3, 0), (0, 0)])
def test_a_replica_goes_back_to_where_it_can_and_asks_from_there(seq, point):
    made = rolled_back(seq)
    event = made.streams.next_event()
    assert isinstance(event, Rollback)
    assert event[:2] == (0, seq)
    assert made.streams.failover_log(0) == LOG_V
    assert made.sent() == []
    made.streams.settle(event, point)
    assert made.streams.next_event() is None
    assert made.sent() == ["STREAM_REQUEST"]
    request = made.requests[0][1]
    assert (request.log, request.seq, request.snapshot_first, request.snapshot_last) == (LOG_V, point, point, point)
    assert request.replica == REPLICA
    made.agree(log=LOG_V)
    assert made.events() == [Agreed(0, LOG_V, 9)]


def test_it_may_be_sent_back_twice():
    made = rolled_back(3)
    event = made.streams.next_event()
    made.streams.settle(event, 2)
    made.events()
    made.sent()
    made.hear(RollBack(0, 1, LOG_V, "purged").encode(made.id()))
    event = made.streams.next_event()
    assert event[:2] == (0, 1)
    made.streams.settle(event, 0)
    made.events()
    assert made.sent() == ["STREAM_REQUEST"]


def test_going_back_too_little_is_an_error_of_the_caller():
    made = rolled_back(3)
    event = made.streams.next_event()
    with pytest.raises(ValueError, match="seq 3 or below, not to 4"):
        made.streams.settle(event, 4)


# Ends


OF_ALL = {
    EndReason.WRONG_STATE: NotLeader,
    EndReason.DRAINING: StreamEnded,
    EndReason.FORBIDDEN: Forbidden,
    EndReason.FEED_DROPPED: UnknownFeed,
}
OF_PARTITION = set(EndReason) - {EndReason.END_REACHED} - OF_ALL.keys()


@pytest.mark.parametrize("reason", sorted(OF_PARTITION, key=lambda reason: reason.value))
def test_an_end_that_concerns_one_partition_leaves_the_others_alone(reason):
    """It is asked for again from where the replica says that it stands: half of a run it does not keep."""
    made = begun(partitions=(0, 1))
    made.sent()
    made.hear(SnapshotStartMessage(0, False, U, 0, 9, 4).encode(made.id()))
    made.block(2, 3)
    made.hear(StreamEnd(0, reason, "for a reason").encode(made.id()))
    _, _, failed = made.events()
    assert failed == StreamFailed(0, reason, "for a reason")
    made.now += 60
    assert made.sent() == []  # nothing is asked for before the replica has answered
    made.streams.resume(0, Position.at(LOG_U, 0))
    made.now += 60
    assert made.sent() == ["STREAM_REQUEST"]
    assert made.requests[0][1].seq == 0
    made.start(0, 3, partition=1)
    made.block(1, 3, partition=1)
    made.agree(0)
    assert [type(event) for event in made.events()] == [SnapshotStart, Mutations, Agreed]


@pytest.mark.parametrize("error", [TailraceError("the segment is damaged"), Overloaded("full")])
def test_an_error_in_place_of_an_agreement_concerns_one_partition(error):
    """As of a partition that the node could not open at all."""
    made = conversation(partitions=(0, 1))
    made.agree(1)
    made.hear(encode_error(error, made.id(0)))
    agreed, failed = made.events()
    assert (agreed.partition, failed) == (1, StreamFailed(0, EndReason.ERROR, str(error)))
    assert not made.session.awaits_answers


@pytest.mark.parametrize("reason", sorted(OF_ALL, key=lambda reason: reason.value))
def test_any_other_end_of_a_stream_is_the_end_of_all(reason):
    made = begun()
    made.hear(StreamEnd(0, reason, "for a reason").encode(made.id()))
    with pytest.raises(OF_ALL[reason], match="for a reason") as caught:
        made.events()
    assert made.streams.failure is caught.value
    if isinstance(caught.value, StreamEnded):
        assert caught.value.reason is reason


def test_the_end_that_was_asked_for():
    made = begun(until={0: 9})
    made.hear(StreamEnd(0, EndReason.END_REACHED, "").encode(made.id()))
    assert made.events() == []
    assert made.streams.finished


def test_a_snapshot_of_another_history():
    made = begun()
    made.start(0, 9, branch=V)
    assert made.events() == [StreamFailed(0, EndReason.HISTORY_CHANGED, "the partition's history has changed")]
    assert made.sent() == ["STREAM_CLOSE"]


@pytest.mark.parametrize("error", [NotLeader("led once", leader="node-c:4700"), UnknownFeed("there is none")])
def test_an_error_of_a_stream(error):
    made = conversation()
    made.hear(encode_error(error, made.id()))
    with pytest.raises(type(error), match=str(error)):
        made.events()


def test_a_node_that_follows_is_not_asked():
    with pytest.raises(NotLeader) as caught:
        ReplicaConversation().hello(role="follower", leader="node-c:4700")
    assert caught.value.leader == "node-c:4700"
    ReplicaConversation(state="follower").hello()
    with pytest.raises(Unreachable):
        ReplicaConversation(state="follower").hello(role="leader")


def test_an_error_of_the_connection_is_raised():
    made = begun()
    with pytest.raises(ProtocolError, match="nothing heard"):
        made.hear(encode_error(ProtocolError("nothing heard"), 0))


# Partition maps


def test_partitions_that_may_be_held_back_are_chosen_by_the_map():
    made = conversation(partitions=(0, 1), hold=lambda told: frozenset({told[1]["id"]}))
    assert not made.requests
    made.map((9, 9))
    assert made.events() == []
    assert made.sent() == ["STREAM_REQUEST"]
    made.streams.release(1, Position.at(LOG_U, 4))
    assert made.sent() == ["STREAM_REQUEST"]
    assert made.requests[1][1].seq == 4


def test_a_map_that_is_asked_for_later():
    made, told = begun(), []
    made.streams.ask_map(told.extend)
    assert made.sent() == ["PARTITIONS"]
    made.map((9,))
    made.events()
    assert [partition["high_seq"] for partition in told] == [9]


def test_another_feed_under_the_name():
    made = conversation(hold=lambda told: frozenset())
    made.map((9,), feed=b"x" * 16)
    with pytest.raises(UnknownFeed, match="another id"):
        made.events()


# Several feeds

OTHER = b"g" * 16


def two_feeds(window_bytes=8 << 20, **hello):
    """Two feeds whose streams are open: the conversation, and the streams of both."""
    made = ReplicaConversation(window_bytes=window_bytes)
    made.hello(window_bytes=window_bytes, **hello)
    first, second = made.copy(), made.copy(feed=OTHER, name="others")
    assert made.sent() == ["STREAM_REQUEST"] * 2
    for key, streams in ((0, first), ((OTHER, 0), second)):
        made.hear(StreamOk(0, 0, LOG_U, 9).encode(made.requests[key][0]))
        assert made.events(streams) == [Agreed(0, LOG_U, 9)]
    return made, first, second


def test_frames_go_to_their_feed():
    made, first, second = two_feeds()
    assert made.session.receive_data(LeaderSeqs(0, 8, 7).encode(made.requests[OTHER, 0][0])) == [second]
    assert (first.has_event, second.has_event) == (False, True)
    assert made.events(second) == [LeaderSeqs(0, 8, 7)]


@pytest.mark.parametrize("reason", [EndReason.DAMAGED, EndReason.TRIMMED, EndReason.BEHIND, EndReason.ERROR])
def test_a_partition_that_fails_holds_up_no_other_feed(reason):
    made, first, second = two_feeds()
    made.hear(StreamEnd(0, reason, "for a reason").encode(made.id()))
    made.hear(LeaderSeqs(0, 8, 7).encode(made.requests[OTHER, 0][0]))
    assert made.events(second) == [LeaderSeqs(0, 8, 7)]
    assert made.events(first) == [StreamFailed(0, reason, "for a reason")]


def test_a_feed_that_was_dropped_ends_alone():
    made, first, second = two_feeds()
    made.hear(StreamEnd(0, EndReason.FEED_DROPPED, "it was dropped").encode(made.id()))
    made.hear(LeaderSeqs(0, 8, 7).encode(made.requests[OTHER, 0][0]))
    with pytest.raises(UnknownFeed, match="it was dropped"):
        made.events(first)
    first.leave()
    assert made.events(second) == [LeaderSeqs(0, 8, 7)]


def test_frames_that_break_the_protocol_end_the_stream_of_one_partition():
    made, first, second = two_feeds()
    made.hear(encode_frame(Opcode.SNAPSHOT_END, bytes(16), made.id()))
    [failed] = made.events(first)
    assert failed[:2] == (0, EndReason.ERROR)
    assert made.sent() == ["STREAM_CLOSE"]
    first.resume(0, Position.at(LOG_U, 0))
    made.now += 60
    assert made.sent() == ["STREAM_REQUEST"]
    made.hear(LeaderSeqs(0, 8, 7).encode(made.requests[OTHER, 0][0]))
    assert made.events(second) == [LeaderSeqs(0, 8, 7)]


def test_of_the_leaders_seqs_that_wait_only_the_last_are_kept():
    """They come as often as the leader writes, and a replica may be slow with a feed."""
    made = begun(partitions=(0, 1))
    for seq in range(1, 1000):
        made.hear(*(LeaderSeqs(number, seq, seq - 1).encode(made.id(number)) for number in (0, 1)))
    made.start(0, 9)
    made.hear(LeaderSeqs(0, 2000, 2000).encode(made.id(0)))
    assert len(made.streams._frames) == 3
    first, second, started = made.events()
    assert (first, second) == (LeaderSeqs(0, 2000, 2000), LeaderSeqs(1, 999, 998))
    assert isinstance(started, SnapshotStart)
    made.hear(LeaderSeqs(0, 2001, 2000).encode(made.id(0)))
    assert made.events() == [LeaderSeqs(0, 2001, 2000)]


def test_what_comes_for_a_feed_that_was_left_is_credited():
    made, first, _ = two_feeds(window_bytes=4)
    made.start(0, 9)
    nbytes = made.block(1, 3)
    first.leave()
    assert made.sent() == ["STREAM_CLOSE", ("CREDIT", nbytes)]
    late = made.block(4, 3)
    assert made.sent() == [("CREDIT", late)]
    assert first.next_event() is None


def test_the_window_is_that_of_all_feeds():
    made, first, _ = two_feeds(window_bytes=1)
    made.start(0, 9)
    nbytes = made.block(1, 3)
    assert made.sent() == []
    made.events(first)
    assert made.sent() == [("CREDIT", nbytes)]


def test_more_than_the_window_is_refused():
    made, _, _ = two_feeds(window_bytes=1)
    body = bytes(FRAME_BODY_BYTES_MAX // 2)
    for _ in range(2):
        made.hear(encode_frame(Opcode.BLOCK, body, made.id()))
    with pytest.raises(ProtocolError, match="the window is 1 bytes"):
        made.hear(encode_frame(Opcode.BLOCK, body, made.id()))


@pytest.mark.slow
@pytest.mark.parametrize("by_map", [False, True])
def test_requests_wait_for_the_answers_of_earlier_ones(by_map):
    """Their frames and answers are bounded, however many feeds there are."""
    wanted = {"hold": lambda told: frozenset()} if by_map else {}
    made = ReplicaConversation()
    made.hello()
    count = 3 * REQUESTS_MAX
    ids = [number.to_bytes(16, "little") for number in range(1, count + 1)]
    feeds = [made.copy(feed=id, name=id.hex(), **wanted) for id in ids]
    seen = agreed = 0
    while True:
        asked = made.frames()
        seen += len(asked)
        assert len(asked) <= REQUESTS_MAX
        if not asked:
            break
        for frame in asked:
            if frame.opcode is Opcode.PARTITIONS:
                made.maps = [frame.id]
                made.map((0,), feed=bytes.fromhex(decode_json(frame.body, "PARTITIONS")["name"]))
            else:
                made.hear(StreamOk(0, 0, LOG_U, 0).encode(frame.id))
        agreed += sum(len(made.events(streams)) for streams in feeds)
    assert seen == count * (1 + by_map)
    assert agreed == count


def test_room_for_another_feed():
    """Those that are asked for and those that are to be asked for count, until their answers come."""
    made = ReplicaConversation()
    made.hello()
    ids = [number.to_bytes(16, "little") for number in range(1, ASKED_MAX + 1)]
    for id in ids[:-1]:
        made.copy(feed=id, name=id.hex())
    assert made.session.has_room
    made.copy(feed=ids[-1], name=ids[-1].hex())
    assert not made.session.has_room
    asked = made.frames()
    assert not made.session.has_room
    made.hear(StreamOk(0, 0, LOG_U, 0).encode(asked[0].id))
    assert made.session.has_room


def test_what_lies_behind_an_event_is_not_read_before_it():
    """Events that came before a stream's end are handed out first."""
    made = begun()
    made.start(0, 3)
    made.block(1, 3)
    made.end(3)
    made.hear(StreamEnd(0, EndReason.DRAINING, "stopping").encode(made.id()))
    kinds = [type(made.streams.next_event()) for _ in range(3)]
    assert kinds == [SnapshotStart, Mutations, SnapshotEnd]
    with pytest.raises(StreamEnded, match="stopping"):
        made.streams.next_event()


def test_an_empty_log_at_the_beginning():
    made = conversation({0: Position.at(FailoverLog(), 0)})
    made.agree()
    assert made.events() == [Agreed(0, LOG_U, 9)]
    made.hear(encode_frame(Opcode.NOOP))
    assert made.events() == []
