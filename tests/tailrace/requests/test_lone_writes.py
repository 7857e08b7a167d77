"""The short way of a lone put or deletion against the general one: it may leave one to that, never differ."""

from __future__ import annotations

import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace.requests.conversation import BRANCH, FEED, HELLO_OK, Conversation, placed
from tests.tailrace.requests.test_lone_calls import (
    begin as begin_look_up,
)
from tests.tailrace.requests.test_lone_calls import (
    closes,
    connects_anew,
    gives_up_what_was_sent,
    hears_half_a_frame,
    leaves,
    loses_the_connection,
    says_noop,
    sends_a_call,
)
from tests.tailrace.requests.test_write_queue_model import LEVELS, RETRY_FOR, VERDICTS, Sent, World, WriteQueueModel
from tests.tiers import examples

from tailrace.block import Block
from tailrace.block.header import KEY_BYTES_MAX
from tailrace.errors import NotDurable, TailraceError, TooLarge, UnknownFeed, Unreachable
from tailrace.model import Resolved, VersionRange
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests.lane import Lanes
from tailrace.requests.lone_calls import LONE_ID, LONE_VALUE_BYTES_MAX, LoneWrites
from tailrace.requests.offered_levels import OfferedLevels
from tailrace.requests.request_queue import RequestQueue
from tailrace.wire.frames import frame_id
from tailrace.wire.messages import TRACING_MODULE, Got, Write, WriteFlag, Written, encode_error

PARTITIONS = 2
RESOLVED = Resolved(FEED, PARTITIONS)
KEY = b"k"
PARTITION = partition_of_hash(key_hash(KEY), PARTITIONS)


def warm(state="leader"):
    """A session whose connection has given an answer."""
    made = placed(state, "leader" if state == "leader" else "follower")
    made.get("first", [KEY])
    (sent,) = made.sent()
    made.hear(Got([None]).encode(sent.id))
    del made.answers["first"]
    ids = itertools.count(1)
    made.lanes = Lanes(lambda: next(ids))
    return made


def begin(made, name="k", key=KEY, value=b"v", level="disk"):
    return made.session.lone_writes.begin(
        RESOLVED, made.lanes, key, value, level, made.note(name), made.now, made.now + 10.0
    )


def write_generally(made, name="k", key=KEY, value=b"v", level="disk"):
    hash_ = key_hash(key)
    lane = made.lanes[FEED, partition_of_hash(hash_, PARTITIONS)]
    wanted = made.session.levels.of_write(level)
    return made.session.write_row(lane, key, value, hash_, wanted, made.note(name), made.now + 10.0)


ROWS = st.tuples(
    st.binary(min_size=1, max_size=40),
    st.none() | st.binary(max_size=300) | st.integers(0, LONE_VALUE_BYTES_MAX).map(lambda size: b"v" * size),
    st.sampled_from([None, "memory", "disk"]),
)


@given(st.lists(ROWS, min_size=1, max_size=6))
def test_it_sends_the_frames_of_the_general_way(rows):
    short, general = warm(), warm()
    for seq, (key, value, level) in enumerate(rows, 1):
        row = begin(short, seq, key, value, level)
        general.session._next_id = LONE_ID
        write_generally(general, seq, key, value, level)
        assert row.frame == b"".join(general.session.data_to_send())
        assert row.block.tobytes() == row.frame[-len(row.block.tobytes()) :]
        answer = Written(row.lane.partition, BRANCH, seq, seq).encode(LONE_ID)
        assert short.session.lone_writes.end(row, answer)
        general.hear(answer)
        assert short.session.idle
        assert general.session.idle
    assert short.answers == general.answers
    assert not short.sent()


def test_the_longest_key_and_value():
    for key, value in ((b"k" * KEY_BYTES_MAX, b"v"), (KEY, b"v" * LONE_VALUE_BYTES_MAX)):
        assert begin(warm(), key=key, value=value) is not None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k", b"v"),
        (b"", b"v"),
        (b"k" * (KEY_BYTES_MAX + 1), b"v"),
        (bytearray(b"k"), b"v"),
        (KEY, "v"),
        (KEY, b"v" * (LONE_VALUE_BYTES_MAX + 1)),
    ],
)
def test_other_rows_are_left_to_the_general_way(key, value):
    made = warm()
    assert begin(made, key=key, value=value) is None
    assert made.session.idle
    assert begin(made) is not None


@pytest.mark.parametrize("level", ["quorum", "no level", 1, []])
def test_a_level_that_the_node_does_not_offer_is_left_to_the_general_way(level):
    made = warm()
    assert begin(made, level=level) is None
    assert made.session.idle
    assert begin(made) is not None


def heard(frame, *, by_short_way=False):
    """What becomes of a write if the session hears ``frame``, and of the connection."""
    made = warm()
    if by_short_way:
        row = begin(made)
        is_taken = made.session.lone_writes.end(row, frame)
    else:
        made.session._next_id = LONE_ID
        write_generally(made)
        made.sent()
        is_taken = False
    try:
        if not is_taken:
            made.hear(frame)
    except TailraceError as error:
        return made.answers, type(error), str(error)
    made.now += 1.0
    again = [(Write.decode(frame.body).flags, bytes(frame.body)) for frame in made.sent()]
    queue = made.session._writes
    counts = queue._woken, queue._is_last, queue._doubts, queue._left_together, queue.gathers
    return {name: str(told) for name, told in made.answers.items()}, made.session.idle, again, counts


