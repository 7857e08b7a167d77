"""What a node answers to frames of stages and publishes that are made by hand, and hostile ones."""

from __future__ import annotations

import os

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.raw_requests import PARTITION, block_of

from tailrace.errors import BadBlock, Forbidden, Overloaded, ProtocolError, TooLarge, UnknownFeed, UnknownStage
from tailrace.wire import stage_messages
from tailrace.wire.bodies import decode_json
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_messages import Publish, SinksTold, StageBlock, Staged, StageSeal
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.publishing import publisher

STAGE = b"s" * 16


def stage_block(feed_id, block, number=0, acknowledged=0, stage_id=STAGE):
    head, body = StageBlock.encode(feed_id, stage_id, number, acknowledged, block, 1)
    return head[16:] + bytes(body)


async def error_of(connection, opcode, body, id=9):
    frame = await connection.ask(opcode, body, id)
    assert (frame.opcode, frame.id) == (Opcode.ERROR, id)
    return decode_error(frame.body)


async def seal(connection, feed_id, *blocks, id=9):
    for number, block in enumerate(blocks):
        frame = await connection.ask(Opcode.STAGE_BLOCK, stage_block(feed_id, block, number), id)
        assert (frame.opcode, frame.id, Staged.decode(frame.body)) == (Opcode.STAGED, id, (number + 1,))
    checksum = xxhash.xxh3_64_intdigest(b"".join(block.head for block in blocks))
    message = StageSeal(feed_id, STAGE, len(blocks), sum(block.rows for block in blocks), checksum)
    frame = await connection.ask(Opcode.STAGE_SEAL, message.encode(id)[16:], id)
    assert (frame.opcode, decode_json(frame.body, "RESULT")) == (Opcode.RESULT, {})


def publish(feed_id, **changes):
    message = Publish(feed_id, "job", "job", 0, (STAGE,), (PARTITION,))._replace(**changes)
    return stage_messages.encode_json(Opcode.PUBLISH, message.to_json(), 9)[16:]


async def test_a_stage_and_its_publish(greeted, feed_id):
    await seal(greeted, feed_id, block_of(b"key"))
    answer = decode_json((await greeted.ask(Opcode.PUBLISH, publish(feed_id), 9)).body, "RESULT")
    assert [[row[0], row[2], row[3]] for row in answer["written"]] == [[PARTITION, 1, 1]]
    assert answer["skipped"] == []


@pytest.mark.parametrize("way", ["kept", "kept, joined in a thread", "read"])
async def test_a_publish_takes_what_is_kept_or_reads_it(greeted, feed, feed_id, node, monkeypatch, way):
    await seal(greeted, feed_id, *(block_of(b"key", value=b"%d" % number) for number in range(3)))
    if way == "read":
        node.stages.kept.forget([STAGE])
    else:  # nothing of the file is looked at
        monkeypatch.setattr(node.stages.directory, "sealed_path", lambda id: "/nowhere")
    if way == "kept, joined in a thread":
        monkeypatch.setattr(publisher, "JOINED_HERE_BYTES_MAX", 0)
    answer = decode_json((await greeted.ask(Opcode.PUBLISH, publish(feed_id), 9)).body, "RESULT")
    assert [[row[0], row[2], row[3]] for row in answer["written"]] == [[PARTITION, 1, 3]]
    assert (await feed.get(b"key")).value == b"2"
    assert node.stages.kept.nbytes == 0


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"stages": (b"t" * 16,)}, UnknownStage, "1 of 1 stages are not here"),
        ({"partitions": (0, 1, 2, 3, 4)}, UnknownFeed, "has 4 partitions, not 5"),
        ({"partitions": ((PARTITION + 1) % 4,)}, UnknownStage, "which was not named"),
        ({"feed_id": bytes(16)}, UnknownFeed, "no feed of id"),
        ({"feed_id": SYSTEM_FEED_ID}, Forbidden, "_feeds lists the feeds"),
    ],
)
async def test_what_is_refused_as_a_whole(greeted, feed, feed_id, change, kind, text):
    await seal(greeted, feed_id, block_of(b"key"))
    error = await error_of(greeted, Opcode.PUBLISH, publish(**({"feed_id": feed_id} | change)))
    assert type(error) is kind
    assert text in str(error)
    assert await feed.get(b"key") is None


