"""A feed, as a blocking client uses it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from tailrace.blocking.stage import Stage
from tailrace.blocking.writer import Writer
from tailrace.errors import TailraceError, UnknownFeed, Unreachable, VersionLost
from tailrace.link.backoff import backoff_seconds
from tailrace.model import Delete, Item, Level, PartitionInfo, Put, Resolved, Version, VersionRange
from tailrace.model.hashing import key_hash
from tailrace.requests.batch import check_key
from tailrace.requests.changes import (
    batch_blocks,
    check_batching,
    checked_keys,
    delete_flags,
    look_ups,
    partition_of,
    put_flags,
    row_block,
)
from tailrace.requests.replies import forgetting, has_come_to, partition_infos, resolved
from tailrace.requests.staging import Published, PublishSteps, SealedStage, publish_request
from tailrace.wire.messages import WriteFlag
from tailrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from tailrace.blocking.client import Client

_T = TypeVar("_T")


class Feed:
    """A handle of one feed. Made by `Client.feed` and `Client.create_feed`. Threads may share it."""

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
        """Sets the value of a key, and returns when the write has reached its level.

        Args:
            key: 1 to 4,096 bytes.
            value: At most 16 MiB.
            level: "memory", "disk" or "quorum": where the write is held when this returns.
            if_version: Write only if this is still the current version of the key.
            if_absent: Write only if the key does not exist.
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            The version of the new value.

        Raises:
            VersionConflict: The condition does not hold. Nothing was written.
            TailraceError: As in `tailrace.Feed.put`, with `TypeError` and `ValueError`.
        """
        flags = put_flags(value, if_version, if_absent)
        versions = self._write_one(key, value, level, flags, if_version, timeout)
        return Version(versions.partition, versions.branch, versions.last_seq)

    def delete(
        self, key: bytes, *, level: str = "disk", if_version: Version | None = None, timeout: float | None = None
    ) -> Version:
        """Deletes a key, whether or not it exists, and returns when the deletion has reached its level.

        Args:
            key: 1 to 4,096 bytes.
            level: "memory", "disk" or "quorum", as in `put`.
            if_version: Delete only if this is still the current version of the key.
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            The version of the deletion.

        Raises:
            VersionConflict: The condition does not hold. Nothing was written.
            TailraceError: As in `tailrace.Feed.put`.
        """
        versions = self._write_one(key, None, level, delete_flags(if_version), if_version, timeout)
        return Version(versions.partition, versions.branch, versions.last_seq)

    def delete_if_present(self, key: bytes, *, level: str = "disk", timeout: float | None = None) -> Version | None:
        """Deletes a key if it exists. Writes nothing otherwise.

        Args:
            key: 1 to 4,096 bytes.
            level: "memory", "disk" or "quorum", as in `put`.
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            The version of the deletion, or None if the key does not exist.

        Raises:
            TailraceError: As in `tailrace.Feed.put`.
        """
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
        """Writes a batch. The changes of one partition are atomic; the batch as a whole is not.

        Args:
            changes: The changes. If a key occurs twice, the later change counts.
            level: "memory", "disk" or "quorum", as in `put`.
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            The versions that were written, by partition.

        Raises:
            TooLarge: The changes of one partition do not fit into one block. Nothing was written.
            TailraceError: As in `tailrace.Feed.put`. The notes of the error name the partitions that have their share.
        """
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
        """Makes a writer that sends rows in batches without waiting for each answer. Use it as a context manager.

        It works as `tailrace.Feed.writer`, but sends nothing by time alone.

        Args:
            level: "memory", "disk" or "quorum": where the rows are held when they count as written.
            batch_bytes: The bytes of keys and values at which a batch is sent.
            batch_rows: The rows at which a batch is sent.
            in_flight_bytes: The bytes without an answer at which ``put`` waits.
            timeout: The seconds that a batch may stay without an answer, in place of ``retry_for``.

        Returns:
            A writer.

        Raises:
            ValueError: A bound or the level is not valid.
            UnknownFeed: The feed does not exist.
            Retryable: No node has answered in time.
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
        """Makes a stage: rows that no consumer sees until `publish` is called. Use it as a context manager.

        Args:
            batch_bytes: The bytes of keys and values at which the rows of a partition are sent.
            batch_rows: The rows at which the rows of a partition are sent.
            in_flight_bytes: The bytes without an answer at which ``put`` waits.
            timeout: The seconds that a batch may stay without an answer, in place of ``retry_for``.

        Returns:
            A stage.

        Raises:
            ValueError: A bound is not valid.
            UnknownFeed: The feed does not exist.
            Retryable: No node has answered in time.
        """
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
        compare: bool = True,
        timeout: float | None = None,
    ) -> Published:
        """Publishes the rows of sealed stages as one numbered batch of a sink, as `tailrace.Feed.publish`.

        Args:
            sink: The name of the sink, 1 to 200 printable characters.
            batch: The number of the batch, from 0. The numbers of a sink rise.
            stages: The sealed stages of the batch.
            origin: The program that numbers the batches, such as a checkpoint. Default: the sink.
            compare: Compare the rows with those of an earlier publish of the batch, as in `tailrace.Feed.publish`.
            timeout: The seconds to retry, in place of ``retry_for``. A node publishes a large batch in several
                steps, and the time begins anew at each of them.

        Returns:
            The versions that were written, and the partitions that had the batch already.

        Raises:
            TailraceError: As in `tailrace.Feed.publish`, with `ValueError`.
        """
        deadline = self._client.deadline(timeout)
        feed = self._resolve(deadline)
        value = publish_request(feed.feed_id, sink, batch, stages, origin, compare=compare)
        steps = PublishSteps()
        with self.forgetting():
            while steps.take(self._client.call(Opcode.PUBLISH, value, deadline)):
                deadline = self._client.deadline(timeout)
        return steps.published

    def get(
        self, key: bytes, *, level: str = "disk", at_least: Version | None = None, timeout: float | None = None
    ) -> Item | None:
        """Returns the current value of a key, as `tailrace.Feed.get`.

        Args:
            key: 1 to 4,096 bytes.
            level: "memory", "disk" or "quorum": the level that a version must have reached to be returned.
            at_least: A version of any key of the same partition. A follower waits until it has this version.
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            The value with its version, or None if the key does not exist.

        Raises:
            TailraceError: As in `tailrace.Feed.get`, with `ValueError`.
        """
        if at_least is not None:
            self._come_to(key, at_least, self._client.deadline(timeout))
        return self.get_many([key], level=level, timeout=timeout)[0]

    def _come_to(self, key: bytes, version: Version, deadline: float) -> None:
        """Waits until a node that follows has ``version``. Raises VersionLost, Unreachable."""
        check_key(key)
        for tries in itertools.count(1):
            value = self._client.call(Opcode.PARTITIONS, {"name": self.name}, deadline)
            partition_of(key, key_hash(key), resolved(value).partitions, version)
            try:
                if has_come_to(value, version) or not self._client.reads_followers:
                    return
            except VersionLost:
                if not self._client.reads_followers:
                    raise
                self._require_not_lost(key, version, deadline)  # else it is the node's history that is behind
            pause_s = backoff_seconds(tries)
            if time.monotonic() + pause_s > deadline:
                raise Unreachable(f"the node has not come to {version} in time")
            time.sleep(pause_s)

    def _require_not_lost(self, key: bytes, version: Version, deadline: float) -> None:
        """Asks the node that leads, and a majority if there is a set. Raises VersionLost, Unreachable."""
        with self._client.of_leader(deadline) as leader:
            value = leader.call(Opcode.PARTITIONS, {"name": self.name}, deadline)
            try:
                has_come_to(value, version)
            except VersionLost:
                if leader.offers(Level.QUORUM):  # a leader that was deposed may not know it, and waits here
                    leader.get(resolved(value).feed_id, Level.QUORUM, [key], deadline)
                raise

    def get_many(
        self, keys: Iterable[bytes], *, level: str = "disk", timeout: float | None = None
    ) -> list[Item | None]:
        """Returns the current values of many keys.

        Args:
            keys: The keys, in any order.
            level: "memory", "disk" or "quorum", as in `get`.
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            The value of each key, or None if it does not exist, in the order of ``keys``.

        Raises:
            TailraceError: As in `tailrace.Feed.get`, with `ValueError`.
        """
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
        """Lists the partitions of the feed.

        Args:
            timeout: The seconds to retry, in place of ``retry_for``.

        Returns:
            The id, hash range, leader and seqs of each partition, in the order of the ids.

        Raises:
            UnknownFeed: The feed does not exist.
            Retryable: No node has answered in time.
        """
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
