"""The requests of a client against frames that are made by hand."""

import collections
import contextlib
import enum
import itertools
import json
import math

import pytest

from tailrace.block import Block, encode_block
from tailrace.errors import (
    Forbidden,
    NoSpace,
    NotDurable,
    NotLeader,
    Overloaded,
    ProtocolError,
    TooLarge,
    UnknownCheckpoint,
    UnknownFeed,
    Unreachable,
    VersionConflict,
)
from tailrace.model import Level, Version, VersionRange
from tailrace.requests.lane import Lane
from tailrace.requests.plan import FetchParts
from tailrace.requests.session import RequestSession
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import FrameDecoder, encode_frame
from tailrace.wire.messages import Get, Got, Hello, HelloOk, Write, WriteFlag, Written, encode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import SegmentFetch, data_header

FEED = b"f" * 16
BRANCH = b"u" * 16
HELLO_OK = HelloOk(1, "0" * 32, "0" * 32, "", 1000, 10.0, ("memory", "disk"))


class Conversation:
    """A session and what a node would say to it. Answers are noted by name."""

    def __init__(self):
        self.now = 100.0
        self.session = RequestSession(Hello(), lambda: self.now)
        self.decoder = FrameDecoder()
        self.answers = {}
        ids = itertools.count(1)
        self.lanes = [Lane(FEED, number, lambda: next(ids)) for number in range(2)]

    def sent(self):
        return self.decoder.receive_data(b"".join(self.session.data_to_send()))

    def hear(self, *frames):
        self.session.receive_data(b"".join(frames))

    def greet(self):
        self.decoder = FrameDecoder()
        self.session.connection_made()
        assert [frame.opcode for frame in self.sent()] == [Opcode.HELLO]
        self.hear(HELLO_OK.encode())
        return self

    def note(self, name):
        def done(result, error):
            assert name not in self.answers
            self.answers[name] = result if error is None else error

        return done

    def call(self, name, *, seconds=10.0):
        self.session.call(Opcode.LIST_FEEDS, {"name": name}, self.note(name), self.now + seconds)

    def get(self, name, keys, *, seconds=10.0):
        self.session.get(FEED, Level.DISK, keys, self.note(name), self.now + seconds)

    def write(self, name, *, lane=0, seconds=10.0, **options):
        block = encode_block([name.encode()], [b"v"], partition=lane)
        self.session.write(self.lanes[lane], block, Level.DISK, self.note(name), self.now + seconds, **options)


@pytest.fixture
def made():
    return Conversation().greet()


def name_of(frame):
    """What a frame asks for, by the name that the conversation gave it."""
    if frame.opcode is Opcode.WRITE:
        write = Write.decode(frame.body)
        header = Block.parse(write.block).header
        return (Block.parse(write.block).columns().keys()[0].decode(), header.producer_seq, write.flags)
    return decode_json(frame.body, "")["name"]


def written(frame, seq=1):
    is_write = frame.opcode is Opcode.WRITE
    partition = Block.parse(Write.decode(frame.body).block).header.partition if is_write else 0
    return Written(partition, BRANCH, seq, seq).encode(frame.id)


def test_nothing_is_asked_before_the_greeting():
    made = Conversation()
    made.call("early")
    made.write("also early")
    assert made.sent() == []
    made.session.connection_made()
    assert [frame.opcode for frame in made.sent()] == [Opcode.HELLO]
    assert not made.session.is_open
    made.hear(HELLO_OK.encode())
    assert made.session.is_open
    assert made.session.peer == HELLO_OK
    assert [name_of(frame) for frame in made.sent()] == ["early", ("also early", 1, 0)]


def test_a_request_that_no_node_accepts_fails_alone(made):
    """Sent, it would end the connection, and with it whatever others have asked, again and again."""
    made.call("a" * 5_000)
    made.call("b")
    assert [name_of(frame) for frame in made.sent()] == ["b"]
    assert isinstance(made.answers["a" * 5_000], TooLarge)
    made.session.connection_lost(Unreachable("gone"))
    assert [name_of(frame) for frame in made.greet().sent()] == ["b"]


