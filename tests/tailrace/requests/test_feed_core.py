"""The plans of a feed, step by step: a get that waits for a version, and the ids of feeds."""

from __future__ import annotations

import random

import pytest

from tailrace.errors import UnknownFeed, Unreachable
from tailrace.model import Item, Put, Resolved, Version, VersionRange
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests.client_core import FEEDS_KNOWN_MAX, ClientCore
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.plan import Call, LookUp, Pause, WriteBlock, WriteBlocks, WriteRow
from tailrace.wire.opcodes import Opcode

FEED_ID, OLD, NEW = b"f" * 16, b"o" * 16, b"n" * 16
PARTITION = partition_of_hash(key_hash(b"k"), 2)
VERSION = Version(PARTITION, OLD, 7)
OLD_LOG = [[OLD.hex(), 1, 0]]
NEW_LOG = [[NEW.hex(), 2, 5], [OLD.hex(), 1, 0]]


def partitions(high_seq, log, count=2):
    """A node's partition map, if each partition has come to ``high_seq`` in the history of ``log``."""
    of_each = [{"id": id, "high_seq": high_seq, "log": log} for id in range(count)]
    return {"feed": {"feed_id": FEED_ID.hex()}, "partitions": of_each}


def item(seq, branch=OLD):
    return Item(b"k", b"v%d" % seq, Version(PARTITION, branch, seq), 0)


def client_core(state="leader"):
    return ClientCore(
        "tailrace://127.0.0.1",
        token=None,
        name=None,
        connect_timeout=1,
        retry_for=1,
        state=state,
        clock=float,
        source=random.Random(0),
        new_session=str,
    )


class Get:
    """A ``get(b"k", at_least=VERSION)`` whose steps the test answers."""

    def __init__(self, state):
        self.client = client_core(state)
        feed = FeedCore(self.client, "orders")
        feed.resolved = Resolved(FEED_ID, 2)
        self.client.session._levels = {"disk": 1}
        self._plan = feed.get(b"k", "disk", VERSION)
        self.step = next(self._plan)
        self.result = None

    def answer(self, value=None):
        try:
            self.step = self._plan.send(value)
        except StopIteration as end:
            self.step, self.result = None, end.value

    def look_up(self, found):
        """Answers the map and the look-up, as a node does that had come to the version before the look-up."""
        assert isinstance(self.step, Call)
        self.answer(partitions(7, OLD_LOG))
        assert isinstance(self.step, LookUp)
        self.answer([found])


@pytest.mark.parametrize("state", ["leader", "follower", "any"])
@pytest.mark.parametrize("seq", [7, 9])
def test_an_answer_that_proves_the_version_is_taken(state, seq):
    get = Get(state)
    get.look_up(item(seq))
    assert get.result == item(seq)


@pytest.mark.parametrize("state", ["leader", "follower", "any"])
@pytest.mark.parametrize("found", [None, item(3)])
@pytest.mark.parametrize("later", [partitions(5, OLD_LOG), partitions(9, NEW_LOG)])
def test_a_node_that_rolls_the_version_back_before_the_look_up_is_asked_again(state, found, later):
    """The key is another one's, or deleted: only the history tells whether the answer has the version."""
    get = Get(state)
    get.look_up(found)
    get.answer(later)
    assert isinstance(get.step, Pause)
    get.answer()
    get.look_up(found)
    get.answer(partitions(9, OLD_LOG))
    assert get.result == found


@pytest.mark.parametrize("state", ["leader", "follower", "any"])
def test_a_connection_that_breaks_before_each_look_up_ends_with_the_time_of_the_call(state):
    get = Get(state)
    for _ in range(3):
        get.client.session.connections += 1
        assert isinstance(get.step, Call)
        get.answer(partitions(7, OLD_LOG))
        get.client.session.connections += 1
        get.answer([item(7)])
        assert isinstance(get.step, Pause)
        get.step.require(get.step.seconds)
        with pytest.raises(Unreachable, match="lost or rolled back"):
            get.step.require(get.step.seconds / 2)
        get.answer()


def test_a_version_that_a_node_has_not_come_to_is_told_with_its_branch_as_digits():
    get = Get("any")
    get.answer(partitions(5, OLD_LOG))
    assert get.step.reason == f"the node has not come to seq 7 of branch {OLD.hex()} of partition {PARTITION}"


CALLS = {
    "put": lambda feed: feed.put(b"k", b"v", None, None, False),
    "delete": lambda feed: feed.delete(b"k", None, None),
    "write": lambda feed: feed.write([Put(b"k", b"v")], None),
    "get_many": lambda feed: feed.get_many([b"k"], "disk"),
}
ANSWERS = {"put": VersionRange(0, OLD, 1, 1), "delete": VersionRange(0, OLD, 1, 1), "write": {}, "get_many": [None]}


