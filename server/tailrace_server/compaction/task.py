"""The task and the result of a compaction, as JSON in one line each. Pure. Members: docs/internals/compaction.md."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tailrace.model.hashing import HASH_MAX
from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.identity import INCLUDED_IDS_MAX, SEGMENT_ID_BYTES
from tailrace_server.blocks.builder import TARGET_BYTES_MAX
from tailrace_server.compaction.errors import BadTask
from tailrace_server.segment import SegmentIdentity

VERSION = 1

# Bounds open files, and the ids in the result's identity (worker.identity_of): the inputs, and their own inputs.
INPUTS_MAX = INCLUDED_IDS_MAX // 2
# A lookup opens a whole block: about 170 µs with 128 KiB, 670 µs with 1 MiB, 80 µs with 32 KiB and a file 6 % larger.
BLOCK_BYTES = 128 * 1024
# Producers named in a result; more producers with wrong hashes have the same bug.
FOREIGN_MAX = 16
# Fits a task with INPUTS_MAX + 1 paths of 4,096 characters, each escaped as six.
LINE_BYTES_MAX = 1024 * 1024

assert (INPUTS_MAX + 1) * 4_096 * 6 < LINE_BYTES_MAX


class CompactionTask(NamedTuple):
    """A compaction of the segments ``inputs`` (paths, in the order of the chain) into one at the path ``output``.

    Their partition has the hashes ``hash_first`` to ``hash_last``, both included. ``segment_id`` (16 bytes) is that of
    the result. ``is_major``: the first input is the chain's oldest segment. ``history``: every row survives.
    ``purge_before_us`` (microseconds since 1970 UTC): tombstones at or below ``stable_seq`` are dropped if their
    timestamp is not later; None: all stay, as always unless ``is_major``. ``block_bytes`` is the approximate number of
    raw bytes of a block in the result. ``next_base_id`` (16 bytes) is the base of the segment behind the last input;
    empty: none is behind it. ``cuts``, rising seqs, are the bases of branches: no block has rows on both
    sides of a cut, because readers take all rows of a block as of one branch.
    """

    inputs: tuple[str, ...]
    output: str
    segment_id: bytes
    hash_first: int
    hash_last: int
    is_major: bool
    history: bool
    purge_before_us: int | None
    stable_seq: int
    block_bytes: int = BLOCK_BYTES
    compress: bool = True
    cuts: tuple[int, ...] = ()
    next_base_id: bytes = b""

    def encode(self) -> bytes:
        """Returns one line of JSON, without its end."""
        return _encode({**self._asdict(), "segment_id": self.segment_id.hex(), "next_base_id": self.next_base_id.hex()})

    @classmethod
    def decode(cls, line: bytes | str) -> CompactionTask:
        """Reverses ``encode``. Raises BadTask, with the reason, for other content."""
        members = _decode(line, "task", cls)
        inputs, cuts = members["inputs"], members["cuts"]
        if not isinstance(inputs, list) or not isinstance(cuts, list):
            raise BadTask("the task's inputs must be a list of paths, and its cuts a list of seqs")
        ids = {name: _id_of(name, members[name]) for name in ("segment_id", "next_base_id")}
        task = cls(**{**members, "inputs": tuple(inputs), "cuts": tuple(cuts), **ids})
        task.check()
        return task

    def check(self) -> None:
        """Raises BadTask if a member has another type, is out of bounds, or contradicts another one."""
        if not 1 <= len(self.inputs) <= INPUTS_MAX:
            raise BadTask(f"{len(self.inputs)} segments to compact; a task has 1 to {INPUTS_MAX}")
        if not all(isinstance(path, str) and path for path in (*self.inputs, self.output)):
            raise BadTask("inputs and output must be paths")
        if len({*self.inputs, self.output}) != len(self.inputs) + 1:
            raise BadTask("a path is named twice")
        if len(self.segment_id) != SEGMENT_ID_BYTES:
            raise BadTask(f"a segment id has {SEGMENT_ID_BYTES} bytes, this one {len(self.segment_id)}")
        if len(self.next_base_id) not in (0, SEGMENT_ID_BYTES):
            raise BadTask(f"next_base_id has {SEGMENT_ID_BYTES} bytes or none, this one {len(self.next_base_id)}")
        for name in ("is_major", "history", "compress"):
            if not isinstance(getattr(self, name), bool):
                raise BadTask(f"the task's {name} must be true or false")
        for name in ("hash_first", "hash_last", "stable_seq", "block_bytes"):
            if not _is_number(getattr(self, name)):
                raise BadTask(f"the task's {name} is {getattr(self, name)!r}, it must be a number of 64 bits")
        if not 1 <= self.block_bytes <= TARGET_BYTES_MAX:
            raise BadTask(f"blocks have 1 to {TARGET_BYTES_MAX} raw bytes, not {self.block_bytes}")
        if not all(map(_is_number, self.cuts)) or list(self.cuts) != sorted(set(self.cuts)):
            raise BadTask(f"the task's cuts must be rising seqs, they are {self.cuts!r:.100}")
        if self.hash_first > self.hash_last:
            raise BadTask(f"no hash lies between {self.hash_first} and {self.hash_last}")
        if self.purge_before_us is not None:
            self._check_purge()

    def _check_purge(self) -> None:
        if not _is_number(self.purge_before_us):
            raise BadTask(f"the task's purge_before_us is {self.purge_before_us!r}, it must be microseconds or null")
        if self.history:
            raise BadTask("a feed that keeps its history keeps its tombstones: purge_before_us must be null")
        if not self.is_major:
            raise BadTask(
                "only a compaction of the oldest segment may drop tombstones, because older rows would reappear: "
                "purge_before_us must be null"
            )


class Foreign(NamedTuple):
    """The rows of a producer with a wrong key hash. ``producer_id`` is 0 if their blocks were merged since.

    ``corrected`` of the ``rows`` have the right hash now; the others belong to another partition and are unchanged.
    ``segment``, ``seq`` and up to 64 bytes of the ``key`` are those of the first row.
    """

    producer_id: int
    rows: int
    corrected: int
    segment: str
    seq: int
    key: bytes


class CompactionResult(NamedTuple):
    """The result of a compaction: a complete segment under its name, with ``identity`` and ``nbytes``.

    Of the ``rows`` that were read, ``superseded`` had a newer row of their key, and ``purged`` were dropped tombstones.
    ``foreign`` has up to FOREIGN_MAX producers with wrong hashes. ``foreign_rows`` counts all such rows, and
    ``foreign_kept`` those that could not be corrected.
    """

    identity: SegmentIdentity
    nbytes: int
    rows: int
    superseded: int
    purged: int
    foreign_rows: int
    foreign_kept: int
    foreign: tuple[Foreign, ...]

    def encode(self) -> bytes:
        """Returns one line of JSON, without its end."""
        foreign = [{**one._asdict(), "key": one.key.hex()} for one in self.foreign]
        return _encode({**self._asdict(), "identity": json.loads(self.identity.encode()), "foreign": foreign})

    @classmethod
    def decode(cls, line: bytes | str) -> CompactionResult:
        """Reverses ``encode``. Raises BadTask for other content, such as that of another version."""
        members = _decode(line, "result", cls)
        try:
            identity = SegmentIdentity.decode(json.dumps(members["identity"]).encode())
            foreign = tuple(Foreign(**{**one, "key": bytes.fromhex(one["key"])}) for one in members["foreign"])
        except (SegmentFormatError, TypeError, ValueError, KeyError) as error:
            raise BadTask(f"the result of a compaction cannot be read: {error}") from None
        return cls(**{**members, "identity": identity, "foreign": foreign})


def _encode(members: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **members}, separators=(",", ":")).encode()


def _decode(line: bytes | str, what: str, of: type) -> dict[str, Any]:
    """Returns the members, exactly those of the class ``of``. Raises BadTask."""
    try:
        members = json.loads(line)
    except ValueError as error:
        raise BadTask(f"the {what} of a compaction is no JSON: {error}") from None
    if not isinstance(members, dict):
        raise BadTask(f"the {what} of a compaction must be an object")
    version = members.pop("version", None)
    if version != VERSION:
        raise BadTask(
            f"this is the {what} of a compaction of version {version!r}, this program knows version {VERSION}: both "
            f"sides must be of one installation"
        )
    fields = of._fields  # type: ignore[attr-defined]
    if members.keys() != set(fields):
        raise BadTask(f"the {what} of a compaction must have exactly the members {', '.join(fields)}")
    return members


def _id_of(name: str, text: object) -> bytes:
    try:
        return bytes.fromhex(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise BadTask(f"the task's {name} is {text!r}, it must be hexadecimal digits") from None


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= HASH_MAX
