"""The short way of a GET of one key against the general one: it may leave a GET to that, never differ."""

from __future__ import annotations

import struct
from unittest import mock

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from tests.simulation.world import simulate
from tests.tailrace_server.raw_requests import KEY
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.serving.short_ways import watched

from tailrace.block import KEY_BYTES_MAX
from tailrace.errors import NotLeader, TailraceError
from tailrace.model import Level
from tailrace.wire.bounds import request_bound
from tailrace.wire.frames import FRAME_GOES_ON, FrameDecoder, encode_frame
from tailrace.wire.messages import Get, Got, decode_error, lone_get
from tailrace.wire.opcodes import Opcode
from tailrace_server.node import node as composition
from tailrace_server.partition.newest_row import newest_row
from tailrace_server.replication.role import Role
from tailrace_server.segment import NotCached, Reads
from tailrace_server.serving import lone_gets, lookup
from tailrace_server.serving.lone_gets import read_get

FEED_ID = bytes(range(16))


def generally(data):
    """The GET, its id and its frame's end by the general way; None where it refuses them, or sees no whole frame."""
    try:
        frames = FrameDecoder(bound_of=request_bound).receive_data(data)
        if not frames or frames[0].opcode is not Opcode.GET or frames[0].flags & FRAME_GOES_ON:
            return None
        return frames[0].id, Get.decode(frames[0].body), 16 + len(frames[0].body)
    except TailraceError:
        return None


def expect_the_same(data):
    """The short way accepts no other frames, and reads in them what the general way reads."""
    for before in (b"", b"before"):
        get = read_get(before + data, len(before))
        if get is None:
            continue
        found = generally(data[: get.end - len(before)])
        assert found is not None, "the general way refuses it"
        id, message, end = found
        assert (get.id, get.feed_id, get.level, [get.key]) == (id, *message[:3])
        assert (message.state, get.end) == (0, len(before) + end)


def with_right_check(data):
    data = bytearray(data)
    data[12:16] = struct.pack("<I", xxhash.xxh3_64_intdigest(bytes(data[:12])) & 0xFFFFFFFF)
    return bytes(data)


@pytest.mark.parametrize("level", [Level.MEMORY, Level.DISK])
@given(st.binary(max_size=40), st.integers(0, 2**32 - 1), st.binary(max_size=20))
def test_a_usual_get_is_read_as_by_the_general_way(level, key, id, behind):
    data = lone_get(FEED_ID, level, key, 0, id)
    assert read_get(data) == read_get(data + behind) == (len(data), id, FEED_ID, level, key)
    expect_the_same(data)
    expect_the_same(data + behind)


@pytest.mark.parametrize("check", [False, True], ids=["as it is", "made right"])
@pytest.mark.parametrize("behind", [b"", bytes(20)])
def test_each_byte_is_flipped(check, behind):
    data = lone_get(FEED_ID, Level.DISK, KEY, 0, 7)
    for place in range(len(data)):
        for bit in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            changed = bytearray(data)
            changed[place] ^= bit
            expect_the_same((with_right_check(changed) if check else bytes(changed)) + behind)
            if place < 16 and not check:
                assert read_get(bytes(changed) + behind) is None


@given(
    st.binary(max_size=20),
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from([0, 1, 2, 3, 255]) | st.integers(0, 255)), max_size=4),
    st.integers(-20, 20),
)
@example(b"k", [], 0)
def test_what_is_accepted_is_accepted_by_the_general_way(key, changes, longer):
    data = bytearray(lone_get(FEED_ID, Level.DISK, key, 0, 7))
    for place, byte in changes:
        data[place % len(data)] = byte
    data = data + bytes(longer) if longer > 0 else data[: len(data) + longer]
    expect_the_same(bytes(data))
    if len(data) >= 16:
        expect_the_same(with_right_check(data))


@pytest.mark.parametrize(
    "data",
    [
        lone_get(FEED_ID, Level.QUORUM, KEY, 0, 7),
        lone_get(FEED_ID, Level.DISK, KEY, 1, 7),
        Get(FEED_ID, Level.DISK, [KEY, KEY]).encode(7),
        lone_get(FEED_ID, Level.DISK, b"k" * KEY_BYTES_MAX, 0, 7),
        lone_get(FEED_ID, Level.DISK, KEY, 0, 7)[:-1],
        encode_frame(Opcode.NOOP),
        b"",
    ],
)
def test_everything_unusual_is_left_to_the_general_way(data):
    assert read_get(data) is None


# On a node


@pytest.fixture
def taken(node, monkeypatch):
    """The bytes that each read had for the short way, and those that it took."""
    return watched(node, monkeypatch, Opcode.GET, lone_gets.take_gets)