def test_answers_find_their_requests_in_any_order(made):
    for name in "abc":
        made.call(name)
    frames = made.sent()
    assert len({frame.id for frame in frames}) == 3
    for frame in reversed(frames):
        made.hear(encode_json(Opcode.RESULT, {"of": name_of(frame)}, frame.id))
    assert made.answers == {name: {"of": name} for name in "abc"}
    assert made.session.idle


def test_after_a_lost_connection_what_is_unanswered_is_asked_again_in_order(made):
    for name in "abc":
        made.call(name)
        made.write(name.upper())
    frames = made.sent()
    made.hear(encode_json(Opcode.RESULT, {}, frames[1].id), written(frames[3]))
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    again = [name_of(frame) for frame in made.sent()]
    assert again == ["a", "c", ("B", 2, WriteFlag.RESEND), ("C", 3, WriteFlag.RESEND)]
    assert set(made.answers) == {"b", "A"}


def test_half_a_frame_of_the_lost_connection_is_forgotten(made):
    made.call("a")
    (frame,) = made.sent()
    made.hear(encode_json(Opcode.RESULT, {"a": 0}, frame.id)[:20])
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    (frame,) = made.sent()
    made.hear(encode_json(Opcode.RESULT, {"a": 1}, frame.id))
    assert made.answers == {"a": {"a": 1}}


def test_answers_of_an_older_connection_find_nobody(made):
    made.write("a")
    (old,) = made.sent()
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    (new,) = made.sent()
    assert new.id != old.id
    made.hear(written(old))
    assert made.answers == {}
    made.hear(written(new))
    assert made.answers == {"a": VersionRange(0, BRANCH, 1, 1)}


def test_what_a_write_carries(made):
    made.write("a", flags=WriteFlag.IF_VERSION, if_version=Version(0, BRANCH, 7))
    (frame,) = made.sent()
    write = Write.decode(frame.body)
    assert (write.feed_id, write.level, write.flags) == (FEED, Level.DISK, WriteFlag.IF_VERSION)
    assert (write.branch, write.seq) == (BRANCH, 7)


def test_errors_reach_who_asked(made):
    made.call("a")
    made.write("b")
    call, write = made.sent()
    made.hear(encode_error(UnknownFeed("no a"), call.id))
    made.hear(encode_error(VersionConflict("no b", current=Version(0, BRANCH, 3)), write.id))
    assert isinstance(made.answers["a"], UnknownFeed)
    assert made.answers["b"].current == Version(0, BRANCH, 3)


def test_what_is_refused_for_now_is_asked_again_after_a_while(made):
    made.call("a")
    made.write("b")
    call, write = made.sent()
    made.hear(encode_error(Overloaded("busy"), call.id), encode_error(NoSpace("full"), write.id))
    assert made.sent() == []
    made.now += 1.0
    assert [name_of(frame) for frame in made.sent()] == ["a", ("b", 1, 0)]
    assert made.answers == {}


def test_a_refusal_that_another_try_may_change_is_no_progress(made):
    """A node that refuses all requests for ever would be asked in a hot loop."""
    made.call("a")
    made.call("b")
    first, second = made.sent()
    assert not made.session.has_progressed
    made.hear(encode_error(Overloaded("busy"), first.id))
    assert not made.session.has_progressed
    made.hear(encode_error(UnknownFeed("no b"), second.id))
    assert made.session.has_progressed
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    assert not made.session.has_progressed


@pytest.mark.parametrize("ask", ["call", "write"])
def test_it_tells_when_it_is_to_be_looked_at_again(made, ask):
    assert (made.session.is_holding, made.session.until_deadline_s) == (False, math.inf)
    getattr(made, ask)("a", seconds=8.0)
    getattr(made, ask)("b", seconds=2.0)
    sent = made.sent()
    made.now += 0.5
    assert (made.session.is_holding, made.session.until_deadline_s) == (False, 1.5)
    for frame in sent:
        made.hear(encode_error(Overloaded("busy"), frame.id))
    assert made.session.is_holding
    made.now += 1.0
    assert len(made.sent()) == 2
    assert not made.session.is_holding