def test_each_answer_has_the_verdict_of_the_general_way():
    right = Written(PARTITION, BRANCH, 7, 7).encode(LONE_ID)
    assert heard(right, by_short_way=True)[0] == {"k": str(VersionRange(PARTITION, BRANCH, 7, 7))}
    changed = [right, right + right, right[:-1], right + b"x", b"x"]
    for place, bits in itertools.product(range(len(right)), (1, 0xFF)):
        changed.append(right[:place] + bytes([right[place] ^ bits]) + right[place + 1 :])
    changed += [
        Written(PARTITION, BRANCH, 7, 7).encode(1),
        Written(PARTITION, BRANCH, 0, 0).encode(LONE_ID),
        Written(PARTITION, BRANCH, 7, 8).encode(LONE_ID),
        Written(PARTITION, BRANCH, 8, 7).encode(LONE_ID),
        Written(1 - PARTITION, BRANCH, 7, 7).encode(LONE_ID),
        Got([None]).encode(LONE_ID),
        encode_error(UnknownFeed("dropped"), LONE_ID),
        encode_error(NotDurable("later"), LONE_ID),
        encode_error(UnknownFeed("dropped")),
    ]
    for frame in changed:
        by_short_way, generally = heard(frame, by_short_way=True), heard(frame)
        assert by_short_way == generally, frame.hex()


def test_an_answer_in_pieces():
    right = Written(PARTITION, BRANCH, 7, 7).encode(LONE_ID)
    for cut in (1, 16, 20, len(right) - 1):
        made = warm()
        row = begin(made)
        assert not made.session.lone_writes.end(row, right[:cut])
        made.hear(right[:cut])
        made.hear(right[cut:])
        assert made.answers["k"] == VersionRange(PARTITION, BRANCH, 7, 7)
        assert begin(made, "next") is not None


def writes_a_row(made):
    write_generally(made, "another")


def has_sent_a_row(made):
    writes_a_row(made)
    made.sent()


def has_sent_to_the_other_partition(made):
    keys = (b"%d" % number for number in range(100))
    key = next(key for key in keys if partition_of_hash(key_hash(key), PARTITIONS) != PARTITION)
    write_generally(made, "another", key=key)
    made.sent()


def begins_another(made):
    begin(made, "another")


def traces(made):
    made.patch.setitem(sys.modules, TRACING_MODULE, None)


@pytest.mark.parametrize(
    "what",
    [
        writes_a_row,
        has_sent_a_row,
        has_sent_to_the_other_partition,
        begins_another,
        begin_look_up,
        lambda made: made.call("a"),
        lambda made: made.get("a", [KEY]),
        sends_a_call,
        gives_up_what_was_sent,
        says_noop,
        hears_half_a_frame,
        closes,
        leaves,
        loses_the_connection,
        connects_anew,
        traces,
    ],
)
def test_a_session_that_does_something_else_takes_the_general_way(what, monkeypatch):
    made = warm()
    made.patch = monkeypatch
    what(made)
    assert begin(made) is None


def test_a_first_write_takes_the_general_way():
    """The connection counts as one that has been of use by an answer of the general way."""
    made = Conversation().greet()
    made.lanes = Lanes(itertools.count(1).__next__)
    assert begin(made) is None


def test_rows_of_callers_that_an_answer_has_woken_leave_together():
    made = warm()
    for name in ("a", "b"):
        write_generally(made, name)
    (bundle,) = made.sent()
    made.hear(Written(PARTITION, BRANCH, 1, 2).encode(bundle.id))
    assert begin(made) is None, "the other caller may put a row in the same turn"


def test_other_requests_beside_it_have_their_answers_by_the_general_way():
    made = warm()
    row = begin(made)
    write_generally(made, "next")
    (sent,) = made.sent()
    assert sent.id != LONE_ID
    answer = Written(PARTITION, BRANCH, 1, 1).encode(LONE_ID)
    assert not made.session.lone_writes.end(row, answer)
    made.hear(answer, Written(PARTITION, BRANCH, 2, 2).encode(sent.id))
    assert {name: told.first_seq for name, told in made.answers.items()} == {"k": 1, "next": 2}


def test_the_answer_to_a_write_whose_caller_has_gone_is_ignored():
    made = warm()
    made.session.withdraw(begin(made))
    assert begin(made, "next") is None, "until its answer has come: it could pass for that of the next"
    made.hear(Written(PARTITION, BRANCH, 1, 1).encode(LONE_ID))
    assert not made.answers
    row = begin(made, "next")
    assert row.block.header.producer_seq == 2, "the number of the first one is taken"
    assert made.session.lone_writes.end(row, Written(PARTITION, BRANCH, 2, 2).encode(LONE_ID))


