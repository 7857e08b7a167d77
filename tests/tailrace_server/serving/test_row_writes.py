"""The short way of a WRITE of one row against the general one: it may leave a row to that, never differ."""

from __future__ import annotations

import itertools
import struct

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from tests.memory_disk import MemoryFile
from tests.simulation.world import simulate
from tests.tailrace_server.raw_requests import KEY, PARTITION, block_of, write
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.serving.short_ways import watched
from tests.tailrace_server.stored import TakingPartition

import tailrace
from tailrace.block import FLAG_COMPRESSED, KEY_BYTES_MAX, Block, encode_block
from tailrace.errors import NoSpace, NotDurable, TailraceError
from tailrace.model import Level
from tailrace.wire.bounds import request_bound
from tailrace.wire.frames import FRAME_GOES_ON, FrameDecoder, encode_frame, frame_header
from tailrace.wire.messages import Write, WriteFlag, Written
from tailrace.wire.opcodes import Opcode
from tailrace_server.partition.validation import validate_block
from tailrace_server.partition.writing import write_block, write_row
from tailrace_server.segment import SegmentDamaged
from tailrace_server.serving import row_writes, write_requests
from tailrace_server.serving.connection_memory import ConnectionMemory
from tailrace_server.serving.row_writes import read_row
from tailrace_server.upkeep import committer

FEED_ID = bytes(range(16))
HEAD_AT, BODY_AT = 64, 160
LEVELS = (*Level, None)
DAMAGE = SegmentDamaged("1.seg", 0, "its checksum is wrong")


def row_frame(key=KEY, value=b"value", *, level=Level.DISK, flags=0, id=7, compress=False, **numbers):
    block = encode_block([key], [value], partition=PARTITION, compress=compress, **{"producer_id": 9, **numbers})
    return encode_frame(Opcode.WRITE, write(FEED_ID, block, level, flags), id)


def generally(data):
    """The write, its block and its id by the general way; None where it refuses them, or does not see one frame."""
    try:
        frames = FrameDecoder(bound_of=request_bound).receive_data(data)
        if len(frames) != 1 or frames[0].opcode is not Opcode.WRITE or frames[0].flags & FRAME_GOES_ON:
            return None
        written = Write.decode(frames[0].body)
        block = Block.parse(written.block)
        validate_block(block, 0, 2**64 - 1)
    except TailraceError:
        return None
    return frames[0].id, written, block


def expect_the_same(data):
    """The short way accepts no other frames, and reads in them what the general way reads."""
    row = read_row(bytes(data))
    if row is None:
        return
    found = generally(data)
    assert found is not None, "the general way refuses it"
    id, written, block = found
    assert (row.id, row.feed_id, LEVELS[row.level]) == (id, written.feed_id, written.level)
    assert (row.header, row.head, row.body) == (block.header, block.head, block.body)
    assert block.rows == 1
    assert not written.flags


