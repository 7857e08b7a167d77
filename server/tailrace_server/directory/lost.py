"""lost/<time>/: the files and blocks that a repair or a rollback has removed, and the index of the losses.

    lost/20260131-154500/index.jsonl              an object in each line (docs/guides/operations.md)
    lost/20260131-154500/blocks/<feed>-<n>        blocks that could not stay, one after the other as on the wire
    lost/20260131-154500/feeds/..., journal/...   unchanged files, under their old names

If a repair is interrupted, the next one continues in the same directory, and does not repeat lines of the index.
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
    """The losses of one repair. With ``is_dry`` it only counts the lines, without writing them.

    ``lines`` is the number of lines. ``seqs`` has the ranges of seqs that are no longer in their partition, with
    exported ones: (feed id, partition, first, last). ``names`` are the known names of feeds, by id.
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
        """Adds a feed's name to the lines that follow, beside its id."""
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
        """Lists lost seqs, both included. ``rows`` is the number of their rows; None: unknown."""
        self.seqs.append((feed_id, partition, first_seq, last_seq))
        line = self._place("rows", feed_id, partition)
        line |= {"first_seq": first_seq, "last_seq": last_seq, "rows": rows, "keys": _keys(keys)}
        self._line(line | {"file": self._name(source), "offset": offset, "why": why})

    def open_end(self, feed_id: bytes, partition: int, after_seq: int, why: str) -> None:
        """Lists a partition that may have lost rows above ``after_seq``."""
        self.open_ends.append((feed_id, partition, after_seq))
        self._line(self._place("end", feed_id, partition) | {"after_seq": after_seq, "why": why})

    def unknown(self, source: str, offset: int, nbytes: int, why: str) -> None:
        """Lists bytes of a file whose rows are unknown."""
        self._line({"lost": "bytes", "file": self._name(source), "offset": offset, "bytes": nbytes, "why": why})

    def export(self, feed_id: bytes, partition: int, block: Block, why: str) -> None:
        """Writes a good block that cannot stay to lost/, and lists it with its keys."""
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
        """Lists a loss of a whole feed, such as its settings."""
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
        """Makes all lines and exports durable. Call it before you change the files that they describe."""
        for file, _ in self._exports.values():
            file.sync()
        if self._exports:
            self._disk.sync_directory(os.path.join(self.directory, BLOCKS_NAME))
        if self._index is not None:
            self._index.sync()
            self._disk.sync_directory(self.directory)

    def close(self) -> None:
        """Closes the index and the exports."""
        for file, _ in self._exports.values():
            file.close()
        if self._index is not None:
            self._index.close()

    # Files

    def take(self, path: str) -> None:
        """Moves a file of the data directory to lost/, durably: the new name before the old one is removed."""
        self.moved_files += 1
        if self._is_dry:
            return
        target = self._place_of(path)
        self._disk.rename(path, target)
        self._disk.sync_directory(os.path.dirname(target))
        self._disk.sync_directory(os.path.dirname(path))

    def link(self, path: str) -> None:
        """Links a file of the data directory into lost/, durably, or copies it if the file system has no links."""
        self.moved_files += 1
        target = self._place_of(path)
        if not can_link(self._disk, path, target):
            with contextlib.closing(self._disk.open(path)) as file:
                copy_bytes(self._disk, file, file.size(), target, Unwatched())
        self._disk.sync_directory(os.path.dirname(target))

    def copy(self, path: str) -> None:
        """Copies a small file to lost/ before it is replaced, unless the disk cannot read it."""
        try:
            data = read_file(self._disk, path)
        except OSError:
            return
        self.moved_files += 1
        if not self._is_dry:
            write_atomically(self._disk, self._place_of(path, data), data)

    def _place_of(self, path: str, data: bytes | None = None) -> str:
        """Returns a file's path in lost/, with a number if an earlier run has put another file there."""
        target = os.path.join(self.directory, os.path.relpath(path, self._data))
        self._disk.make_directory(os.path.dirname(target))
        place, number = target, 1
        while self._disk.exists(place) and (data is None or read_file(self._disk, place) != data):
            number += 1
            place = f"{target}.{number}"
        return place


def good_lines(data: bytes) -> list[bytes]:
    """Returns the complete lines at the beginning of an index, which a power failure may have cut."""
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
    """Returns keys for the index: a string if the key is UTF-8, otherwise an object with its base64."""
    return [_key(key) for key in keys]


def _key(key: bytes) -> str | dict[str, str]:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(key).decode("ascii")}
