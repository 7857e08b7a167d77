"""Connections over real sockets. After every kind of bad input the node goes on serving others."""

import contextlib
import dataclasses
import json
import struct

import pytest
import trio
import xxhash

import tailrace
from tailrace import Put, errors
from tailrace.block import Block, encode_block
from tailrace.errors import BadBlock, NotDurable, ProtocolError, TooLarge, UnknownFeed, VersionConflict
from tailrace.failover import FailoverLog
from tailrace.hashing import key_hash, partition_of_hash
from tailrace.model import EndReason, Level
from tailrace.wire.failures import OutOfOrder
from tailrace.wire.frames import HELLO_BODY_BYTES_MAX, encode_frame, frame_header
from tailrace.wire.messages import (
    Get,
    Got,
    HelloOk,
    SnapshotStartMessage,
    StreamEnd,
    StreamOk,
    StreamRequest,
    Write,
    WriteFlag,
    Written,
    decode_error,
    decode_json,
    decode_seq,
    encode_json,
)
from tailrace.wire.opcodes import Opcode
from tailrace_server import connection as connection_module

KEY = b"key"
PARTITION = partition_of_hash(key_hash(KEY), 4)


@pytest.fixture
async def feed_id(feed):
    return (await feed.resolve()).feed_id


@pytest.fixture
async def greeted(raw):
    """A connection that has said hello."""
    async with raw() as connection:
        yield await connection.hello()


@pytest.fixture(autouse=True)
async def others_are_served(running):
    """Whatever a test does, the node serves another client afterwards, and its invariants hold."""
    yield
    async with tailrace.connect(running.url, retry_for=5) as other:
        after = await other.create_feed("afterwards", partitions=2)
        version = await after.put(b"k", b"v")
        assert (await after.get(b"k")).version == version
    running.node.check()


def block_of(*keys, number=1, producer_id=77, partition=PARTITION, value=b"value"):
    values = [value] * len(keys)
    return encode_block(list(keys), values, partition=partition, producer_id=producer_id, producer_seq=number)


def write(feed_id, block, level=Level.DISK, flags=0, version=None):
    data = block if isinstance(block, bytes) else block.tobytes()
    return Write.encode_fixed(feed_id, level, flags, version) + data


async def ask_to_write(connection, *arguments, **options):
    frame = await connection.ask(Opcode.WRITE, write(*arguments, **options), id=5)
    assert frame.id == 5
    return Written.decode(frame.body) if frame.opcode is Opcode.WRITTEN else decode_error(frame.body)


async def expect_end(connection, kind, match):
    """The connection ends with an error frame that names what was wrong."""
    error = await connection.error()
    assert type(error) is kind
    assert match in str(error)
    assert await connection.is_closed()


# What ends a connection


async def test_garbage(raw):
    async with raw() as connection:
        await connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await expect_end(connection, ProtocolError, "this is no frame")


async def test_garbage_after_a_hello(greeted):
    await greeted.send(bytes(range(256)) * 1000)
    await expect_end(greeted, ProtocolError, "does not match its check")


async def test_a_wrong_check(greeted):
    frame = bytearray(encode_frame(Opcode.LIST_FEEDS, b"{}"))
    frame[15] ^= 1
    await greeted.send(frame)
    await expect_end(greeted, ProtocolError, "does not match its check")


async def test_an_unknown_opcode(greeted):
    await greeted.send(frame_header(0x7E, 0))
    await expect_end(greeted, ProtocolError, "unknown opcode 0x7e")


@pytest.mark.parametrize("opcode", [Opcode.HELLO_OK, Opcode.WRITTEN, Opcode.BLOCK, Opcode.RESULT])
async def test_what_only_a_server_says(greeted, opcode):
    await greeted.send(encode_frame(opcode))
    await expect_end(greeted, ProtocolError, f"{opcode.name} is not for a server")


async def test_a_wrong_version(raw):
    async with raw() as connection:
        await connection.send(encode_json(Opcode.HELLO, {"versions": [7, 8]}))
        await expect_end(connection, ProtocolError, "speaks versions [7, 8] of the protocol, this node 1")


async def test_a_frame_that_is_too_large(greeted, node):
    size = node.config.limits.frame_body_bytes_max + 1
    await greeted.send(frame_header(Opcode.WRITE, size), bytes(100_000))
    await expect_end(greeted, TooLarge, f"WRITE of {size} bytes; at most {size - 1} are accepted")