def with_right_sums(data):
    """The frame with sums that fit its bytes."""
    data = bytearray(data)
    data[BODY_AT - 16 : BODY_AT - 8] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(data[BODY_AT:])))
    data[BODY_AT - 8 : BODY_AT] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(data[HEAD_AT : BODY_AT - 8])))
    data[12:16] = struct.pack("<I", xxhash.xxh3_64_intdigest(bytes(data[:12])) & 0xFFFFFFFF)
    return bytes(data)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@given(st.binary(min_size=1, max_size=40), st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_a_usual_row_is_read_as_by_the_general_way(level, key, value, id):
    data = row_frame(key, value, level=level, id=id)
    assert read_row(data) is not None
    expect_the_same(data)


@pytest.mark.parametrize("sums", [False, True], ids=["as they are", "made right"])
@pytest.mark.parametrize("key", [KEY, b"eight by", b"a longer key"])
def test_each_byte_is_flipped(key, sums):
    data = row_frame(key)
    for place in range(len(data)):
        for bit in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            changed = bytearray(data)
            changed[place] ^= bit
            expect_the_same(with_right_sums(changed) if sums else bytes(changed))
            if not sums and not 16 <= place < 33 and not 34 <= place < 64:
                # The general way does not look at the version of a WRITE without a condition, nor at its padding.
                assert read_row(bytes(changed)) is None


@given(
    st.binary(min_size=1, max_size=20),
    st.none() | st.binary(max_size=40),
    st.lists(
        st.tuples(st.integers(0, 300), st.sampled_from([0, 1, 2, 3, 7, 8, 255]) | st.integers(0, 255)), max_size=4
    ),
    st.integers(-20, 20),
    st.booleans(),
)
@example(b"k", b"", [], 0, True)
def test_what_is_accepted_is_accepted_by_the_general_way(key, value, changes, longer, fits):
    data = bytearray(row_frame(key, value))
    for place, byte in changes:
        data[place % len(data)] = byte
    data = data + bytes(longer) if longer > 0 else data[: len(data) + longer]
    if fits:  # all lengths as the frame's
        data[:4] = struct.pack("<I", len(data) - 16)
        data[HEAD_AT + 52 : HEAD_AT + 60] = struct.pack("<II", *[max(len(data) - BODY_AT, 0)] * 2)
    expect_the_same(bytes(data))
    if len(data) > BODY_AT:
        expect_the_same(with_right_sums(data))


@pytest.mark.parametrize(
    "data",
    [
        row_frame(flags=WriteFlag.RESEND),
        row_frame(flags=WriteFlag.IF_ABSENT),
        row_frame(value=None),
        row_frame(value=b"v" * 1_000, compress=True),
        row_frame(value=b"v" * 5_000),
        row_frame() * 2,
        row_frame()[:-1],
        row_frame() + b"\0",
        encode_frame(Opcode.WRITE, write(FEED_ID, block_of(KEY, KEY)), 7),
        encode_frame(Opcode.WRITE, write(FEED_ID, block_of(KEY).stamped(5, 5)), 7),
        encode_frame(Opcode.NOOP),
        b"",
    ],
)
def test_everything_unusual_is_left_to_the_general_way(data):
    assert read_row(data) is None


def test_bounds_of_the_key_are_those_of_the_general_way():
    assert read_row(row_frame(b"k" * (KEY_BYTES_MAX - 300))) is not None
    longer = bytearray(row_frame(b"k" * 16))
    longer[BODY_AT + 12 : BODY_AT + 16] = (KEY_BYTES_MAX + 1).to_bytes(4, "little")
    assert read_row(with_right_sums(longer)) is None


def test_a_row_has_the_compressed_flag_without_being_compressed():
    data = bytearray(row_frame())
    data[HEAD_AT + 6] |= FLAG_COMPRESSED
    assert read_row(with_right_sums(data)) is None


# In a partition


class Both:
    """Two partitions that get the same rows, one by the general way and one by the short one."""

    def __init__(self):
        self.generally, self.shortly = TakingPartition(), TakingPartition()

    def write(self, *, number, producer_id=9, now_us=5, key=b"k", value=b"v", begins_sync=False):
        """The versions by the short way, or None. Both partitions are equal afterwards."""
        block = encode_block([key], [value], partition=0, compress=False, producer_id=producer_id, producer_seq=number)
        numbers = {"now_us": now_us, "now": 1.0}
        shortly, generally = self.shortly, self.generally
        before = len(shortly.journal.begun)
        try:
            versions, is_fresh = write_block(generally.partition, block, generally.journal, **numbers)
        except TailraceError:
            versions, is_fresh = None, False
        try:
            found = write_row(
                shortly.partition,
                block.header,
                block.head,
                block.body,
                shortly.journal,
                **numbers,
                begins_sync=begins_sync,
            )
        except TailraceError:
            found = None
        begun = [len(shortly.journal.blocks)] if begins_sync and found is not None else []
        assert shortly.journal.begun[before:] == begun
        assert found == (versions if is_fresh else None)
        assert shortly.journal.blocks == generally.journal.blocks
        assert [b.header for _, b in shortly.journal.blocks] == [b.header for _, b in generally.journal.blocks]
        assert shortly.partition.high_seq == generally.partition.high_seq
        assert shortly.partition.producers.snapshot(1.0) == generally.partition.producers.snapshot(1.0)
        shortly.partition.check()
        return found

    def each(self, change):
        for made in (self.generally, self.shortly):
            change(made)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=20))
