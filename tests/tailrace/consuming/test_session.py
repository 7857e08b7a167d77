"""A consumer's session against frames that are made by hand: no node, no socket, and time by command."""

import json
import random

import pytest

from tailrace.block import encode_block
from tailrace.consuming import session as session_module
from tailrace.consuming.credit import CREDIT_SECONDS
from tailrace.consuming.events import Mutations, Rollback, RoundComplete, SnapshotEnd, SnapshotStart
from tailrace.consuming.partition import ConsumedPartition
from tailrace.consuming.rollbacks import REFETCHES_MAX
from tailrace.consuming.session import ConsumerSession, Subscription
from tailrace.errors import (
    BadPosition,
    Forbidden,
    NotDurable,
    NotLeader,
    Overloaded,
    ProtocolError,
    StreamEnded,
    TailraceError,
    UnknownFeed,
    Unreachable,
)
from tailrace.link.backoff import FIRST_SECONDS, SECONDS_MAX
from tailrace.model import EndReason, Level, Version
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.wire.bodies import encode_json
from tailrace.wire.filters import StreamFilter
from tailrace.wire.frames import FrameDecoder, encode_frame
from tailrace.wire.messages import Get, Got, Hello, HelloOk, encode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import (
    RollBack,
    SnapshotStartMessage,
    StreamEnd,
    StreamOk,
    StreamRequest,
    decode_number,
    encode_number,
    encode_seq,
)

CLUSTER, FEED = b"c" * 16, b"f" * 16
U, V = b"u" * 16, b"v" * 16
LOG_U = FailoverLog([(U, 1, 0)])
NOISE = random.Random(1).randbytes(1000)  # does not get smaller
LOG_V = FailoverLog([(V, 2, 5), (U, 1, 0)])


class Conversation:
    """A session and what a node would say to it."""

    def __init__(self, wanted, *, window_bytes=8 << 20):
        self.now = 100.0
        self.session = ConsumerSession(Hello(window_bytes=window_bytes), wanted, lambda: self.now)
        self.decoder = FrameDecoder()
        self.requests = {}  # partition -> (stream id, StreamRequest), the last one
        self.barriers = []  # cookies that were sent, in order

    def sent(self):
        """Names of the frames that the session sends now; what they ask for is noted."""
        names = []
        for frame in self.decoder.receive_data(b"".join(self.session.data_to_send())):
            names.append(frame.opcode.name)
            if frame.opcode is Opcode.STREAM_REQUEST:
                request = StreamRequest.decode(frame.body)
                self.requests[request.partition] = (frame.id, request)
            elif frame.opcode is Opcode.BARRIER:
                self.barriers.append(bytes(frame.body))
            elif frame.opcode is Opcode.CREDIT:
                names[-1] = ("CREDIT", decode_number(frame.body, ""))
        return names

    def requests_sent(self):
        """Names of the frames that the session sends now, without the credit that is due after a while."""
        return [name for name in self.sent() if isinstance(name, str)]

    def hear(self, *frames):
        self.session.receive_data(b"".join(frames))

    def events(self):
        """All that is handed out now, each handled before the next."""
        found = []
        while (event := self.session.next_event()) is not None:
            found.append(event)
        return found

    def greet(self, *, high_seqs=(0,), cluster=CLUSTER, feed=FEED, window_bytes=8 << 20, role="leader", logs=()):
        """Connects, up to the requests for streams."""
        self.decoder = FrameDecoder()
        self.session.connection_made()
        assert self.sent() == ["HELLO"]
        self.hear(HelloOk(1, "0" * 32, cluster.hex(), "", 1000, 10.0, (), window_bytes, role).encode())
        self.events()
        assert self.sent() == ["PARTITIONS"]
        partitions = [{"id": id, "high_seq": seq} for id, seq in enumerate(high_seqs)]
        for partition, log in zip(partitions, logs, strict=False):
            partition["log"] = log.to_json()
        self.hear(encode_json(Opcode.RESULT, {"feed": {"feed_id": feed.hex()}, "partitions": partitions}, 0xFFFFFFFF))
        assert self.events() == []
        return self.sent()

    def id(self, partition=0):
        return self.requests[partition][0]

    def agree(self, partition=0, *, log=LOG_U, seq=None, high_seq=9):
        id, request = self.requests[partition]
        seq = (request.seq or 0) if seq is None else seq
        self.hear(StreamOk(partition, seq, log, high_seq).encode(id))

    def start(self, after_seq, last_seq, partition=0, *, branch=U, complete=True):
        message = SnapshotStartMessage(partition, complete, branch, after_seq, last_seq, 0)
        self.hear(message.encode(self.id(partition)))

    def block(self, first_seq, rows, partition=0, *, block_partition=None, value=b"v"):
        block = encode_block([b"k%d" % (first_seq + row) for row in range(rows)], [value] * rows, partition=partition)
        block = block.stamped(first_seq, 1000)
        if block_partition is not None:
            block = encode_block([b"k"], [b"v"], partition=block_partition).stamped(first_seq, 1000)
        self.hear(encode_frame(Opcode.BLOCK, block.tobytes(), self.id(partition)))
        return block.nbytes

    def end(self, seq, partition=0):
        self.hear(encode_seq(Opcode.SNAPSHOT_END, partition, seq, self.id(partition)))

    def snapshot(self, after_seq, last_seq, partition=0, *, branch=U):
        self.start(after_seq, last_seq, partition, branch=branch)
        self.block(after_seq + 1, last_seq - after_seq, partition)
        self.end(last_seq, partition)

    def stream_end(self, reason, partition=0, message="because"):
        self.hear(StreamEnd(partition, reason, message, 1).encode(self.id(partition)))


def talk(since="beginning", *, high_seqs=(0,), window_bytes=8 << 20, log=LOG_U, **wanted):
    """A conversation in which all streams have been agreed to."""
    stored = (since,) if isinstance(since, Positions) else ()
    made = Conversation(Subscription("orders", since, stored=stored, **wanted), window_bytes=window_bytes)
    asked = made.greet(high_seqs=high_seqs)
    assert asked == ["STREAM_REQUEST"] * len(asked)
    for partition in made.requests:
        made.agree(partition, log=log)
    assert made.events() == []
    assert made.session.answered
    return made


def stored(positions, cluster=CLUSTER, feed=FEED):
    return Positions(cluster, feed, positions)


# Handshake


def test_an_event_of_a_feed_with_many_partitions_looks_at_the_state_of_none(monkeypatch):
    made = talk(high_seqs=(0,) * 1024)
    looked = []
    state = property(lambda partition: looked.append(partition))  # which goes before the partition's own
    monkeypatch.setattr(ConsumedPartition, "state", state, raising=False)
    assert made.session.answered
    assert looked == []


def test_a_stream_is_asked_for_in_every_partition():
    made = talk(high_seqs=(0, 7, 0))
    assert sorted(made.requests) == [0, 1, 2]
    assert len({id for id, _ in made.requests.values()}) == 3
    for partition, (_, request) in made.requests.items():
        assert request == StreamRequest(FEED, partition, FailoverLog(), 0, 0, 0, None, None, Level.DISK)


