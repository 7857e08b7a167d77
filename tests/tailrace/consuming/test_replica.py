"""A replica's session against frames that are made by hand."""

import pytest
from tests.tailrace.consuming.test_session import CLUSTER, FEED, LOG_U, LOG_V, Conversation, U, V, stored, talk

from tailrace.consuming.events import Agreed, LeaderCheck, Mutations, Rollback, SnapshotEnd, SnapshotStart, StreamFailed
from tailrace.consuming.session import Subscription
from tailrace.errors import NotLeader, Overloaded, ProtocolError, StreamEnded, TailraceError, UnknownFeed, Unreachable
from tailrace.link.address import Address
from tailrace.link.finder import Finder
from tailrace.model import EndReason, Level
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import HelloOk, encode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import LeaderSeqs, Producers, Replica, ReplicaAck
from tailrace.wire.stream_messages import (
    RollBack,
    SnapshotStartMessage,
    StreamEnd,
    StreamRequest,
    decode_number,
    encode_number,
)

REPLICA = Replica(b"p" * 16, 3, "node-b:4700", True, b"c" * 16)


def conversation(positions=None, **wanted):
    asked = Subscription("orders", stored(positions or {}), visibility=Level.MEMORY, replica=REPLICA, **wanted)
    made = Conversation(asked)
    made.session._check = Finder((Address("node-a", 1),), asked.state, lambda: 0.0).check
    return made


def begun(positions=None, *, high_seqs=(9,), log=LOG_U, **wanted):
    made = conversation(positions, **wanted)
    made.greet(high_seqs=high_seqs)
    for partition in made.requests:
        made.agree(partition, log=log)
    made.events()
    return made


def test_requests_name_the_replica_and_the_state():
    made = conversation({0: Position.at(LOG_U, 5)}, state="follower", until={0: 7})
    made.greet(high_seqs=(9,), role="follower")
    request = StreamRequest(FEED, 0, LOG_U, 5, 5, 5, None, 7, Level.MEMORY, "follower", replica=REPLICA)
    assert made.requests[0][1] == request


def test_what_was_agreed_comes_first():
    made = conversation({0: Position.at(LOG_U, 5)})
    made.greet(high_seqs=(9,))
    made.agree(log=LOG_V, high_seq=9)
    made.start(5, 9, branch=V)
    agreed, started = made.events()
    assert agreed == Agreed(0, LOG_V, 9)
    assert isinstance(started, SnapshotStart)
    assert made.session.failover_log(0) == LOG_V


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
    with pytest.raises(StreamEnded, match="announced again at seq 3"):
        made.events()


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
    made.session._credit_bytes = 1
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
    with pytest.raises(ProtocolError, match="PRODUCERS for partition 0, whose stream is open"):
        made.events()


@pytest.mark.parametrize("message", [LeaderSeqs(1, 1, 1), Producers(1, 9, {})])
def test_messages_of_another_partition(message):
    made = begun(high_seqs=(9, 9))
    made.start(0, 9)
    made.events()
    made.hear(message.encode(made.id(0)))
    with pytest.raises(ProtocolError, match="of partition 1 on the stream of 0"):
        made.events()


# Acknowledgements and checks


def frames_of(made):
    return made.decoder.receive_data(b"".join(made.session.data_to_send()))


def test_an_acknowledgement_goes_on_the_stream_of_its_partition():
    made = begun(high_seqs=(9, 9))
    made.sent()
    made.session.acknowledge(1, U, 7)
    [frame] = frames_of(made)
    assert (frame.opcode, frame.id) == (Opcode.REPLICA_ACK, made.id(1))
    assert ReplicaAck.decode(frame.body) == (1, U, 7)


def test_nothing_is_acknowledged_where_no_stream_is_open():
    made = conversation()
    made.greet(high_seqs=(9,))
    made.session.acknowledge(0, U, 7)
    made.session.acknowledge(5, U, 7)
    assert frames_of(made) == []
    made.agree()
    made.session.connection_lost(Unreachable("gone"))
    made.session.acknowledge(0, U, 7)
    made.session.confirm(4)
    assert frames_of(made) == []


