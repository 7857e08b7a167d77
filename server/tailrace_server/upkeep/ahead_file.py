"""The file AHEAD of a partition: rows of a leader's stream that came before the rows below them are here.

    header | LOG | START BLOCK BLOCK END | START PRODUCERS BLOCK SINKS END | LOG | START BLOCK ...
                 (after_seq ...          ]                                 last_seq   not complete: not there

Only whole snapshots count. The checksum of a record covers that of the one before it, so records that a truncation or
a crash has left behind are no continuation. No row of the file is acknowledged anywhere: a file that cannot be used is
removed, and its rows come again. Source: docs/formats/ahead.md. All methods block, except where it is said.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import struct
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import xxhash

from tailrace.block import Block
from tailrace.consuming.events import Agreed, Event, Mutations, ReplicaEvent, SnapshotEnd, SnapshotStart
from tailrace.errors import TailraceError
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.replica_messages import Producers
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.chain import AppliedRange
from tailrace_server.host.disk import Buffer, Disk, File, raise_if_no_space, write_atomically

MAGIC = b"TRAHEAD\0"
VERSION = 1
_HEADER = struct.Struct("<8sII16s16s")  # magic, version, partition, feed id, random
_SUM = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size + _SUM.size
_RECORD = struct.Struct("<II")  # length of the payload, kind; then the sum
RECORD_BYTES = _RECORD.size + _SUM.size
_START = struct.Struct("<QQQI")  # first seq, last seq, purge seq, flags
_END = struct.Struct("<QQ")  # first seq, last seq
_READ_BYTES = 1024 * 1024
_NOWHERE = Position.at(FailoverLog(), 0)


class AheadDamaged(TailraceError):
    """A file AHEAD cannot be used."""


class Kind(enum.IntEnum):
    """The kinds of records."""

    LOG = 1
    START = 2
    BLOCK = 3
    PRODUCERS = 4
    SINKS = 5
    END = 6


_KINDS = frozenset(map(int, Kind))
_COMPLETE, _PUBLISHED = 1, 2


class _Found(NamedTuple):
    """The records up to ``end``, behind a whole snapshot or a log."""

    end: int
    sum: int
    after_seq: int
    last_seq: int
    log: FailoverLog


class AheadFile:
    """The rows (``after_seq``, ``last_seq``] of the history ``log``, durable. One task at a time changes it.

    Each call opens the file for itself, so that none is closed while a thread uses it, also if its feed is dropped.

    ``after_seq``, ``last_seq``, ``log`` and ``nbytes`` may be read at any time, without waiting.
    """

    def __init__(self, disk: Disk, path: str, feed_id: bytes, partition: int, found: _Found) -> None:
        self.path = path
        self._disk = disk
        self._feed_id = feed_id
        self._partition = partition
        self._found = found  # what is durable and whole
        self._end, self._sum = found.end, found.sum  # behind the last record, in the file

    @property
    def after_seq(self) -> int:
        """The seq in front of the first row."""
        return self._found.after_seq

    @property
    def last_seq(self) -> int:
        """The end of the last whole snapshot; ``after_seq`` if there is none."""
        return self._found.last_seq

    @property
    def log(self) -> FailoverLog:
        """The failover log of the node that has sent the rows."""
        return self._found.log

    @property
    def range(self) -> AppliedRange:
        """The seqs of the rows."""
        return AppliedRange(self.after_seq, self.last_seq)

    @property
    def nbytes(self) -> int:
        """The bytes of the file."""
        return self._end

    @classmethod
    def create(
        cls, disk: Disk, path: str, feed_id: bytes, partition: int, after_seq: int, log: FailoverLog, random: bytes
    ) -> AheadFile:
        """Makes an empty file, durably, in the place of an older one. NoSpace, OSError."""
        header = _HEADER.pack(MAGIC, VERSION, partition, feed_id, random)
        first = xxhash.xxh3_64_intdigest(header)
        buffers, sum = _encode(Kind.LOG, [_log_payload(after_seq, log)], first)
        data = b"".join([header, _SUM.pack(first), *buffers])
        try:
            write_atomically(disk, path, data)
        except OSError as error:
            raise_if_no_space(error, f"at {path}")
            raise
        return cls(disk, path, feed_id, partition, _Found(len(data), sum, after_seq, after_seq, log))

    @classmethod
    def load(cls, disk: Disk, path: str, feed_id: bytes, partition: int) -> AheadFile:
        """Returns the file of an earlier start. Raises AheadDamaged, OSError."""
        with contextlib.closing(disk.open(path)) as file:
            found = _scan(file, path, feed_id, partition, None)
        return cls(disk, path, feed_id, partition, found)

    def append(self, events: Sequence[Event | ReplicaEvent]) -> None:
        """Adds events, durably; those behind the last end of a snapshot count when their snapshot has its end.

        NoSpace, OSError: the file is as before.
        """
        buffers: list[Buffer] = []
        sum, found, end = self._sum, self._found, self._end
        for event in events:
            kind, payload = _payload(event, found.last_seq)
            more, sum = _encode(kind, payload, sum)
            buffers += more
            end += sum_of(more)
            if isinstance(event, SnapshotEnd):
                found = found._replace(end=end, sum=sum, last_seq=event.last_seq)
            elif isinstance(event, Agreed):
                found = found._replace(end=end, sum=sum, log=event.log)
        try:
            with contextlib.closing(self._disk.open(self.path, writable=True)) as file:
                file.write_at(self._end, [b"".join(buffers)], end - self._end)
                file.sync()
        except OSError as error:
            self.forget_half()  # what was written since the last sync may be lost: it is written again
            raise_if_no_space(error, f"at {self.path}")
            raise
        self._end, self._sum, self._found = end, sum, found

    def forget_half(self) -> None:
        """Drops a snapshot without its end: it comes again. Never waits."""
        self._end, self._sum = self._found.end, self._found.sum

    def keep_through(self, seq: int) -> None:
        """Drops the snapshots that end above ``seq``, durably. AheadDamaged, OSError."""
        with contextlib.closing(self._disk.open(self.path, writable=True)) as file:
            found = _scan(file, self.path, self._feed_id, self._partition, seq)
            file.truncate(found.end)
            file.sync()
        self._found = found._replace(log=self.log)
        self.forget_half()

    def events(self, above_seq: int) -> Generator[Event | ReplicaEvent, None, None]:
        """Yields the events of all snapshots that end above ``above_seq``, without rows at or below it. Close it.

        Raises AheadDamaged, OSError.
        """
        skips = False
        with contextlib.closing(self._disk.open(self.path)) as file:
            for kind, payload in _records(file, self.path, HEADER_BYTES, self._found.end):
                match kind:
                    case Kind.START:
                        first_seq, last_seq, purge_seq, flags = _START.unpack(payload)
                        # If it is announced again, the end comes later: what came before counts, so it is not skipped.
                        skips = last_seq <= above_seq
                        if flags & _PUBLISHED and first_seq <= above_seq < last_seq:
                            raise AheadDamaged(f"{self.path}: seq {above_seq} is inside of a published batch")
                        if not skips:
                            complete, published = bool(flags & _COMPLETE), bool(flags & _PUBLISHED)
                            first_seq = max(first_seq, above_seq + 1)
                            yield SnapshotStart(
                                self._partition, first_seq, last_seq, _NOWHERE, complete, purge_seq, published
                            )
                    case Kind.BLOCK if not skips:
                        found = Mutations.above(Block.parse(payload), above_seq)
                        if found is not None:
                            yield found
                    case Kind.PRODUCERS if not skips:
                        yield Producers(self._partition, *_read_table(payload))
                    case Kind.SINKS if not skips:
                        yield SinksTold(self._partition, *_read_table(payload))
                    case Kind.END if not skips:
                        first_seq, last_seq = _END.unpack(payload)
                        yield SnapshotEnd(self._partition, first_seq, last_seq, _NOWHERE)

    def remove(self) -> None:
        """Removes the file, durably. OSError."""
        if self._disk.exists(self.path):
            self._disk.remove(self.path)
        self._disk.sync_directory(os.path.dirname(self.path))


def sum_of(buffers: Sequence[Buffer]) -> int:
    """Returns the bytes of ``buffers``."""
    return sum(map(len, buffers))


def nbytes_of(event: Event | ReplicaEvent) -> int:
    """Returns about the bytes that ``event`` takes in a file."""
    return RECORD_BYTES + (event.block.nbytes if isinstance(event, Mutations) else 64)


def _encode(kind: Kind, payload: Sequence[Buffer], before: int) -> tuple[list[Buffer], int]:
    """Returns the buffers of a record behind one with the checksum ``before``, and the record's checksum."""
    head = _RECORD.pack(sum_of(payload), kind)
    digest = xxhash.xxh3_64(head, seed=before)
    for part in payload:
        digest.update(part)
    sum = digest.intdigest()
    return [head, _SUM.pack(sum), *payload], sum


