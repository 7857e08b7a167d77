"""The positions of a consumer, and their form as one string: docs/formats/position.md.

A position names the history that its seq belongs to, by the whole failover log: with one branch alone, a consumer
whose newest branch is unknown to a server could only start over.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import xxhash

from tailrace.errors import BadPosition
from tailrace.model.failover import BRANCH_BYTES, SEQ_MAX, SNAPSHOT_LAST_UNKNOWN, FailoverEntry, FailoverLog
from tailrace.model.values import FEED_ID_BYTES

CLUSTER_ID_BYTES = 16
PARTITION_MAX = (1 << 32) - 1  # a block's header has 32 bits for it

MAGIC = "trp"
VERSION = "1"
PREFIX = f"{MAGIC}{VERSION}."
SUM_BYTES = 8
# 4,096 partitions with a full failover log of branches of their own take 4 MB. A longer text is not a position, and is
# refused before it is decoded.
TEXT_CHARS_MAX = 16 << 20

_INSIDE = 1  # the position is inside a snapshot: its bounds follow
_FILLING = 2  # the consumer began at 0 and has not passed the purge seq of then: it follows
_FLAG_BITS = 2
_VARINT_BYTES_MAX = 9  # 63 bits


class Position(NamedTuple):
    """How far a consumer has come in one partition.

    It holds everything up to ``seq`` of the history that ``log`` describes. Inside a snapshot it holds everything up to
    ``snapshot_first``, and the rows of the snapshot up to ``seq``. Between snapshots all three numbers are equal.

    Attributes:
        branch: The newest branch of ``log``, 16 bytes.
        seq: The last seq that was handled.
        snapshot_first: The seq before the snapshot.
        snapshot_last: The last seq of the snapshot, included.
        purge_seq: The purge seq that the node told when the consumer began at 0; None above it.
        log: The failover log: the branches of the history, newest first.
    """

    branch: bytes
    seq: int
    snapshot_first: int
    snapshot_last: int
    purge_seq: int | None
    log: FailoverLog

    @classmethod
    def at(
        cls,
        log: FailoverLog,
        seq: int,
        snapshot_first: int | None = None,
        snapshot_last: int | None = None,
        purge_seq: int | None = None,
    ) -> Position:
        """Makes a position.

        Args:
            log: The failover log of the history.
            seq: The last seq that was handled.
            snapshot_first: The seq before the snapshot. Default: ``seq``, between snapshots.
            snapshot_last: The last seq of the snapshot. Default: ``seq``, between snapshots.
            purge_seq: The purge seq that the node told when the consumer began at 0.

        Returns:
            The position at ``seq`` of the newest branch of ``log``.
        """
        first = seq if snapshot_first is None else snapshot_first
        last = seq if snapshot_last is None else snapshot_last
        return cls(log.branch, seq, first, last, purge_seq, log)

    def has(self, branch: bytes, seq: int) -> bool:
        """Tells whether a consumer at this position holds a version, or a later mutation of its key.

        Inside a snapshot only the state before the snapshot counts, because the snapshot may have the newer row further
        up. During a rollback nothing counts, because rows of the lost history are still there.

        Args:
            branch: The branch of the version, 16 bytes.
            seq: The seq of the version.

        Returns:
            True if it holds the version.
        """
        if self.snapshot_last == SNAPSHOT_LAST_UNKNOWN:
            return False
        held_seq = self.seq if self.seq == self.snapshot_last else self.snapshot_first
        return seq <= held_seq and bool(self.log) and self.log.branch_at(seq) == branch


class Positions(Mapping[int, Position]):
    """The positions of a consumer in the partitions of one feed. Immutable; all tasks and threads may share it.

    It is a mapping from partitions to `Position`. Partitions that were not begun are missing. ``str(positions)`` is an
    opaque string that is safe in a URL, and `parse` reads it.

    Attributes:
        cluster_id: The id of the cluster, 16 bytes.
        feed_id: The id of the feed, 16 bytes.

    Args:
        cluster_id: The id of the cluster, 16 bytes.
        feed_id: The id of the feed, 16 bytes.
        positions: The position of each partition that was begun.

    Raises:
        ValueError: An id is not 16 bytes long, or a position contradicts itself.
    """

    __slots__ = ("_by_partition", "cluster_id", "feed_id")

    cluster_id: bytes
    feed_id: bytes

    def __init__(self, cluster_id: bytes, feed_id: bytes, positions: Mapping[int, Position] | None = None) -> None:
        """Raises ValueError if an id is not 16 bytes or a position contradicts itself."""
        if len(cluster_id) != CLUSTER_ID_BYTES or len(feed_id) != FEED_ID_BYTES:
            raise ValueError("a cluster id and a feed id are 16 bytes each")
        self.cluster_id = bytes(cluster_id)
        self.feed_id = bytes(feed_id)
        self._by_partition = dict(positions or {})
        for partition, position in self._by_partition.items():
            _check_position(partition, position)

    def with_position(self, partition: int, position: Position) -> Positions:
        """Returns positions with one of them replaced. It copies the mapping.

        Args:
            partition: The partition.
            position: Its new position.

        Returns:
            The new positions.

        Raises:
            ValueError: The position contradicts itself.
        """
        return self.with_positions({partition: position})

    def with_positions(self, changed: Mapping[int, Position]) -> Positions:
        """Returns positions with several of them replaced. It copies the mapping.

        Args:
            changed: The new position of each partition that changes.

        Returns:
            The new positions.

        Raises:
            ValueError: A position contradicts itself.
        """
        for partition, position in changed.items():
            _check_position(partition, position)
        return self._replaced({**self._by_partition, **changed})

    def without(self, partition: int) -> Positions:
        """Returns positions without one partition.

        Args:
            partition: The partition. It may be missing already.

        Returns:
            The new positions.
        """
        return self._replaced({p: position for p, position in self._by_partition.items() if p != partition})

    def seqs(self) -> dict[int, int]:
        """Returns the seqs.

        Returns:
            The seq of each partition.
        """
        return {partition: position.seq for partition, position in self._by_partition.items()}

    def require_feed(self, cluster_id: bytes, feed_id: bytes) -> None:
        """Checks that the positions belong to a feed.

        Args:
            cluster_id: The id of the cluster, 16 bytes.
            feed_id: The id of the feed, 16 bytes.

        Raises:
            BadPosition: They belong to another feed or cluster. The message names both ids.
        """
        if self.cluster_id != cluster_id:
            raise BadPosition(
                f"these positions belong to cluster {self.cluster_id.hex()}, this is cluster {cluster_id.hex()}; "
                "ask the cluster that they came from, or begin anew"
            )
        if self.feed_id != feed_id:
            raise BadPosition(
                f"these positions belong to a feed with the id {self.feed_id.hex()}, this one has {feed_id.hex()}: it "
                "is another feed, or one that was dropped and made again under the same name; begin anew"
            )

    @classmethod
    def parse(cls, text: str) -> Positions:
        """Reads positions from the string that ``str(positions)`` made.

        Args:
            text: The string. White space around it is ignored.

        Returns:
            The positions.

        Raises:
            BadPosition: The string is damaged, cut off, or of an unknown version.
            TypeError: ``text`` is not a string.
        """
        if not isinstance(text, str):
            raise TypeError(f"positions are parsed from a str, not from {type(text).__name__}")
        text = text.strip()
        reader = _Reader(_checked_body(text))
        try:
            positions = _read_positions(reader)
        except (IndexError, ValueError) as error:
            raise BadPosition(f"this positions string breaks its format: {error}") from None
        if str(positions) != text:
            raise BadPosition("this positions string is not in the one form that its positions have")
        return positions

    def __getitem__(self, partition: int) -> Position:
        return self._by_partition[partition]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_partition)

    def __len__(self) -> int:
        return len(self._by_partition)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Positions):
            return NotImplemented
        return (self.cluster_id, self.feed_id, self._by_partition) == (
            other.cluster_id,
            other.feed_id,
            other._by_partition,
        )

    def __hash__(self) -> int:
        return hash((self.cluster_id, self.feed_id, frozenset(self._by_partition.items())))

    def __str__(self) -> str:
        body = _body(self)
        return PREFIX + base64.urlsafe_b64encode(body + _sum(body)).decode("ascii").rstrip("=")

    def __repr__(self) -> str:
        return f"<Positions of feed {self.feed_id.hex()} at {self.seqs()}>"

    def _replaced(self, by_partition: dict[int, Position]) -> Positions:
        positions = object.__new__(Positions)
        positions.cluster_id = self.cluster_id
        positions.feed_id = self.feed_id
        positions._by_partition = by_partition
        return positions


def _check_position(partition: int, position: Position) -> None:
    branch, seq, first, last, purge_seq, log = position
    if not 0 <= partition <= PARTITION_MAX:
        raise ValueError(f"{partition} is no id of a partition (0 to {PARTITION_MAX})")
    if not 0 <= first <= seq <= last <= SEQ_MAX:
        raise ValueError(f"partition {partition} at seq {seq} cannot be in a snapshot from {first} to {last}")
    if purge_seq is not None and not 0 <= purge_seq <= SEQ_MAX:
        raise ValueError(f"{purge_seq} is no purge seq (partition {partition})")
    if not log and last > 0:
        raise ValueError(f"partition {partition} at seq {seq} has no failover log; a seq alone names nothing")
    if branch != log.branch:
        raise ValueError(f"branch {branch.hex()} is not the newest of its failover log (partition {partition})")


# ---- writing ----


def _body(positions: Positions) -> bytes:
    ordered = sorted(positions.items())
    branches: dict[tuple[bytes, int], int] = {}  # (branch, term) -> its index, in order of first use
    logs: dict[FailoverLog, int] = {}  # likewise; partitions with the same log share one
    for _, position in ordered:
        if position.log not in logs:
            logs[position.log] = len(logs)
            for entry in position.log:
                branches.setdefault((entry.branch, entry.term), len(branches))
    out = bytearray(positions.cluster_id + positions.feed_id)
    _put_varint(out, len(branches))
    for branch, term in branches:
        out += branch
        _put_varint(out, term)
    _put_varint(out, len(logs))
    for log in logs:
        _put_varint(out, len(log))
        for entry in log:
            _put_varint(out, branches[entry.branch, entry.term])
            _put_varint(out, entry.base)
    _put_varint(out, len(ordered))
    next_partition = 0
    for partition, position in ordered:
        _put_varint(out, partition - next_partition)
        _put_position(out, position, logs[position.log])
        next_partition = partition + 1
    return bytes(out)


def _put_position(out: bytearray, position: Position, log_index: int) -> None:
    _, seq, first, last, purge_seq, _ = position
    inside = not first == seq == last
    flags = (_INSIDE if inside else 0) | (_FILLING if purge_seq is not None else 0)
    _put_varint(out, log_index << _FLAG_BITS | flags)
    _put_varint(out, seq)
    if inside:
        _put_varint(out, seq - first)
        _put_varint(out, last - seq)
    if purge_seq is not None:
        _put_varint(out, purge_seq)


def _put_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _sum(body: bytes) -> bytes:
    """Returns XXH3-64, seed 0, of the prefix and the body: a changed version counts as damage, too."""
    return xxhash.xxh3_64_intdigest(PREFIX.encode("ascii") + body).to_bytes(SUM_BYTES, "little")


# ---- reading ----


def _checked_body(text: str) -> bytes:
    if not text.startswith(MAGIC):
        raise BadPosition(f"{text[:40]!r} is no positions string; one begins with {PREFIX!r}")
    if not text.startswith(PREFIX):
        raise BadPosition(
            f"this positions string begins with {text[: len(PREFIX)]!r}; only version {VERSION} ({PREFIX!r}) is known "
            "here: it is damaged, or a newer release wrote it"
        )
    if len(text) > TEXT_CHARS_MAX:
        raise BadPosition(f"a positions string of {len(text)} characters is over the bound of {TEXT_CHARS_MAX}")
    encoded = text[len(PREFIX) :]
    try:
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadPosition(f"this positions string is damaged: {error}") from None
    body, stored_sum = data[:-SUM_BYTES], data[-SUM_BYTES:]
    if _sum(body) != stored_sum:
        raise BadPosition("this positions string is damaged or cut off: its checksum does not fit")
    return body


class _Reader:
    """Takes bytes and varints from the front of a body. Raises ValueError if the body is too short."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._offset = 0

    def take(self, size_bytes: int) -> bytes:
        taken = self._body[self._offset : self._offset + size_bytes]
        if len(taken) != size_bytes:
            raise ValueError("it ends too early")
        self._offset += size_bytes
        return taken

    def varint(self) -> int:
        number = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return number
        raise ValueError("a number has more than 63 bits")

    def expect_end(self) -> None:
        if self._offset != len(self._body):
            raise ValueError(f"{len(self._body) - self._offset} bytes follow its end")


