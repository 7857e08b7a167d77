"""Reads the files of sealed stages. All functions are for a thread."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from tailrace.block import Block
from tailrace.errors import BadBlock, UnknownStage
from tailrace_server.host.disk import Disk, File
from tailrace_server.publishing import stage_file
from tailrace_server.publishing.stage_file import BadStage, StagedBlock, StageFooter


class SealedFile(NamedTuple):
    """A stage that can be published.

    ``sealed_us`` is the wall clock when it was sealed, or when a node first found that time to be ahead of its clock.
    ``heard_at`` is the monotonic clock, in seconds, when its last block came or this node began to run. ``is_copied``:
    other nodes may have copies.
    """

    feed_id: bytes
    nbytes: int
    checksum: int
    sealed_us: int
    heard_at: float
    is_copied: bool = False


def open_sealed(disk: Disk, path: str, id: bytes, now: float) -> SealedFile:
    """Returns the sealed stage ``id`` by its header and footer; ``now`` is monotonic seconds. BadStage, OSError."""
    with contextlib.closing(disk.open(path)) as file:
        size = file.size()
        feed_id, own_id = stage_file.decode_header(file.read_at(0, stage_file.HEADER_BYTES))
        footer = stage_file.decode_footer(file.read_at(max(size - stage_file.FOOTER_BYTES, 0), size))
    if own_id != id:
        raise BadStage(f"it is stage {own_id.hex()}")
    # Whether other nodes have copies is not known any more.
    return SealedFile(feed_id, size, footer.checksum, footer.sealed_us, now, is_copied=True)


def read_part(disk: Disk, path: str, id: bytes, offset: int, nbytes: int) -> tuple[int, bytes]:
    """Returns the size of the file of sealed stage ``id``, and at most ``nbytes`` bytes from ``offset`` on.

    UnknownStage if the file is missing or cannot be read.
    """
    try:
        with contextlib.closing(disk.open(path)) as file:
            size = file.size()
            return size, file.read_at(offset, min(nbytes, max(size - offset, 0)))
    except OSError as error:
        raise UnknownStage(f"stage {id.hex()} cannot be read: {error}") from error


def read_index(disk: Disk, path: str, id: bytes) -> list[StagedBlock]:
    """Returns the blocks of sealed stage ``id``. UnknownStage if the file is missing or damaged."""
    try:
        with contextlib.closing(disk.open(path)) as file:
            return _read_end(file)[1]
    except (BadStage, OSError) as error:
        raise UnknownStage(f"stage {id.hex()} cannot be read: {error}") from error


def _read_end(file: File) -> tuple[StageFooter, list[StagedBlock]]:
    """Returns the footer and the index. BadStage, OSError."""
    end = max(file.size() - stage_file.FOOTER_BYTES, 0)
    footer = stage_file.decode_footer(file.read_at(end, stage_file.FOOTER_BYTES))
    index = file.read_at(footer.index_offset, max(end - footer.index_offset, 0))
    return footer, stage_file.decode_index(index, footer)


def require_whole(disk: Disk, path: str) -> None:
    """Reads a sealed stage to its end, one block at a time. BadStage if any part of it is damaged, OSError."""
    with contextlib.closing(disk.open(path)) as file:
        footer, entries = _read_end(file)
        found = xxhash.xxh3_64()
        for entry in entries:
            try:
                found.update(Block.parse(file.read_at(entry.offset, entry.nbytes)).head)
            except BadBlock as error:
                raise BadStage(f"the block at {entry.offset}: {error}") from None
    if found.intdigest() != footer.checksum:
        raise BadStage("its blocks are not those that were sealed")


def read_blocks(disk: Disk, path: str, id: bytes, entries: Sequence[StagedBlock]) -> list[Block]:
    """Returns these blocks of sealed stage ``id``. UnknownStage if the file is missing or damaged."""
    try:
        with contextlib.closing(disk.open(path)) as file:
            return [Block.parse(file.read_at(entry.offset, entry.nbytes)) for entry in entries]
    except (BadBlock, OSError) as error:
        raise UnknownStage(f"stage {id.hex()} cannot be read: {error}") from error