def test_what_stays_refused_is_told_with_its_reason(made):
    made.call("a", seconds=1.0)
    made.write("b", seconds=1.0)
    for _ in range(3):
        for frame in made.sent():
            made.hear(encode_error(NoSpace("the disk is full"), frame.id))
        made.now += 0.4
        made.session.expire()
    assert isinstance(made.answers["b"], NoSpace)
    assert "the disk is full" in str(made.answers["a"])


def test_what_has_no_answer_in_time_is_given_up(made):
    made.call("a", seconds=1.0)
    made.write("b", seconds=1.0)
    sent = made.sent()
    made.write("c", seconds=1.0)
    made.now += 1.0
    made.session.expire()
    assert {name: error.outcome for name, error in made.answers.items()} == {
        "a": "unknown",
        "b": "unknown",
        "c": "not sent",
    }
    assert made.session.idle
    for frame in sent:
        made.hear(written(frame))
    assert len(made.answers) == 3, "an answer that comes too late is passed over"


def test_what_waits_for_a_connection_is_given_up_too():
    made = Conversation()
    made.write("a", seconds=1.0)
    made.session.connection_lost(Unreachable("cannot connect"))
    made.now += 1.0
    made.session.expire()
    assert made.answers["a"].outcome == "not sent"
    assert "cannot connect" in str(made.answers["a"])


@pytest.mark.parametrize(
    ("refusal", "outcome"), [(None, "unknown"), (NotLeader("steps down"), "unknown"), (Overloaded("later"), "not sent")]
)
def test_a_request_of_an_earlier_connection_is_in_doubt(made, refusal, outcome):
    """A publish that its leader had begun, and whose answer was lost with it: nobody may say that it was not sent."""
    made.call("a", seconds=1.0)
    (frame,) = made.sent()
    if refusal is not None:
        with contextlib.suppress(NotLeader):
            made.hear(encode_error(refusal, frame.id))
    made.session.connection_lost(Unreachable("the node has closed the connection"))
    made.now += 1.0
    made.session.expire()
    assert isinstance(made.answers["a"], Unreachable)
    assert made.answers["a"].outcome == outcome


def test_what_is_postponed_is_given_up_later(made):
    made.call("a", seconds=1.0)
    made.write("b", seconds=1.0)
    made.now += 5.0
    made.session.postpone(5.0)
    made.session.expire()
    assert made.answers == {}
    made.now += 1.0
    made.session.expire()
    assert made.answers.keys() == {"a", "b"}


def test_a_block_in_doubt_is_unknown_though_it_was_refused_since(made):
    made.write("a", seconds=1.0)
    made.sent()
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    (frame,) = made.sent()
    made.hear(encode_error(NotDurable("fsync failed"), frame.id))
    made.now += 1.0
    made.session.expire()
    assert isinstance(made.answers["a"], Unreachable)
    assert made.answers["a"].outcome == "unknown"


def test_everything_is_told_when_the_client_closes(made):
    made.call("a")
    made.write("b")
    made.sent()
    made.write("c", lane=1)
    made.session.fail_all(Unreachable("closed", outcome="unknown"))
    assert set(made.answers) == {"a", "b", "c"}
    assert made.session.idle
    assert made.sent() == []


def test_a_get_whose_values_do_not_fit_into_one_answer(made):
    keys = [b"a", b"b", b"c"]
    made.get("get", keys)
    for answered in (2, 1):
        (frame,) = made.sent()
        asked = Get.decode(frame.body).keys
        assert asked == keys[-len(asked) :]
        made.hear(Got([(Version(0, BRANCH, 1), 5, key) for key in asked[:answered]]).encode(frame.id))
    assert [item.key for item in made.answers["get"]] == [item.value for item in made.answers["get"]] == keys


def test_a_get_that_fails_half_way(made):
    made.get("get", [b"a", b"b"])
    (frame,) = made.sent()
    made.hear(Got([None]).encode(frame.id))
    (frame,) = made.sent()
    made.hear(encode_error(UnknownFeed("dropped"), frame.id))
    assert isinstance(made.answers["get"], UnknownFeed)
    assert made.session.idle


