"""A feed, as a blocking client uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tailrace.batch import Batches, check_key, check_value
from tailrace.block import ROWS_MAX, encode_block
from tailrace.blocking.writer import Writer
from tailrace.errors import TooLarge, UnknownFeed
from tailrace.feed import BATCH_BYTES_MAX
from tailrace.hashing import key_hash, partition_of_hash
from tailrace.model import Delete, Item, PartitionInfo, Put, Resolved, Version, VersionRange
from tailrace.replies import partition_info, resolved
from tailrace.wire.messages import GET_KEYS_MAX, WriteFlag
from tailrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from tailrace.blocking.client import Client

_WHOLE_BATCH = 1 << 62


class Feed:
    """A handle; ``client.feed(name)`` makes one without asking the node. Calls as of ``tailrace.Feed``.

    ``timeout``: seconds, instead of the client's ``retry_for``.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name
        self._resolved: Resolved | None = None

    def __repr__(self) -> str:
        return f"<Feed {self.name!r}>"

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        level: str = "disk",
        if_version: Version | None = None,
        if_absent: bool = False,
        timeout: float | None = None,
    ) -> Version:
        """Sets ``key`` to ``value``; gives the version. Raises VersionConflict, Unreachable, ..."""
        check_value(value)
        if if_version is not None and if_absent:
            raise ValueError("if_version and if_absent contradict each other")
        flags = (WriteFlag.IF_VERSION if if_version is not None else 0) | (WriteFlag.IF_ABSENT if if_absent else 0)
        versions = self._write_one(key, value, level, flags, if_version, timeout)
        return Version(versions.partition, versions.branch, versions.last_seq)

    def delete(
        self, key: bytes, *, level: str = "disk", if_version: Version | None = None, timeout: float | None = None
    ) -> Version:
        """Deletes ``key``, whether it is there or not."""
        flags = WriteFlag.IF_VERSION if if_version is not None else 0
        versions = self._write_one(key, None, level, flags, if_version, timeout)
        return Version(versions.partition, versions.branch, versions.last_seq)

    def delete_if_present(self, key: bytes, *, level: str = "disk", timeout: float | None = None) -> Version | None:
        """Deletes ``key`` where it is there; None, and nothing is written, where it is not."""
        versions = self._write_one(key, None, level, WriteFlag.IF_PRESENT, None, timeout)
        if not versions.first_seq:
            return None
        return Version(versions.partition, versions.branch, versions.last_seq)

    def _write_one(
        self,
        key: bytes,
        value: bytes | None,
        level: str,
        flags: int,
        if_version: Version | None,
        timeout: float | None,
    ) -> VersionRange:
        check_key(key)
        wanted = self._client.level(level)
        deadline = self._client.deadline(timeout)
        feed = self._resolve(deadline)
        hash_ = key_hash(key)
        partition = partition_of_hash(hash_, feed.partitions)
        if if_version is not None and if_version.partition != partition:
            raise ValueError(f"key {key!r} is in partition {partition}, the version is of {if_version.partition}")
        block = encode_block([key], [value], partition=partition, hashes=[hash_])
        lane = self._client.lane(feed.feed_id, partition)
        with self._forgetting():
            return self._client.write(lane, block, wanted, deadline, flags=flags, if_version=if_version)

    def write(
        self, changes: Sequence[Put | Delete], *, level: str = "disk", timeout: float | None = None
    ) -> dict[int, VersionRange]:
        """Writes a batch, atomic in each partition; gives the versions by partition. As ``tailrace.Feed.write``."""
        wanted = self._client.level(level)
        deadline = self._client.deadline(timeout)
        feed = self._resolve(deadline)
        batches = Batches(feed.partitions, _WHOLE_BATCH, _WHOLE_BATCH)
        batches.add_all(changes)
        try:
            blocks = [ready.encode() for ready in batches.take_all()]
        except TooLarge as error:
            raise TooLarge(
                f"the batch does not fit into a block of its partition: {error}; write less at once"
            ) from None
        lanes = [self._client.lane(feed.feed_id, block.header.partition) for block in blocks]
        with self._forgetting():
            return self._client.write_all(list(zip(lanes, blocks, strict=True)), wanted, deadline)

    def writer(
        self,
        *,
        level: str = "disk",
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        in_flight_bytes: int = 16 * 1024 * 1024,
        timeout: float | None = None,
    ) -> Writer:
        """A pipelined writer, a context manager; as ``tailrace.Feed.writer``, but nothing is sent by time alone.

        ``timeout``: seconds that a batch may stay without an answer, instead of the client's ``retry_for``.
        """
        if not 1 <= batch_bytes <= BATCH_BYTES_MAX:
            raise ValueError(f"batch_bytes is {batch_bytes}; 1 to {BATCH_BYTES_MAX} are permitted")
        if not 1 <= batch_rows <= ROWS_MAX:
            raise ValueError(f"batch_rows is {batch_rows}; 1 to {ROWS_MAX} are permitted")
        if in_flight_bytes < 1:
            raise ValueError(f"in_flight_bytes is {in_flight_bytes}, and has to be positive")
        return Writer(
            self._client,
            self,
            self.resolve(timeout),
            level=self._client.level(level),
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            in_flight_bytes=in_flight_bytes,
            timeout=timeout,
        )

    def get(
        self, key: bytes, *, level: str = "disk", at_least: Version | None = None, timeout: float | None = None
    ) -> Item | None:
        """The newest version of ``key`` that ``level`` shows, None where there is none; as ``tailrace.Feed.get``."""
        return self.get_many([key], level=level, timeout=timeout)[0]

    def get_many(
        self, keys: Iterable[bytes], *, level: str = "disk", timeout: float | None = None
    ) -> list[Item | None]:
        """As ``get``, for many keys, in their order."""
        asked = list(keys)
        for key in asked:
            check_key(key)
        wanted = self._client.level(level)
        deadline = self._client.deadline(timeout)
        feed = self._resolve(deadline)
        items: list[Item | None] = []
        with self._forgetting():
            for start in range(0, len(asked), GET_KEYS_MAX):
                items += self._client.get(feed.feed_id, wanted, asked[start : start + GET_KEYS_MAX], deadline)
        return items

    def partitions(self, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions: ids, ranges, leaders, and how far they have come. Raises UnknownFeed."""
        value = self._client.call(Opcode.PARTITIONS, {"name": self.name}, self._client.deadline(timeout))
        return [partition_info(partition) for partition in value["partitions"]]

    def resolve(self, timeout: float | None = None) -> Resolved:
        """Id and number of partitions, asked for once. Raises UnknownFeed."""
        return self._resolve(self._client.deadline(timeout))

    def _resolve(self, deadline: float) -> Resolved:
        if self._resolved is None:
            self._resolved = resolved(self._client.call(Opcode.PARTITIONS, {"name": self.name}, deadline))
        return self._resolved

    def forget(self) -> None:
        """For writers: the node does not know the feed's id. It may have been dropped and made again."""
        self._resolved = None

    @contextlib.contextmanager
    def _forgetting(self) -> Iterator[None]:
        try:
            yield
        except UnknownFeed:
            self.forget()
            raise
