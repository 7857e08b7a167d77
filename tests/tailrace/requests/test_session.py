"""The requests of a client against frames that are made by hand."""

import contextlib
import itertools
import json
import math

import pytest
from tests.tailrace.requests.conversation import BRANCH, FEED, HELLO_OK, Conversation, name_of, placed, written

from tailrace.errors import (
    Forbidden,
    NoSpace,
    NotDurable,
    NotLeader,
    Overloaded,
    ProtocolError,
    TailraceError,
    TooLarge,
    UnknownFeed,
    Unreachable,
    VersionConflict,
)
from tailrace.model import Item, Level, Version, VersionRange
from tailrace.model.hashing import key_hash
from tailrace.requests.session import RequestSession
from tailrace.requests.write_queue import CROWDED_BLOCKS
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Got, Hello, Write, WriteFlag, Written, encode_error
from tailrace.wire.opcodes import Opcode


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
    assert [name_of(frame) for frame in made.sent()] == [("also early", 1, 0), "early"]


def test_a_request_that_no_node_accepts_fails_alone(made):
    """Sent, it would end the connection, and with it whatever others have asked, again and again."""
    made.call("a" * 5_000)
    made.call("b")
    assert [name_of(frame) for frame in made.sent()] == ["b"]
    assert isinstance(made.answers["a" * 5_000], TooLarge)
    made.session.connection_lost(Unreachable("gone"))
    assert [name_of(frame) for frame in made.greet().sent()] == ["b"]


def test_a_request_that_cannot_be_encoded_fails_alone(made):
    """A name that is no text, for example: an error here would be that of all who share the client."""
    made.call(b"a")
    made.call("b")
    assert [name_of(frame) for frame in made.sent()] == ["b"]
    assert "not JSON serializable" in str(made.answers[b"a"])
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
    made.hear(encode_json(Opcode.RESULT, {}, frames[4].id), written(frames[0]))
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    again = [name_of(frame) for frame in made.sent()]
    assert again == [("B", 2, WriteFlag.RESEND), ("C", 3, WriteFlag.RESEND), "a", "c"]
    assert set(made.answers) == {"b", "A"}


def test_a_look_up_is_asked_again_behind_the_writes_that_came_before_it(made):
    """Sent before them, it would not see a row that was on its way when it began."""
    made.write("put")
    made.get("get", [b"k"])
    assert [frame.opcode for frame in made.sent()] == [Opcode.WRITE, Opcode.GET]
    made.session.connection_lost(Unreachable("cut"))
    assert [frame.opcode for frame in made.greet().sent()] == [Opcode.WRITE, Opcode.GET]


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
    write, call = made.sent()
    made.hear(encode_error(UnknownFeed("no a"), call.id))
    made.hear(encode_error(VersionConflict("no b", current=Version(0, BRANCH, 3)), write.id))
    assert isinstance(made.answers["a"], UnknownFeed)
    assert made.answers["b"].current == Version(0, BRANCH, 3)


def test_what_is_refused_for_now_is_asked_again_after_a_while(made):
    made.call("a")
    made.write("b")
    write, call = made.sent()
    made.hear(encode_error(Overloaded("busy"), call.id), encode_error(NoSpace("full"), write.id))
    assert made.sent() == []
    made.now += 1.0
    assert [name_of(frame) for frame in made.sent()] == [("b", 1, 0), "a"]
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


def test_rows_that_wait_for_others_leave_before_a_look_up_that_came_behind_them(made):
    lane = made.lanes[0]
    for number in range(CROWDED_BLOCKS + 2):
        key = b"%d" % number
        made.session.write_row(lane, key, b"v", key_hash(key), Level.DISK, made.note(key), made.now + 10.0)
        if not made.session.gathers:
            assert [frame.opcode for frame in made.sent()] == [Opcode.WRITE]
    assert made.session.gathers
    made.get("get", [key])
    assert [frame.opcode for frame in made.sent()] == [Opcode.WRITE, Opcode.GET]


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
    write, call = made.sent()
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


def test_a_write_to_any_node_that_follows_leaves_the_connection():
    made = placed("any", "follower")
    made.write("a")
    [frame] = made.sent()
    made.hear(encode_error(NotLeader("read only", leader="b:4700"), frame.id))
    assert made.session.is_open


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