def test_rows_are_written_as_by_the_general_way(rows):
    both = Both()
    for producer_id, number, now_us, begins_sync in rows:
        both.write(producer_id=producer_id, number=number, now_us=now_us, begins_sync=begins_sync)


def test_a_partition_that_takes_no_writes_takes_none_by_the_short_way():
    for change in (
        lambda made: made.partition.set_damage(DAMAGE),
        lambda made: made.partition.drop(),
        lambda made: setattr(made.partition, "takes_writes", False),
        lambda made: setattr(made.partition, "hash_first", 2**64 - 1),
        lambda made: setattr(made.journal, "error", NoSpace("the disk is full")),
    ):
        both = Both()
        assert both.write(number=1) is not None
        both.each(change)
        assert both.write(number=2) is None


# On a node


@pytest.fixture
def shortly(node, monkeypatch):
    """Whether each read of a client was handled by the short way."""
    found = []

    def noted(connection, data):
        taken = row_writes.take_rows(connection, data)
        found.append(taken == len(data))
        return taken

    monkeypatch.setitem(node.services.short_ways, Opcode.WRITE, noted)
    return found


@pytest.fixture
def taken(node, monkeypatch):
    """The bytes that each read had for the short way, and those that it took."""
    return watched(node, monkeypatch, Opcode.WRITE, row_writes.take_rows)


async def test_a_put_takes_the_short_way(node, client, shortly):
    feed = await client.create_feed("orders", partitions=4)
    shortly.clear()
    version = await feed.put(KEY, b"value")
    assert shortly[-1] is True
    assert version.seq == 1
    assert (await feed.get(KEY)).value == b"value"
    assert dict(node.services.traffic.requests())["WRITE"] == 1
    with pytest.raises(tailrace.VersionConflict):
        await feed.put(KEY, b"another", if_absent=True)
    assert (await feed.put(KEY, b"third")).seq == 2
    assert shortly.count(True) == 2


@pytest.fixture
def begun(node, monkeypatch):
    """How many bytes were not durable each time that the disk began to write."""
    monkeypatch.setattr(committer, "INLINE_SECONDS_MAX", 1e9)
    monkeypatch.setattr(committer, "ALONE_SECONDS", 0.0)
    found, journal = [], node.storage.journal
    begin_sync = journal.begin_sync

    def noted():
        found.append(journal.written - journal.synced)
        begin_sync()

    monkeypatch.setattr(journal, "begin_sync", noted)
    return found


@pytest.mark.parametrize("level", ["disk", "memory"])
async def test_the_disk_begins_with_a_lone_row_that_is_waited_for(node, client, begun, level):
    feed = await client.create_feed("orders", partitions=4)
    await until(lambda: node.storage.journal.synced == node.storage.journal.written)
    for number in range(1, 4):
        assert (await feed.put(KEY, b"value", level=level)).seq == number
    assert len(begun) == (3 if level == "disk" else 0)
    assert all(begun)


async def test_the_disk_begins_with_lone_blocks_of_the_general_way_too(greeted, feed_id, begun, monkeypatch):
    async def wrote(number, *keys, flags=0, level=Level.DISK):
        before = len(begun)
        body = write(feed_id, block_of(*keys, number=number), level, flags)
        frame = await greeted.ask(Opcode.WRITE, body, id=number)
        assert frame.opcode is Opcode.WRITTEN
        return begun[before:]

    assert len(await wrote(1, KEY, flags=WriteFlag.IF_ABSENT)) == 1
    assert len(await wrote(2, KEY, KEY)) == 1
    assert not await wrote(3, KEY, KEY, level=Level.MEMORY)
    assert not await wrote(1, KEY, flags=WriteFlag.RESEND)
    monkeypatch.setattr(write_requests, "INLINE_BYTES_MAX", 100)
    assert not await wrote(4, KEY, KEY)