def test_only_the_partitions_that_were_named():
    assert sorted(talk(high_seqs=(0, 0, 0), partitions=frozenset([2])).requests) == [2]


def test_a_partition_that_is_not_there():
    made = Conversation(Subscription("orders", partitions=frozenset([0, 5])))
    with pytest.raises(UnknownFeed, match="no partition 5"):
        made.greet()
    assert isinstance(made.session.failure, UnknownFeed)


def test_until_now_is_what_the_map_says():
    made = talk(high_seqs=(0, 7), until="now")
    assert {partition: request.end_seq for partition, (_, request) in made.requests.items()} == {0: 0, 1: 7}


def test_until_now_ends_where_another_history_has_parted_from_the_one_of_then():
    """A node that has shown 9 steps down, and goes back to 5: nothing will ever be the 9 that was asked for."""
    made = talk(high_seqs=(9,), until="now")
    made.snapshot(0, 3)
    made.events()
    made.stream_end(EndReason.HISTORY_CHANGED)
    made.events()
    made.now += 60
    assert made.requests_sent() == ["STREAM_REQUEST"]
    assert made.requests[0][1].end_seq == 9
    made.agree(log=LOG_V, high_seq=8)
    assert made.events() == []
    assert made.sent() == ["STREAM_CLOSE", "STREAM_REQUEST"]
    assert (made.requests[0][1].seq, made.requests[0][1].end_seq) == (3, 5)
    made.agree(log=LOG_V, high_seq=8)
    made.snapshot(3, 5, branch=V)
    made.stream_end(EndReason.END_REACHED)
    made.events()
    assert made.session.finished


def test_until_now_of_a_history_that_changed_before_the_stream_was_agreed_to():
    made = Conversation(Subscription("orders", until="now"))
    made.greet(high_seqs=(9,), logs=[LOG_U])
    made.agree(log=LOG_V, high_seq=8)
    assert made.events() == []
    assert made.sent() == ["STREAM_CLOSE", "STREAM_REQUEST"]
    assert made.requests[0][1].end_seq == 5


def test_until_now_where_nothing_of_the_history_is_left():
    made = Conversation(Subscription("orders", until="now"))
    made.greet(high_seqs=(9,), logs=[LOG_U])
    made.agree(log=FailoverLog([(V, 2, 0)]), high_seq=4)
    assert made.events() == []
    assert made.sent() == ["STREAM_CLOSE", "STREAM_REQUEST"]
    assert made.requests[0][1].end_seq == 4


def test_until_now_stays_where_a_branch_begins_above_it():
    made = Conversation(Subscription("orders", until="now"))
    made.greet(high_seqs=(5,), logs=[LOG_U])
    made.agree(log=LOG_V, high_seq=8)
    assert made.events() == []
    assert made.sent() == []
    assert made.requests[0][1].end_seq == 5


def test_positions_are_asked_for_as_they_are():
    inside = Position.at(LOG_V, 8, 6, 9)
    made = talk(stored({0: inside}), high_seqs=(9, 9), log=LOG_V)
    assert made.requests[0][1] == StreamRequest(FEED, 0, LOG_V, 8, 6, 9, None, None, Level.DISK)
    assert made.requests[1][1].seq == 0


def test_a_consumer_that_has_read_keys_again_needs_all_up_to_there():
    """Its position stays where it rolled back to; what it has read again is of any seq up to its snapshot's end."""
    made = talk(stored({0: Position.at(LOG_U, 5, 5, 9)}))
    request = made.requests[0][1]
    assert (request.seq, request.snapshot_first, request.snapshot_last) == (5, 5, 9)
    made.start(5, 8)
    with pytest.raises(ProtocolError, match="needs all up to 9"):
        made.events()


def test_a_snapshot_that_was_announced_and_not_begun_promises_nothing():
    """It may never be finished, where the node has lost its end."""
    made = talk(stored({0: Position.at(LOG_U, 5)}))
    made.start(5, 9)
    made.events()
    assert made.session.positions[0] == Position.at(LOG_U, 5)


@pytest.mark.parametrize(
    ("positions", "match"),
    [(stored({}, cluster=b"x" * 16), "belong to cluster"), (stored({}, feed=b"x" * 16), "belong to a feed")],
)
def test_positions_of_something_else(positions, match):
    made = Conversation(Subscription("orders", positions, stored=(positions,)))
    with pytest.raises(BadPosition, match=match):
        made.greet()
    assert isinstance(made.session.failure, BadPosition)


def test_another_version_of_the_protocol():
    made = Conversation(Subscription("orders"))
    made.session.connection_made()
    made.hear(HelloOk(2, "0" * 32, "0" * 32, "", 1000, 10.0, ()).encode())
    with pytest.raises(ProtocolError, match="version 2"):
        made.events()
    assert made.session.failure is not None


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"feed": []},
        {"feed": {"feed_id": 7}, "partitions": []},
        {"feed": {"feed_id": "0" * 32}, "partitions": 7},
        {"feed": {"feed_id": "0" * 32}, "partitions": [{}]},
        {"feed": {"feed_id": "0" * 30}, "partitions": [{"id": 0, "high_seq": 1}]},
        {"feed": {"feed_id": "0" * 32}, "partitions": [{"id": 0, "high_seq": float("inf")}]},
        {"feed": {"feed_id": "0" * 32}, "partitions": [{"id": -1, "high_seq": 1}]},
        {"feed": {"feed_id": "0" * 32}, "partitions": [{"id": 2**32, "high_seq": 1}]},
        {"feed": {"feed_id": "0" * 32}, "partitions": [{"id": 1, "high_seq": 2**63}]},
    ],
    ids=json.dumps,
)
def test_a_map_that_cannot_be_read(value):
    made = Conversation(Subscription("orders", until="now"))
    made.session.connection_made()
    made.hear(HelloOk(1, "0" * 32, "0" * 32, "", 1000, 10.0, ()).encode())
    made.hear(encode_json(Opcode.RESULT, value, 0xFFFFFFFF))
    with pytest.raises(ProtocolError, match="partition map"):
        made.events()
    assert made.session.failure is None


def test_a_feed_that_was_made_anew_meanwhile():
    made = talk()
    made.session.connection_lost(Unreachable("cut"))
    with pytest.raises(UnknownFeed, match="was dropped, and another one was created"):
        made.greet(feed=b"g" * 16)


def test_a_node_of_another_cluster_meanwhile():
    made = talk()
    made.session.connection_lost(Unreachable("cut"))
    with pytest.raises(BadPosition, match="cluster"):
        made.greet(cluster=b"d" * 16)


# Events and positions


def test_events_and_where_they_lead():
    made = talk()
    made.snapshot(0, 3)
    made.hear(encode_number(Opcode.ROUND_COMPLETE, 1))
    start, mutations, end, complete = made.events()
    assert isinstance(start, SnapshotStart)
    assert (start.first_seq, start.last_seq) == (1, 3)
    assert start.position == Position.at(LOG_U, 0)
    assert isinstance(mutations, Mutations)
    assert (mutations.first_seq, mutations.last_seq, mutations.branch) == (1, 3, U)
    assert end == SnapshotEnd(0, 1, 3, Position.at(LOG_U, 3))
    assert complete == RoundComplete(1)


