"""A feed, as a blocking client uses it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from tailrace.blocking.runner import BlockingRunner
from tailrace.blocking.stage import Stage
from tailrace.blocking.stream import Stream
from tailrace.blocking.writer import Writer
from tailrace.consuming.explain_plan import explain_plan
from tailrace.consuming.ring import RING_ROWS
from tailrace.consuming.subscription import Since, Subscription, consume, group_claim
from tailrace.copies.fetch_plan import fetch_plan
from tailrace.errors import TailraceError
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

if TYPE_CHECKING:
    from tailrace.blocking.follower import Follower
    from tailrace.blocking.items import Items
    from tailrace.consuming.explain import Explanation
    from tailrace.copies.fetch import Fetched
    from tailrace.indexes import Index
    from tailrace.indexes.replaying import Replayed

TIMEOUT = "The seconds to retry, in place of ``retry_for``."


class Feed:
    """A handle of one feed. Made by `Client.feed` and `Client.create_feed`.

    Threads may share it. In a forked process it connects anew at its next call.
    """

    def __init__(self, runner: BlockingRunner, name: str, core: FeedCore | None = None) -> None:
        self._runner = runner
        self._core = core or FeedCore(runner.core, name)
        self.name = name

    def __repr__(self) -> str:
        return f"<Feed {self.name!r}>"

    # Writing

    @documented(FeedCore.put, timeout=TIMEOUT)
    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        level: LevelName | None = None,
        if_version: Version | None = None,
        if_absent: bool = False,
        ttl: int | None = None,
        timeout: float | None = None,
    ) -> Version:
        if if_version is None and ttl is None and value is not None and not if_absent:
            version = self._runner.write_row(self._core, key, value, level, timeout)
            if version is not None:
                return version
        return self._runner.run(self._core.put(key, value, level, if_version, if_absent, ttl), timeout)

    @documented(FeedCore.delete, timeout=TIMEOUT)
    def delete(
        self,
        key: bytes,
        *,
        level: LevelName | None = None,
        if_version: Version | None = None,
        timeout: float | None = None,
    ) -> Version:
        if if_version is None:
            version = self._runner.write_row(self._core, key, None, level, timeout)
            if version is not None:
                return version
        return self._runner.run(self._core.delete(key, level, if_version), timeout)

    @documented(FeedCore.delete_if_present, timeout=TIMEOUT)
    def delete_if_present(
        self, key: bytes, *, level: LevelName | None = None, timeout: float | None = None
    ) -> Version | None:
        return self._runner.run(self._core.delete_if_present(key, level), timeout)

    @documented(FeedCore.write, timeout=TIMEOUT)
    def write(
        self, changes: Sequence[Put | Delete], *, level: LevelName | None = None, timeout: float | None = None
    ) -> dict[int, VersionRange]:
        return self._runner.run(self._core.write(changes, level), timeout)

    @documented(
        FeedCore.writer,
        "Nothing is sent by time alone.",
        timeout="The seconds that a batch may stay without an answer, in place of ``retry_for``.",
    )
    def writer(
        self,
        *,
        level: LevelName | None = None,
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        in_flight_bytes: int = 16 * 1024 * 1024,
        timeout: float | None = None,
    ) -> Writer:
        wanted, batching = self._core.writer(level, batch_bytes, batch_rows, in_flight_bytes)
        return Writer(self._runner, self._core, self.resolve(timeout), wanted, batching, timeout)

    @documented(
        FeedCore.stage,
        timeout="The seconds that a batch may stay without an answer, in place of ``retry_for``.",
    )
    def stage(
        self,
        *,
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        in_flight_bytes: int = 16 * 1024 * 1024,
        timeout: float | None = None,
    ) -> Stage:
        batching = self._core.stage(batch_bytes, batch_rows, in_flight_bytes)
        return Stage(self._runner, self._core, self.resolve(timeout), batching, timeout)

    @documented(
        FeedCore.publish,
        timeout="The seconds to retry, in place of ``retry_for``. A node publishes a large batch in several steps, and "
        "the time begins anew at each of them.",
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
        return self._runner.run(self._core.publish(sink, batch, stages, origin, compare), timeout)

    @documented(
        ArrowSender.write_arrow,
        timeout="The seconds that a block may stay without an answer, in place of ``retry_for``.",
    )
    def write_arrow(
        self,
        data: Any,
        *,
        key: str = "key",
        value: str = "value",
        deleted: str | None = None,
        ttl: int | str | None = None,
        level: LevelName | None = None,
        timeout: float | None = None,
    ) -> dict[int, VersionRange]:
        from tailrace.requests.arrow_write import tell

        with self.writer(level=level, timeout=timeout) as writer:
            try:
                writer.write_arrow(data, key=key, value=value, deleted=deleted, ttl=ttl)
                return writer.flush()
            except Exception as error:
                written = writer.acknowledged
                with contextlib.suppress(TailraceError):
                    written = writer.flush()
                tell(error, written)
                raise

    @documented(ParkedRows.replay_parked, timeout="The seconds to retry each request, in place of ``retry_for``.")
    def replay_parked(self, *, timeout: float | None = None) -> Replayed:
        from tailrace.indexes.replaying import Replay

        self._runner.deadline(timeout)  # a wrong one is refused before anything is read
        replay = Replay(self._core)
        for item in Feed(self._runner, f"{self.name}{PARKED}").items():
            self._runner.run(replay.row(item), timeout)
        return replay.result

    # Reading

    @documented(FeedCore.get, timeout=TIMEOUT)
    def get(
        self, key: bytes, *, level: LevelName = "disk", at_least: Version | None = None, timeout: float | None = None
    ) -> Item | None:
        return self._runner.get(self._core, key, level, at_least, timeout)

    @documented(FeedCore.get_many, timeout=TIMEOUT)
    def get_many(
        self, keys: Iterable[bytes], *, level: LevelName = "disk", timeout: float | None = None
    ) -> list[Item | None]:
        return self._runner.run(self._core.get_many(keys, level), timeout)

    @documented(
        fetch_plan,
        timeout="The seconds to retry each request, in place of ``retry_for``.",
    )
    def fetch(
        self,
        directory: str | os.PathLike[str],
        *,
        partitions: Iterable[int] | None = None,
        visibility: LevelName = "disk",
        progress: Callable[[int, int], None] | None = None,
        timeout: float | None = None,
    ) -> Fetched:
        from tailrace.blocking.fetch import run_fetch

        fetch = fetch_plan(self._runner.core, self._core, directory, partitions, visibility, progress)
        return run_fetch(self._runner, fetch, timeout)

    @documented(FeedCore.partitions, timeout=TIMEOUT)
    def partitions(self, *, timeout: float | None = None) -> list[PartitionInfo]:
        return self._runner.run(self._core.partitions(), timeout)

    @documented(explain_plan, timeout=TIMEOUT)
    def explain_resume(
        self, positions: Positions, *, visibility: LevelName = "disk", timeout: float | None = None
    ) -> dict[int, Explanation]:
        return self._runner.run(explain_plan(self._runner.core, self._core, positions, visibility), timeout)

    def items(self, *, key_prefix: bytes = b"") -> Items:
        """Iterates over the latest value of every key, one partition after another.

        It holds everything that was acknowledged before the call, and may hold what was written later. Memory holds one
        partition's keys and values at a time.

        Args:
            key_prefix: Only keys that begin with these bytes. The node sends no others.

        Returns:
            An iterator of `Item`. Its ``to_arrow()`` reads all items into a ``pyarrow.Table`` instead.

        Raises:
            ValueError: The prefix is longer than a key can be.
            UnknownFeed: While iterating: the feed does not exist, or was dropped.
            Retryable: While iterating: no node has answered in time.
        """
        from tailrace.blocking.items import Items
        from tailrace.consuming.items_core import ItemsCore  # most programs read no latest state

        return Items(self, ItemsCore(self.name, key_prefix, codec=self._core.codec))

    # Following

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
        return self.stream(
            consume(
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
            ),
            window_bytes,
        )

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
        """Keeps an index equal to the feed while the body of this context manager runs, by a thread of its own.

        Args:
            index: The index. All its methods are called on that thread. Two followers must not use it together.
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
        from tailrace.blocking.follower import Follower
        from tailrace.indexes.follower_core import FollowOptions

        given = (visibility, ring, catch_up, key_prefix, partitions, on_error)
        return Follower(self, index, FollowOptions(*given, group_claim(self._core, group)))

    # For the sink of Spark, followers and iterators of items

    def stream(self, subscription: Subscription, window_bytes: int = 8 * 1024 * 1024) -> Stream:
        """Makes a consumer of this feed."""
        return self._runner.stream(subscription, window_bytes)

    def partition_map(self, timeout: float | None = None) -> PartitionMap:
        """Returns the feed's id, and how far each partition has come in which history. Raises UnknownFeed."""
        return self._runner.run(self._core.partition_map(), timeout)

    def park(self, changes: Sequence[Put]) -> None:
        """Writes rows that an index could not take to the feed ``NAME.parked``."""
        self._runner.run(self._core.park(changes))

    def level(self, text: str) -> Level:
        """Returns a level by name. Raises ValueError if it does not exist, NotDurable if the node cannot give it."""
        return self._core.level(text)

    def resolve(self, timeout: float | None = None) -> Resolved:
        """Returns the id and the number of partitions, and asks for them once. Raises UnknownFeed."""
        return self._runner.run(self._core.resolve(), timeout)

    def forget(self) -> None:
        """Forgets the feed's id, so that the next call asks for it."""
        self._core.forget()