def _payload(event: Event | ReplicaEvent, seq: int) -> tuple[Kind, Sequence[Buffer]]:
    match event:
        case Mutations():
            return Kind.BLOCK, [event.block.head, event.block.body]
        case SnapshotStart():
            flags = _COMPLETE * event.complete | _PUBLISHED * event.published
            return Kind.START, [_START.pack(event.first_seq, event.last_seq, event.purge_seq, flags)]
        case SnapshotEnd():
            return Kind.END, [_END.pack(event.first_seq, event.last_seq)]
        case Producers():
            return Kind.PRODUCERS, [_table_payload(event)]
        case SinksTold():
            return Kind.SINKS, [_table_payload(event)]
        case Agreed():
            return Kind.LOG, [_log_payload(seq, event.log)]
        case _:
            raise AssertionError(f"{type(event).__name__} is not kept")


def _log_payload(seq: int, log: FailoverLog) -> bytes:
    return json.dumps({"seq": seq, "log": log.to_json()}).encode()


def _table_payload(event: Producers | SinksTold) -> bytes:
    return json.dumps({"seq": event.seq, "value": event.value}).encode()


def _read_table(payload: bytes) -> tuple[int, dict[str, object]]:
    found = json.loads(payload)
    return found["seq"], found["value"]


def _scan(file: File, path: str, feed_id: bytes, partition: int, through_seq: int | None) -> _Found:
    """Returns the whole snapshots at the beginning of ``file``; those that end above ``through_seq`` are left out."""
    header = file.read_at(0, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise AheadDamaged(f"{path}: its header has {len(header)} bytes of {HEADER_BYTES}")
    magic, version, *place, _ = _HEADER.unpack_from(header)
    if magic != MAGIC or _SUM.unpack_from(header, _HEADER.size)[0] != xxhash.xxh3_64_intdigest(header[: _HEADER.size]):
        raise AheadDamaged(f"{path}: its header is damaged")
    if version != VERSION or place != [partition, feed_id]:
        raise AheadDamaged(f"{path}: it is of version {version}, and of partition {place[0]} of feed {place[1].hex()}")
    found: _Found | None = None
    end, in_snapshot = HEADER_BYTES, False
    for kind, payload, sum in _records_with_sums(file, HEADER_BYTES, file.size()):
        end += RECORD_BYTES + len(payload)
        try:
            if kind is Kind.LOG:
                told = json.loads(payload)
                log = FailoverLog.from_json(told["log"])
                after_seq, last_seq = (told["seq"],) * 2 if found is None else found[2:4]
                found, in_snapshot = _Found(end, sum, after_seq, last_seq, log), False
            elif found is None:
                break
            elif kind is Kind.START:
                in_snapshot = True
            elif kind is Kind.END and in_snapshot:
                _, last_seq = _END.unpack(payload)
                if last_seq <= found.last_seq or (through_seq is not None and last_seq > through_seq):
                    break
                found, in_snapshot = found._replace(end=end, sum=sum, last_seq=last_seq), False
            elif not in_snapshot:
                break
        except (ValueError, LookupError, TypeError, struct.error):
            break
    if found is None:
        raise AheadDamaged(f"{path}: its first record is damaged")
    return found


def _records(file: File, path: str, begin: int, end: int) -> Iterator[tuple[Kind, bytes]]:
    """Yields the records between two offsets. Raises AheadDamaged if they do not reach ``end``."""
    at = begin
    for kind, payload, _ in _records_with_sums(file, begin, end):
        at += RECORD_BYTES + len(payload)
        yield kind, payload
    if at != end:
        raise AheadDamaged(f"{path}: the record at byte {at} is damaged")


def _records_with_sums(file: File, begin: int, end: int) -> Iterator[tuple[Kind, bytes, int]]:
    """Yields the good records from ``begin``, behind the header, up to ``end``: kind, payload, checksum."""
    [sum] = _SUM.unpack(file.read_at(_HEADER.size, _SUM.size))
    window, window_at, at = b"", begin, begin
    while at + RECORD_BYTES <= end:
        if at + RECORD_BYTES > window_at + len(window):
            window, window_at = file.read_at(at, min(_READ_BYTES, end - at)), at
        length, number = _RECORD.unpack_from(window, at - window_at)
        if at + RECORD_BYTES + length > end:
            return
        if at + RECORD_BYTES + length > window_at + len(window):
            window, window_at = file.read_at(at, min(max(_READ_BYTES, RECORD_BYTES + length), end - at)), at
        place = at - window_at
        [told] = _SUM.unpack_from(window, place + _RECORD.size)
        payload = window[place + RECORD_BYTES : place + RECORD_BYTES + length]
        digest = xxhash.xxh3_64(window[place : place + _RECORD.size], seed=sum)
        digest.update(payload)
        sum = digest.intdigest()
        if sum != told or number not in _KINDS:
            return
        yield Kind(number), payload, sum
        at += RECORD_BYTES + length
