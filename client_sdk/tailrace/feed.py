"""A feed, as a client uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.batch import Batches, check_key, check_value
from tailrace.block import Block, encode_block
from tailrace.consuming.session import Wanted
from tailrace.errors import TooLarge, UnknownFeed, VersionLost
from tailrace.hashing import key_hash, partition_of_hash
from tailrace.items import Items
from tailrace.model import Delete, Item, Level, PartitionInfo, Put, Resolved, Version, VersionRange
from tailrace.position import Positions
from tailrace.replies import failover_log, partition_info, resolved
from tailrace.requests.lane import Done, Lane
from tailrace.stream import Stream
from tailrace.wire.messages import GET_KEYS_MAX, WriteFlag
from tailrace.wire.opcodes import Opcode
from tailrace.writer import Writer

if TYPE_CHECKING:
    from tailrace.client import Client
    from tailrace.follower import Follower
    from tailrace.indexes import Index

# A writer's batch and one more value stay below a block's bound.
BATCH_BYTES_MAX = 8 * 1024 * 1024
# A batch of write() is not cut by size: what does not fit into one block is refused.
_WHOLE_BATCH = 1 << 62


class Feed:
    """A handle; ``client.feed(name)`` makes one without asking the node. Safe to use from many tasks."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name
        self._resolved: Resolved | None = None

    def __repr__(self) -> str:
        return f"<Feed {self.name!r}>"

    # Writing

    async def put(
        self,
        key: bytes,
        value: bytes,
        *,
        level: str = "disk",
        if_version: Version | None = None,
        if_absent: bool = False,
    ) -> Version:
        """Sets ``key`` to ``value``; answered once it is as safe as ``level`` says. Gives the version.

        ``if_version``: only where the key still has this version; ``if_absent``: only where it has none; else
        VersionConflict. Raises TypeError, ValueError, TooLarge, UnknownFeed, and Retryable after ``retry_for`` seconds.
        """
        check_value(value)
        if if_version is not None and if_absent:
            raise ValueError("if_version and if_absent contradict each other")
        flags = (WriteFlag.IF_VERSION if if_version is not None else 0) | (WriteFlag.IF_ABSENT if if_absent else 0)
        versions = await self._write_one(key, value, level, flags, if_version)
        return Version(versions.partition, versions.branch, versions.last_seq)

    async def delete(self, key: bytes, *, level: str = "disk", if_version: Version | None = None) -> Version:
        """Deletes ``key``, whether it is there or not; as ``put``."""
        flags = WriteFlag.IF_VERSION if if_version is not None else 0
        versions = await self._write_one(key, None, level, flags, if_version)
        return Version(versions.partition, versions.branch, versions.last_seq)

    async def delete_if_present(self, key: bytes, *, level: str = "disk") -> Version | None:
        """Deletes ``key`` where it is there; None, and nothing is written, where it is not."""
        versions = await self._write_one(key, None, level, WriteFlag.IF_PRESENT, None)
        if not versions.first_seq:
            return None
        return Version(versions.partition, versions.branch, versions.last_seq)

    async def _write_one(
        self, key: bytes, value: bytes | None, level: str, flags: int, if_version: Version | None
    ) -> VersionRange:
        check_key(key)
        wanted = self._client.level(level)
        feed = await self.resolve()
        hash_ = key_hash(key)
        partition = partition_of_hash(hash_, feed.partitions)
        if if_version is not None and if_version.partition != partition:
            raise ValueError(f"key {key!r} is in partition {partition}, the version is of {if_version.partition}")
        block = encode_block([key], [value], partition=partition, hashes=[hash_])
        lane = self._client.lane(feed.feed_id, partition)
        with self._forgetting():
            return await self._client.write(lane, block, wanted, flags, if_version)

    async def write(self, changes: Sequence[Put | Delete], *, level: str = "disk") -> dict[int, VersionRange]:
        """Writes a batch: atomic in each partition, which is one block. Gives the versions by partition.

        Of two changes of one key the later one counts. Raises TooLarge, before anything is written, where one
        partition's share does not fit into a block; where one partition fails, the error's notes name those that took
        their share.
        """
        wanted = self._client.level(level)
        feed = await self.resolve()
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
            return await self._client.write_all(list(zip(lanes, blocks, strict=True)), wanted)

    def writer(
        self,
        *,
        level: str = "disk",
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        linger_s: float = 0.005,
        in_flight_bytes: int = 16 * 1024 * 1024,
    ) -> Writer:
        """A pipelined writer, an async context manager.

        A partition's rows are sent when they are ``batch_bytes`` of keys and values or ``batch_rows`` rows, or have
        waited ``linger_s`` seconds; ``put`` waits while more than ``in_flight_bytes`` have no answer.
        """
        if not 1 <= batch_bytes <= BATCH_BYTES_MAX:
            raise ValueError(f"batch_bytes is {batch_bytes}; 1 to {BATCH_BYTES_MAX} are permitted")
        if not 1 <= batch_rows <= 65_536:
            raise ValueError(f"batch_rows is {batch_rows}; 1 to 65,536 are permitted")
        if linger_s < 0 or in_flight_bytes < 1:
            raise ValueError("linger_s is not negative, and in_flight_bytes is positive")
        return Writer(
            self,
            level=self._client.level(level),
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            linger_s=linger_s,
            in_flight_bytes=in_flight_bytes,
        )

    # Reading

    async def get(self, key: bytes, *, level: str = "disk", at_least: Version | None = None) -> Item | None:
        """The newest version of ``key`` that ``level`` shows, None where there is none; waits for what is in flight.

        ``at_least``: a version, of any key of the same partition, that the answer must not be older than; the node
        that leads has it already. Raises VersionLost where that version's branch has ended below it, ValueError where
        it is of another partition, UnknownFeed, and Retryable after ``retry_for`` seconds.
        """
        if at_least is not None:
            await self._check_not_lost(key, at_least)
        return (await self.get_many([key], level=level))[0]

    async def _check_not_lost(self, key: bytes, version: Version) -> None:
        check_key(key)
        value = await self._client.call(Opcode.PARTITIONS, {"name": self.name})
        partition = partition_of_hash(key_hash(key), resolved(value).partitions)
        if version.partition != partition:
            raise ValueError(f"key {key!r} is in partition {partition}, the version is of {version.partition}")
        if failover_log(value, partition).has_ended_below(version.branch, version.seq):
            raise VersionLost(f"{version} is of a branch that has ended below it")

    async def get_many(self, keys: Iterable[bytes], *, level: str = "disk") -> list[Item | None]:
        """As ``get``, for many keys, in their order."""
        asked = list(keys)
        for key in asked:
            check_key(key)
        wanted = self._client.level(level)
        feed = await self.resolve()
        items: list[Item | None] = []
        with self._forgetting():
            for start in range(0, len(asked), GET_KEYS_MAX):
                items += await self._client.get(feed.feed_id, wanted, asked[start : start + GET_KEYS_MAX])
        return items

    def items(self, *, key_prefix: bytes = b"") -> Items:
        """The latest state, at a barrier: all that was acknowledged before the call, nothing that it has superseded.

        An async iterator, partition by partition, so what is held in memory is one partition's state.
        """
        return Items(self, key_prefix)

    def consume(
        self,
        since: str | Positions = "beginning",
        *,
        until: str | Positions | None = None,
        partitions: Iterable[int] | None = None,
        visibility: str = "disk",
        window_bytes: int = 8 * 1024 * 1024,
        on_rollback: str = "follow",
    ) -> Stream:
        """A stream of the feed's mutations: a snapshot first, then live. An async context manager.

        ``since``: "beginning", "now" (fixed when the body begins), or positions that were stored. ``until``: None (for
        ever), "now" (all that is there when the body begins), or positions. ``partitions``: all by default.
        ``visibility``: the level that mutations must have reached. ``window_bytes``: what may be under way.
        ``on_rollback``: "follow" and "restart" deliver a Rollback event and go on, "stop" raises StreamEnded.
        """
        for name, value in (("since", since), ("until", until)):
            allowed = ("beginning", "now") if name == "since" else (None, "now")
            if not isinstance(value, Positions) and value not in allowed:
                hint = "; Positions.parse reads a stored string" if isinstance(value, str) else ""
                raise ValueError(f"{name} is {value!r}, none of {', '.join(map(repr, allowed))} or Positions{hint}")
        if on_rollback not in ("follow", "stop", "restart"):
            raise ValueError(f"on_rollback is {on_rollback!r}, none of 'follow', 'stop', 'restart'")
        if window_bytes < 1:
            raise ValueError(f"window_bytes is {window_bytes}, and has to be positive")
        only = None if partitions is None else frozenset(partitions)
        if only is not None and not only:
            raise ValueError("partitions is empty: name one at least, or leave it out for all of them")
        level = self._client.level(visibility)
        stored = tuple(value for value in (since, until) if isinstance(value, Positions))
        end = until.seqs() if isinstance(until, Positions) else until
        return self._client.stream(Wanted(self.name, since, end, only, level, on_rollback, stored), window_bytes)

    def follow(self, index: Index, *, visibility: str = "disk") -> Follower:
        """Keeps ``index`` equal to the feed while the body of this async context manager runs."""
        from tailrace.follower import Follower

        return Follower(self, index, visibility=visibility)

    async def partitions(self) -> list[PartitionInfo]:
        """The partitions: ids, ranges, leaders, and how far they have come. Raises UnknownFeed."""
        value = await self._client.call(Opcode.PARTITIONS, {"name": self.name})
        return [partition_info(partition) for partition in value["partitions"]]

    # For the writer and the follower

    async def resolve(self) -> Resolved:
        """Id and number of partitions, asked for once. Raises UnknownFeed."""
        if self._resolved is None:
            self._resolved = resolved(await self._client.call(Opcode.PARTITIONS, {"name": self.name}))
        return self._resolved

    def stream(self, wanted: Wanted) -> Stream:
        """A consumer of this feed."""
        return self._client.stream(wanted)

    def send_block(self, lane: Lane, block: Block, level: Level, done: Done) -> None:
        """Queues a block; ``kick`` sends it."""
        self._client.queue_write(lane, block, level, done)

    def kick(self) -> None:
        """Sends what is queued."""
        self._client.kick()

    def _forgetting(self) -> _Forgetting:
        return _Forgetting(self)


class _Forgetting:
    """Forgets a feed's id when the node does not know it: it may have been dropped and made again."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, UnknownFeed):
            self._feed._resolved = None