def test_a_check_is_answered_with_its_number():
    made = begun()
    made.hear(encode_number(Opcode.LEADER_CHECK, 12))
    assert made.events() == [LeaderCheck(12)]
    made.sent()
    made.session.confirm(12)
    [frame] = frames_of(made)
    assert (frame.opcode, frame.id) == (Opcode.LEADER_CONFIRM, 0)
    assert decode_number(frame.body, "") == 12


# Rollbacks


def rolled_back(seq, *, at=5, high_seqs=(9,)):
    made = conversation({0: Position.at(LOG_U, at)})
    made.greet(high_seqs=high_seqs)
    made.hear(RollBack(0, seq, LOG_V, "forked").encode(made.id()))
    return made


@pytest.mark.parametrize(("seq", "point"), [(3, 3), (3, 1), (3, 0), (0, 0)])
def test_a_replica_goes_back_to_where_it_can_and_asks_from_there(seq, point):
    made = rolled_back(seq)
    event = made.session.next_event()
    assert isinstance(event, Rollback)
    assert event[:2] == (0, seq)
    assert made.session.failover_log(0) == LOG_V
    assert made.sent() == []
    made.session.settle(event, point)
    assert made.session.next_event() is None
    assert made.sent() == ["STREAM_REQUEST"]
    request = made.requests[0][1]
    assert (request.log, request.seq, request.snapshot_first, request.snapshot_last) == (LOG_V, point, point, point)
    assert request.replica == REPLICA
    made.agree(log=LOG_V)
    assert made.events() == [Agreed(0, LOG_V, 9)]


def test_it_may_be_sent_back_twice():
    made = rolled_back(3)
    event = made.session.next_event()
    made.session.settle(event, 2)
    made.events()
    made.sent()
    made.hear(RollBack(0, 1, LOG_V, "purged").encode(made.id()))
    event = made.session.next_event()
    assert event[:2] == (0, 1)
    made.session.settle(event, 0)
    made.events()
    assert made.sent() == ["STREAM_REQUEST"]


def test_going_back_too_little_is_an_error_of_the_caller():
    made = rolled_back(3)
    event = made.session.next_event()
    with pytest.raises(ValueError, match="seq 3 or below, not to 4"):
        made.session.settle(event, 4)


# Ends


OF_PARTITION = {EndReason.DAMAGED, EndReason.ERROR, EndReason.TRIMMED, EndReason.PURGED, EndReason.TOO_SLOW}


@pytest.mark.parametrize("reason", sorted(OF_PARTITION, key=lambda reason: reason.value))
def test_an_end_that_concerns_one_partition_leaves_the_others_alone(reason):
    """It is asked for again from where the replica says that it stands: half of a run it does not keep."""
    made = begun(high_seqs=(9, 9))
    made.sent()
    made.hear(SnapshotStartMessage(0, False, U, 0, 9, 4).encode(made.id()))
    made.block(2, 3)
    made.hear(StreamEnd(0, reason, "for a reason").encode(made.id()))
    _, _, failed = made.events()
    assert failed == StreamFailed(0, reason, "for a reason")
    made.now += 60
    assert made.sent() == []  # nothing is asked for before the replica has answered
    made.session.resume(0, Position.at(LOG_U, 0))
    made.now += 60
    assert made.sent() == ["STREAM_REQUEST"]
    assert made.requests[0][1].seq == 0
    made.start(0, 3, partition=1)
    made.block(1, 3, partition=1)
    made.agree(0)
    assert [type(event) for event in made.events()] == [SnapshotStart, Mutations, Agreed]


def test_an_error_in_place_of_an_agreement_concerns_one_partition():
    """As of a partition that the node could not open at all."""
    made = conversation()
    made.greet(high_seqs=(9, 9))
    made.agree(1)
    made.hear(encode_error(TailraceError("the segment is damaged"), made.id(0)))
    agreed, failed = made.events()
    assert (agreed.partition, failed) == (1, StreamFailed(0, EndReason.ERROR, "the segment is damaged"))
    assert made.session.answered


