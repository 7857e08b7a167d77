"""lost/<time>/: what a repair took out of a data directory, or a rollback, and the index of what is lost.

    lost/20260131-154500/index.jsonl              an object a line (docs/guides/operations.md)
    lost/20260131-154500/blocks/<feed>-<n>        blocks that could not stay, back to back as on the wire
    lost/20260131-154500/feeds/..., journal/...   files as they were, under their old names

A repair that was interrupted goes on in the same directory; a line that is there already is not written again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import xxhash

from tailrace.block import Block
from tailrace_server.directory.copying import can_link, copy_bytes
from tailrace_server.directory.watcher import Unwatched
from tailrace_server.host.disk import File, read_file, write_atomically

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk

LOST_NAME = "lost"
INDEX_NAME = "index.jsonl"
BLOCKS_NAME = "blocks"


class Lost:
    """The lost part of one repair. Where ``is_dry`` nothing is written, and the lines are counted only.

    ``lines`` is how many there are, ``rows`` how many rows or seqs they name; ``seqs`` has the ranges of seqs that
    are not in their partition any more, exported ones too: (feed id, partition, first, last). ``names`` are those of
    the feeds, by id, as far as they are known.
    """

    def __init__(self, disk: Disk, directory: str, time: str, *, is_dry: bool) -> None:
        self._disk = disk
        self._data = directory
        self.directory = os.path.join(directory, LOST_NAME, time)
        self._is_dry = is_dry
        self._known: set[int] = set()
        self._index: File | None = None
        self._index_end = 0
        self._exports: dict[str, tuple[File, int]] = {}
        self.seqs: list[tuple[bytes, int, int, int]] = []
        self.open_ends: list[tuple[bytes, int, int]] = []
        self.names: dict[bytes, str] = {}
        self.lines = self.exported_rows = self.moved_files = 0

    # The index

    def name_feed(self, feed_id: bytes, name: str) -> None:
        """Has the lines that follow show this name of a feed beside its id."""
        self.names[feed_id] = name

    def rows(
        self,
        feed_id: bytes,
        partition: int,
        first_seq: int,
        last_seq: int,
        *,
        source: str,
        offset: int | None = None,
        rows: int | None = None,
        keys: Sequence[bytes] = (),
        why: str,
    ) -> None:
        """The rows of these seqs, both included, are lost. ``rows`` is how many there were, None: nobody knows."""
        self.seqs.append((feed_id, partition, first_seq, last_seq))
        line = self._place("rows", feed_id, partition)
        line |= {"first_seq": first_seq, "last_seq": last_seq, "rows": rows, "keys": _keys(keys)}
        self._line(line | {"file": self._name(source), "offset": offset, "why": why})

    def open_end(self, feed_id: bytes, partition: int, after_seq: int, why: str) -> None:
        """Rows above ``after_seq`` may have been there, nobody knows how many."""
        self.open_ends.append((feed_id, partition, after_seq))
        self._line(self._place("end", feed_id, partition) | {"after_seq": after_seq, "why": why})

    def unknown(self, source: str, offset: int, nbytes: int, why: str) -> None:
        """Which rows these bytes were cannot be told."""
        self._line({"lost": "bytes", "file": self._name(source), "offset": offset, "bytes": nbytes, "why": why})

    def export(self, feed_id: bytes, partition: int, block: Block, why: str) -> None:
        """A good block that cannot stay is put aside, with its keys in the index."""
        header = block.header
        self.seqs.append((feed_id, partition, header.first_seq, header.last_seq))
        self.exported_rows += header.rows
        name = f"{feed_id.hex()}-{partition}"
        file, offset = self._export_file(name)
        if file is not None:
            file.write_at(offset, (block.head, block.body), block.nbytes)
            self._exports[name] = file, offset + block.nbytes
        line = self._place("exported", feed_id, partition)
        line |= {"first_seq": header.first_seq, "last_seq": header.last_seq, "rows": header.rows}
        line["keys"] = _keys(block.open_columns().keys())
        self._line(line | {"file": f"{BLOCKS_NAME}/{name}", "offset": offset, "bytes": block.nbytes, "why": why})

    def feed(self, feed_id: bytes, name: str, why: str) -> None:
        """Something of a feed as a whole."""
        self._line({"lost": "feed", "feed": feed_id.hex(), "name": name, "why": why})

    def _place(self, kind: str, feed_id: bytes, partition: int) -> dict[str, Any]:
        line: dict[str, Any] = {"lost": kind, "feed": feed_id.hex(), "partition": partition}
        return line | {"name": self.names[feed_id]} if feed_id in self.names else line

    def _line(self, line: dict[str, Any]) -> None:
        self.lines += 1
        if self._is_dry:
            return
        data = json.dumps(line).encode() + b"\n"
        digest = xxhash.xxh3_64_intdigest(data)
        file = self._open_index()
        if digest not in self._known:
            self._known.add(digest)
            file.write_at(self._index_end, (data,), len(data))
            self._index_end += len(data)

    def _open_index(self) -> File:
        if self._index is not None:
            return self._index
        path = os.path.join(self.directory, INDEX_NAME)
        self._disk.make_directory(self.directory)
        if self._disk.exists(path):
            lines = good_lines(read_file(self._disk, path))
            self._index_end = sum(map(len, lines))
            self._known = {xxhash.xxh3_64_intdigest(line) for line in lines}
            self._index = self._disk.open(path, writable=True)
            self._index.truncate(self._index_end)
        else:
            self._index = self._disk.create(path)
        return self._index

    def _export_file(self, name: str) -> tuple[File | None, int]:
        if self._is_dry:
            return None, 0
        if name not in self._exports:
            directory = os.path.join(self.directory, BLOCKS_NAME)
            self._disk.make_directory(directory)
            self._exports[name] = self._disk.create(os.path.join(directory, name)), 0
        return self._exports[name]

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._data) if path else ""

    def sync(self) -> None:
        """All that was said so far is durable when this returns: comes before what it tells of is changed."""
        for file, _ in self._exports.values():
            file.sync()
        if self._exports:
            self._disk.sync_directory(os.path.join(self.directory, BLOCKS_NAME))
        if self._index is not None:
            self._index.sync()
            self._disk.sync_directory(self.directory)

    def close(self) -> None:
        """Nothing more is written."""
        for file, _ in self._exports.values():
            file.close()
        if self._index is not None:
            self._index.close()

    # Files

    def take(self, path: str) -> None:
        """Moves a file of the data directory here, durably: the new name before the old one is gone."""
        self.moved_files += 1
        if self._is_dry:
            return
        target = self._place_of(path)
        self._disk.rename(path, target)
        self._disk.sync_directory(os.path.dirname(target))
        self._disk.sync_directory(os.path.dirname(path))

    def link(self, path: str) -> None:
        """Gives a file of the data directory a second name here, durably; where the file system can't, a copy."""
        self.moved_files += 1
        target = self._place_of(path)
        if not can_link(self._disk, path, target):
            with contextlib.closing(self._disk.open(path)) as file:
                copy_bytes(self._disk, file, file.size(), target, Unwatched())
        self._disk.sync_directory(os.path.dirname(target))

    def copy(self, path: str) -> None:
        """Keeps a copy of a small file that is about to be replaced; none of what the disk can't read."""
        try:
            data = read_file(self._disk, path)
        except OSError:
            return
        self.moved_files += 1
        if not self._is_dry:
            write_atomically(self._disk, self._place_of(path, data), data)

    def _place_of(self, path: str, data: bytes | None = None) -> str:
        """Where a file goes; not where one of other ``data`` is already, from before an interruption."""
        target = os.path.join(self.directory, os.path.relpath(path, self._data))
        self._disk.make_directory(os.path.dirname(target))
        place, number = target, 1
        while self._disk.exists(place) and (data is None or read_file(self._disk, place) != data):
            number += 1
            place = f"{target}.{number}"
        return place


def good_lines(data: bytes) -> list[bytes]:
    """The lines of an index that was being written when the power went: up to the first that is not whole."""
    lines = []
    for line in data.splitlines(keepends=True):
        try:
            json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        lines.append(line)
    return lines


def _keys(keys: Sequence[bytes]) -> list[str | dict[str, str]]:
    """Keys for the index: a string where it is UTF-8, an object with its base64 otherwise."""
    return [_key(key) for key in keys]


def _key(key: bytes) -> str | dict[str, str]:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(key).decode("ascii")}