def test_positions_cover_what_was_handled():
    made = talk()
    made.snapshot(0, 3)
    seqs = []
    while (event := made.session.next_event()) is not None:
        seqs.append((type(event).__name__, made.session.positions.seqs(), made.session.latest_positions.seqs()))
    assert seqs == [
        ("SnapshotStart", {}, {0: 0}),
        ("Mutations", {0: 0}, {0: 3}),
        ("SnapshotEnd", {0: 3}, {0: 3}),
    ]
    assert made.session.positions[0] == Position.at(LOG_U, 3)


def test_from_now_on_is_fixed_by_the_first_answer():
    made = Conversation(Subscription("orders", "now"))
    made.greet(high_seqs=(7,))
    assert made.requests[0][1].seq is None
    made.agree(seq=7)
    made.events()
    assert made.session.positions.seqs() == {0: 7}
    made.session.connection_lost(Unreachable("cut"))
    made.greet(high_seqs=(9,))
    assert made.requests[0][1].seq == 7


def test_the_branch_of_mutations_is_that_of_their_seq():
    made = Conversation(Subscription("orders"))
    made.greet(high_seqs=(8,))
    made.agree(log=LOG_V)
    made.start(0, 8, branch=V)
    made.block(1, 5)
    made.block(6, 3)
    _, old, new = made.events()
    assert (old.branch, new.branch) == (U, V)


def test_rows_that_the_consumer_has_are_cut_off():
    made = talk(stored({0: Position.at(LOG_U, 2)}))
    made.start(2, 5)
    made.block(1, 5)
    _, mutations = made.events()
    assert mutations.seqs() == range(3, 6)
    assert mutations.keys() == [b"k3", b"k4", b"k5"]


def test_duplicates_are_passed_over():
    made = talk()
    made.snapshot(0, 3)
    made.start(3, 5)
    made.block(1, 3)
    made.block(4, 2)
    assert [event.last_seq for event in made.events() if isinstance(event, Mutations)] == [3, 5]


def test_what_is_left_out_of_a_complete_snapshot_is_noticed():
    for block in ((5, 1), (4, 2)):
        made = talk()
        made.snapshot(0, 2)
        made.events()
        made.start(2, 5)
        made.block(*block)
        with pytest.raises(ProtocolError, match="in a complete snapshot of partition 0 that has come to seq 2"):
            made.events()
    made = talk()
    made.start(0, 5)
    made.block(1, 2)
    made.end(5)
    with pytest.raises(ProtocolError, match="a complete snapshot of partition 0 ends at seq 5, but has come to seq 2"):
        made.events()


def test_a_block_of_another_partition_is_noticed():
    made = talk()
    made.start(0, 5)
    made.block(1, 1, block_partition=3)
    with pytest.raises(ProtocolError, match="a block of partition 3"):
        made.events()


@pytest.mark.parametrize("order", ["block", "end", "start twice"])
def test_frames_out_of_place(order):
    made = talk()
    match order:
        case "block":
            made.block(1, 1)
        case "end":
            made.end(0)
        case "start twice":
            made.start(0, 5)
            made.start(1, 5)
    with pytest.raises(ProtocolError):
        made.events()


def test_what_only_a_client_says():
    made = talk()
    made.hear(encode_frame(Opcode.STREAM_REQUEST, b"{}", made.id()))
    with pytest.raises(ProtocolError, match="the node sent STREAM_REQUEST, which is not for a consumer"):
        made.events()


def test_events_before_an_error_are_handed_out_first():
    made = talk()
    made.snapshot(0, 3)
    made.stream_end(EndReason.FEED_DROPPED, message="gone")
    names = [type(made.session.next_event()).__name__ for _ in range(3)]
    assert names == ["SnapshotStart", "Mutations", "SnapshotEnd"]
    with pytest.raises(UnknownFeed, match="gone"):
        made.session.next_event()


def test_looking_for_an_event_does_not_lose_an_error():
    made = talk()
    made.stream_end(EndReason.FORBIDDEN)
    assert not made.session.has_event()
    with pytest.raises(Forbidden):
        made.session.next_event()


# Connections that are lost


def test_after_a_lost_connection_it_goes_on_where_it_was():
    made = talk(high_seqs=(0, 0))
    made.snapshot(0, 3)
    made.start(0, 4, partition=1)
    made.block(1, 2, partition=1)
    made.events()
    made.session.connection_lost(Unreachable("cut"))
    made.greet(high_seqs=(3, 4))
    assert [made.requests[id][1].seq for id in (0, 1)] == [3, 2]
    for partition in (0, 1):
        made.agree(partition)
    made.snapshot(2, 4, partition=1)
    assert [event.first_seq for event in made.events() if isinstance(event, Mutations)] == [3]


def test_inside_of_a_run_its_bounds_are_told():
    made = talk()
    made.start(0, 9, complete=False)
    made.block(2, 1)
    made.block(5, 1)
    made.events()
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    request = made.requests[0][1]
    assert (request.seq, request.snapshot_first, request.snapshot_last) == (5, 0, 9)


def test_frames_that_were_not_handled_come_again():
    made = talk()
    made.snapshot(0, 3)
    made.session.next_event()
    made.session.connection_lost(Unreachable("cut"))
    assert made.session.next_event() is None
    made.greet()
    assert made.requests[0][1].seq == 0


def ends_the_connection(made):
    """Another node is to be asked, and for all partitions."""
    with pytest.raises(NotLeader, match="because"):
        made.events()
    assert made.session.failure is None
    made.session.connection_lost(Unreachable("another one is asked"))
    made.greet()
    assert 0 in made.requests


def test_a_stream_that_is_refused_by_one_that_does_not_lead():
    made = Conversation(Subscription("orders"))
    made.greet()
    made.hear(encode_error(NotLeader("because", leader="b:4700"), made.id()))
    ends_the_connection(made)


def test_a_node_of_another_cluster_among_several():
    """One that is new has an id of its own until it has found its leader."""
    made = talk()
    made.session._streams.has_others = True
    made.session.connection_lost(Unreachable("cut"))
    with pytest.raises(NotLeader, match="of cluster"):
        made.greet(cluster=b"x" * 16)
    assert made.session.failure is None


def test_a_node_that_was_new_has_joined_its_cluster_since():
    """It knew of no feed yet, and so nothing was told by the cluster that it was of."""
    made = talk()
    made.session.peer, made.session.feed_id = made.session.peer._replace(cluster_id="f" * 32), None
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    assert made.session.failure is None