def test_the_pause_grows_with_each_failure_until_a_snapshot_ends():
    made = begun()
    pauses = []
    for _ in range(5):
        made.hear(StreamEnd(0, EndReason.ERROR, "damaged").encode(made.id()))
        made.events()
        made.session.resume(0, Position.at(LOG_U, 0))
        pauses.append(made.session.next_retry - made.now)
        made.now += 60
        made.sent()
        made.agree(0)
        made.events()
    assert all(after > before for before, after in zip(pauses[::2], pauses[2::2], strict=False))
    made.start(0, 9)
    made.block(1, 9)
    made.end(9)
    made.hear(StreamEnd(0, EndReason.ERROR, "damaged").encode(made.id()))
    made.events()
    made.session.resume(0, Position.at(LOG_U, 9))
    assert made.session.next_retry - made.now < pauses[2]


@pytest.mark.parametrize(
    "reason", sorted(set(EndReason) - {EndReason.END_REACHED} - OF_PARTITION, key=lambda reason: reason.value)
)
def test_any_other_end_of_a_stream_is_the_end_of_all(reason):
    made = begun()
    made.hear(StreamEnd(0, reason, "for a reason").encode(made.id()))
    raised = {EndReason.WRONG_STATE: NotLeader}
    with pytest.raises(raised.get(reason, Exception), match="for a reason") as caught:
        made.events()
    assert made.session.failure is caught.value
    if isinstance(caught.value, StreamEnded):
        assert caught.value.reason is reason


def test_the_end_that_was_asked_for():
    made = begun(until={0: 9})
    made.hear(StreamEnd(0, EndReason.END_REACHED, "").encode(made.id()))
    assert made.events() == []
    assert made.session.finished


def test_a_snapshot_of_another_history():
    made = begun()
    made.start(0, 9, branch=V)
    with pytest.raises(StreamEnded, match="history has changed") as caught:
        made.events()
    assert caught.value.reason is EndReason.HISTORY_CHANGED


@pytest.mark.parametrize("error", [NotLeader("led once", leader="node-c:4700"), Overloaded("full")])
def test_an_error_of_a_stream(error):
    made = conversation()
    made.greet(high_seqs=(9,))
    made.hear(encode_error(error, made.id()))
    with pytest.raises(type(error), match=str(error)):
        made.events()


def greeted(made, **fields):
    made.session.connection_made()
    made.sent()
    hello = HelloOk(1, "0" * 32, CLUSTER.hex(), "", 1000, 10.0, (), **fields)
    made.hear(hello.encode())
    made.events()


def test_a_node_that_follows_is_not_asked():
    with pytest.raises(NotLeader) as caught:
        greeted(conversation(), role="follower", leader="node-c:4700")
    assert caught.value.leader == "node-c:4700"
    greeted(conversation(state="follower"), role="follower")
    with pytest.raises(Unreachable):
        greeted(conversation(state="follower"), role="leader")


def test_another_feed_under_the_name():
    made = conversation()
    with pytest.raises(UnknownFeed, match="another id"):
        made.greet(feed=b"x" * 16)


def test_any_cluster_will_do():
    conversation().greet(cluster=b"x" * 16)


def test_what_lies_behind_an_event_is_not_read_before_it():
    """Events that came before a stream's end are handed out first."""
    made = begun()
    made.start(0, 3)
    made.block(1, 3)
    made.end(3)
    made.hear(StreamEnd(0, EndReason.DRAINING, "stopping").encode(made.id()))
    kinds = [type(made.session.next_event()) for _ in range(3)]
    assert kinds == [SnapshotStart, Mutations, SnapshotEnd]
    with pytest.raises(StreamEnded, match="stopping"):
        made.session.next_event()


def test_an_empty_log_at_the_beginning():
    made = conversation({0: Position.at(FailoverLog(), 0)})
    made.greet(high_seqs=(9,))
    made.agree()
    assert made.events() == [Agreed(0, LOG_U, 9)]
    made.hear(encode_frame(Opcode.NOOP))
    assert made.events() == []