@pytest.mark.parametrize(
    "hostile",
    [
        lambda id: encode_frame(Opcode.WRITTEN, b"short", id),
        lambda id: encode_frame(Opcode.RESULT, b"{}", id),
        lambda id: encode_frame(Opcode.GOT, b"", id),
    ],
)
def test_an_answer_to_a_write_that_is_none(made, hostile):
    made.write("a")
    (frame,) = made.sent()
    with pytest.raises(ProtocolError):
        made.hear(hostile(frame.id))
    made.session.connection_lost(ProtocolError("garbled"))
    made.greet()
    assert [name_of(frame) for frame in made.sent()] == [("a", 1, WriteFlag.RESEND)]


def test_an_answer_to_a_call_that_is_none(made):
    made.call("a")
    (frame,) = made.sent()
    with pytest.raises(ProtocolError):
        made.hear(encode_frame(Opcode.RESULT, b"[]", frame.id))
    made.session.connection_lost(ProtocolError("garbled"))
    made.greet()
    assert [name_of(frame) for frame in made.sent()] == ["a"]


def test_an_error_of_the_connection(made):
    with pytest.raises(Forbidden, match="who are you"):
        made.hear(encode_error(Forbidden("who are you")))


def test_greetings_that_are_none(made):
    with pytest.raises(ProtocolError, match="out of place"):
        made.hear(HELLO_OK.encode())
    other = Conversation()
    other.session.connection_made()
    with pytest.raises(ProtocolError, match="version 2"):
        other.hear(HELLO_OK._replace(version=2).encode())


def test_it_says_that_it_lives(made):
    made.session.noop()
    assert [frame.opcode for frame in made.sent()] == [Opcode.NOOP]
    made.hear(encode_frame(Opcode.NOOP))
    made.session.connection_lost(Unreachable("cut"))
    made.session.noop()
    assert made.sent() == []


def test_lanes_do_not_wait_for_each_other(made):
    made.write("a")
    made.write("b", lane=1)
    frames = made.sent()
    made.hear(encode_error(NoSpace("full"), frames[0].id), written(frames[1]))
    assert set(made.answers) == {"b"}
    made.write("c", lane=1)
    assert [name_of(frame) for frame in made.sent()] == [("c", 2, 0)]
    assert json.dumps(sorted(made.answers)) == '["b"]'


# Which node is asked


def placed(state, role="leader", check=lambda _: None):
    """A session that asks for ``state`` and has met a node that is ``role``."""
    made = Conversation()
    made.session = RequestSession(Hello(), lambda: made.now, state=state, check=check)
    made.session.connection_made()
    made.sent()
    made.hear(HELLO_OK._replace(role=role).encode())
    return made


def test_a_node_that_is_not_the_one_is_asked_nothing():
    def check(peer):
        raise NotLeader(f"a {peer.role}", leader="b:4700")

    made = Conversation()
    made.session = RequestSession(Hello(), lambda: made.now, check=check)
    made.call("a")
    made.session.connection_made()
    made.sent()
    with pytest.raises(NotLeader, match="a follower"):
        made.hear(HELLO_OK._replace(role="follower").encode())
    assert not made.session.is_open
    assert made.sent() == []


@pytest.mark.parametrize("ask", [Conversation.call, Conversation.write, lambda made, name: made.get(name, [b"k"])])
def test_where_the_leader_is_asked_for_its_successor_is_asked_next(ask):
    made = placed("leader")
    ask(made, "a")
    [frame] = made.sent()
    with pytest.raises(NotLeader) as caught:
        made.hear(encode_error(NotLeader("no more", leader="b:4700"), frame.id))
    assert caught.value.leader == "b:4700"
    assert made.answers == {}
    made.session.connection_lost(caught.value)
    made.greet()
    made.now += 1
    assert [again.opcode for again in made.sent()] == [frame.opcode]


def test_what_a_leader_refused_as_it_stepped_down_may_be_written():
    """It may have taken the write, and waited for others; so it goes on as one that may have arrived."""
    made = placed("leader")
    made.write("a")
    [frame] = made.sent()
    with pytest.raises(NotLeader):
        made.hear(encode_error(NotLeader("no more"), frame.id))
    made.session.connection_lost(NotLeader("no more"))
    made.greet()
    assert [name_of(again) for again in made.sent()] == [("a", 1, WriteFlag.RESEND)]
    made.session.connection_lost(NotLeader("no more"))
    made.now += 60
    made.session.expire()
    assert isinstance(made.answers["a"], Unreachable)
    assert made.answers["a"].outcome == "unknown"