async def test_the_disk_does_not_begin_with_the_first_of_many_blocks(greeted, feed_id, begun):
    blocks = [encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, KEY, number=n)), n) for n in (1, 2, 3)]
    await greeted.send(*blocks[:2], blocks[2][:30])
    await greeted.send(blocks[2][30:])
    assert [Written.decode((await greeted.receive()).body).last_seq for _ in blocks] == [2, 4, 6]
    assert len(begun) <= 1


async def test_the_disk_does_not_begin_with_the_first_of_many_rows(greeted, feed_id, begun):
    rows = [encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=number)), number) for number in (1, 2, 3)]
    await greeted.send(*rows)
    assert [Written.decode((await greeted.receive()).body).last_seq for _ in rows] == [1, 2, 3]
    assert not begun


async def test_a_look_up_is_not_read_as_a_row(client, shortly):
    feed = await client.create_feed("orders", partitions=4)
    await feed.put(KEY, b"value")
    reads = len(shortly)
    assert (await feed.get(KEY)).value == b"value"
    assert len(shortly) == reads


async def test_a_frame_in_two_parts_takes_the_general_way(greeted, feed_id, shortly):
    body = write(feed_id, block_of(KEY))
    reads = len(shortly)
    await greeted.send(frame_header(Opcode.WRITE, len(body), 5) + body[:10])
    await until(lambda: len(shortly) > reads)
    await greeted.send(body[10:])
    frame = await greeted.receive()
    assert Written.decode(frame.body).last_seq == 1
    assert True not in shortly


async def test_the_end_of_a_frame_is_no_row_though_it_looks_like_one(greeted, feed_id, node, shortly):
    inner = encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=1)), 6)
    outer = encode_block([KEY], [inner], partition=PARTITION, compress=False, producer_id=9, producer_seq=1)
    frame = encode_frame(Opcode.WRITE, write(feed_id, outer), 5)
    assert frame.endswith(inner)
    reads = len(shortly)
    await greeted.send(frame[: -len(inner)])
    await until(lambda: len(shortly) > reads)
    await greeted.send(inner)
    assert (await greeted.receive()).id == 5
    assert node.feeds.of_id(feed_id).partitions[PARTITION].high_seq == 1


async def test_rows_of_one_read_are_written_in_their_order(greeted, feed_id, taken):
    """What follows them in the read takes the general way: another request, and a frame that is not whole."""
    rows = [encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=number)), number) for number in range(1, 6)]
    await greeted.send(*rows[:3], encode_frame(Opcode.LIST_FEEDS, b"{}", 9), rows[3], rows[4][:30])
    size = len(rows[0])
    await until(lambda: 3 * size in dict(taken))
    await greeted.send(rows[4][30:])
    found = [await greeted.receive() for _ in range(6)]
    written = [Written.decode(frame.body).last_seq for frame in found if frame.opcode is Opcode.WRITTEN]
    assert written == [1, 2, 3, 4, 5]
    assert sorted(frame.id for frame in found) == [1, 2, 3, 4, 5, 9]


async def test_a_turn_of_rows_is_bounded(greeted, feed_id, taken, monkeypatch):
    monkeypatch.setattr(row_writes, "TURN_SECONDS", 0.0)
    rows = [encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=number)), number) for number in (1, 2, 3)]
    await greeted.send(*rows)
    found = [Written.decode((await greeted.receive()).body).last_seq for _ in rows]
    assert found == [1, 2, 3]
    assert (len(rows[0]), 3 * len(rows[0])) in taken


