import numpy as np
import pytest

from tailrace.block import Block, encode_block
from tailrace.errors import TailraceError, TooLarge
from tailrace.model import Delete, FeedInfo, Level, Put, Resolved, Version
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests.changes import (
    BATCH_BYTES_MAX,
    LOOK_UP_KEYS_MAX,
    batch_blocks,
    changes_request,
    check_batching,
    check_kept,
    checked_keys,
    creation_request,
    delete_flags,
    look_ups,
    put_flags,
    row_step,
)
from tailrace.requests.lane import Lanes
from tailrace.requests.plan import WriteBlock, WriteRow
from tailrace.wire.messages import WriteFlag

FEED = Resolved(b"f" * 16, 4)
VERSION = Version(partition_of_hash(key_hash(b"key"), 4), b"u" * 16, 7)


def row_block(key, value, version, lanes, *, ttl=None):
    """The lane and the block of a change with a condition."""
    flags = WriteFlag.IF_VERSION if version else 0
    step = row_step(key, value, FEED, lanes, Level.DISK, flags, version, ttl, "orders")
    assert type(step) is WriteBlock
    assert step[2:] == (Level.DISK, flags, version, "orders")
    return step.lane, step.block


@pytest.mark.parametrize(("asked", "sent"), [("memory", "memory"), ("QUORUM", "quorum"), ("default", None)])
def test_the_level_of_a_feed_in_a_request(asked, sent):
    assert creation_request("orders", b"f" * 16, True, level=asked)["level"] == sent
    assert changes_request(level=asked, replication=None) == {"level": sent}


def test_a_level_that_is_not_given_is_not_sent():
    assert "level" not in creation_request("orders", b"f" * 16, True, level=None)
    assert changes_request(level=None, replication="stream") == {"replication": "stream"}


@pytest.mark.parametrize("level", ["replicas", "", 1])
def test_a_level_that_does_not_exist_is_not_sent(level):
    with pytest.raises(ValueError, match=r"level .* is none of 'memory', 'disk', 'quorum'"):
        creation_request("orders", b"f" * 16, True, level=level)
    with pytest.raises(ValueError, match=r"level .* is none of 'memory', 'disk', 'quorum'"):
        changes_request(level=level)


def test_a_node_that_ignores_the_level_is_found_out():
    of_older = FeedInfo("orders", b"f" * 16, 1, "hash", "compact", None, None, 100.0, "stream")
    check_kept(of_older, {"level": None, "ttl_s": None})
    check_kept(of_older._replace(level="disk", ttl_s=60.0), {"level": "disk", "ttl_s": 60.0})
    with pytest.raises(TailraceError, match=r"the node is older than this setting, and has ignored level memory"):
        check_kept(of_older, {"level": "memory"})


@pytest.mark.parametrize(
    ("if_version", "if_absent", "flags"),
    [(None, False, 0), (None, True, WriteFlag.IF_ABSENT), (VERSION, False, WriteFlag.IF_VERSION)],
)
def test_the_conditions_of_a_put(if_version, if_absent, flags):
    assert put_flags(b"v", if_version, if_absent) == flags


def test_conditions_that_contradict_each_other():
    with pytest.raises(ValueError, match="contradict each other"):
        put_flags(b"v", VERSION, True)


def test_a_value_is_looked_at_before_its_conditions():
    with pytest.raises(TypeError, match="a value is bytes, not str"):
        put_flags("v", VERSION, True)


def test_the_conditions_of_a_deletion():
    assert delete_flags(None) == 0
    assert delete_flags(VERSION) == WriteFlag.IF_VERSION


@pytest.mark.parametrize("wrong", [{"seq": 2**64}, {"seq": -1}, {"seq": "7"}, {"branch": b"u"}, {"branch": "u" * 16}])
def test_a_version_that_cannot_be_sent_takes_no_place_in_the_lane(wrong):
    lanes = Lanes()
    with pytest.raises(ValueError, match="no version has branch"):
        row_block(b"key", b"v", VERSION._replace(**wrong), lanes)
    assert not lanes


