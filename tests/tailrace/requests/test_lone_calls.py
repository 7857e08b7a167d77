"""The short way of a look-up of one key against the general one: it may leave one to that, never differ."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace.requests.conversation import BRANCH, FEED, HELLO_OK, Conversation, placed

from tailrace.block.header import KEY_BYTES_MAX
from tailrace.errors import TailraceError, UnknownFeed, Unreachable
from tailrace.model import Item, Level, Version
from tailrace.requests.lone_calls import LONE_ID, Begun
from tailrace.requests.plan import LookUp
from tailrace.requests.request import Reply
from tailrace.wire.messages import Got, Written, encode_error, lone_get

ROW = (Version(3, BRANCH, 7), 1_700_000_000_000_000, b"value")
KEY = b"k"


def warm(state="leader"):
    """A session whose connection has given an answer."""
    made = placed(state, "leader" if state == "leader" else "follower")
    made.get("first", [KEY])
    (sent,) = made.sent()
    made.hear(Got([None]).encode(sent.id))
    return made


def begin(made, key=KEY, level=Level.DISK):
    return made.session.lone.begin(FEED, level, key)


def go_on(made, name, key=KEY):
    """The general way takes over what was begun; its answer has this name."""
    begun = Begun()
    assert begun.reply_to(LookUp(FEED, Level.DISK, [key])) is None
    made.session.lone.go_on(FEED, Level.DISK, key, begun, Reply(), made.now + 10.0)
    assert begun.reply_to(LookUp(FEED, Level.DISK, [b"another"])) is None
    request, reply = begun.reply_to(LookUp(FEED, Level.DISK, [key]))
    assert request is begun.request

    def note():
        if reply.finished:
            made.answers[name] = reply.result if reply.error is None else reply.error

    return note


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.sampled_from(list(Level))), min_size=1, max_size=6))
def test_it_sends_the_frames_of_the_general_way(asked):
    made = warm()
    for key, level in asked:
        assert begin(made, key, level) == lone_get(FEED, level, key, 0, LONE_ID)
        found = made.session.lone.end(Got([ROW]).encode(LONE_ID), key)
        assert found == [Item(key, ROW[2], ROW[0], ROW[1])]
    assert made.session.idle
    assert not made.sent()


def test_the_longest_key():
    key = b"k" * KEY_BYTES_MAX
    assert begin(warm(), key) == lone_get(FEED, Level.DISK, key, 0, LONE_ID)


def heard(frame, *, cuts=(), by_short_way=False):
    """What becomes of a look-up if the session hears ``frame`` in pieces, cut at ``cuts``; and of the connection."""
    made = warm()
    del made.answers["first"]
    note = lambda: None  # noqa: E731
    if by_short_way:
        assert begin(made) is not None
        if (found := made.session.lone.end(frame, KEY)) is not None:
            return {"k": found}, made.session.has_progressed, made.session.idle, []
        note = go_on(made, "k")
    else:
        made.session._next_id = LONE_ID
        made.get("k", [KEY])
        made.sent()
    try:
        for start, end in itertools.pairwise((0, *cuts, len(frame))):
            made.hear(frame[start:end])
    except TailraceError as error:
        note()
        return made.answers, type(error), str(error)
    note()
    return str(made.answers), made.session.has_progressed, made.session.idle, [frame.body for frame in made.sent()]


@pytest.mark.parametrize("row", [ROW, (*ROW[:2], b""), None])
def test_each_answer_has_the_verdict_of_the_general_way(row):
    right = Got([row]).encode(LONE_ID)
    assert heard(right, by_short_way=True)[0] == {"k": [None if row is None else Item(KEY, row[2], row[0], row[1])]}
    changed = [right + right, right[:-1], right + b"x", b"x"]
    for place, bits in itertools.product(range(len(right)), (1, 0xFF)):
        changed.append(right[:place] + bytes([right[place] ^ bits]) + right[place + 1 :])
    changed += [
        Got([row]).encode(1),
        Got([row, row]).encode(LONE_ID),
        Written(0, BRANCH, 7, 7).encode(LONE_ID),
        encode_error(UnknownFeed("dropped"), LONE_ID),
        encode_error(UnknownFeed("dropped")),
    ]
    for frame in changed:
        by_short_way, generally = heard(frame, by_short_way=True), heard(frame)
        assert by_short_way[1:] == generally[1:], frame.hex()
        assert str(by_short_way[0]) == str(generally[0]), frame.hex()


def test_an_answer_in_pieces():
    right = Got([ROW]).encode(LONE_ID)
    for cut in (1, 16, 20, len(right) - 1):
        made = warm()
        begin(made)
        assert made.session.lone.end(right[:cut], KEY) is None
        note = go_on(made, "k")
        made.hear(right[:cut])
        made.hear(right[cut:])
        note()
        assert made.answers["k"] == [Item(KEY, ROW[2], ROW[0], ROW[1])]
        assert begin(made) is not None


def closes(made):
    made.session.fail_all(Unreachable("closed"))


def leaves(made):
    made.now += 10.0
    made.session.leave("it is behind")


def says_noop(made):
    made.session.noop()


def hears_half_a_frame(made):
    made.hear(encode_error(UnknownFeed("x"), 9)[:20])


def begins_another(made):
    begin(made, b"another")


def sends_a_call(made):
    made.call("a")
    made.sent()


def gives_up_what_was_sent(made):
    made.get("a", [KEY], seconds=1.0)
    made.sent()
    made.now += 2.0
    made.session.expire()


def loses_the_connection(made):
    made.session.connection_lost(Unreachable("lost"))


def connects_anew(made):
    loses_the_connection(made)
    made.session.connection_made()
    made.sent()
    made.hear(HELLO_OK.encode())


@pytest.mark.parametrize(
    "what",
    [
        lambda made: made.call("a"),
        lambda made: made.get("a", [KEY]),
        lambda made: made.write("a"),
        sends_a_call,
        gives_up_what_was_sent,
        says_noop,
        hears_half_a_frame,
        begins_another,
        closes,
        leaves,
        loses_the_connection,
        connects_anew,
    ],
)
def test_a_session_that_does_something_else_takes_the_general_way(what):
    made = warm()
    what(made)
    assert begin(made) is None


@pytest.mark.parametrize("state", ["follower", "any"])
def test_a_read_of_a_follower_takes_the_general_way(state):
    assert begin(warm(state)) is None


def test_a_first_look_up_takes_the_general_way():
    """The connection counts as one that has been of use by an answer of the general way."""
    assert begin(Conversation().greet()) is None


def test_the_answer_to_a_look_up_whose_caller_has_gone_is_ignored():
    made = warm()
    begin(made)
    assert begin(made) is None, "until its answer has come: it could pass for that of the next"
    made.get("k", [b"other"])
    (sent,) = made.sent()
    assert sent.id != LONE_ID
    made.hear(Got([ROW]).encode(LONE_ID), Got([None]).encode(sent.id))
    assert made.answers["k"] == [None]
    assert begin(made) is not None


def test_it_is_asked_again_after_a_lost_connection():
    made = warm()
    begin(made)
    note = go_on(made, "k")
    assert not made.sent(), "it was sent"
    connects_anew(made)
    (sent,) = made.sent()
    made.hear(Got([ROW]).encode(sent.id))
    note()
    assert made.answers["k"] == [Item(KEY, ROW[2], ROW[0], ROW[1])]


def test_it_is_asked_anew_if_another_call_has_dropped_its_answer():
    """A handler of signals makes a call while the look-up waits, and reads its answer."""
    made = warm()
    begin(made)
    made.hear(Got([ROW]).encode(LONE_ID))
    note = go_on(made, "k")
    (sent,) = made.sent()
    made.hear(Got([ROW]).encode(sent.id))
    note()
    assert made.answers["k"] == [Item(KEY, ROW[2], ROW[0], ROW[1])]
    assert made.session.lone.end(Got([ROW]).encode(LONE_ID), KEY) is None, "nothing was begun"


def test_it_is_given_up_in_time_and_when_the_client_closes():
    for end in (gives_up, closes):
        made = warm()
        begin(made)
        note = go_on(made, "k")
        end(made)
        note()
        assert isinstance(made.answers["k"], Unreachable)
        assert made.session.idle


def gives_up(made):
    made.now += 11.0
    made.session.expire()


def test_a_closed_client_refuses_what_goes_on():
    made = warm()
    begin(made)
    closes(made)
    note = go_on(made, "k")
    note()
    assert isinstance(made.answers["k"], Unreachable)