async def test_too_much_of_one_key_is_refused_before_anything(greeted, feed, feed_id, node):
    node.publisher._part_bytes_max = node.publisher._cuts._bytes_max = 10
    await seal(greeted, feed_id, block_of(b"key"))
    error = await error_of(greeted, Opcode.PUBLISH, publish(feed_id))
    assert type(error) is TooLarge
    assert "keep the last change of each key" in str(error)
    assert await feed.get(b"key") is None
    assert not [name for name in os.listdir(f"{node.config.data}/staging") if name.endswith(".cut")]


async def test_blocks_that_no_partition_takes_are_not_staged(greeted, feed_id):
    wrong = block_of(b"key", partition=(PARTITION + 1) % 4)
    assert type(await error_of(greeted, Opcode.STAGE_BLOCK, stage_block(feed_id, wrong))) is BadBlock
    stamped = block_of(b"key").stamped(1, 1)
    assert type(await error_of(greeted, Opcode.STAGE_BLOCK, stage_block(feed_id, stamped))) is BadBlock
    broken = stage_block(feed_id, block_of(b"key"))[:-1]
    assert type(await error_of(greeted, Opcode.STAGE_BLOCK, broken)) is BadBlock
    system = stage_block(SYSTEM_FEED_ID, block_of(b"key", partition=0))
    assert type(await error_of(greeted, Opcode.STAGE_BLOCK, system)) is Forbidden
    assert type(await error_of(greeted, Opcode.STAGE_BLOCK, stage_block(feed_id, block_of(b"key"), 1))) is Overloaded


async def test_a_number_below_what_is_acknowledged_breaks_the_protocol(greeted, feed_id):
    await greeted.send(encode_frame(Opcode.STAGE_BLOCK, stage_block(feed_id, block_of(b"key"), 1, 2), 9))
    assert isinstance(await greeted.error(), ProtocolError)


async def test_a_stage_that_is_named_twice_is_not_published_twice(greeted, feed, feed_id):
    await seal(greeted, feed_id, block_of(b"key"))
    await greeted.send(encode_frame(Opcode.PUBLISH, publish(feed_id, stages=(STAGE, STAGE)), 9))
    assert "a stage is named twice" in str(await greeted.error())
    assert await feed.get(b"key") is None


@given(st.binary(max_size=80))
def test_hostile_bodies_end_in_protocol_error(body):
    for message in (StageBlock, Staged, StageSeal, Publish, SinksTold):
        try:
            message.decode(memoryview(body))
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    "changes",
    [
        {"sink": ""},
        {"sink": "x" * 201},
        {"sink": 7},
        {"origin": "a\nb"},
        {"batch": -1},
        {"batch": 2**63},
        {"stages": "s"},
        {"stages": [7]},
        {"stages": ["00"]},
        {"stages": [f"{number:032x}" for number in range(4_097)]},
        {"stages": ["ab" * 16, "00" * 16, "AB" * 16]},
        {"partitions": [-1]},
        {"partitions": ["0"]},
        {"partitions": [True]},
        {"feed_id": "00"},
        {"digest": 7},
        {"digest": "7"},
        {"digest": "-" + "0" * 15},
        {"digest": "g" * 16},
        {"digest": ["00" * 8]},
    ],
)
def test_hostile_fields_of_a_publish_end_in_protocol_error(changes):
    value = Publish(bytes(16), "s", "o", 0, (), ()).to_json() | changes
    body = stage_messages.encode_json(Opcode.PUBLISH, value)[16:]
    with pytest.raises(ProtocolError):
        Publish.decode(body)