def test_answers_beside_a_refusal_are_taken():
    made = placed("leader")
    made.write("a")
    made.call("b")
    call, write = made.sent()
    with pytest.raises(NotLeader):
        made.hear(encode_error(NotLeader("no more"), write.id), encode_json(Opcode.RESULT, {}, call.id))
    assert made.answers == {"b": {}}


def test_a_write_to_a_follower_is_tried_for_a_while_and_surely_did_not_happen():
    made = placed("follower", "follower")
    made.write("a")
    for _ in range(3):
        [frame] = made.sent()
        assert name_of(frame) == ("a", 1, 0)
        made.hear(encode_error(NotLeader("read only", leader="b:4700"), frame.id))
        made.now += 1
    made.now += 10
    made.session.expire()
    assert isinstance(made.answers["a"], NotLeader)


@pytest.mark.parametrize(("state", "role"), [("follower", "follower"), ("any", "follower"), ("any", "leader")])
def test_a_read_leaves_a_node_that_has_changed_its_role(state, role):
    made = placed(state, role)
    made.get("a", [b"k"])
    [frame] = made.sent()
    with pytest.raises(NotLeader):
        made.hear(encode_error(NotLeader("it has another role"), frame.id))


def test_a_read_of_any_node_asks_for_the_role_that_the_same_node_has_now():
    made = placed("any", "leader")
    made.get("a", [b"k"])
    [frame] = made.sent()
    with pytest.raises(NotLeader):
        made.hear(encode_error(NotLeader("it does not lead"), frame.id))
    made.session.connection_lost(NotLeader("it does not lead"))
    made.session.connection_made()
    made.now += 1
    made.sent()
    made.hear(HELLO_OK._replace(role="follower").encode())
    [frame] = made.sent()
    assert Get.decode(frame.body).state == 1


def test_a_write_to_any_node_that_follows_leaves_the_connection():
    made = placed("any", "follower")
    made.write("a")
    [frame] = made.sent()
    made.hear(encode_error(NotLeader("read only", leader="b:4700"), frame.id))
    assert made.session.is_open


@pytest.mark.parametrize(
    ("state", "role", "asked"),
    [("leader", "leader", 0), ("follower", "follower", 1), ("any", "leader", 0), ("any", "follower", 1)],
)
def test_look_ups_say_what_the_node_has_to_be(state, role, asked):
    made = placed(state, role)
    made.get("a", [b"k"])
    [frame] = made.sent()
    assert Get.decode(frame.body).state == asked


def test_a_node_that_is_behind_is_left_with_its_next_answer():
    made = placed("any", "follower")
    made.now += 1
    made.session.leave("behind")
    made.call("a")
    [frame] = made.sent()
    with pytest.raises(NotLeader, match="behind"):
        made.hear(encode_json(Opcode.RESULT, {}, frame.id))
    assert made.answers == {"a": {}}


def test_a_connection_is_used_for_a_while_before_it_is_left():
    made = placed("any", "follower")
    made.session.leave("behind")
    made.call("a")
    [frame] = made.sent()
    made.hear(encode_json(Opcode.RESULT, {}, frame.id))
    assert made.answers == {"a": {}}


@pytest.mark.parametrize(("ask", "told"), [("get", "look-ups at level quorum"), ("write", "writes at level quorum")])
def test_a_request_without_an_answer_is_given_up_with_what_it_may_wait_for(made, ask, told):
    made.get("a", [b"k"]) if ask == "get" else made.write("a")
    made.sent()
    made.now += 60
    made.session.expire()
    assert f"in a set, {told}" in str(made.answers["a"])


# Parts of files