def heard(frame, cuts):
    """What becomes of a put if the session hears ``frame`` in pieces, cut at ``cuts``; and of the connection."""
    made = Conversation().greet()
    made.write("k")
    (sent,) = made.sent()
    assert sent.id == 1
    try:
        for start, end in itertools.pairwise((0, *cuts, len(frame))):
            made.hear(frame[start:end])
    except TailraceError as error:
        return made.answers, type(error), str(error)
    return made.answers, made.session.has_progressed, made.session.idle


def test_an_answer_that_comes_alone_has_the_verdict_of_one_that_comes_in_pieces():
    """The one is read by one look, the other in the general way. Each byte is changed, in two ways."""
    right = Written(0, BRANCH, 7, 7).encode(1)
    assert heard(right, ()) == ({"k": VersionRange(0, BRANCH, 7, 7)}, True, True)
    changed = [right]
    for place, bits in itertools.product(range(len(right)), (1, 0xFF)):
        changed.append(right[:place] + bytes([right[place] ^ bits]) + right[place + 1 :])
    changed += [
        Written(1, BRANCH, 7, 7).encode(1),
        Written(0, BRANCH, 8, 7).encode(1),
        Written(0, BRANCH, 7, 7).encode(2),
    ]
    for frame in changed:
        assert heard(frame, ()) == heard(frame, (20,)), frame.hex()


ROW = (Version(3, BRANCH, 7), 1_700_000_000_000_000, b"value")


def heard_of_look_up(frame, cuts, *, is_write=False, keys=(b"k",)):
    """What becomes of a look-up, or of a put, if the session hears ``frame`` in pieces, as `heard`."""
    made = Conversation().greet()
    made.write("k") if is_write else made.get("k", list(keys))
    made.sent()
    try:
        for start, end in itertools.pairwise((0, *cuts, len(frame))):
            made.hear(frame[start:end])
    except TailraceError as error:
        return made.answers, type(error), str(error)
    return made.answers, made.session.has_progressed, made.session.idle, [frame.body for frame in made.sent()]


@pytest.mark.parametrize("row", [ROW, (*ROW[:2], b""), None])
def test_a_row_that_comes_alone_has_the_verdict_of_one_that_comes_in_pieces(row):
    """The one is read by one look, the other in the general way. Each byte is changed, in two ways."""
    right = Got([row]).encode(1)
    item = None if row is None else Item(b"k", row[2], row[0], row[1])
    assert heard_of_look_up(right, ()) == ({"k": [item]}, True, True, [])
    changed = [right, right + right]
    for place, bits in itertools.product(range(len(right)), (1, 0xFF)):
        changed.append(right[:place] + bytes([right[place] ^ bits]) + right[place + 1 :])
    changed += [encode_frame(Opcode.GOT, body, 1) for body in (right[16:] + b"x", right[16:-1])]
    changed += [Got([row]).encode(2), Got([row, row]).encode(1), encode_frame(Opcode.GOT, right[16:], 1, 1)]
    for frame in changed:
        assert heard_of_look_up(frame, ()) == heard_of_look_up(frame, (20,)), frame.hex()


@pytest.mark.parametrize(
    ("frame", "options"),
    [
        (Got([ROW]).encode(1), {"is_write": True}),
        (Written(0, BRANCH, 7, 7).encode(1), {}),
        (Got([ROW]).encode(1), {"keys": (b"k", b"l")}),
    ],
)
def test_an_answer_alone_to_another_request_has_the_general_verdict(frame, options):
    assert heard_of_look_up(frame, (), **options) == heard_of_look_up(frame, (20,), **options)


def test_a_row_of_a_look_up_that_was_given_up_is_ignored():
    made = Conversation().greet()
    made.get("k", [b"k"], seconds=1.0)
    (sent,) = made.sent()
    made.now += 2.0
    made.session.expire()
    error = made.answers["k"]
    made.hear(Got([ROW]).encode(sent.id))
    assert isinstance(error, Unreachable)
    assert made.answers == {"k": error}
    assert made.session.idle


def test_an_answer_to_a_row_that_was_given_up_is_ignored():
    made = Conversation().greet()
    made.write("k", seconds=1.0)
    (sent,) = made.sent()
    made.now += 2.0
    made.session.expire()
    assert isinstance(made.answers["k"], Unreachable)
    made.hear(written(sent))
    made.hear(encode_error(VersionConflict("late", current=None), sent.id))
    assert made.session.idle