async def test_a_get_takes_the_short_way(node, feed, taken):
    version = await feed.put(KEY, b"value")
    assert (await feed.get(KEY)).version == version
    assert await feed.get(b"another") is None
    assert all(part == size for part, size in taken)
    assert len(taken) == 2
    assert dict(node.services.traffic.requests())["GET"] == 2


async def test_a_get_takes_the_short_way_after_single_puts(feed, taken):
    for number in range(20):
        await feed.put(KEY, b"%d" % number)
    assert (await feed.get(KEY)).value == b"19"
    assert [part == size for part, size in taken] == [True]


async def test_gets_of_one_read_are_answered_in_their_order(greeted, feed, feed_id, taken):
    """What follows them in the read takes the general way: another request, and a frame that is not whole."""
    await feed.put(KEY, b"value")
    gets = [lone_get(feed_id, Level.DISK, key, 0, id) for id, key in enumerate([KEY, b"another", KEY, KEY], 1)]
    await greeted.send(*gets[:3], encode_frame(Opcode.LIST_FEEDS, b"{}", 9), gets[3][:30])
    await until(lambda: sum(map(len, gets[:3])) in dict(taken))
    await greeted.send(gets[3][30:])
    found = {frame.id: frame for frame in [await greeted.receive() for _ in range(5)]}
    assert [id for id in found if id != 9] == [1, 2, 3, 4]
    values = [Got.decode(found[id].body, [KEY])[0] for id in range(1, 5)]
    assert [item and item.value for item in values] == [b"value", None, b"value", b"value"]


async def test_a_get_alone_passes_no_answer_that_is_queued(node, greeted, feed, feed_id, taken):
    await feed.put(KEY, b"value")
    for connection in node.services.connections:
        connection.answers.add(encode_frame(Opcode.RESULT, b"{}", 99))
    await greeted.send(lone_get(feed_id, Level.DISK, KEY, 0, 1))
    assert [(await greeted.receive()).id for _ in range(2)] == [99, 1]
    await greeted.send(lone_get(feed_id, Level.DISK, KEY, 0, 2))
    assert (await greeted.receive()).id == 2
    assert all(not connection.answers.held_bytes for connection in node.services.connections)


async def test_an_answer_that_is_watched_is_told(node, greeted, feed, feed_id, taken):
    """As an audited request is, whose id may be that of a look-up."""
    told = []
    for connection in node.services.connections:
        connection.answers.watch(7, told.append)
    await greeted.send(lone_get(feed_id, Level.DISK, KEY, 0, 7))
    frame = await greeted.receive()
    assert frame.id == 7
    assert len(told) == 1


async def test_errors_are_told_by_the_general_way(node, greeted, feed_id, taken, monkeypatch):
    await greeted.send(lone_get(bytes(16), Level.DISK, KEY, 0, 1))
    assert (await greeted.receive()).opcode is Opcode.ERROR
    leadership = node.leaderships.of(feed_id, 0)
    monkeypatch.setattr(leadership, "role", Role.FOLLOWER)
    monkeypatch.setattr(leadership, "not_leader", lambda: NotLeader("it follows"))
    await greeted.send(lone_get(feed_id, Level.DISK, KEY, 0, 2))
    assert isinstance(decode_error((await greeted.receive()).body), NotLeader)
    assert [part for part, _ in taken] == [0, 0]


async def test_a_row_that_is_not_in_memory_is_left_to_the_general_way(feed, taken, monkeypatch):
    await feed.put(KEY, b"value")
    opened_by = []

    def missing_at_first(partition, key, opened=None, *rest):
        opened_by.append(opened)
        if opened is None:
            raise NotCached(Reads(), mock.Mock(path="1.seg"), 0, 1)
        return newest_row(partition, key, opened, *rest)

    for module in (lone_gets, lookup):
        monkeypatch.setattr(module, "newest_row", missing_at_first)
    assert (await feed.get(KEY)).value == b"value"
    assert taken[0][0] == 0
    assert opened_by[:2] == [None, None], "by the short way, and before a task is begun"
    assert len(opened_by) == 3


@pytest.mark.slow
def test_the_simulator_reaches_the_short_way(monkeypatch):
    """So its faults and checks, and the planted bugs, are about both ways."""
    found = []

    def noted(connection, data):
        taken = lone_gets.take_gets(connection, data)
        found.append(taken == len(data))
        return taken

    monkeypatch.setattr(composition, "take_gets", noted)
    for seed in (1, 2, 3):
        simulate(seed)
    assert found.count(True) >= 4
    assert found.count(False) >= 4
