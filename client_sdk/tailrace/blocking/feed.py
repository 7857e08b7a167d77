"""A feed, as a blocking client uses it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from tailrace.backoff import backoff_seconds
from tailrace.batch import check_key
from tailrace.blocking.stage import Stage
from tailrace.blocking.writer import Writer
from tailrace.changes import (
    batch_blocks,
    check_batching,
    checked_keys,
    delete_flags,
    look_ups,
    partition_of,
    put_flags,
    row_block,
)
from tailrace.errors import TailraceError, UnknownFeed, Unreachable
from tailrace.hashing import key_hash
from tailrace.model import Delete, Item, PartitionInfo, Put, Resolved, Version, VersionRange
from tailrace.replies import forgetting, has_come_to, partition_infos, resolved
from tailrace.staging import Published, SealedStage, publish_request
from tailrace.wire.messages import WriteFlag
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_messages import published_from_json

if TYPE_CHECKING:
    from tailrace.blocking.client import Client

_T = TypeVar("_T")


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
        flags = put_flags(value, if_version, if_absent)
        versions = self._write_one(key, value, level, flags, if_version, timeout)
        return Version(versions.partition, versions.branch, versions.last_seq)

    def delete(
        self, key: bytes, *, level: str = "disk", if_version: Version | None = None, timeout: float | None = None
    ) -> Version:
        """Deletes ``key``, whether it is there or not."""
        versions = self._write_one(key, None, level, delete_flags(if_version), if_version, timeout)
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
        lane, block = row_block(key, value, feed, if_version, self._client.lanes)
        with self.forgetting():
            return self._client.write(lane, block, wanted, deadline, flags=flags, if_version=if_version)

    def write(
        self, changes: Sequence[Put | Delete], *, level: str = "disk", timeout: float | None = None
    ) -> dict[int, VersionRange]:
        """Writes a batch, atomic in each partition; gives the versions by partition. As ``tailrace.Feed.write``."""
        wanted = self._client.level(level)
        deadline = self._client.deadline(timeout)
        feed = self._resolve(deadline)
        blocks = batch_blocks(changes, feed, self._client.lanes)
        with self.forgetting():
            return self._client.write_all(blocks, wanted, deadline)

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
        check_batching(batch_bytes, batch_rows, in_flight_bytes)
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

    def stage(
        self,
        *,
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        in_flight_bytes: int = 16 * 1024 * 1024,
        timeout: float | None = None,
    ) -> Stage:
        """Rows that nobody sees until they are published; as ``tailrace.Feed.stage``."""
        check_batching(batch_bytes, batch_rows, in_flight_bytes)
        return Stage(
            self._client,
            self,
            self.resolve(timeout),
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            in_flight_bytes=in_flight_bytes,
            timeout=timeout,
        )

    def publish(
        self,
        sink: str,
        batch: int,
        stages: Iterable[SealedStage],
        *,
        origin: str | None = None,
        timeout: float | None = None,
    ) -> Published:
        """Publishes the rows of sealed stages as a batch, once; as ``tailrace.Feed.publish``."""
        deadline = self._client.deadline(timeout)
        feed = self._resolve(deadline)
        value = publish_request(feed.feed_id, sink, batch, stages, origin)
        with self.forgetting():
            return Published(*published_from_json(self._client.call(Opcode.PUBLISH, value, deadline)))

    def get(
        self, key: bytes, *, level: str = "disk", at_least: Version | None = None, timeout: float | None = None
    ) -> Item | None:
        """The newest version of ``key`` that ``level`` shows, None where there is none; as ``tailrace.Feed.get``."""
        if at_least is not None:
            self._come_to(key, at_least, self._client.deadline(timeout))
        return self.get_many([key], level=level, timeout=timeout)[0]

    def _come_to(self, key: bytes, version: Version, deadline: float) -> None:
        """Waits until a node that follows has ``version``. Raises VersionLost, Unreachable."""
        check_key(key)
        for tries in itertools.count(1):
            value = self._client.call(Opcode.PARTITIONS, {"name": self.name}, deadline)
            partition_of(key, key_hash(key), resolved(value).partitions, version)
            if has_come_to(value, version) or not self._client.reads_followers:
                return
            pause_s = backoff_seconds(tries)
            if time.monotonic() + pause_s > deadline:
                raise Unreachable(f"the node has not come to {version} in time")
            time.sleep(pause_s)

    def get_many(
        self, keys: Iterable[bytes], *, level: str = "disk", timeout: float | None = None
    ) -> list[Item | None]:
        """As ``get``, for many keys, in their order."""
        asked = checked_keys(keys)
        wanted = self._client.level(level)
        deadline = self._client.deadline(timeout)
        feed = self._resolve(deadline)
        items: list[Item | None] = []
        with self.forgetting():
            for part in look_ups(asked):
                items += self._client.get(feed.feed_id, wanted, part, deadline)
        return items

    def partitions(self, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions: ids, ranges, leaders, and how far they have come. Raises UnknownFeed."""
        value = self._client.call(Opcode.PARTITIONS, {"name": self.name}, self._client.deadline(timeout))
        return partition_infos(value)

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

    def forgetting_done(
        self, done: Callable[[_T | None, TailraceError | None], None]
    ) -> Callable[[_T | None, TailraceError | None], None]:
        """For writers and stages: ``done``, which also forgets the feed's id if the node does not know it."""
        return forgetting(done, self.forget)

    @contextlib.contextmanager
    def forgetting(self) -> Iterator[None]:
        try:
            yield
        except UnknownFeed:
            self.forget()
            raise
