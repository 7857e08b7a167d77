"""Requests over real sockets. After every kind of bad request the node goes on serving others."""

import contextlib
import dataclasses
import json
import struct

import pytest
import trio
import xxhash
from tests.tailrace_server.raw_requests import KEY, PARTITION, block_of, expect_end, write

import tailrace
from tailrace import Put, errors
from tailrace.block import Block
from tailrace.errors import BadBlock, NotDurable, ProtocolError, UnknownFeed, VersionConflict
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import decode_json
from tailrace.wire.failures import OutOfOrder
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Get, Got, WriteFlag, Written, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamRequest
from tailrace_server.serving import time_slices
from tailrace_server.state.producers import ENTRY_AGE_S_MAX

pytestmark = pytest.mark.usefixtures("others_are_served")


async def ask_to_write(connection, *arguments, **options):
    frame = await connection.ask(Opcode.WRITE, write(*arguments, **options), id=5)
    assert frame.id == 5
    return Written.decode(frame.body) if frame.opcode is Opcode.WRITTEN else decode_error(frame.body)


# What is refused, on a connection that goes on


async def expect_refusal(connection, feed_id, block, kind, match):
    error = await ask_to_write(connection, feed_id, block)
    assert type(error) is kind, error
    assert match in str(error)
    good = await ask_to_write(connection, feed_id, block_of(KEY))
    assert (good.first_seq, good.last_seq) == (1, 1), "nothing of it was kept"


async def test_a_wrong_checksum_of_the_body(greeted, feed_id):
    data = bytearray(block_of(KEY).tobytes())
    data[-1] ^= 1
    await expect_refusal(greeted, feed_id, bytes(data), BadBlock, "the body's checksum is")


async def test_a_wrong_checksum_of_the_header(greeted, feed_id):
    data = bytearray(block_of(KEY).tobytes())
    data[8] ^= 1
    await expect_refusal(greeted, feed_id, bytes(data), BadBlock, "the header's checksum is")


async def test_a_block_that_is_cut_off(greeted, feed_id):
    data = block_of(KEY).tobytes()
    await expect_refusal(greeted, feed_id, data[:-1], BadBlock, "a block of")
    assert type(await ask_to_write(greeted, feed_id, data + b"\0")) is BadBlock
    assert type(await ask_to_write(greeted, feed_id, data[:50])) is BadBlock


async def test_a_key_outside_of_its_partition(greeted, feed_id):
    block = block_of(KEY, partition=(PARTITION + 1) % 4)
    await expect_refusal(greeted, feed_id, block, BadBlock, "are outside of partition")


async def test_a_block_that_gives_itself_seqs(greeted, feed_id):
    await expect_refusal(greeted, feed_id, block_of(KEY).stamped(5, 1), BadBlock, "the server gives them")


def forged(block, body, **fields):
    """The block with another body, its sums made right."""
    fields = {"body_sum": xxhash.xxh3_64_intdigest(body), "stored_bytes": len(body), "raw_bytes": len(body)} | fields
    return block.header._replace(**fields).pack() + body


async def test_offsets_that_go_backwards_under_a_right_checksum(greeted, feed_id):
    """Hazard 21: taken once, it would be refused by every consumer for ever."""
    good = block_of(KEY, KEY, KEY)
    body = bytearray(bytes(good.body))
    struct.pack_into("<4I", body, 24, 0, 6, 3, 9)  # behind the hashes; they were 0, 3, 6, 9
    hostile = forged(good, bytes(body))
    Block.parse(hostile)
    await expect_refusal(greeted, feed_id, hostile, BadBlock, "offsets")


async def test_a_body_that_does_not_decompress(greeted, feed_id):
    good = block_of(*[KEY] * 100)
    assert good.header.flags & 1
    body = b"\xf0" * len(good.body)
    hostile = forged(good, body, raw_bytes=good.header.raw_bytes)
    await expect_refusal(greeted, feed_id, hostile, BadBlock, "lz4")


async def test_a_block_of_a_newer_format(greeted, feed_id):
    data = bytearray(block_of(KEY).tobytes())
    data[4] = 9
    await expect_refusal(greeted, feed_id, bytes(data), BadBlock, "version 9")


async def test_an_unknown_feed(greeted):
    error = await ask_to_write(greeted, bytes(16), block_of(KEY))
    assert type(error) is UnknownFeed
    frame = await greeted.ask(Opcode.PARTITIONS, b'{"name": "nobody"}')
    assert type(decode_error(frame.body)) is UnknownFeed
    assert "there is no feed 'nobody'" in str(decode_error(frame.body))