@pytest.mark.parametrize("state", ["follower", "leader"])
@pytest.mark.parametrize(("error", "is_final"), [(UnknownFeed, True), (NotLeader, False)])
def test_a_feed_that_one_of_several_nodes_does_not_have(state, error, is_final):
    """A node that may be behind says so; what it says that there is not is nowhere."""
    made = talk(state=state)
    made.session._streams.has_others = True
    made.session.connection_lost(Unreachable("cut"))
    made.session.connection_made()
    made.sent()
    made.hear(HelloOk(1, "0" * 32, CLUSTER.hex(), "", 1000, 10.0, ()).encode())
    made.events()
    made.hear(encode_error(error("no feed 'orders'"), 0xFFFFFFFF))
    with pytest.raises(error, match="no feed 'orders'"):
        made.events()
    assert (made.session.failure is not None) is is_final


@pytest.mark.parametrize(
    ("state", "role", "asked"),
    [("leader", "leader", "leader"), ("follower", "follower", "follower"), ("any", "follower", "follower")],
)
def test_what_the_node_has_to_be_is_asked_by_every_request(state, role, asked):
    """The streams, the keys that are read again, and how far these are shown."""
    made = Conversation(Subscription("orders", state=state))
    made.greet(role=role)
    assert made.requests[0][1].state == asked
    made.agree()
    made.snapshot(0, 8)
    made.events()
    made.session.connection_lost(Unreachable("cut"))
    made.greet(role=role)
    made.hear(RollBack(0, 5, LOG_V, "forked").encode(made.id()))
    made.events()
    assert got(made, None, None, None).state == (asked == "follower")
    made.events()
    assert got(made, visible=9).state == asked


@pytest.mark.parametrize("inside", [False, True])
def test_a_history_that_changes_is_asked_about_before_anything_of_it_is_taken(inside):
    """As a replica ends its streams when its partition was rolled back; a single node never does."""
    made = talk()
    made.snapshot(0, 3)
    made.start(3, 9)
    if inside:
        made.block(4, 2)
    made.events()
    made.stream_end(EndReason.HISTORY_CHANGED)
    assert made.events() == []
    made.now += 1
    assert made.requests_sent() == ["STREAM_REQUEST"]
    request = made.requests[0][1]
    assert (request.log, request.seq, request.snapshot_last) == (LOG_U, 5 if inside else 3, 5 if inside else 3)
    if not inside:
        made.agree(log=LOG_V, high_seq=5)
        assert made.events() == []
        assert made.session.positions[0] == Position.at(LOG_U, 3), "the new log is stored with the next position"
        made.start(3, 5, branch=V)
        made.events()
        assert made.session.positions[0].log == LOG_V
        return
    made.hear(RollBack(0, 3, LOG_V.__class__([(V, 2, 3), (U, 1, 0)]), "forked").encode(made.id()))
    assert made.events() == [Rollback(0, 3, (b"k4", b"k5"))]


def test_a_snapshot_of_another_history_ends_the_stream_by_that_name():
    made = talk()
    made.start(0, 3, branch=V)
    made.events()
    (status,) = made.session.status().partitions
    assert status.last_end is EndReason.HISTORY_CHANGED
    assert made.sent() == ["STREAM_CLOSE"]


def test_a_partition_that_moves_is_asked_for_until_it_is_there_again():
    made = talk(high_seqs=(0, 0))
    for _ in range(3):
        made.stream_end(EndReason.NOT_MY_PARTITION, 1)
        made.events()
        assert [status.state for status in made.session.status().partitions] == ["open", "waiting"]
        made.now = made.session.next_retry
        assert made.sent() == ["STREAM_REQUEST"]
    made.agree(1)
    assert made.events() == []
    assert [status.last_end for status in made.session.status().partitions] == [None, EndReason.NOT_MY_PARTITION]


def test_tries_are_further_and_further_apart():
    made, waits = talk(), []
    for _ in range(12):
        made.stream_end(EndReason.NOT_MY_PARTITION)
        made.events()
        waits.append(made.session.next_retry - made.now)
        made.now = made.session.next_retry
        assert made.sent() == ["STREAM_REQUEST"]
    assert waits[0] < 0.05
    assert 1.0 <= waits[-1] <= 2.0
    made.agree()
    made.stream_end(EndReason.TOO_SLOW)
    made.events()
    assert made.session.next_retry - made.now < 0.05


def test_what_a_node_refuses_for_now_is_asked_for_again():
    made = Conversation(Subscription("orders"))
    made.greet()
    made.hear(encode_error(Overloaded("busy"), made.id()))
    assert made.events() == []
    made.now += 1.0
    assert made.sent() == ["STREAM_REQUEST"]


def test_errors_of_a_connection():
    made = talk()
    made.hear(encode_error(ProtocolError("nothing heard for 30 s")))
    with pytest.raises(ProtocolError, match="nothing heard"):
        made.events()
    assert made.session.failure is None, "the next connection may do better"
    made = talk()
    made.hear(encode_error(NotDurable("broken disk")))
    with pytest.raises(NotDurable):
        made.events()
    assert made.session.failure is None


def test_a_connection_that_ends_before_the_map_has_come_need_not_be_the_last():
    """As when the program was held up for longer than the node waits to hear of it."""
    made = Conversation(Subscription("orders"))
    made.session.connection_made()
    made.hear(HelloOk(1, "0" * 32, CLUSTER.hex(), "", 1000, 10.0, (), 1000).encode())
    made.events()
    made.hear(encode_error(ProtocolError("nothing heard for 90 s")))
    with pytest.raises(ProtocolError, match="nothing heard"):
        made.events()
    assert made.session.failure is None


@pytest.mark.parametrize(
    "error", [ProtocolError("version 7 is not known"), Forbidden("who are you"), TailraceError("")]
)
def test_errors_of_a_greeting_are_final(error):
    made = Conversation(Subscription("orders"))
    made.session.connection_made()
    made.hear(encode_error(error))
    with pytest.raises(type(error)):
        made.events()
    assert made.session.failure is not None


# Histories that change


def test_without_a_ring_a_rollback_begins_the_partition_anew():
    made = Conversation(Subscription("orders", stored({0: Position.at(LOG_U, 8)})))
    made.greet()
    made.hear(RollBack(0, 5, LOG_V, "forked").encode(made.id()))
    assert made.events() == [Rollback(0, 0, None)]
    assert made.session.positions[0] == Position.at(LOG_V, 0)
    assert made.sent() == ["STREAM_REQUEST"]
    request = made.requests[0][1]
    assert (request.seq, request.log) == (0, LOG_V)
    made.agree(log=LOG_V)
    made.snapshot(0, 6, branch=V)
    assert [event.last_seq for event in made.events() if isinstance(event, Mutations)] == [6]


def rolled_back(**wanted):
    """A conversation that had come to 8, and has to go back to 5."""
    made = talk(**wanted)
    made.snapshot(0, 8)
    made.events()
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    made.hear(RollBack(0, 5, LOG_V, "forked").encode(made.id()))
    return made


def got(made, *items, visible=None):
    """Answers the GET that the session has sent, or the question how far the node shows."""
    [frame] = made.decoder.receive_data(b"".join(made.session.data_to_send()))
    if visible is not None:
        made.hear(StreamOk(0, visible, LOG_V, 20).encode(frame.id))
        return StreamRequest.decode(frame.body)
    found = [None if item is None else (Version(0, V, item[0]), 1000, item[1]) for item in items]
    made.hear(Got(found).encode(frame.id))
    return Get.decode(frame.body)