@pytest.mark.parametrize("is_gone", [False, True])
def test_it_is_sent_again_after_a_lost_connection(is_gone):
    made = warm()
    row = begin(made)
    first = Block.parse(row.frame[-len(row.block.tobytes()) :])
    if is_gone:
        made.session.withdraw(row)
    assert not made.sent(), "it was sent"
    connects_anew(made)
    if is_gone:
        assert not made.sent()
        assert made.session.idle
        return
    (sent,) = made.sent()
    write = Write.decode(sent.body)
    assert write.flags == WriteFlag.RESEND
    assert bytes(write.block) == first.tobytes()
    made.hear(Written(PARTITION, BRANCH, 1, 1).encode(sent.id))
    assert made.answers["k"] == VersionRange(PARTITION, BRANCH, 1, 1)


def test_it_is_given_up_in_time_and_when_the_client_closes():
    for what in ("time", "close"):
        made = warm()
        begin(made)
        if what == "time":
            made.now += 11.0
            made.session.expire()
        else:
            closes(made)
        assert isinstance(made.answers["k"], Unreachable)
        assert what == "close" or made.answers["k"].outcome == "unknown"
        assert made.session.idle


def test_an_error_of_the_node_is_that_of_the_general_way():
    made = warm()
    begin(made)
    made.hear(encode_error(TooLarge("no"), LONE_ID))
    assert isinstance(made.answers["k"], TooLarge)
    row = begin(made, "next")
    assert row.block.header.producer_seq == 1, "the number is free again"


class LoneWorld(World):
    """Each row that can leaves by the short way, if that is ``on``; otherwise it is sent at once, too."""

    def __init__(self, *, on=True):
        super().__init__()
        self.on = on
        self.by_id = {}
        requests, levels = RequestQueue(lambda: self.now, random.random), OfferedLevels()
        levels.greeted(HELLO_OK)
        self.lone = LoneWrites(self.by_id, requests, self.queue, levels, lambda: True)
        self.begun = self.ended = 0

    def put(self, count, level, *, bad=False):
        if count > 1:
            super().put(count, level, bad=bad)
            return
        number = next(self.numbers)
        key = b"%s%d" % (b"bad" if bad else b"k", number)
        self.numbers = itertools.chain([number], self.numbers)
        lanes = {(bytes(16), 0): self.lane}
        text = None if level is None else level.name.lower()
        row = None
        if self.on:
            row = self.lone.begin(
                Resolved(bytes(16), 1),
                lanes,
                key,
                b"v",
                text,
                lambda versions, error: self.done(key, versions, error),
                self.now,
                self.now + RETRY_FOR,
            )
        if row is None:
            super().put(1, level, bad=bad)
            self.send()
            return
        next(self.numbers)
        self.begun += 1
        assert frame_id(row.frame) == LONE_ID
        self.rows[key] = row
        sent = Sent(row)
        self.sent_once.add(key)
        self.log.append((self.now, sent.block.tobytes(), row.resend))
        self.to_node.append(sent)

    def answer(self, count):
        for _ in range(min(count, len(self.to_client))):
            sent, answer = self.to_client[0]
            row = self.by_id.get(LONE_ID)
            if row is None or sent.request is not row or sent.resend:
                super().answer(1)
                continue
            if isinstance(answer, VersionRange) and self.lone.end(row, Written(*answer).encode(LONE_ID)):
                self.ended += 1
                self.to_client.pop(0)
                assert not self.by_id
                continue
            del self.by_id[LONE_ID]
            super().answer(1)

    def lose_link(self, arriving):
        super().lose_link(arriving)
        self.by_id.clear()


class LoneWriteModel(WriteQueueModel):
    def __init__(self):
        super().__init__()
        self.world = LoneWorld()


LoneWriteModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestLoneWriteModel = LoneWriteModel.TestCase


def trace(seed, *, on):
    """Most rows have their answer before the next one."""
    rnd, world = random.Random(seed), LoneWorld(on=on)
    for _ in range(20):
        world.now += 0.2
        world.put(rnd.choice([1, 1, 1, 2]), rnd.choice(LEVELS), bad=rnd.random() < 0.1)
        world.send()
        match rnd.randrange(12):
            case 0:
                world.lose_link(rnd.randrange(2))
            case 1:
                world.write()
            case 2:
                world.wait(rnd.choice([5.0, 2_000.0]))
            case 3:
                world.withdraw(0)
            case 4:
                world.arrive(rnd.choice(VERDICTS), 1)
        world.queue.expect_none()  # as a session does before each read
        world.arrive(None, 20)
        world.answer(20)
    world.finish()
    return world


def test_the_same_blocks_leave_in_the_same_order_as_in_general():
    begun = ended = 0
    for seed in range(examples(100)):
        general, found = trace(seed, on=False), trace(seed, on=True)
        assert found.log == general.log, seed
        assert found.node.keys == general.node.keys
        assert {key: str(told) for key, told in found.results.items()} == {
            key: str(told) for key, told in general.results.items()
        }
        begun, ended = begun + found.begun, ended + found.ended
    assert ended > 3 * examples(100)
    assert begun > ended + examples(100) // 4, "many of them go on by the general way"