def test_a_version_with_an_integer_of_numpy():
    _, block = row_block(b"key", b"v", VERSION._replace(seq=np.int64(7)), Lanes())
    assert block.header.partition == VERSION.partition


@pytest.mark.parametrize("value", [b"value", None])
def test_a_row_goes_to_its_partition_under_the_lanes_next_number(value):
    lanes = Lanes()
    lane, block = row_block(b"key", value, VERSION, lanes)
    assert lane is lanes[FEED.feed_id, VERSION.partition]
    producer_id, producer_seq = lane.next_number
    assert block == encode_block(
        [b"key"], [value], partition=VERSION.partition, producer_id=producer_id, producer_seq=producer_seq
    )
    assert Block.parse(block.tobytes()).columns().hashes() == [key_hash(b"key")]


def test_a_row_with_a_ttl_is_a_block_with_a_column_of_it():
    _, block = row_block(b"key", b"v", None, Lanes(), ttl=60)
    assert block.columns().ttls() == [60]


@pytest.mark.parametrize("value", [b"value", None])
def test_a_row_without_a_condition_may_leave_with_others(value):
    lanes = Lanes()
    step = row_step(b"key", value, FEED, lanes, None, 0, None, None, "orders")
    lane = lanes[FEED.feed_id, VERSION.partition]
    assert step == WriteRow(lane, b"key", value, key_hash(b"key"), None, "orders")


def test_a_version_of_another_partition_is_refused():
    wrong = VERSION._replace(partition=(VERSION.partition + 1) % 4)
    with pytest.raises(ValueError, match=f"is in partition {VERSION.partition}, the version is of {wrong.partition}"):
        row_block(b"key", b"v", wrong, Lanes())


def test_a_batch_is_a_block_for_each_partition():
    changes = [Put(b"%d" % number, b"v") for number in range(50)] + [Delete(b"x")]
    lanes = Lanes()
    blocks = batch_blocks(changes, FEED, lanes)
    assert sum(block.rows for _, block in blocks) == 51
    assert {block.header.partition for _, block in blocks} == {0, 1, 2, 3}
    assert all(lane is lanes[FEED.feed_id, block.header.partition] for lane, block in blocks)


def test_a_batch_that_is_too_large_says_what_to_do():
    with pytest.raises(TooLarge, match=r"does not fit into a block of its partition.*write less at once"):
        batch_blocks([Put(b"k", bytes(12_000_000))] * 3, FEED, Lanes())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_bytes": 0}, "batch_bytes is 0: an integer from 1 to"),
        ({"batch_bytes": BATCH_BYTES_MAX + 1}, "batch_bytes is"),
        ({"batch_rows": 65_537}, "batch_rows is 65537: an integer from 1 to 65536"),
        ({"in_flight_bytes": 0}, "in_flight_bytes is 0"),
        ({"linger_s": -1.0}, r"linger_s is -1\.0"),
    ],
)
def test_bounds_of_a_writer(wrong, message):
    usual = {"batch_bytes": BATCH_BYTES_MAX, "batch_rows": 65_536, "in_flight_bytes": 1, "linger_s": 0.0}
    check_batching(**usual)
    with pytest.raises(ValueError, match=message):
        check_batching(**(usual | wrong))


def test_many_keys_are_looked_up_in_parts():
    keys = checked_keys(b"%d" % number for number in range(2 * LOOK_UP_KEYS_MAX + 1))
    parts = list(look_ups(keys))
    assert [len(part) for part in parts] == [LOOK_UP_KEYS_MAX, LOOK_UP_KEYS_MAX, 1]
    assert [key for part in parts for key in part] == keys
    assert list(look_ups([])) == []
    with pytest.raises(ValueError, match="a key is empty"):
        checked_keys([b"k", b""])