def test_keys_above_the_common_point_are_read_again():
    made = rolled_back()
    assert made.session.next_event() == Rollback(0, 5, (b"k6", b"k7", b"k8"))
    assert made.session.data_to_send() == [], "the program has not handled it"
    assert made.session.next_event() is None
    assert made.session.positions[0] == Position.at(LOG_V, 5, 5, SNAPSHOT_LAST_UNKNOWN)
    assert got(made, (9, b"new"), None).keys == [b"k6", b"k7", b"k8"]
    again = made.session.next_event()
    assert (again.keys(), again.values(), again.seqs(), again.refetched) == ([b"k6"], [b"new"], range(9, 10), True)
    assert made.session.next_event() is None
    assert got(made, (7, b"old")).keys == [b"k8"]
    assert made.events() == []
    assert got(made, visible=11).seq is None
    events = made.events()
    assert [(event.keys(), event.values(), list(event.seqs())) for event in events] == [
        ([b"k8"], [b"old"], [7]),
        ([b"k7"], [None], [11]),
    ]
    assert all(event.refetched for event in events)
    assert made.session.positions[0] == Position.at(LOG_V, 5, 5, 11)
    assert made.sent() == ["STREAM_CLOSE", "STREAM_REQUEST"]
    request = made.requests[0][1]
    assert (request.seq, request.snapshot_first, request.snapshot_last) == (5, 5, 11)


def test_no_barrier_is_sent_before_the_stream_is_open_again():
    made = rolled_back()
    made.session.barrier(b"x", lambda: None)
    made.events()
    got(made, None, None, None)
    made.events()
    got(made, visible=8)
    made.events()
    assert made.sent() == ["STREAM_CLOSE", "STREAM_REQUEST"]
    made.agree(log=LOG_V)
    made.events()
    assert made.sent() == ["BARRIER"]


def test_inside_of_what_was_read_again_there_is_nowhere_to_stand():
    made = rolled_back()
    made.events()
    got(made, None, None, None)
    made.events()
    got(made, visible=8)
    made.events()
    made.sent()
    made.agree(log=LOG_V)
    made.start(5, 9, branch=V)
    made.block(6, 2)
    made.events()
    assert made.session.positions[0] == Position.at(LOG_V, 7, 5, 8)
    made.block(8, 1)
    made.events()
    assert made.session.positions[0] == Position.at(LOG_V, 8)


def test_inside_of_half_a_run_there_is_nowhere_to_stand_either():
    """Another node sends the rest as it came; what the run left out below was superseded in the rest."""
    made = talk(stored({0: Position.at(LOG_U, 2, 0, 4)}))
    made.start(2, 6)
    made.block(3, 1)
    made.events()
    assert made.session.positions[0] == Position.at(LOG_U, 3, 0, 4)
    made.block(4, 1)
    made.events()
    assert made.session.positions[0] == Position.at(LOG_U, 4)


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_a_connection_that_breaks_while_keys_are_read_again(answers):
    made = rolled_back()
    made.events()
    if answers:
        got(made, None, None, None)
        made.events()
    if answers == 2:
        made.stream_end(EndReason.DRAINING)
    made.session.connection_lost(Unreachable("cut"))
    made.events()
    made.greet()
    request = made.requests[0][1]
    assert (request.seq, request.snapshot_first, request.snapshot_last) == (5, 5, 5)
    made.agree(log=LOG_V)
    assert made.events() == [Rollback(0, 5, (b"k6", b"k7", b"k8"))]
    assert made.sent() == ["STREAM_CLOSE", "GET"]


@pytest.mark.parametrize("error", [Overloaded("busy"), TailraceError("the segment x.seg is damaged at offset 7")])
def test_keys_that_cannot_be_read_again_now_are_asked_for_later(error):
    """A node that cannot read a segment may be mended, or restarted: nothing of that ends a consumer."""
    made = rolled_back()
    made.events()
    [frame] = made.decoder.receive_data(b"".join(made.session.data_to_send()))
    assert frame.opcode is Opcode.GET
    made.hear(encode_error(error, frame.id))
    assert made.events() == []
    assert made.session.failure is None
    assert made.session.status().partitions[0].reason == str(error)
    made.now += 1.0
    made.sent()
    made.agree(log=LOG_V)
    assert made.events() == [Rollback(0, 5, (b"k6", b"k7", b"k8"))]
    assert made.sent() == ["STREAM_CLOSE", "GET"]


def test_a_history_that_changes_while_keys_are_read_again():
    made = rolled_back()
    made.events()
    got(made, None, None, None)
    made.events()
    [frame] = made.decoder.receive_data(b"".join(made.session.data_to_send()))
    made.hear(StreamOk(0, 8, LOG_U, 20).encode(frame.id))
    assert made.events() == []
    assert made.session.status().partitions[0].reason == "the partition's history has changed"


def test_what_was_read_again_of_another_history_is_refused():
    made = rolled_back()
    made.events()
    [frame] = made.decoder.receive_data(b"".join(made.session.data_to_send()))
    made.hear(Got([(Version(0, U, 9), 1000, b"x")]).encode(frame.id))
    with pytest.raises(ProtocolError, match="not of the partition's history"):
        made.events()


def test_many_partitions_do_not_read_again_all_at_once():
    made = talk(high_seqs=(0,) * 20)
    for partition in range(20):
        made.snapshot(0, 3, partition)
    made.events()
    made.session.connection_lost(Unreachable("cut"))
    made.greet(high_seqs=(0,) * 20)
    for partition in range(20):
        made.hear(RollBack(partition, 2, LOG_V, "forked").encode(made.id(partition)))
    assert len(made.events()) == 20
    assert made.sent() == ["GET"] * REFETCHES_MAX


def test_a_rollback_that_is_not_wanted_is_final():
    made = Conversation(Subscription("orders", stored({0: Position.at(LOG_U, 8)}), on_rollback="stop"))
    made.greet()
    made.hear(RollBack(0, 5, LOG_V, "forked").encode(made.id()))
    with pytest.raises(StreamEnded, match="rolled back to seq 5") as caught:
        made.events()
    assert caught.value.reason is EndReason.ROLLED_BACK


def test_a_history_that_changes_under_a_stream():
    """Nothing of the new one is applied under the old log: the stream is closed, and asked for again."""
    made = talk()
    made.snapshot(0, 3)
    made.events()
    old_id = made.id()
    made.start(3, 6, branch=V)
    made.block(4, 3)
    assert made.events() == []
    made.now += 1.0
    assert made.requests_sent() == ["STREAM_CLOSE", "STREAM_REQUEST"]
    assert made.id() != old_id
    # The end of the stream that was closed is no end of the new one.
    made.hear(StreamEnd(0, EndReason.CLOSED, "closed by the client", 1).encode(old_id))
    made.agree(log=LOG_V)
    made.snapshot(3, 6, branch=V)
    assert [type(event).__name__ for event in made.events()] == ["SnapshotStart", "Mutations", "SnapshotEnd"]