def asked_of(step):
    """The id of the feed that a step is for; the opcode if it asks for the id."""
    if isinstance(step, Call):
        return step.opcode
    if isinstance(step, WriteBlocks):
        return step.blocks[0][0].feed_id
    return step.lane.feed_id if isinstance(step, WriteBlock | WriteRow) else step.feed_id


@pytest.mark.parametrize("call", CALLS)
def test_a_second_handle_of_a_client_does_not_ask_for_the_feed_again(call):
    client = client_core()
    first = CALLS[call](FeedCore(client, "orders"))
    assert asked_of(next(first)) is Opcode.PARTITIONS
    assert asked_of(first.send(partitions(7, OLD_LOG))) == FEED_ID
    second = CALLS[call](FeedCore(client, "orders"))
    assert asked_of(next(second)) == FEED_ID
    with pytest.raises(StopIteration):
        second.send(ANSWERS[call])
    assert asked_of(next(CALLS[call](FeedCore(client, "others")))) is Opcode.PARTITIONS


@pytest.mark.parametrize("call", CALLS)
def test_a_new_handle_asks_itself_if_what_another_one_knew_is_gone(call):
    client = client_core()
    client.know("orders", Resolved(OLD, 4))
    plan = CALLS[call](FeedCore(client, "orders"))
    assert asked_of(next(plan)) == OLD
    assert asked_of(plan.throw(UnknownFeed("no feed of this id"))) is Opcode.PARTITIONS
    assert asked_of(plan.send(partitions(7, OLD_LOG))) == FEED_ID
    with pytest.raises(UnknownFeed, match="dropped meanwhile"):
        plan.throw(UnknownFeed("dropped meanwhile"))
    assert client.known("orders") is None


def test_a_new_handle_asks_itself_if_a_version_is_not_of_the_partition_that_another_one_knew():
    """The feed was dropped and made again with more partitions: its versions are right, and what is known is not."""
    key = next(key for key in (b"%d" % number for number in range(99)) if partition_of_hash(key_hash(key), 4) == 3)
    client = client_core()
    client.know("orders", Resolved(OLD, 1))
    plan = FeedCore(client, "orders").put(key, b"v", None, Version(3, NEW, 7), False)
    assert asked_of(next(plan)) is Opcode.PARTITIONS
    assert asked_of(plan.send(partitions(7, NEW_LOG, 4))) == FEED_ID
    assert client.known("orders") == Resolved(FEED_ID, 4)


def test_a_version_of_another_partition_is_an_error_once_the_new_handle_has_asked():
    client = client_core()
    client.know("orders", Resolved(FEED_ID, 2))
    plan = FeedCore(client, "orders").put(b"k", b"v", None, VERSION._replace(partition=1 - PARTITION), False)
    assert asked_of(next(plan)) is Opcode.PARTITIONS
    with pytest.raises(ValueError, match="the version is of"):
        plan.send(partitions(7, OLD_LOG))


def test_a_handle_asks_again_after_a_version_was_not_of_the_partition_that_it_knew():
    client = client_core()
    feed = FeedCore(client, "orders")
    feed.resolved = Resolved(OLD, 2)
    version = VERSION._replace(partition=1 - PARTITION)
    with pytest.raises(ValueError, match="the version is of"):
        next(feed.put(b"k", b"v", None, version, False))
    assert asked_of(next(feed.put(b"k", b"v", None, version, False))) is Opcode.PARTITIONS


def test_a_batch_that_can_be_read_only_once_is_written_whole_after_the_feed_was_asked_for():
    client = client_core()
    client.know("orders", Resolved(OLD, 2))
    plan = FeedCore(client, "orders").write((Put(b"%d" % number, b"v") for number in range(9)), None)
    next(plan)
    plan.throw(UnknownFeed("no feed of this id"))
    step = plan.send(partitions(7, OLD_LOG))
    assert sum(block.rows for _, block in step.blocks) == 9


@pytest.mark.parametrize("call", CALLS)
def test_a_handle_that_has_asked_itself_tells_that_its_feed_is_gone(call):
    client = client_core()
    feed = FeedCore(client, "orders")
    feed.resolved = Resolved(OLD, 4)
    plan = CALLS[call](feed)
    assert asked_of(next(plan)) == OLD
    with pytest.raises(UnknownFeed):
        plan.throw(UnknownFeed("no feed of this id"))
    assert asked_of(next(CALLS[call](feed))) is Opcode.PARTITIONS


def test_a_client_that_drops_a_feed_forgets_it():
    client = client_core()
    client.know("orders", Resolved(FEED_ID, 2))
    next(client.drop_feed("orders"))
    assert client.known("orders") is None


def test_the_feeds_that_a_client_knows_are_bounded():
    client = client_core()
    for number in range(2 * FEEDS_KNOWN_MAX):
        client.know(f"f{number}", Resolved(FEED_ID, 2))
        assert len(client._feeds) <= FEEDS_KNOWN_MAX
    assert client.known(f"f{2 * FEEDS_KNOWN_MAX - 1}") == Resolved(FEED_ID, 2)