class Parts:
    """A step that fetches two parts of a file of 1,000,000 bytes, and the pieces that came of each."""

    def __init__(self, made, *, seconds=10.0, sizes=(600_000, 400_000), places=None):
        self.content = bytes(range(256)) * 4_000
        self.came = [b""] * len(sizes)
        begins = [sum(sizes[:number]) for number in range(len(sizes))]
        step = FetchParts(
            b"c" * 16, [(b"s" * 16, *part) for part in zip(begins, sizes, strict=True)], self.receive, places
        )
        self.requests = step.queue(made.session, made.note("parts"), made.now + seconds)

    def receive(self, number, piece):
        self.came[number] += piece

    def answer(self, frame):
        asked = SegmentFetch.decode(frame.body)
        return data_header(asked.nbytes, frame.id) + self.content[asked.offset : asked.offset + asked.nbytes]

    def asked(self, made):
        return [SegmentFetch.decode(frame.body)[2:] for frame in made.sent()]


@pytest.mark.parametrize("size", [1, 7, 65_536, 250_000, 10_000_000])
def test_parts_are_handed_over_as_they_arrive(made, size):
    parts = Parts(made, sizes=(600, 400) if size < 10 else (600_000, 400_000))
    made.call("other")
    *frames, other = made.sent()
    data = b"".join(map(parts.answer, frames)) + encode_json(Opcode.RESULT, {}, other.id)
    for begin in range(0, len(data), size):
        made.hear(data[begin : begin + size])
        assert sum(map(len, parts.came)) >= min(begin + size, len(data)) - 150, "only headers and the other answer"
    assert b"".join(parts.came) == parts.content[: sum(map(len, parts.came))]
    assert made.answers == {"parts": sum(map(len, parts.came)), "other": {}}


def test_a_later_connection_is_asked_for_the_rest(made):
    """However early each connection breaks, those behind it go on from there."""
    parts = Parts(made)
    asked = []
    for _ in range(100):
        frames = made.sent()
        asked.append([SegmentFetch.decode(frame.body)[2:] for frame in frames])
        made.hear(b"".join(map(parts.answer, frames))[:60_016])
        if "parts" in made.answers:
            break
        assert made.session.has_progressed
        made.session.connection_lost(Unreachable("cut"))
        made.greet()
    assert asked[:2] == [[(0, 600_000), (600_000, 400_000)], [(60_000, 540_000), (600_000, 400_000)]]
    assert len(asked) == 17
    assert b"".join(parts.came) == parts.content[:1_000_000]


class OnePlace:
    """A buffer for pieces of parts, which is free again at once, and how often it was taken."""

    def __init__(self, nbytes):
        self.buffer = memoryview(bytearray(nbytes))
        self.taken = 0

    def next(self):
        return self.buffer

    def take(self):
        self.taken += 1


def hear_placed(made, data, size):
    """Hands over bytes as a link does: ``size`` at a time, into a place if there is one."""
    while data:
        place = made.session.place()
        if place is None:
            made.hear(data[:size])
            data = data[size:]
            continue
        body, header = place.buffers
        count = min(size, len(body) + len(header), len(data))
        body[: min(count, len(body))] = data[: min(count, len(body))]
        behind = data[len(body) : count]
        header[: len(behind)] = behind
        place.received(count)
        data = data[count:]


@pytest.mark.parametrize("room", [100, 4_096, 1_000_000])
@pytest.mark.parametrize("size", [1, 7, 65_536, 10_000_000])
def test_parts_are_received_into_their_places(made, size, room):
    places = OnePlace(room)
    parts = Parts(made, sizes=(600, 400) if size < 10 else (600_000, 400_000), places=places)
    made.call("other")
    assert made.session.place() is None, "nothing has come"
    *frames, other = made.sent()
    hear_placed(made, b"".join(map(parts.answer, frames)) + encode_json(Opcode.RESULT, {}, other.id), size)
    assert b"".join(parts.came) == parts.content[: sum(map(len, parts.came))]
    assert made.answers == {"parts": sum(map(len, parts.came)), "other": {}}
    assert places.taken or size > 1_000_000, "all comes with the first header"
    assert made.session.place() is None


def test_a_part_that_is_given_up_takes_no_place(made):
    places = OnePlace(1_000)
    parts = Parts(made, places=places)
    first, _ = made.sent()
    data = parts.answer(first)
    made.hear(data[:1_016])
    place = made.session.place()
    place.buffers[0][:] = data[1_016:2_016]
    for request in parts.requests:
        made.session.withdraw(request)
    place.received(1_000)
    assert places.taken == 0
    assert made.session.place() is None
    made.hear(data[2_016:])
    assert sum(map(len, parts.came)) == 1_000