def test_an_answer_that_does_not_fit_the_request():
    made = Conversation(Subscription("orders"))
    made.greet()
    made.agree(seq=4)
    with pytest.raises(ProtocolError, match="STREAM_OK at seq 4, but seq 0 was asked for"):
        made.events()


# Barriers


class Barrier:
    def __init__(self, made, name=b"barrier"):
        self.reached = False
        made.session.barrier(name, self.reach)

    def reach(self):
        assert not self.reached
        self.reached = True


def reached(made, cookie):
    made.hear(encode_frame(Opcode.BARRIER_REACHED, cookie))


def test_a_barrier_is_reached_when_what_was_before_it_is_handled():
    made = talk()
    barrier = Barrier(made)
    assert made.sent() == ["BARRIER"]
    assert made.sent() == []
    made.snapshot(0, 3)
    reached(made, made.barriers[0])
    for _ in range(3):
        assert made.session.next_event() is not None
        assert not barrier.reached
    assert made.session.next_event() is None
    assert barrier.reached


def test_a_barrier_waits_until_every_partition_is_open():
    made = Conversation(Subscription("orders"))
    Barrier(made)
    assert made.greet(high_seqs=(0, 0)) == ["STREAM_REQUEST"] * 2
    made.agree(0)
    made.events()
    assert made.sent() == []
    made.agree(1)
    made.events()
    assert made.sent() == ["BARRIER"]


@pytest.mark.parametrize("end", ["the stream ends", "the connection is lost", "the cookie is lost"])
def test_a_barrier_that_was_not_covered_is_sent_again(end):
    """Hazard 11: a node that does not stream a partition any more returns the cookie at once."""
    made = talk(high_seqs=(0, 0))
    barrier = Barrier(made)
    made.sent()
    first = made.barriers[0]
    match end:
        case "the stream ends":
            made.stream_end(EndReason.NOT_MY_PARTITION)
            reached(made, first)
        case "the connection is lost":
            made.session.connection_lost(Unreachable("cut"))
            made.greet(high_seqs=(0, 0))
        case "the cookie is lost":
            made.stream_end(EndReason.NOT_MY_PARTITION)
            made.hear(encode_frame(Opcode.BARRIER_LOST, first, 0))
    assert made.events() == []
    assert not barrier.reached
    made.now += 1.0
    made.sent()
    assert made.barriers == [first]
    made.agree(0)
    made.agree(1) if end == "the connection is lost" else None
    made.events()
    assert made.sent() == ["BARRIER"]
    second = made.barriers[1]
    assert second != first
    reached(made, first)
    assert made.events() == []
    assert not barrier.reached, "the answer to what was sent before counts for nothing"
    reached(made, second)
    made.events()
    assert barrier.reached


def lost(made, cookie):
    made.hear(encode_frame(Opcode.BARRIER_LOST, cookie))
    assert made.events() == []


def until_retry(made):
    """Lets the time pass until the session has something to send; what it sends then."""
    assert made.sent() == [], "it asks again at once"
    assert made.session.next_retry > made.now
    made.now = made.session.next_retry
    return made.sent()


def test_a_node_that_loses_each_barrier_is_asked_ever_less_often():
    """A follower whose leader is gone says so at once, each time."""
    made = talk()
    barrier = Barrier(made)
    assert made.sent() == ["BARRIER"]
    begun = made.now
    for _ in range(40):
        lost(made, made.barriers[-1])
        assert until_retry(made) == ["BARRIER"]
    assert made.now - begun > 30 * SECONDS_MAX / 2, "40 tries take half a minute"
    assert made.now - begun < 40 * SECONDS_MAX, "and none waits for longer than the others do"
    reached(made, made.barriers[-1])
    made.events()
    assert barrier.reached
    assert made.session.next_retry is None
    Barrier(made, b"another")
    made.now += SECONDS_MAX
    assert made.sent() == ["BARRIER"]
    lost(made, made.barriers[-1])
    begun = made.now
    until_retry(made)
    assert made.now - begun <= FIRST_SECONDS, "the pauses begin anew"


def test_many_barriers_that_are_lost_together_are_one_try():
    made = talk()
    barriers = [Barrier(made, b"%d" % number) for number in range(50)]
    made.sent()
    begun = made.now
    for cookie in list(made.barriers):
        lost(made, cookie)
    assert until_retry(made) == ["BARRIER"] * 50
    assert made.now - begun <= FIRST_SECONDS
    Barrier(made, b"later")
    assert made.sent() == ["BARRIER"]
    for cookie in made.barriers[50:]:
        reached(made, cookie)
    made.events()
    assert all(barrier.reached for barrier in barriers)


def test_who_asks_while_barriers_are_lost_waits_with_the_others():
    """A program that gives up and asks again does not ask the node any more often."""
    made = talk()
    Barrier(made, b"0")
    made.sent()
    lost(made, made.barriers[-1])
    for number in range(1, 100):
        made.session.forget_barrier(b"%d" % (number - 1))
        Barrier(made, b"%d" % number)
        assert made.sent() == []
    assert until_retry(made) == ["BARRIER"]


def test_another_connection_is_asked_at_once():
    made = talk()
    Barrier(made)
    made.sent()
    for _ in range(10):
        lost(made, made.barriers[-1])
        until_retry(made)
    lost(made, made.barriers[-1])
    made.session.connection_lost(Unreachable("another node leads"))
    made.greet()
    made.agree()
    made.events()
    assert made.sent() == ["BARRIER"]


def test_lost_barriers_wait_for_streams_that_have_ended_meanwhile():
    made = talk()
    Barrier(made)
    made.sent()
    lost(made, made.barriers[-1])
    made.stream_end(EndReason.HISTORY_CHANGED)
    made.events()
    assert until_retry(made) == ["STREAM_REQUEST"]
    assert made.session.next_retry is None, "nothing is due until the stream is open"


def test_a_cookie_that_was_covered_before_the_end_counts():
    made = talk()
    barrier = Barrier(made)
    made.sent()
    reached(made, made.barriers[0])
    made.stream_end(EndReason.DRAINING)
    made.events()
    assert barrier.reached


def test_a_cookie_that_arrived_before_the_connection_was_lost_counts():
    made = talk()
    barrier = Barrier(made)
    made.sent()
    reached(made, made.barriers[0])
    assert not made.session.has_event()  # it was looked at, and waits for its turn
    made.session.connection_lost(Unreachable("cut"))
    assert made.session.next_event() is None
    assert barrier.reached


def test_an_end_that_was_asked_for_covers_barriers():
    made = talk(until="now")
    made.stream_end(EndReason.END_REACHED)
    made.events()
    barrier = Barrier(made)
    assert made.sent() == ["BARRIER"]
    reached(made, made.barriers[0])
    made.events()
    assert barrier.reached


def test_nobody_waits_any_more():
    made = talk()
    first, second = Barrier(made, b"1"), Barrier(made, b"2")
    assert made.sent() == ["BARRIER", "BARRIER"]
    made.session.forget_barrier(b"1")
    for cookie in made.barriers:
        reached(made, cookie)
    made.events()
    assert (first.reached, second.reached) == (False, True)
    assert made.sent() == []