async def test_a_drop_may_come_twice(greeted, feed_id):
    """Its answer was lost, and it is asked again: the feed is gone, which is what was wanted."""
    for _ in range(2):
        frame = await greeted.ask(Opcode.DROP_FEED, json.dumps({"feed_id": feed_id.hex()}).encode())
        assert frame.opcode is Opcode.RESULT
    assert decode_json((await greeted.ask(Opcode.LIST_FEEDS, b"{}")).body, "")["feeds"] == []


@pytest.mark.parametrize("partition", [4, 2**31 - 1])
async def test_a_partition_that_the_feed_does_not_have(greeted, feed_id, partition):
    error = await ask_to_write(greeted, feed_id, block_of(KEY, partition=partition))
    assert type(error) is UnknownFeed
    assert f"has no partition {partition}" in str(error)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "Orders"},
        {"name": "../orders"},
        {"name": "a" * 101},
        {"name": "a\n"},
        {"name": 7},
        {"name": None},
        {"partitions": 0},
        {"partitions": -1},
        {"partitions": 10**9},
        {"partitions": 2.5},
        {"partitions": True},
        {"keyspace": "range"},
        {"retention": "forever"},
        {"replication": "pull"},
        {"keyspace": []},
        {"tombstone_age_s": -1},
        {"tombstone_age_s": float("nan")},
        {"tombstone_age_s": True},
        {"tombstone_age_s": None},
        {"tombstone_age_s": 1e305},
        {"history_age_s": 10**400},
        {"history_bytes": float("inf")},
        {"history_age_s": "1 day"},
    ],
    ids=repr,
)
async def test_a_feed_that_cannot_be_had(greeted, changes):
    value = {"name": "fine", "feed_id": "ab" * 16, "partitions": 2, **changes}
    frame = await greeted.ask(Opcode.CREATE_FEED, json.dumps(value).encode(), 4)
    assert (frame.opcode, frame.id) == (Opcode.ERROR, 4), bytes(frame.body)
    assert str(decode_error(frame.body))
    listed = await greeted.ask(Opcode.LIST_FEEDS, b"{}")
    assert decode_json(listed.body, "")["feeds"] == []


async def test_the_id_of_another_feed_cannot_be_taken(greeted, feed, feed_id, running):
    """Two feeds of one id would write over each other's seqs, and the next start would find the journal damaged."""
    await feed.put(KEY, b"v")
    value = {"name": "another", "feed_id": feed_id.hex(), "partitions": 4}
    frame = await greeted.ask(Opcode.CREATE_FEED, json.dumps(value).encode())
    assert type(decode_error(frame.body)) is errors.FeedExists
    await feed.put(KEY, b"w")
    await running.stop()
    await running.start()
    assert (await feed.get(KEY)).value == b"w"


async def test_level_quorum_of_a_node_that_is_alone(greeted, feed_id):
    error = await ask_to_write(greeted, feed_id, block_of(KEY), Level.QUORUM)
    assert type(error) is NotDurable
    get = struct.pack("<16sB3xII", feed_id, Level.QUORUM, 1, 3) + KEY
    assert type(decode_error((await greeted.ask(Opcode.GET, get)).body)) is NotDurable
    request = StreamRequest(feed_id, 0, FailoverLog(), 0, 0, 0, None, None, Level.QUORUM)
    await greeted.send(request.encode(6))
    assert type(await greeted.error(6)) is NotDurable


async def test_a_condition_on_several_rows(greeted, feed_id):
    await greeted.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, KEY), flags=WriteFlag.IF_ABSENT), 5))
    await expect_end(greeted, ProtocolError, "a condition is for a block of one row")


# Producers


async def test_a_resend_is_written_once(greeted, raw, feed, feed_id):
    block = block_of(KEY)
    first = await ask_to_write(greeted, feed_id, block)
    assert await ask_to_write(greeted, feed_id, block, flags=WriteFlag.RESEND) == first
    assert await ask_to_write(greeted, feed_id, block) == first
    async with raw() as other:
        await other.hello()
        assert await ask_to_write(other, feed_id, block, flags=WriteFlag.RESEND) == first
    assert (await feed.put(KEY, b"next")).seq == 2


async def test_both_copies_of_a_block_in_one_chunk(greeted, feed_id):
    frames = [encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY)), id) for id in (5, 6)]
    await greeted.send(*frames)
    answers = [await greeted.receive() for _ in frames]
    assert [frame.id for frame in answers] == [5, 6]
    assert bytes(answers[0].body) == bytes(answers[1].body)


