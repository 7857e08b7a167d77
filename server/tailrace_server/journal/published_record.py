"""The payload of the journal's record PUBLISHED: a partition's share of a batch, and the batch's sink. Pure.

    bytes of the JSON u32 | blocks u32 | JSON | zeros up to a multiple of 8 | headers, 96 bytes each | bodies

The record's checksum covers all up to the bodies, and each body has its own in its header: nothing is summed twice. The
JSON is ``{"sinks": {sink: [batch, origin, seq, digest]}}``: the last batches that change with these blocks. Without
blocks it holds last batches that a replica was told. docs/formats/journal.md has an example.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailrace.block import HEADER_BYTES, Block, BlockHeader
from tailrace.errors import BadBlock
from tailrace_server.state.last_batches import LastBatch, from_json, to_json

_COUNTS = struct.Struct("<II")
# With 96 bytes of header for each block in front of it. The journal's records have at most 64 MiB.
PUBLISH_BYTES_MAX = 60 * 1024 * 1024
BLOCKS_MAX = 32_768
# The most buffers of one system call; more bodies are joined.
BUFFERS_MAX = 512

assert PUBLISH_BYTES_MAX + 1024 * 1024 < 64 * 1024 * 1024


class PublishedRecord(NamedTuple):
    """Blocks in the order of their seqs, and the last batches of sinks that go with them."""

    sinks: dict[str, LastBatch]
    blocks: tuple[Block, ...]


def encode_published(sinks: Mapping[str, LastBatch], blocks: Sequence[Block]) -> tuple[bytes, list[bytes | memoryview]]:
    """Returns the part of the payload that the record's checksum covers, and the buffers behind it."""
    text = json.dumps({"sinks": to_json(sinks)}, separators=(",", ":")).encode()
    covered = _COUNTS.pack(len(text), len(blocks)) + text
    covered += bytes(-len(covered) % 8) + b"".join(block.head for block in blocks)
    bodies: list[bytes | memoryview] = [block.body for block in blocks]
    return covered, bodies if len(bodies) <= BUFFERS_MAX else [b"".join(bodies)]


def decode_published(payload: bytes, covered: int) -> PublishedRecord:
    """Parses a payload of ``encode_published``. Raises BadBlock if it is malformed or a body is damaged."""
    view = memoryview(payload)
    try:
        text_bytes, count = _COUNTS.unpack_from(view)
        begin = _COUNTS.size + text_bytes
        heads = begin + -begin % 8
        sinks = from_json(json.loads(bytes(view[_COUNTS.size : begin]))["sinks"])
    except (struct.error, ValueError, LookupError, TypeError) as error:
        raise BadBlock(f"the published batch cannot be read: {error!r}") from None
    offset = heads + count * HEADER_BYTES
    if offset != covered or any(view[begin:heads]):
        raise BadBlock(f"{count} blocks were published, and {covered} bytes are before their bodies")
    blocks = []
    for index in range(count):
        head = bytes(view[heads + index * HEADER_BYTES :][:HEADER_BYTES])
        end = offset + BlockHeader.unpack(head).stored_bytes
        blocks.append(Block.parse(b"".join((head, view[offset:end]))))
        offset = end
    if offset != len(payload):
        raise BadBlock(f"{len(payload) - offset} bytes follow the published blocks")
    _check_order(blocks)
    return PublishedRecord(sinks, tuple(blocks))


def open_published(payload: bytes, covered: int) -> PublishedRecord:
    """Returns as ``decode_published``, for a payload that was checked before; its blocks hold their own bytes."""
    text_bytes, count = _COUNTS.unpack_from(payload)
    sinks = from_json(json.loads(payload[_COUNTS.size : _COUNTS.size + text_bytes])["sinks"])
    blocks, body = [], covered
    for begin in range(covered - count * HEADER_BYTES, covered, HEADER_BYTES):
        head = payload[begin : begin + HEADER_BYTES]
        header = BlockHeader.read(head)
        blocks.append(Block(header, head, payload[body : body + header.stored_bytes]))
        body += header.stored_bytes
    return PublishedRecord(sinks, tuple(blocks))


def _check_order(blocks: Sequence[Block]) -> None:
    for before, block in itertools.pairwise(blocks):
        if block.header.first_seq != before.header.last_seq + 1:
            raise BadBlock(f"seq {block.header.first_seq} was published right behind {before.header.last_seq}")
