"""A feed, as a client under trio uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from tailrace.consuming.explain_plan import explain_plan
from tailrace.consuming.ring import RING_ROWS
from tailrace.consuming.subscription import Since, Subscription, consume, group_claim
from tailrace.copies.fetch_plan import fetch_plan
from tailrace.model import (
    CatchUpMode,
    Delete,
    Item,
    Level,
    LevelName,
    OnDataGone,
    OnRollback,
    PartitionInfo,
    Put,
    Resolved,
    Version,
    VersionRange,
)
from tailrace.model.documented import documented
from tailrace.model.position import Positions
from tailrace.requests.feed_core import PARKED, FeedCore
from tailrace.requests.replies import PartitionMap
from tailrace.requests.senders import ArrowSender, ParkedRows
from tailrace.requests.staging import Published, SealedStage
from tailrace.trio.host import Host
from tailrace.trio.runner import RequestRunner
from tailrace.trio.stage import Stage
from tailrace.trio.stream import Stream
from tailrace.trio.writer import Writer

if TYPE_CHECKING:
    from tailrace.consuming.explain import Explanation
    from tailrace.copies.fetch import Fetched
    from tailrace.indexes import Index
    from tailrace.indexes.replaying import Replayed
    from tailrace.trio.follower import Follower
    from tailrace.trio.items import Items


class Feed:
    """A handle of one feed: it writes, reads and opens streams. Made by `Client.feed` and `Client.create_feed`.

    All tasks of one trio run may share a handle.

    If a call is cancelled, a request that was not sent yet is never sent. A request that was sent may still be carried
    out, and it is not sent again after a lost connection. It never overtakes a later ``put`` of the same client to the
    same partition.
    """

    def __init__(self, runner: RequestRunner, name: str, core: FeedCore | None = None) -> None:
        self._runner = runner
        self._core = core or FeedCore(runner.core, name)
        self.name = name

    def __repr__(self) -> str:
        return f"<Feed {self.name!r}>"

    # Writing

    @documented(FeedCore.put)
    async def put(
        self,
        key: bytes,
        value: bytes,
        *,
        level: LevelName | None = None,
        if_version: Version | None = None,
        if_absent: bool = False,
        ttl: int | None = None,
    ) -> Version:
        if if_version is None and ttl is None and value is not None and not if_absent:
            version = await self._runner.write_row(self._core, key, value, level)
            if version is not None:
                return version
        return await self._runner.run(self._core.put(key, value, level, if_version, if_absent, ttl))

    @documented(FeedCore.delete)
    async def delete(self, key: bytes, *, level: LevelName | None = None, if_version: Version | None = None) -> Version:
        if if_version is None:
            version = await self._runner.write_row(self._core, key, None, level)
            if version is not None:
                return version
        return await self._runner.run(self._core.delete(key, level, if_version))

    @documented(FeedCore.delete_if_present)
    async def delete_if_present(self, key: bytes, *, level: LevelName | None = None) -> Version | None:
        return await self._runner.run(self._core.delete_if_present(key, level))

    @documented(FeedCore.write)
    async def write(
        self, changes: Sequence[Put | Delete], *, level: LevelName | None = None
    ) -> dict[int, VersionRange]:
        return await self._runner.run(self._core.write(changes, level))

    @documented(
        FeedCore.writer,
        "Rows are sent after ``linger_s`` seconds at the latest. Entering the writer asks for the feed.",
        linger_s="The seconds that a row waits for others before its batch is sent.",
    )
    def writer(
        self,
        *,
        level: LevelName | None = None,
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        in_flight_bytes: int = 16 * 1024 * 1024,
        linger_s: float = 0.005,
    ) -> Writer:
        wanted, batching = self._core.writer(level, batch_bytes, batch_rows, in_flight_bytes, linger_s=linger_s)
        return Writer(self._runner, self._core, wanted, batching, linger_s=linger_s)

    @documented(FeedCore.stage, "Entering the stage asks for the feed.")
    def stage(
        self,
        *,
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        in_flight_bytes: int = 16 * 1024 * 1024,
    ) -> Stage:
        return Stage(self._runner, self._core, self._core.stage(batch_bytes, batch_rows, in_flight_bytes))

    @documented(
        FeedCore.publish,
        "If cancelled, a part may be published, and the rest is published when the call is repeated.",
    )
    async def publish(
        self,
        sink: str,
        batch: int,
        stages: Iterable[SealedStage],
        *,
        origin: str | None = None,
        compare: bool = True,
    ) -> Published:
        return await self._runner.run(self._core.publish(sink, batch, stages, origin, compare))

    @documented(
        ArrowSender.write_arrow,
        "If it is cancelled, the first rows of each partition may have been written.",
    )
    async def write_arrow(
        self,
        data: Any,
        *,
        key: str = "key",
        value: str = "value",
        deleted: str | None = None,
        ttl: int | str | None = None,
        level: LevelName | None = None,
    ) -> dict[int, VersionRange]:
        from tailrace.requests.arrow_write import write_arrow

        return await write_arrow(self, data, key, value, deleted, ttl, level)

    @documented(
        ParkedRows.replay_parked, "If it is cancelled, some rows are done, and another call goes on with the others."
    )
    async def replay_parked(self) -> Replayed:
        from tailrace.indexes.replaying import Replay, replay_all

        return await replay_all(
            Feed(self._runner, f"{self.name}{PARKED}").items(), Replay(self._core), self._runner.run
        )

    # Reading

    @documented(FeedCore.get)
    async def get(self, key: bytes, *, level: LevelName = "disk", at_least: Version | None = None) -> Item | None:
        return await self._runner.get(self._core, key, level, at_least)

    @documented(FeedCore.get_many)
    async def get_many(self, keys: Iterable[bytes], *, level: LevelName = "disk") -> list[Item | None]:
        return await self._runner.run(self._core.get_many(keys, level))

    def items(self, *, key_prefix: bytes = b"") -> Items:
        """Iterates over the latest value of every key, one partition after another.

        It holds everything that was acknowledged before the call. Memory holds one partition's keys and values at a
        time. If the node loses writes during the iteration, a partition ends at the last seq that both histories share.
        If a step is cancelled, the next step continues it.

        Args:
            key_prefix: Only keys that begin with these bytes. The node sends no others.

        Returns:
            An async iterator of `Item`. ``await items.to_arrow()`` reads all of them into a ``pyarrow.Table`` instead.

        Raises:
            ValueError: The prefix is longer than a key can be.
            UnknownFeed: While iterating: the feed does not exist, or was dropped.
        """
        from tailrace.consuming.items_core import ItemsCore  # most programs read no latest state
        from tailrace.trio.items import Items

        return Items(self, ItemsCore(self.name, key_prefix, codec=self._core.codec))

    @documented(consume)
    def consume(
        self,
        since: Since = "beginning",
        *,
        until: str | Positions | datetime | None = None,
        partitions: Iterable[int] | str | None = None,
        visibility: LevelName = "disk",
        key_prefix: bytes = b"",
        keys_only: bool = False,
        window_bytes: int = 8 * 1024 * 1024,
        on_rollback: OnRollback = "follow",
        ring: int = RING_ROWS,
        catch_up: CatchUpMode = "auto",
        caught_up: bool = False,
        name: str | None = None,
        group: str | None = None,
        on_data_gone: OnDataGone = "raise",
    ) -> Stream:
        subscription = consume(
            self._core,
            since,
            until,
            partitions=partitions,
            visibility=visibility,
            key_prefix=key_prefix,
            keys_only=keys_only,
            on_rollback=on_rollback,
            ring=ring,
            catch_up=catch_up,
            caught_up=caught_up,
            name=name,
            group=group,
            on_data_gone=on_data_gone,
        )
        return self._runner.stream(subscription, window_bytes)

    def follow(
        self,
        index: Index,
        *,
        visibility: LevelName = "disk",
        ring: int = RING_ROWS,
        catch_up: CatchUpMode = "auto",
        key_prefix: bytes = b"",
        partitions: Iterable[int] | None = None,
        on_error: Literal["stop", "park"] = "stop",
        group: str | None = None,
    ) -> Follower:
        """Keeps an index equal to the feed while the body of this async context manager runs.

        Args:
            index: The index. It must not be used by two followers at the same time.
            visibility: "memory", "disk" or "quorum": the level that mutations must have reached.
            ring: The number of recent keys of each partition that the index stores. If the node loses more than these,
                the partition is read again from the beginning.
            catch_up: "auto", "segments" or "stream", as in `consume`.
            key_prefix: Only rows whose key begins with these bytes. An index keeps the prefix that it began with.
            partitions: Only these partitions. Default: all. Later followers of the index may name more, but no fewer.
            on_error: The treatment of rows that the index cannot take. "stop": the follower ends with the error.
                "park": they go to the feed ``NAME.parked`` with the reason, and the index takes the other ones.
            group: The group whose members fill the index together, each of them the partitions that it owns. Each has
                an object of its own for the same store, which has to be a `SharedIndex`.

        Returns:
            A follower. Entering it opens the index and resumes from its checkpoint.

        Raises:
            ValueError: An argument is not valid. On entering: another follower of this process uses the index, or it
                was filled with another ``key_prefix`` or with more ``partitions``.
            TypeError: The members of a group cannot share this index.
            BadPosition: On entering: the index belongs to another feed or cluster.
            UnknownFeed: On entering: the feed does not exist.
        """
        from tailrace.indexes.follower_core import FollowOptions
        from tailrace.trio.follower import Follower

        given = (visibility, ring, catch_up, key_prefix, partitions, on_error)
        return Follower(self, index, FollowOptions(*given, group_claim(self._core, group)))

    @documented(
        fetch_plan,
        "If cancelled, the files that came stay for the next fetch.",
    )
    async def fetch(
        self,
        directory: str | os.PathLike[str],
        *,
        partitions: Iterable[int] | None = None,
        visibility: LevelName = "disk",
        progress: Callable[[int, int], None] | None = None,
    ) -> Fetched:
        from tailrace.trio.fetch import run_fetch

        fetch = fetch_plan(self._runner.core, self._core, directory, partitions, visibility, progress)
        return await run_fetch(self._runner, fetch)

    @documented(FeedCore.partitions)
    async def partitions(self) -> list[PartitionInfo]:
        return await self._runner.run(self._core.partitions())

    @documented(explain_plan)
    async def explain_resume(self, positions: Positions, *, visibility: LevelName = "disk") -> dict[int, Explanation]:
        return await self._runner.run(explain_plan(self._runner.core, self._core, positions, visibility))

    # For writers, followers and iterators of items

    @property
    def host(self) -> Host:
        """The clock, network and randomness of the client."""
        return self._runner.host

    async def resolve(self) -> Resolved:
        """Returns the id and the number of partitions, and asks for them once. Raises UnknownFeed, WrongProcess."""
        return await self._runner.run(self._core.resolve())

    async def partition_map(self) -> PartitionMap:
        """Returns the feed's id, and how far each partition has come in which history. Raises UnknownFeed."""
        return await self._runner.run(self._core.partition_map())

    def stream(self, subscription: Subscription, window_bytes: int = 8 * 1024 * 1024) -> Stream:
        """Makes a consumer of this feed."""
        return self._runner.stream(subscription, window_bytes)

    async def park(self, changes: Sequence[Put]) -> None:
        """Writes rows that an index could not take to the feed ``NAME.parked``."""
        await self._runner.run(self._core.park(changes))

    def level(self, text: str) -> Level:
        """Returns a level by name. Raises ValueError if it does not exist, NotDurable if the node cannot give it."""
        return self._core.level(text)