async def test_a_large_frame_before_the_hello(raw):
    async with raw() as connection:
        await connection.send(frame_header(Opcode.HELLO, HELLO_BODY_BYTES_MAX + 1), bytes(10))
        await expect_end(connection, TooLarge, "HELLO of 65537 bytes")


@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.STATUS, Opcode.NOOP, Opcode.STREAM_REQUEST])
async def test_a_frame_before_the_hello(raw, opcode):
    async with raw() as connection:
        await connection.send(encode_frame(opcode))
        await expect_end(connection, ProtocolError, f"{opcode.name} before HELLO")


async def test_a_second_hello(greeted):
    await greeted.send(encode_json(Opcode.HELLO, {"versions": [1]}))
    await expect_end(greeted, ProtocolError, "a second HELLO")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"versions": "all"}', b"\xff" * 20])
async def test_a_hello_that_cannot_be_read(raw, body):
    async with raw() as connection:
        await connection.send(encode_frame(Opcode.HELLO, body))
        await expect_end(connection, ProtocolError, "HELLO: ")


async def test_a_token_is_refused_where_none_is_known(raw):
    async with raw() as connection:
        await connection.send(encode_json(Opcode.HELLO, {"versions": [1], "token": "secret"}))
        assert isinstance(await connection.error(), errors.Forbidden)


@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        (Opcode.CREATE_FEED, b"nonsense"),
        (Opcode.CREATE_FEED, b'{"name": "a"}'),
        (Opcode.PARTITIONS, b"[]"),
        (Opcode.DROP_FEED, b'{"name": "a"}'),
        (Opcode.DROP_FEED, b'{"feed_id": "xy"}'),
        (Opcode.WRITE, bytes(10)),
        (Opcode.GET, bytes(10)),
        (Opcode.GET, bytes(28)),
        (Opcode.STREAM_REQUEST, b"{}"),
        (Opcode.CREDIT, b""),
        (Opcode.BARRIER, b""),
        (Opcode.BARRIER, bytes(65)),
    ],
)
async def test_a_body_that_cannot_be_read(greeted, opcode, body):
    await greeted.send(encode_frame(opcode, body, 3))
    await expect_end(greeted, ProtocolError, opcode.name)


async def test_a_frame_in_pieces(greeted):
    for byte in encode_json(Opcode.LIST_FEEDS, {}, 9):
        await greeted.send(bytes([byte]))
    frame = await greeted.receive()
    assert (frame.opcode, frame.id) == (Opcode.RESULT, 9)


async def test_a_peer_that_leaves_in_the_middle_of_a_frame(raw, greeted):
    async with raw() as connection:
        await connection.hello()
        await connection.send(frame_header(Opcode.WRITE, 1000), bytes(500))
    assert (await greeted.ask(Opcode.LIST_FEEDS, b"{}")).opcode is Opcode.RESULT


async def test_the_hello_says_what_the_node_accepts(raw, node):
    async with raw() as connection:
        await connection.send(encode_json(Opcode.HELLO, {"versions": [1, 2], "window_bytes": 1 << 40}))
        answer = HelloOk.decode((await connection.receive()).body)
    assert answer.node_id == node.identity.node_id.hex()
    assert answer.frame_body_bytes_max == node.config.limits.frame_body_bytes_max
    assert answer.window_bytes == node.config.limits.window_bytes_max
    assert answer.levels == ("memory", "disk")


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


# Streams


def request_of(feed_id, partition=PARTITION, seq=0, **fields):
    request = StreamRequest(feed_id, partition, FailoverLog(), seq, seq or 0, seq or 0, None, None, Level.DISK)
    return request._replace(**fields)


async def test_a_stream_frame_by_frame(greeted, feed, feed_id, node):
    await feed.put(KEY, b"v")
    await greeted.send(request_of(feed_id, end_seq=1).encode(9))
    frames = [await greeted.receive() for _ in range(6)]
    names = ["STREAM_OK", "SNAPSHOT_START", "BLOCK", "SNAPSHOT_END", "STREAM_END", "ROUND_COMPLETE"]
    assert [frame.opcode.name for frame in frames] == names
    assert {frame.id for frame in frames[:5]} == {9}
    ok, start = StreamOk.decode(frames[0].body), SnapshotStartMessage.decode(frames[1].body)
    log = node.feeds.named("orders").partitions[PARTITION].log
    assert (ok.seq, ok.high_seq, ok.log) == (0, 1, log)
    assert start == (PARTITION, True, log.branch, 0, 1, 0)
    assert Block.parse(frames[2].body).columns().keys() == [KEY]
    assert decode_seq(frames[3].body, "") == (PARTITION, 1)
    assert StreamEnd.decode(frames[4].body).reason is EndReason.END_REACHED