# Windows


def test_a_node_that_sends_more_than_the_window_before_all_streams_are_open_is_left(monkeypatch):
    """The program does not read yet, so nothing else bounds what it has to hold."""
    monkeypatch.setattr(session_module, "FRAME_BODY_BYTES_MAX", 2000)  # six blocks fit below both together
    made = Conversation(Subscription("orders"), window_bytes=5000)
    made.greet(high_seqs=(100, 0))
    made.agree(0, high_seq=100)
    made.start(0, 100)
    for seq in range(1, 7):
        made.block(seq, 1, value=NOISE)
        made.session.handle_all()
    made.block(7, 1, value=NOISE)
    with pytest.raises(ProtocolError, match=r"blocks of \d+ bytes, but the window is 5000 bytes"):
        made.session.handle_all()
    made.session.connection_lost(Unreachable("left"))
    assert made.session.failure is None, "another node may keep to it"


def test_credit_is_given_for_what_was_handled():
    made = talk(window_bytes=4000)
    made.start(0, 9)
    size = made.block(1, 1, value=NOISE)
    assert made.session.next_event() is not None
    assert made.session.next_event() is not None
    assert made.sent() == [], "it is being handled"
    assert made.session.next_event() is None
    assert made.sent() == [("CREDIT", size)]
    assert made.sent() == []


def test_little_is_credited_within_a_second():
    """By its credit the node tells how far a consumer is behind."""
    made = talk()
    made.start(0, 9)
    sizes = [made.block(1, 1), made.block(2, 1)]
    made.events()
    assert made.sent() == [], "far less than a quarter of the window"
    due = made.session.next_retry
    assert made.now < due <= made.now + CREDIT_SECONDS
    made.now = due
    assert made.sent() == [("CREDIT", sum(sizes))]
    assert made.sent() == []
    assert made.session.next_retry is None
    later = made.block(3, 1)
    made.events()
    made.now += CREDIT_SECONDS / 2
    assert made.sent() == []
    made.now += CREDIT_SECONDS / 2
    assert made.sent() == [("CREDIT", later)]


def test_it_wants_to_send_when_the_first_of_many_events_is_handled_and_when_many_are():
    """Else a slow program with a megabyte of events at hand would tell nothing until it has handled them all."""
    made = talk(window_bytes=4000)
    made.start(0, 9)
    sizes = [made.block(seq, 1, value=NOISE[:300]) for seq in range(1, 10)]
    assert sum(sizes[:3]) > 1000 > sum(sizes[:2])
    made.session.next_event()
    made.session.next_event()
    assert not made.session.credit.wants_to_send, "no block was handled yet"
    wanted = []
    for _ in range(4):
        made.session.next_event()
        wanted.append(made.session.credit.wants_to_send)
        made.session.data_to_send()
    assert wanted == [True, False, True, True], "the first one, a quarter of the window, and the first one again"


def test_what_is_being_handled_is_not_credited_however_long_it_takes():
    made = talk()
    made.start(0, 9)
    made.block(1, 1)
    while not isinstance(made.session.next_event(), Mutations):
        pass
    made.now += 60
    assert made.session.next_retry is None
    assert made.sent() == []


def test_a_window_that_the_node_made_smaller_is_credited_in_time():
    made = Conversation(Subscription("orders"), window_bytes=1 << 30)
    made.greet(window_bytes=2000)
    made.agree()
    made.start(0, 9)
    size = made.block(1, 1, value=NOISE)
    made.events()
    assert made.sent() == [("CREDIT", size)]


def test_what_nobody_wants_any_more_is_credited_too():
    made = talk(window_bytes=1)
    made.start(0, 3, branch=V)
    size = made.block(1, 3)
    made.events()
    assert ("CREDIT", size) in made.sent()


def test_a_lost_connection_needs_no_credit():
    made = talk(window_bytes=1)
    made.start(0, 3)
    made.block(1, 3)
    made.events()
    made.session.connection_lost(Unreachable("cut"))
    assert made.sent() == []
    assert made.greet() == ["STREAM_REQUEST"]


def test_it_says_that_it_lives():
    made = talk()
    made.session.noop()
    assert made.sent() == ["NOOP"]
    made.session.connection_lost(Unreachable("cut"))
    made.session.noop()
    assert made.sent() == []


# Filters


def advance(talk, seq):
    talk.hear(encode_seq(Opcode.SEQ_ADVANCED, 0, seq, talk.id()))


@pytest.fixture
def filtered():
    talk = Conversation(Subscription("orders", filter=StreamFilter(b"k")))
    talk.greet(high_seqs=(9,))
    talk.agree()
    return talk


def test_a_request_names_the_filter(filtered):
    assert filtered.requests[0][1].filter == StreamFilter(b"k")


def test_seqs_that_a_filter_leaves_out_are_no_gap(filtered):
    filtered.start(0, 9)
    filtered.block(3, 2)
    filtered.block(7, 1)
    filtered.end(9)
    *_, block, end = filtered.events()
    assert (block.first_seq, end.position.seq, end.position.snapshot_first) == (7, 9, 9)


def test_where_nothing_matches_the_position_moves_on(filtered):
    advance(filtered, 5)
    [event] = filtered.events()
    position = event.position
    assert event == SnapshotEnd(0, 1, 5, position)
    assert (position.seq, position.snapshot_first, position.snapshot_last, position.log) == (5, 5, 5, LOG_U)
    assert filtered.session.positions[0] == position
    advance(filtered, 12)
    assert filtered.events()[0].first_seq == 6
    assert filtered.session.status().partitions[0].lag == 0


def test_a_position_moves_on_to_no_place_below_what_was_promised():
    stored = Positions(CLUSTER, FEED, {0: Position(U, 4, 2, 8, None, LOG_U)})
    talk = Conversation(Subscription("orders", stored, stored=(stored,), filter=StreamFilter(b"k")))
    talk.greet()
    talk.agree()
    advance(talk, 8)
    [event] = talk.events()
    assert (event.position.seq, event.position.snapshot_first) == (8, 8)
    talk.session.connection_lost(Unreachable("cut"))
    talk = Conversation(Subscription("orders", stored, stored=(stored,), filter=StreamFilter(b"k")))
    talk.greet()
    talk.agree()
    advance(talk, 7)
    with pytest.raises(ProtocolError, match="needs all up to 8"):
        talk.events()


def test_a_first_fill_has_no_place_to_stand_below_the_purge_seq(filtered):
    message = SnapshotStartMessage(0, False, U, 0, 4, 6)
    filtered.hear(message.encode(filtered.id()))
    filtered.end(4)
    advance(filtered, 5)
    event = filtered.events()[-1]
    assert event.position == Position(U, 5, 0, 6, 6, LOG_U)
    advance(filtered, 7)
    [event] = filtered.events()
    assert event.position == Position(U, 7, 7, 7, None, LOG_U)