class Gates:
    """What keeps a node from writing a row."""

    def __init__(self, node, feed_id):
        self.storage = node.storage
        self.leadership = node.leaderships.of(feed_id, PARTITION)

    def leads_anew(self):
        self.leadership.changes += 1

    def is_unsure(self):
        self.leadership.is_sure_until(-1.0, "no majority confirms it")

    def is_paused(self):
        self.leadership.pause_writes()

    def has_a_full_disk(self):
        self.storage.space.low = "the disk is nearly full"

    def cannot_flush(self):
        self.storage.memory.set_stuck("the disk refuses")

    def has_a_failed_fsync(self):
        self.storage.committer.failure = NotDurable("an fsync has failed")


@pytest.mark.parametrize(
    "gate", ["leads_anew", "is_unsure", "is_paused", "has_a_full_disk", "cannot_flush", "has_a_failed_fsync"]
)
async def test_a_row_that_the_general_way_may_refuse_is_left_to_it(greeted, feed_id, node, shortly, gate):
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY, number=1)), id=1)
    assert shortly[-1] is True
    getattr(Gates(node, feed_id), gate)()
    await greeted.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=2)), 2))
    frame = await greeted.receive()
    assert shortly[-1] is False
    if gate == "cannot_flush":  # there is room for some more rows
        assert Written.decode(frame.body).last_seq == 2
    else:
        assert frame.opcode is Opcode.ERROR
        assert node.feeds.of_id(feed_id).partitions[PARTITION].high_seq == 1


async def test_the_row_after_a_trace_takes_the_general_way(greeted, feed_id, node, shortly):
    for connection in node.connections:
        connection.trace_next(1, None)
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY, number=1)), id=1)
    assert shortly[-1] is False


async def test_a_peer_without_room_for_answers_has_no_more_rows_taken(greeted, feed_id, taken, monkeypatch):
    rows = [encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=number)), number) for number in (1, 2, 3)]
    lacks = itertools.chain([True], itertools.repeat(False))
    monkeypatch.setattr(ConnectionMemory, "lacks_room", lambda memory: bool(memory.writes) and next(lacks))
    await greeted.send(*rows)
    assert [Written.decode((await greeted.receive()).body).last_seq for _ in rows] == [1, 2, 3]
    assert (len(rows[0]), 3 * len(rows[0])) in taken


async def test_each_row_is_written_at_the_time_that_it_is_then(greeted, feed_id, node, taken, monkeypatch):
    """The majority's confirmation ends between two rows of a read."""
    rows = [encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, number=number)), number) for number in (1, 2, 3)]
    monkeypatch.setattr(row_writes, "TURN_SECONDS", 1e9)
    turn, partition = node.services.turn, node.feeds.of_id(feed_id).partitions[PARTITION]
    begin = turn.begin()
    monkeypatch.setattr(turn, "begin", lambda: begin + 1_000.0 * partition.high_seq)
    node.leaderships.of(feed_id, PARTITION).is_sure_until(begin + 1_500.0, "no majority confirms it")
    await greeted.send(*rows)
    await until(lambda: (2 * len(rows[0]), 3 * len(rows[0])) in taken)


async def test_an_error_is_told_by_the_general_way(greeted, feed_id, node, shortly):
    feed = node.feeds.of_id(feed_id)
    feed.partitions[PARTITION].set_damage(DAMAGE)
    frame = await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    assert frame.opcode is Opcode.ERROR
    assert shortly[-1] is False
    feed.partitions[PARTITION].set_damage(None)
    frame = await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=6)
    assert Written.decode(frame.body).last_seq == 1
    assert shortly[-1] is True


@pytest.mark.slow
def test_the_simulator_reaches_the_short_way(monkeypatch):
    """So its faults and checks, and the planted bugs, are about both ways."""
    from tailrace_server.node import node as composition

    found = []

    def noted(connection, data):
        taken = row_writes.take_rows(connection, data)
        found.append(taken == len(data))
        return taken

    monkeypatch.setattr(composition, "take_rows", noted)
    begun = []
    monkeypatch.setattr(MemoryFile, "begin_sync", lambda file, *region: begun.append(region))
    simulate(1)
    assert found.count(True) > 20
    assert found.count(False) > 20
    assert begun