async def test_a_stream_of_what_is_not_there(greeted, feed_id):
    for request, reason in (
        (request_of(bytes(16)), EndReason.FEED_DROPPED),
        (request_of(feed_id, 4), EndReason.NOT_MY_PARTITION),
        (request_of(feed_id, 2**62), EndReason.NOT_MY_PARTITION),
        (request_of(feed_id, state="follower"), EndReason.WRONG_STATE),
    ):
        await greeted.send(request.encode(9))
        frame = await greeted.receive()
        assert frame.opcode is Opcode.STREAM_END
        assert StreamEnd.decode(frame.body).reason is reason


async def test_numbers_of_a_position_that_no_seq_can_be(greeted, feed_id):
    value = json.loads(request_of(feed_id).encode(9)[16:])
    value |= {"seq": 5, "snapshot_first": 5, "snapshot_last": 2**64 - 1}
    await greeted.send(encode_json(Opcode.STREAM_REQUEST, value, 9))
    await expect_end(greeted, ProtocolError, "'snapshot_last'")


async def test_a_stream_id_twice(greeted, feed_id):
    await greeted.send(request_of(feed_id).encode(9), request_of(feed_id).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    await expect_end(greeted, ProtocolError, "stream 9 is open already")


async def test_a_stream_that_the_client_closes(greeted, feed, feed_id):
    await greeted.send(request_of(feed_id).encode(9), encode_frame(Opcode.STREAM_CLOSE, id=9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    frame = await greeted.receive()
    assert StreamEnd.decode(frame.body).reason is EndReason.CLOSED
    await greeted.send(encode_frame(Opcode.STREAM_CLOSE, id=4711))
    await feed.put(KEY, b"v")
    assert (await greeted.ask(Opcode.LIST_FEEDS, b"{}")).opcode is Opcode.RESULT


async def test_a_barrier_without_streams_comes_back_at_once(greeted):
    frame = await greeted.ask(Opcode.BARRIER, b"cookie")
    assert (frame.opcode, bytes(frame.body)) == (Opcode.BARRIER_REACHED, b"cookie")


async def test_a_barrier_covers_what_is_not_durable_yet(greeted, feed_id):
    """What was accepted at level memory has to be delivered at level disk before the cookie comes back."""
    await greeted.send(request_of(feed_id).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    frames = encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY), Level.MEMORY), 5)
    await greeted.send(frames, encode_frame(Opcode.BARRIER, b"cookie"))
    names = []
    while "BARRIER_REACHED" not in names:
        names.append((await greeted.receive()).opcode.name)
    assert names.index("BLOCK") < names.index("BARRIER_REACHED")


async def test_a_window_is_kept(raw, feed, feed_id):
    """No more is under way than a window and a block; credit lets the next one come."""
    for _ in range(4):
        await feed.put(KEY, bytes(200))
    async with raw() as connection:
        await connection.hello(window_bytes=1)
        await connection.send(request_of(feed_id).encode(9))
        names = [(await connection.receive()).opcode.name for _ in range(3)]
        assert names == ["STREAM_OK", "SNAPSHOT_START", "BLOCK"]
        for _ in range(3):
            # What is answered comes after whatever the node would have sent before.
            assert (await connection.ask(Opcode.LIST_FEEDS, b"{}")).opcode is Opcode.RESULT
            await connection.send(encode_frame(Opcode.CREDIT, struct.pack("<Q", 1000)))
            assert (await connection.receive()).opcode is Opcode.BLOCK


# Requests that take more than one turn


@pytest.fixture
def short_turns(monkeypatch, running):
    """Time is up as soon as a turn begins."""
    monkeypatch.setattr(connection_module, "STEP_SECONDS", -1.0)


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


# Bounds


async def test_too_many_connections(run_node, node_config):
    limits = dataclasses.replace(node_config.limits, connections_max=1)
    small = await run_node(dataclasses.replace(node_config, data=node_config.data + "-small", limits=limits))
    async with tailrace.connect(small.url) as first:
        await first.feeds()
        with pytest.raises(tailrace.Unreachable, match="serves 1 connections already"):
            async with tailrace.connect(small.url, connect_timeout=0.2):
                raise AssertionError("it was let in")
        await first.feeds()