async def test_what_comes_before_its_turn_is_out_of_order(greeted, feed_id):
    async def answer(number):
        return await ask_to_write(greeted, feed_id, block_of(KEY, number=number))

    for number in (0, 2):
        error = await answer(number)
        assert isinstance(error, OutOfOrder)
        assert error.expected == 1
    assert (await answer(1)).first_seq == 1
    error = await answer(3)
    assert isinstance(error, OutOfOrder)
    assert error.expected == 2
    assert (await answer(2)).first_seq == 2
    assert (await answer(1)).first_seq == 1


async def test_what_is_refused_for_good_frees_its_number(greeted, feed_id):
    assert type(await ask_to_write(greeted, feed_id, block_of(KEY).stamped(3, 3))) is BadBlock
    later = [encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=n)), n) for n in (2, 1)]
    await greeted.send(*later)
    answers = {frame.id: frame.opcode for frame in [await greeted.receive(), await greeted.receive()]}
    assert answers == {2: Opcode.ERROR, 1: Opcode.WRITTEN}


# Reading


async def test_get_needs_no_more_than_a_frame(greeted, feed, feed_id):
    version = await feed.put(KEY, b"v")
    body = struct.pack("<16sB3xI2I", feed_id, Level.DISK, 2, len(KEY), 0) + KEY
    item, nothing = Got.decode((await greeted.ask(Opcode.GET, body)).body, [KEY, b""])
    assert (item.version, item.value, nothing) == (version, b"v", None)


# Requests that take more than one turn


@pytest.fixture
def short_turns(monkeypatch, running):
    """Time is up as soon as a turn begins."""
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", -1.0)


@pytest.mark.usefixtures("short_turns")
async def test_conditions_hold_though_others_write_in_between(running, feed):
    """Hazard 18: look-up and append are one step, whatever happens between the turns before it."""
    rounds = 20

    async def count(number):
        for _ in range(rounds):
            while True:
                item = await feed.get(KEY)
                with contextlib.suppress(VersionConflict):
                    await feed.put(KEY, b"%d" % (int(item.value) + 1), if_version=item.version)
                    break

    async def disturb():
        for number in range(100):
            await feed.write([Put(b"other %d" % (number * n), b"v") for n in range(100)], level="memory")

    await feed.put(KEY, b"0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disturb)
        for number in range(4):
            nursery.start_soon(count, number)
    assert (await feed.get(KEY)).value == b"%d" % (4 * rounds)


@pytest.mark.usefixtures("short_turns")
async def test_many_keys_take_many_turns(feed):
    keys = [b"%d" % number for number in range(500)]
    await feed.write([Put(key, key) for key in keys])
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(check_values, feed, keys)


async def check_values(feed, keys):
    assert [item.value for item in await feed.get_many(keys)] == keys


@pytest.mark.usefixtures("short_turns")
async def test_more_requests_than_may_wait_are_sent_again(run_node, node_config):
    limits = dataclasses.replace(node_config.limits, waiting_requests_max=3)
    small = await run_node(dataclasses.replace(node_config, data=node_config.data + "-small", limits=limits))
    async with tailrace.connect(small.url) as client:
        feed = await client.create_feed("orders", partitions=2)
        keys = [b"%d" % number for number in range(50)]
        await feed.write([Put(key, key) for key in keys])
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(check_values, feed, keys)


@pytest.mark.usefixtures("short_turns")
async def test_a_connection_that_ends_while_a_request_waits(raw, feed, feed_id, running):
    keys = [b"%d" % number for number in range(500)]
    await feed.write([Put(key, key) for key in keys])
    async with raw() as connection:
        await connection.hello()
        await connection.send(Get(feed_id, Level.DISK, keys).encode(1))
    await check_values(feed, keys)
    while len(running.node.connections) > 1:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("number", [1, 2])
async def test_a_resend_after_an_hour_does_not_overwrite_a_newer_value(
    greeted, feed, feed_id, node, monkeypatch, number
):
    """A client was paused for that long, and the node has forgotten it; another one has written the key meanwhile."""
    for earlier in range(1, number + 1):
        await ask_to_write(greeted, feed_id, block_of(KEY, number=earlier, value=b"older"))
    now = node.host.clock.monotonic
    monkeypatch.setattr(node.host.clock, "monotonic", lambda: now() + ENTRY_AGE_S_MAX + 1)
    for producer in range(1_000, 1_100):
        await ask_to_write(greeted, feed_id, block_of(KEY, producer_id=producer, value=b"newer"))
    resent = block_of(KEY, number=number, value=b"older")
    error = await ask_to_write(greeted, feed_id, resent, flags=WriteFlag.RESEND)
    assert isinstance(error, errors.OutcomeUnknown), "it may be taken for a new block, or be sent again under a new id"
    assert (await feed.get(KEY)).value == b"newer"
