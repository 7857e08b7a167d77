"""A feed, as a client uses it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import trio

from tailrace.block import Block
from tailrace.consuming.explain import Explanation, explain, request_of
from tailrace.consuming.items import Items
from tailrace.consuming.ring import RING_ROWS
from tailrace.consuming.wanted import Wanted, checked_wanted
from tailrace.errors import UnknownFeed, Unreachable, VersionLost
from tailrace.link.backoff import backoff_seconds
from tailrace.model import Delete, Item, Level, PartitionInfo, Put, Resolved, Version, VersionRange
from tailrace.model.failover import FailoverLog
from tailrace.model.hashing import key_hash
from tailrace.model.position import Position, Positions
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
from tailrace.requests.lane import Done, Lane
from tailrace.requests.replies import PartitionMap, forgetting, has_come_to, partition_infos, partition_map, resolved
from tailrace.requests.staging import Published, PublishSteps, SealedStage, StageRequest, publish_request
from tailrace.trio.stage import Stage
from tailrace.trio.stream import Stream
from tailrace.trio.writer import Writer
from tailrace.wire.filters import StreamFilter
from tailrace.wire.messages import WriteFlag
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import ResumeAnswer

if TYPE_CHECKING:
    from tailrace.indexes import Index
    from tailrace.trio.client import Client
    from tailrace.trio.follower import Follower
    from tailrace.trio.host import Host


class Feed:
    """A handle of one feed: it writes, reads and opens streams. Made by `Client.feed` and `Client.create_feed`.

    All tasks of one trio run may share a handle.

    If a call is cancelled, a request that was not sent yet is never sent. A request that was sent may still be carried
    out, and it is not sent again after a lost connection. It never overtakes a later ``put`` of the same client to the
    same partition.
    """

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
        """Sets the value of a key, and returns when the write has reached its level.

        Args:
            key: 1 to 4,096 bytes.
            value: At most 16 MiB.
            level: "memory", "disk" or "quorum": where the write is held when this returns.
            if_version: Write only if this is still the current version of the key.
            if_absent: Write only if the key does not exist.

        Returns:
            The version of the new value.

        Raises:
            VersionConflict: The condition does not hold. Nothing was written.
            TypeError: The key or the value is not bytes.
            ValueError: The key is empty, the level does not exist, or both conditions are given.
            TooLarge: The key or the value is too long.
            UnknownFeed: The feed does not exist.
            OutcomeUnknown: The write may or may not have happened, and a retry could write it twice.
            Retryable: The write has not succeeded within ``retry_for`` seconds.
        """
        flags = put_flags(value, if_version, if_absent)
        versions = await self._write_one(key, value, level, flags, if_version)
        return Version(versions.partition, versions.branch, versions.last_seq)

    async def delete(self, key: bytes, *, level: str = "disk", if_version: Version | None = None) -> Version:
        """Deletes a key, whether or not it exists, and returns when the deletion has reached its level.

        Args:
            key: 1 to 4,096 bytes.
            level: "memory", "disk" or "quorum", as in `put`.
            if_version: Delete only if this is still the current version of the key.

        Returns:
            The version of the deletion.

        Raises:
            VersionConflict: The condition does not hold. Nothing was written.
            TailraceError: As in `put`.
        """
        versions = await self._write_one(key, None, level, delete_flags(if_version), if_version)
        return Version(versions.partition, versions.branch, versions.last_seq)

    async def delete_if_present(self, key: bytes, *, level: str = "disk") -> Version | None:
        """Deletes a key if it exists. Writes nothing otherwise.

        Args:
            key: 1 to 4,096 bytes.
            level: "memory", "disk" or "quorum", as in `put`.

        Returns:
            The version of the deletion, or None if the key does not exist.

        Raises:
            TailraceError: As in `put`.
        """
        versions = await self._write_one(key, None, level, WriteFlag.IF_PRESENT, None)
        if not versions.first_seq:
            return None
        return Version(versions.partition, versions.branch, versions.last_seq)

    async def _write_one(
        self, key: bytes, value: bytes | None, level: str, flags: int, if_version: Version | None
    ) -> VersionRange:
        check_key(key)
        wanted = self._client.level(level)
        feed = self._resolved or await self.resolve()
        lane, block = row_block(key, value, feed, if_version, self._client.lanes)
        try:
            return await self._client.write(lane, block, wanted, flags, if_version)
        except UnknownFeed:
            self._forget()
            raise

    async def write(self, changes: Sequence[Put | Delete], *, level: str = "disk") -> dict[int, VersionRange]:
        """Writes a batch. The changes of one partition are atomic; the batch as a whole is not.

        If a partition fails, the notes of the error name the partitions that have their share.

        Args:
            changes: The changes. If a key occurs twice, the later change counts.
            level: "memory", "disk" or "quorum", as in `put`.

        Returns:
            The versions that were written, by partition.

        Raises:
            TooLarge: The changes of one partition do not fit into one block. Nothing was written.
            TailraceError: As in `put`.
        """
        wanted = self._client.level(level)
        feed = await self.resolve()
        blocks = batch_blocks(changes, feed, self._client.lanes)
        try:
            return await self._client.write_all(blocks, wanted)
        except UnknownFeed:
            self._forget()
            raise

    def writer(
        self,
        *,
        level: str = "disk",
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        linger_s: float = 0.005,
        in_flight_bytes: int = 16 * 1024 * 1024,
    ) -> Writer:
        """Makes a writer that sends rows in batches without waiting for each answer. Use it as an async context
        manager.

        The rows of a partition are sent when one of three bounds is reached: ``batch_bytes``, ``batch_rows`` or
        ``linger_s``. They are also sent when the batches of all partitions together have half of ``in_flight_bytes``. A
        feed of many partitions therefore needs a larger bound for full batches.

        Args:
            level: "memory", "disk" or "quorum": where the rows are held when they count as written.
            batch_bytes: The bytes of keys and values at which a batch is sent.
            batch_rows: The rows at which a batch is sent.
            linger_s: The seconds that a row waits for others before its batch is sent.
            in_flight_bytes: The bytes without an answer at which ``put`` waits. Rows count from when they are added,
                before compression, with 17 bytes more for each.

        Returns:
            A writer. Entering it asks for the feed, and raises `UnknownFeed` if there is none.

        Raises:
            ValueError: A bound or the level is not valid.
            NotDurable: The node cannot give this level.
        """
        check_batching(batch_bytes, batch_rows, in_flight_bytes, linger_s)
        return Writer(
            self,
            level=self._client.level(level),
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            linger_s=linger_s,
            in_flight_bytes=in_flight_bytes,
        )

    def stage(
        self,
        *,
        batch_bytes: int = 1024 * 1024,
        batch_rows: int = 10_000,
        in_flight_bytes: int = 16 * 1024 * 1024,
    ) -> Stage:
        """Makes a stage: rows that no consumer sees until `publish` is called. Use it as an async context manager.

        Args:
            batch_bytes: The bytes of keys and values at which the rows of a partition are sent.
            batch_rows: The rows at which the rows of a partition are sent.
            in_flight_bytes: The bytes without an answer at which ``put`` waits, counted as in `writer`.

        Returns:
            A stage. Entering it asks for the feed, and raises `UnknownFeed` if there is none.

        Raises:
            ValueError: A bound is not valid.
        """
        check_batching(batch_bytes, batch_rows, in_flight_bytes)
        return Stage(self, batch_bytes=batch_bytes, batch_rows=batch_rows, in_flight_bytes=in_flight_bytes)

    async def publish(
        self,
        sink: str,
        batch: int,
        stages: Iterable[SealedStage],
        *,
        origin: str | None = None,
        compare: bool = True,
    ) -> Published:
        """Publishes the rows of sealed stages as one numbered batch of a sink. Returns when they are on the node's
        disk.

        Each partition takes its share in one step, or one of more than 60 MiB in several parts, of which each has all
        rows of its keys. A partition that has this batch already skips it, and one that has some parts of it takes the
        others. So the same call can be repeated after a failure, and so can a batch that was staged again with the same
        rows, in any order. If cancelled, a part may be published, and the rest is published when the call is repeated.

        Args:
            sink: The name of the sink, 1 to 200 printable characters.
            batch: The number of the batch, from 0. The numbers of a sink rise.
            stages: The sealed stages of the batch.
            origin: The program that numbers the batches, such as a checkpoint. Default: the sink.
            compare: Refuse a batch that was published before with other rows. If False, each partition keeps the rows
                that it took first. A partition that has some parts of the batch takes the others from these stages.

        Returns:
            The versions that were written, and the partitions that had the batch already.

        Raises:
            UnknownStage: A stage is not sealed or no longer exists. Parts may be published; stage the batch again.
            BatchChanged: The batch was published before, in whole or in part, with other rows. Nothing was published.
            BatchBehind: Another origin has used the number, or a later batch of this origin was published.
            TooLarge: The rows of one key are more than 60 MiB, or there are more than 4,096 stages.
            UnknownFeed: The feed does not exist.
            Retryable: No answer came within ``retry_for`` seconds. A node answers after each step of a long publish.
                A part may be published; repeat the call.
            ValueError: A name or number is not valid, or a stage is given twice.
        """
        feed = await self.resolve()
        value = publish_request(feed.feed_id, sink, batch, stages, origin, compare=compare)
        steps = PublishSteps()
        try:
            while steps.take(await self._client.call(Opcode.PUBLISH, value)):
                pass
        except UnknownFeed:
            self._forget()
            raise
        return steps.published

    # Reading

    async def get(self, key: bytes, *, level: str = "disk", at_least: Version | None = None) -> Item | None:
        """Returns the current value of a key. Writes of this client that are on their way are waited for.

        Args:
            key: 1 to 4,096 bytes.
            level: "memory", "disk" or "quorum": the level that a version must have reached to be returned.
            at_least: A version of any key of the same partition. A follower waits until it has this version.

        Returns:
            The value with its version, or None if the key does not exist.

        Raises:
            VersionLost: The branch of ``at_least`` ended below it. Only the leader's history can tell, so it is asked.
            ValueError: ``at_least`` belongs to another partition, or the level does not exist.
            UnknownFeed: The feed does not exist.
            Retryable: No answer came within ``retry_for`` seconds.
        """
        if at_least is not None:
            await self._come_to(key, at_least)
        return (await self.get_many([key], level=level))[0]

    async def _come_to(self, key: bytes, version: Version) -> None:
        """Waits until a node that follows has ``version``. Raises VersionLost, Unreachable."""
        check_key(key)
        deadline = trio.current_time() + self._client.retry_for_s
        for tries in itertools.count(1):
            value = await self._client.call(Opcode.PARTITIONS, {"name": self.name})
            partition_of(key, key_hash(key), resolved(value).partitions, version)
            try:
                if has_come_to(value, version) or not self._client.reads_followers:
                    return
            except VersionLost:
                if not self._client.reads_followers:
                    raise
                await self._require_not_lost(key, version)  # else it is the node's history that is behind
            pause_s = backoff_seconds(tries, self.host.random.random)
            if trio.current_time() + pause_s > deadline:
                raise Unreachable(f"the node has not come to {version} within {self._client.retry_for_s:g} s")
            await trio.sleep(pause_s)

    async def _require_not_lost(self, key: bytes, version: Version) -> None:
        """Asks the node that leads, and a majority if there is a set. Raises VersionLost, Unreachable."""
        async with self._client.of_leader() as leader:
            value = await leader.call(Opcode.PARTITIONS, {"name": self.name})
            try:
                has_come_to(value, version)
            except VersionLost:
                if leader.offers(Level.QUORUM):  # a leader that was deposed may not know it, and waits here
                    await leader.get(resolved(value).feed_id, Level.QUORUM, [key])
                raise

    async def get_many(self, keys: Iterable[bytes], *, level: str = "disk") -> list[Item | None]:
        """Returns the current values of many keys.

        Args:
            keys: The keys, in any order.
            level: "memory", "disk" or "quorum", as in `get`.

        Returns:
            The value of each key, or None if it does not exist, in the order of ``keys``.

        Raises:
            TailraceError: As in `get`.
        """
        asked = checked_keys(keys)
        wanted = self._client.level(level)
        feed = await self.resolve()
        items: list[Item | None] = []
        try:
            for part in look_ups(asked):
                items += await self._client.get(feed.feed_id, wanted, part)
        except UnknownFeed:
            self._forget()
            raise
        return items

    def items(self, *, key_prefix: bytes = b"") -> Items:
        """Iterates over the latest value of every key, one partition after another.

        It holds everything that was acknowledged before the call. Memory holds one partition's keys and values at a
        time. If the node loses writes during the iteration, a partition ends at the last seq that both histories share.
        If a step is cancelled, the next step continues it.

        Args:
            key_prefix: Only keys that begin with these bytes. The node sends no others.

        Returns:
            An async iterator of `Item`.

        Raises:
            ValueError: The prefix is longer than a key can be.
            UnknownFeed: While iterating: the feed does not exist, or was dropped.
        """
        wanted_rows = StreamFilter(key_prefix)
        wanted_rows.check()
        return Items(self, wanted_rows)

    def consume(
        self,
        since: str | Positions | datetime = "beginning",
        *,
        until: str | Positions | datetime | None = None,
        partitions: Iterable[int] | None = None,
        visibility: str = "disk",
        key_prefix: bytes = b"",
        keys_only: bool = False,
        window_bytes: int = 8 * 1024 * 1024,
        on_rollback: str = "follow",
        ring: int = RING_ROWS,
    ) -> Stream:
        """Makes a stream of the feed's mutations: a snapshot first, then live. Use it as an async context manager.

        Positions do not contain the filter. Resume with the same ``key_prefix`` and ``keys_only``.

        Args:
            since: The beginning of the stream. "beginning"; "now", which is fixed on entering; stored positions; or an
                aware datetime. From a time on, only mutations that the node stamped then or later are delivered.
            until: The end of the stream. None: there is none. "now": everything that exists on entering. Positions; or
                an aware datetime, which ends the stream when everything stamped before it was delivered.
            partitions: Only these partitions. Default: all.
            visibility: "memory", "disk" or "quorum": the level that mutations must have reached.
            key_prefix: Only mutations whose key begins with these bytes.
            keys_only: Deliver no values. ``Mutation.value`` is None then, and ``Mutation.deleted`` marks deletions.
            window_bytes: The bytes that the node may send before the loop has handled them.
            on_rollback: What to do if the node has lost delivered mutations. "follow": a `Rollback` event, then the
                present values of its keys, then the stream continues. "restart": a `Rollback` event without keys, then
                the partition from the beginning. "stop": `StreamEnded`.
            ring: The number of recent keys to remember for each partition, for "follow". All partitions together use at
                most 256 MiB. A rollback that goes further back is a restart.

        Returns:
            A stream. It is not connected yet.

        Raises:
            ValueError: An argument is not valid.
            UnknownFeed: On entering: the feed does not exist.
            BadPosition: On entering: the positions belong to another feed or cluster.
            DataGone: On entering or later: mutations that were asked for have been trimmed or purged.
            StreamEnded: Later: the stream has ended for good; the error has the reason.
        """
        wanted = checked_wanted(
            self.name,
            since,
            until,
            partitions=partitions,
            level=self._client.level(visibility),
            filter=StreamFilter(key_prefix, keys_only),
            on_rollback=on_rollback,
            ring=ring,
        )
        return self._client.stream(wanted, window_bytes)

    def follow(self, index: Index, *, visibility: str = "disk", ring: int = RING_ROWS) -> Follower:
        """Keeps an index equal to the feed while the body of this async context manager runs.

        Args:
            index: The index. It must not be used by two followers at the same time.
            visibility: "memory", "disk" or "quorum": the level that mutations must have reached.
            ring: The number of recent keys of each partition that the index stores. If the node loses more than these,
                the partition is read again from the beginning.

        Returns:
            A follower. Entering it opens the index and resumes from its checkpoint.

        Raises:
            ValueError: ``ring`` is negative. On entering: another follower of this process uses the index.
            BadPosition: On entering: the index belongs to another feed or cluster.
            UnknownFeed: On entering: the feed does not exist.
        """
        from tailrace.trio.follower import Follower

        return Follower(self, index, visibility=visibility, ring=ring)

    async def partitions(self) -> list[PartitionInfo]:
        """Lists the partitions of the feed.

        Returns:
            The id, hash range, leader and seqs of each partition, in the order of the ids.

        Raises:
            UnknownFeed: The feed does not exist.
            Retryable: No node has answered within ``retry_for`` seconds.
        """
        value = await self._client.call(Opcode.PARTITIONS, {"name": self.name})
        return partition_infos(value)

    async def partition_map(self) -> PartitionMap:
        """Returns the feed's id, and how far each partition has come in which history. Raises UnknownFeed."""
        return partition_map(await self._client.call(Opcode.PARTITIONS, {"name": self.name}))

    async def explain_resume(self, positions: Positions, *, visibility: str = "disk") -> dict[int, Explanation]:
        """Tells what a consumer that resumed with these positions would do now, and why. No stream is opened.

        Args:
            positions: The stored positions of the consumer.
            visibility: The level of the consumer: "memory", "disk" or "quorum".

        Returns:
            An explanation of each partition of the feed.

        Raises:
            BadPosition: The positions belong to another feed or cluster.
            UnknownFeed: The feed does not exist.
            Retryable: No node has answered within ``retry_for`` seconds.
        """
        level = self._client.level(visibility)
        feed = resolved(await self._client.call(Opcode.PARTITIONS, {"name": self.name}))
        positions.require_feed(self._client.cluster_id, feed.feed_id)
        explained = {}
        for partition in range(feed.partitions):
            position = positions.get(partition, Position.at(FailoverLog(), 0))
            request = request_of(feed.feed_id, partition, position, level, self._client.peer_role)
            answer = await self._client.call(Opcode.EXPLAIN_RESUME, request.to_json())
            explained[partition] = explain(partition, position, ResumeAnswer.of_json(answer))
        return explained

    # For the writer and the follower

    @property
    def host(self) -> Host:
        """What the client runs on."""
        return self._client.host

    async def resolve(self) -> Resolved:
        """Id and number of partitions, asked for once. Raises UnknownFeed, WrongProcess."""
        self._client.check_process()
        if self._resolved is None:
            self._resolved = resolved(await self._client.call(Opcode.PARTITIONS, {"name": self.name}))
        return self._resolved

    def stream(self, wanted: Wanted) -> Stream:
        """A consumer of this feed."""
        return self._client.stream(wanted)

    def level(self, text: str) -> Level:
        """A level by name. ValueError, NotDurable."""
        return self._client.level(text)

    def send_block(self, lane: Lane, block: Block, level: Level, done: Done) -> None:
        """Queues a block; ``kick`` sends it."""
        self._client.queue_write(lane, block, level, forgetting(done, self._forget))

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the blocks of ``lane`` that were not sent, and sends none of the others again."""
        self._client.withdraw_lane(lane)

    def ask(self, request: StageRequest) -> None:
        """Queues a request of a stage; ``kick`` sends it."""
        self._client.ask(request._replace(done=forgetting(request.done, self._forget)))

    def kick(self) -> None:
        """Sends what is queued."""
        self._client.kick()

    def _forget(self) -> None:
        """The node does not know the feed's id: it may have been dropped and made again."""
        self._resolved = None