def test_a_word_of_progress_inside_of_a_snapshot_breaks_the_protocol(filtered):
    filtered.start(0, 9)
    advance(filtered, 9)
    with pytest.raises(ProtocolError, match="SEQ_ADVANCED"):
        filtered.events()


def test_where_only_keys_were_asked_for_no_values_are_handed_out_whatever_comes():
    talk = Conversation(Subscription("orders", filter=StreamFilter(keys_only=True)))
    talk.greet(high_seqs=(2,))
    talk.agree()
    talk.start(0, 2)
    talk.block(1, 2)
    *_, event = talk.events()
    assert event.keys_only
    assert (event.values(), event.deleted()) == ([None, None], [False, False])


@pytest.mark.parametrize("lost", [1, 2])
def test_what_is_read_again_has_no_values_either(lost):
    talk = Conversation(Subscription("orders", filter=StreamFilter(keys_only=True)))
    talk.greet(high_seqs=(6,))
    talk.agree()
    talk.start(0, 6)
    talk.block(1, 6)
    talk.end(6)
    talk.events()
    talk.session.connection_lost(Unreachable("cut"))
    talk.greet()
    talk.hear(RollBack(0, 6 - lost, LOG_V, "forked").encode(talk.id()))
    [rollback] = talk.events()
    assert len(rollback.keys) == lost
    [get] = FrameDecoder().receive_data(b"".join(talk.session.data_to_send()))
    items = [(Version(0, U, 5), 1000, b"value"), *[None] * (lost - 1)]
    talk.hear(Got(items).encode(get.id))
    assert talk.events() == []
    assert talk.sent() == ["STREAM_REQUEST"]
    assert talk.requests[0][1].filter == StreamFilter(keys_only=True)
    talk.hear(StreamOk(0, 5, LOG_V, 5).encode(talk.id()))
    events = talk.events()
    assert all(event.refetched and event.values() == [None] for event in events)
    assert [event.deleted() for event in events] == [[False], [True]][:lost]


# Events in one call


def taken(made, rows_max):
    """What one poll hands out: the seqs of rows, and the names of other events."""
    if made.session.next_event() is None:
        return []
    events = made.session.take_together(rows_max)
    return [list(event.seqs()) if isinstance(event, Mutations) else type(event).__name__ for event in events]


def test_a_poll_takes_what_has_arrived_and_covers_it_by_the_latest_positions():
    made = talk(high_seqs=(5, 3))
    made.snapshot(0, 5)
    made.snapshot(0, 3, partition=1)
    assert taken(made, 100) == [
        "SnapshotStart",
        [1, 2, 3, 4, 5],
        "SnapshotEnd",
        "SnapshotStart",
        [1, 2, 3],
        "SnapshotEnd",
    ]
    assert made.session.positions.seqs() == {}
    assert made.session.latest_positions.seqs() == {0: 5, 1: 3}
    assert taken(made, 100) == []
    assert made.session.positions.seqs() == {0: 5, 1: 3}


def test_a_poll_cuts_a_block_and_goes_on_from_the_cut_in_the_next():
    made = talk(high_seqs=(5,))
    made.snapshot(0, 5)
    assert taken(made, 2) == ["SnapshotStart", [1, 2]]
    assert made.session.latest_positions.seqs() == {0: 2}
    assert taken(made, 2) == [[3, 4]]
    assert taken(made, 2) == [[5], "SnapshotEnd"]
    assert made.session.latest_positions[0] == Position.at(LOG_U, 5)


def test_a_cut_block_is_credited_as_a_whole_when_its_end_was_handled():
    made = talk(high_seqs=(5,), window_bytes=100)
    made.start(0, 5)
    nbytes = made.block(1, 5)
    for _ in range(3):
        taken(made, 2)
        assert made.sent() == []
    assert taken(made, 2) == []
    assert made.sent() == [("CREDIT", nbytes)]


def test_a_consumer_goes_on_from_a_cut_block():
    made = talk(high_seqs=(5,))
    made.snapshot(0, 5)
    taken(made, 3)
    again = talk(made.session.latest_positions, high_seqs=(5,))
    request = again.requests[0][1]
    assert (request.seq, request.snapshot_first, request.snapshot_last) == (3, 0, 5)


def test_a_barrier_is_reached_by_the_poll_after_the_events_before_it():
    made = talk(high_seqs=(5,))
    reached = []
    made.session.barrier(b"b", lambda: reached.append("b"))
    made.sent()
    made.snapshot(0, 2)
    made.hear(encode_frame(Opcode.BARRIER_REACHED, made.barriers[-1]))
    made.snapshot(2, 5)
    assert taken(made, 100) == ["SnapshotStart", [1, 2], "SnapshotEnd"]
    assert reached == []
    assert taken(made, 100) == ["SnapshotStart", [3, 4, 5], "SnapshotEnd"]
    assert reached == ["b"]


def test_a_rollback_is_the_last_event_of_a_poll_and_can_be_settled():
    made = talk(high_seqs=(8, 0), by_index=True)
    made.snapshot(0, 8)
    made.events()
    made.session.connection_lost(Unreachable("cut"))
    made.greet(high_seqs=(8, 0))
    made.agree(1)
    made.snapshot(0, 4, partition=1)
    made.hear(RollBack(0, 5, LOG_V, "forked").encode(made.id()))
    made.snapshot(4, 6, partition=1)
    assert isinstance(made.session.next_event(), SnapshotStart)
    *_, rollback = made.session.take_together(100)
    assert isinstance(rollback, Rollback)
    made.session.settle(rollback, 4)
    assert made.session.latest_positions.seqs() == {0: 4, 1: 4}
    assert taken(made, 100) == ["SnapshotStart", [5, 6], "SnapshotEnd"]


# Caught up


def test_it_has_caught_up_once_when_its_barrier_comes_back():
    made = talk(high_seqs=(5,), caught_up=True)
    assert made.sent() == ["BARRIER"]
    made.snapshot(0, 5)
    made.hear(encode_frame(Opcode.BARRIER_REACHED, made.barriers[-1]))
    made.snapshot(5, 6)
    assert [type(event).__name__ for event in made.events()] == [
        *("SnapshotStart", "Mutations", "SnapshotEnd", "CaughtUp", "SnapshotStart", "Mutations", "SnapshotEnd")
    ]
    assert not made.session.waiting


def test_it_asks_again_on_the_next_connection_whether_it_has_caught_up():
    made = talk(high_seqs=(5,), caught_up=True)
    made.sent()
    made.session.connection_lost(Unreachable("gone"))
    made.greet(high_seqs=(5,))
    made.agree()
    made.events()
    assert "BARRIER" in made.sent()
    made.hear(encode_frame(Opcode.BARRIER_REACHED, made.barriers[0]))
    assert made.events() == []
    made.hear(encode_frame(Opcode.BARRIER_REACHED, made.barriers[1]))
    assert [type(event).__name__ for event in made.events()] == ["CaughtUp"]
    made.session.connection_lost(Unreachable("gone"))
    made.greet(high_seqs=(5,))
    made.agree()
    made.events()
    assert "BARRIER" not in made.sent()
