"""A feed, as a blocking client uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.batch import Batches, check_key, check_value
from tailrace.block import encode_block
from tailrace.blocking.writer import Writer
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
        feed = self.resolve(timeout)
        hash_ = key_hash(key)
        partition = partition_of_hash(hash_, feed.partitions)
        if if_version is not None and if_version.partition != partition:
            raise ValueError(f"key {key!r} is in partition {partition}, the version is of {if_version.partition}")
        block = encode_block([key], [value], partition=partition, hashes=[hash_])
        lane = self._client.lane(feed.feed_id, partition)
        session = self._client.session
        versions: VersionRange = self._client.ask(
            lambda reply, deadline: session.write(
                lane, block, wanted, reply.done, deadline, flags=flags, if_version=if_version
            ),
            timeout,
        )
        return versions

    def write(
        self, changes: Sequence[Put | Delete], *, level: str = "disk", timeout: float | None = None
    ) -> dict[int, VersionRange]:
        """Writes a batch, atomic in each partition; gives the versions by partition."""
        feed = self.resolve(timeout)
        batches = Batches(feed.partitions, _WHOLE_BATCH, _WHOLE_BATCH)
        batches.add_all(changes)
        blocks = [ready.encode() for ready in batches.take_all()]
        with self.writer(level=level, timeout=timeout) as writer:
            for block in blocks:
                writer.send(block)
            return writer.flush()

    def writer(
        self,
        *,
        level: str = "disk",
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        in_flight_bytes: int = 16 * 1024 * 1024,
        timeout: float | None = None,
    ) -> Writer:
        """A pipelined writer, a context manager; as ``tailrace.Feed.writer``, but nothing is sent by time alone."""
        return Writer(
            self._client,
            self.resolve(timeout),
            level=self._client.level(level),
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            in_flight_bytes=in_flight_bytes,
            timeout=timeout,
        )

    def get(self, key: bytes, *, level: str = "disk", timeout: float | None = None) -> Item | None:
        """The newest version of ``key`` that ``level`` shows, None where there is none."""
        return self.get_many([key], level=level, timeout=timeout)[0]

    def get_many(
        self, keys: Iterable[bytes], *, level: str = "disk", timeout: float | None = None
    ) -> list[Item | None]:
        """As ``get``, for many keys, in their order."""
        asked = list(keys)
        for key in asked:
            check_key(key)
        wanted = self._client.level(level)
        feed = self.resolve(timeout)
        session = self._client.session
        items: list[Item | None] = []
        for start in range(0, len(asked), GET_KEYS_MAX):
            part = asked[start : start + GET_KEYS_MAX]

            def send(reply: Any, deadline: float, part: list[bytes] = part) -> None:
                session.get(feed.feed_id, wanted, part, reply.done, deadline)

            items += self._client.ask(send, timeout)
        return items

    def partitions(self, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions: ids, ranges, leaders, and how far they have come. Raises UnknownFeed."""
        value = self._client.call(Opcode.PARTITIONS, {"name": self.name}, timeout)
        return [partition_info(partition) for partition in value["partitions"]]

    def resolve(self, timeout: float | None = None) -> Resolved:
        """Id and number of partitions, asked for once. Raises UnknownFeed."""
        if self._resolved is None:
            self._resolved = resolved(self._client.call(Opcode.PARTITIONS, {"name": self.name}, timeout))
        return self._resolved
