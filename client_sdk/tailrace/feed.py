"""A feed, as a client uses it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import trio

from tailrace.arguments import count
from tailrace.backoff import backoff_seconds
from tailrace.batch import check_key
from tailrace.block import Block
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
from tailrace.consuming.wanted import Wanted
from tailrace.errors import UnknownFeed, Unreachable
from tailrace.explaining import Explanation, explain, request_of
from tailrace.failover import FailoverLog
from tailrace.hashing import key_hash
from tailrace.items import Items
from tailrace.model import Delete, Item, Level, PartitionInfo, Put, Resolved, Version, VersionRange
from tailrace.position import Position, Positions
from tailrace.replies import PartitionMap, forgetting, has_come_to, partition_infos, partition_map, resolved
from tailrace.requests.lane import Done, Lane
from tailrace.ring import RING_ROWS
from tailrace.stage import Stage
from tailrace.staging import Published, SealedStage, StageRequest, publish_request
from tailrace.stream import Stream
from tailrace.times import to_us
from tailrace.wire.filters import StreamFilter
from tailrace.wire.messages import WriteFlag
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_messages import published_from_json
from tailrace.wire.stream_messages import ResumeAnswer
from tailrace.writer import Writer

if TYPE_CHECKING:
    from tailrace.client import Client
    from tailrace.follower import Follower
    from tailrace.host import Host
    from tailrace.indexes import Index


class Feed:
    """A handle; ``client.feed(name)`` makes one without asking the node. Safe to use from many tasks.

    Cancelling a call: a request that was not sent yet is never sent. One that was sent may be carried out, and is not
    sent again after a lost connection. A later ``put`` of this client to the same partition is never overtaken by it.
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
        """Sets ``key`` to ``value``; answered once it is as safe as ``level`` says. Gives the version.

        ``if_version``: only where the key still has this version; ``if_absent``: only where it has none; else
        VersionConflict. Raises TypeError, ValueError, TooLarge, UnknownFeed, and Retryable after ``retry_for`` seconds.
        """
        flags = put_flags(value, if_version, if_absent)
        versions = await self._write_one(key, value, level, flags, if_version)
        return Version(versions.partition, versions.branch, versions.last_seq)

    async def delete(self, key: bytes, *, level: str = "disk", if_version: Version | None = None) -> Version:
        """Deletes ``key``, whether it is there or not; as ``put``."""
        versions = await self._write_one(key, None, level, delete_flags(if_version), if_version)
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
        feed = self._resolved or await self.resolve()
        lane, block = row_block(key, value, feed, if_version, self._client.lanes)
        try:
            return await self._client.write(lane, block, wanted, flags, if_version)
        except UnknownFeed:
            self._forget()
            raise

    async def write(self, changes: Sequence[Put | Delete], *, level: str = "disk") -> dict[int, VersionRange]:
        """Writes a batch: atomic in each partition, which is one block. Gives the versions by partition.

        Of two changes of one key the later one counts. Raises TooLarge, before anything is written, where one
        partition's share does not fit into a block; where one partition fails, the error's notes name those that took
        their share.
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
        """A pipelined writer, an async context manager.

        A partition's rows are sent when they are ``batch_bytes`` of keys and values or ``batch_rows`` rows, or have
        waited ``linger_s`` seconds. ``put`` waits while more than ``in_flight_bytes`` have no answer. All rows that are
        added count, sent or not, before compression, and 17 bytes more for each. Batches are sent earlier when all of
        them together have half of it, so full batches of a feed with many partitions need a greater bound.
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
        """Rows that nobody sees until they are published, an async context manager; `Stage.seal` ends it.

        A partition's rows are sent when they are ``batch_bytes`` of keys and values or ``batch_rows`` rows.
        ``in_flight_bytes``: as of ``writer``.
        """
        check_batching(batch_bytes, batch_rows, in_flight_bytes)
        return Stage(self, batch_bytes=batch_bytes, batch_rows=batch_rows, in_flight_bytes=in_flight_bytes)

    async def publish(
        self, sink: str, batch: int, stages: Iterable[SealedStage], *, origin: str | None = None
    ) -> Published:
        """Publishes the rows of sealed stages as batch ``batch`` of ``sink``, each partition's share in one step.

        A partition that has this batch of the sink is passed over. So the same call again does what is left, and one
        with other stages, of a batch that was made again, does no harm. ``origin`` is who numbers the batches, the sink
        by default. Answered once it is on the node's disk.

        Raises:
            UnknownStage: A stage is not sealed, or not there: nothing is published.
            BatchBehind: Another origin has used the number, or a later batch of this origin was published.
            TooLarge: A partition's share is above its bound.
            UnknownFeed: The feed is not there.
            Retryable: No answer came within ``retry_for`` seconds. A part may be published; call it again.
            ValueError: A name or number cannot be had, or a stage is given twice.
        """
        feed = await self.resolve()
        value = publish_request(feed.feed_id, sink, batch, stages, origin)
        try:
            return Published(*published_from_json(await self._client.call(Opcode.PUBLISH, value)))
        except UnknownFeed:
            self._forget()
            raise

    # Reading

    async def get(self, key: bytes, *, level: str = "disk", at_least: Version | None = None) -> Item | None:
        """The newest version of ``key`` that ``level`` shows, None where there is none; waits for what is in flight.

        ``at_least``: a version, of any key of the same partition, that the answer must not be older than; the node
        that leads has it already, and one that follows is waited for. Raises VersionLost where that version's branch
        has ended below it, ValueError where it is of another partition, UnknownFeed, and Retryable after ``retry_for``
        seconds.
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
            if has_come_to(value, version) or not self._client.reads_followers:
                return
            pause_s = backoff_seconds(tries, self.host.random.random)
            if trio.current_time() + pause_s > deadline:
                raise Unreachable(f"the node has not come to {version} within {self._client.retry_for_s:g} s")
            await trio.sleep(pause_s)

    async def get_many(self, keys: Iterable[bytes], *, level: str = "disk") -> list[Item | None]:
        """As ``get``, for many keys, in their order."""
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
        """The latest state, at a barrier: all that was acknowledged before the call, nothing that it has superseded.

        ``key_prefix``: only the keys that begin so, which is all that the node sends. An async iterator, partition by
        partition, so what is held in memory is one partition's state. Where the node has lost since what it had at
        the call, a partition ends where the histories part. A step that is cancelled is gone on with by the next one.

        Raises UnknownFeed if there is no such feed, or if it was dropped before the last partition was read.
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
        """A stream of the feed's mutations: a snapshot first, then live. An async context manager.

        ``since``: "beginning", "now" (fixed when the body begins), positions that were stored, or an aware datetime:
        every mutation that the node has stamped then or later comes, and none that it has stamped before, and DataGone
        is raised where such a mutation may have been purged or trimmed. ``until``: None (for ever), "now" (all that is
        there when the body begins), positions, or an aware datetime: nothing that the node has stamped then or later
        comes, and the stream ends once all before has come and the node's clock is there. ``partitions``: all by
        default. ``visibility``: the level that mutations must have reached. ``key_prefix``: only mutations whose key
        begins so. ``keys_only``: without their values, which are None then; ``Mutation.deleted`` tells what was
        deleted. Positions do not say what was left out: resume with the same filter, and look at timestamps where older
        rows than ``since`` must not count. ``window_bytes``: what may be under way.
        ``on_rollback``: what happens where the node has lost something that was delivered. "follow": a Rollback event,
        then the present values of its keys, then the stream goes on; "restart": a Rollback event without keys, and the
        partition from the beginning; "stop": StreamEnded. ``ring``: so many of the latest keys are remembered for each
        partition, as long as those of all partitions take less than 256 MiB; a rollback beyond them is a restart.
        """
        for name, value in (("since", since), ("until", until)):
            allowed = ("beginning", "now") if name == "since" else (None, "now")
            if isinstance(value, datetime):
                continue
            if not isinstance(value, Positions) and value not in allowed:
                hint = "; Positions.parse reads a stored string" if isinstance(value, str) else ""
                names = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} is {value!r}, none of {names}, Positions or an aware datetime{hint}")
        if on_rollback not in ("follow", "stop", "restart"):
            raise ValueError(f"on_rollback is {on_rollback!r}, none of 'follow', 'stop', 'restart'")
        wanted_rows = StreamFilter(key_prefix, keys_only)
        wanted_rows.check()
        count("ring", ring)
        only = None if partitions is None else frozenset(count("partitions", id) for id in partitions)
        if only is not None and not only:
            raise ValueError("partitions is empty: name one at least, or leave it out for all of them")
        level = self._client.level(visibility)
        stored = tuple(value for value in (since, until) if isinstance(value, Positions))
        since_us = to_us(since, "since") if isinstance(since, datetime) else None
        until_us = to_us(until, "until") if isinstance(until, datetime) else None
        if since_us is not None and until_us is not None and until_us < since_us:
            raise ValueError(f"until is {until}, which is before since, {since}")
        wanted = Wanted(
            self.name,
            "now" if isinstance(since, datetime) else since,
            until.seqs() if isinstance(until, Positions) else None if isinstance(until, datetime) else until,
            only,
            level,
            on_rollback,
            stored,
            ring,
            filter=wanted_rows,
            since_us=since_us,
            until_us=until_us,
            until_logs={id: at.log for id, at in until.items()} if isinstance(until, Positions) else {},
        )
        return self._client.stream(wanted, window_bytes)

    def follow(self, index: Index, *, visibility: str = "disk", ring: int = RING_ROWS) -> Follower:
        """Keeps ``index`` equal to the feed while the body of this async context manager runs.

        ``visibility``: the level that mutations must have reached. ``ring``: so many of the latest keys of each
        partition are stored with the index; where the node has lost more, the partition is read again as a whole.
        """
        from tailrace.follower import Follower

        return Follower(self, index, visibility=visibility, ring=ring)

    async def partitions(self) -> list[PartitionInfo]:
        """The partitions: ids, ranges, leaders, and how far they have come. Raises UnknownFeed."""
        value = await self._client.call(Opcode.PARTITIONS, {"name": self.name})
        return partition_infos(value)

    async def partition_map(self) -> PartitionMap:
        """Returns the feed's id, and how far each partition has come in which history. Raises UnknownFeed."""
        return partition_map(await self._client.call(Opcode.PARTITIONS, {"name": self.name}))

    async def explain_resume(self, positions: Positions, *, visibility: str = "disk") -> dict[int, Explanation]:
        """What would happen if a consumer resumed with ``positions`` now, in each partition, and why.

        The node decides as it would for the consumer, and opens no stream. ``visibility``: the level of that consumer.
        Raises BadPosition where the positions are of another feed or cluster, UnknownFeed, and Retryable after
        ``retry_for`` seconds.
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
        """Id and number of partitions, asked for once. Raises UnknownFeed."""
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