def test_a_place_goes_on_behind_the_bytes_of_an_earlier_connection(made):
    parts = Parts(made, places=OnePlace(50_000))
    for _ in range(100):
        frames = made.sent()
        hear_placed(made, b"".join(map(parts.answer, frames))[:60_016], 30_000)
        if "parts" in made.answers:
            break
        made.session.connection_lost(Unreachable("cut"))
        made.greet()
        assert made.session.place() is None
    assert b"".join(parts.came) == parts.content[:1_000_000]


def test_no_part_is_given_up_while_bytes_of_parts_arrive(made):
    parts = Parts(made, seconds=10.0)
    frames = made.sent()
    data = b"".join(map(parts.answer, frames))
    for begin in range(0, 900_000, 10_000):
        made.now += 9.0
        made.session.expire()
        made.hear(data[begin : begin + 10_000])
    assert not made.answers
    made.now += 5.0
    made.session.postpone(5.0)
    made.now += 9.0
    made.session.expire()
    assert not made.answers
    made.now += 1.0
    made.session.expire()
    assert isinstance(made.answers["parts"], Unreachable)
    made.hear(data[900_000:])
    assert sum(map(len, parts.came)) == 900_000 - 32, "bytes that come too late are dropped"


@pytest.mark.parametrize("size", [10_000, 600_100])
@pytest.mark.parametrize("nbytes", [599_999, 600_001])
def test_a_part_of_another_length(made, nbytes, size):
    parts = Parts(made)
    first, _ = made.sent()
    data = data_header(nbytes, first.id) + bytes(nbytes)
    with pytest.raises(ProtocolError, match="SEGMENT_DATA"):
        collections.deque(made.hear(data[begin : begin + size]) for begin in range(0, len(data), size))
    assert sum(map(len, parts.came)) < 600_000
    assert not made.answers


def test_a_part_that_fails_half_way(made):
    parts = Parts(made)
    frames = made.sent()
    made.hear(parts.answer(frames[0])[:100_000])
    made.session.connection_lost(Unreachable("cut"))
    first, second = made.greet().sent()
    made.hear(encode_error(UnknownCheckpoint("not kept"), first.id))
    assert not made.answers, "the other part is still on its way"
    made.hear(encode_error(UnknownCheckpoint("not kept"), second.id))
    assert isinstance(made.answers["parts"], UnknownCheckpoint)
    assert len(parts.came[0]) == 100_000 - 16


def test_pieces_that_answer_another_request(made):
    made.call("a")
    (frame,) = made.sent()
    data = data_header(100_000, frame.id) + bytes(100_000)
    made.hear(data[:50_000])
    with pytest.raises(ProtocolError):
        made.hear(data[50_000:])


def test_a_part_whose_caller_is_gone_is_dropped(made):
    parts = Parts(made)
    data = b"".join(map(parts.answer, made.sent()))
    made.hear(data[:100_000])
    for request in parts.requests:
        made.session.withdraw(request)
    made.hear(data[100_000:])
    assert sum(map(len, parts.came)) == 100_000 - 16
    assert made.session.idle
    assert not made.answers


class Choice(enum.StrEnum):
    """A level as the options of a command have it."""

    QUORUM = "quorum"


def test_a_level_that_the_node_does_not_offer_is_named_as_it_is_written():
    made = Conversation()
    made.greet()
    with pytest.raises(NotDurable, match=r"^level quorum cannot be given by this node, which offers memory, disk$"):
        made.session.level(Choice.QUORUM)


@pytest.mark.parametrize(("default", "level"), [("", Level.DISK), ("quorum", None), ("disk", None)])
def test_a_write_without_a_level_is_of_level_disk_to_a_node_that_tells_no_default(default, level):
    made = Conversation()
    made.session.connection_made()
    made.sent()
    made.hear(HELLO_OK._replace(default_level=default).encode())
    block = encode_block([b"k"], [b"v"], partition=0)
    made.session.write(made.lanes[0], block, None, made.note("w"), made.now + 10.0)
    [frame] = made.sent()
    assert Write.decode(frame.body).level is level