def _read_positions(reader: _Reader) -> Positions:
    cluster_id, feed_id = reader.take(CLUSTER_ID_BYTES), reader.take(FEED_ID_BYTES)
    branches = [(reader.take(BRANCH_BYTES), reader.varint()) for _ in range(reader.varint())]
    logs = [_read_log(reader, branches) for _ in range(reader.varint())]
    by_partition: dict[int, Position] = {}
    next_partition = 0
    for _ in range(reader.varint()):
        partition = next_partition + reader.varint()
        by_partition[partition] = _read_position(reader, logs)
        next_partition = partition + 1
    reader.expect_end()
    return Positions(cluster_id, feed_id, by_partition)


def _read_log(reader: _Reader, branches: list[tuple[bytes, int]]) -> FailoverLog:
    entries = []
    for _ in range(reader.varint()):
        branch, term = branches[reader.varint()]
        entries.append(FailoverEntry(branch, term, reader.varint()))
    return FailoverLog(entries)


def _read_position(reader: _Reader, logs: list[FailoverLog]) -> Position:
    shape = reader.varint()
    log, seq = logs[shape >> _FLAG_BITS], reader.varint()
    first = last = seq
    if shape & _INSIDE:
        first, last = seq - reader.varint(), seq + reader.varint()
    return Position.at(log, seq, first, last, reader.varint() if shape & _FILLING else None)
