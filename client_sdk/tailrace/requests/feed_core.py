"""A feed without I/O: its id, and the plans of its calls. Every shell's `Feed` has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.errors import UnknownFeed, VersionLost
from tailrace.link.backoff import backoff_seconds
from tailrace.model import Delete, Item, Level, PartitionInfo, Put, Resolved, Version, VersionRange
from tailrace.model.failover import ENTRIES_MAX, FailoverLog
from tailrace.model.hashing import key_hash
from tailrace.requests.batch import check_key
from tailrace.requests.changes import (
    batch_blocks,
    check_batching,
    checked_keys,
    checked_ttl,
    delete_flags,
    look_ups,
    partition_of,
    put_flags,
    row_step,
)
from tailrace.requests.client_core import ClientCore
from tailrace.requests.outbox import Batching, Outbox
from tailrace.requests.plan import AskLeader, Call, Continue, LookUp, Pause, Plan, Step, WriteBlocks
from tailrace.requests.replies import (
    PartitionMap,
    failover_log,
    has_come_to,
    may_come_to,
    partition_infos,
    partition_map,
    resolved,
    shows,
)
from tailrace.requests.staging import Published, PublishSteps, SealedStage, publish_request
from tailrace.wire.messages import WriteFlag
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_messages import STAGE_ID_BYTES

if TYPE_CHECKING:
    from tailrace.codec import Codec

# The id of a program that consumes under a name.
MEMBER_BYTES = 16
# The tries, about a second, after which a read of any node or of followers leaves one that is behind. A follower that
# is cut off from its leader answers, and comes no further.
TRIES_OF_A_NODE = 6

# The end of the name of the feed that takes the rows which an index could not take.
PARKED = ".parked"


class FeedCore:
    """The part of a feed's handle that all shells share."""

    codec: Codec | None = None  # of a handle with serializers
    outbox_kind: Callable[..., Outbox] | None = None

    def __init__(self, client: ClientCore, name: str) -> None:
        self._client = client
        self.name = name
        self.resolved: Resolved | None = None  # the id and the number of partitions, once a node has told them

    def plain(self) -> FeedCore:
        """Returns the same feed without serializers."""
        return self

    def level(self, text: str) -> Level:
        """Returns a level by name. Raises ValueError if it does not exist, NotDurable if the node cannot give it."""
        return self._client.session.levels.level(text)

    def new_producer_id(self) -> int:
        """Returns the id of a new producer."""
        return self._client.new_producer_id()

    def new_stage_id(self) -> bytes:
        """Returns the id of a new stage."""
        return self._client.source.randbytes(STAGE_ID_BYTES)

    def new_member_id(self) -> bytes:
        """Returns the id of a program that consumes under a name."""
        return self._client.source.randbytes(MEMBER_BYTES)

    @property
    def reads_followers(self) -> bool:
        """Whether another node than the leader may be asked."""
        return self._client.reads_followers

    def forget(self) -> None:
        """Forgets the feed's id, because it does not fit a call: the feed may have been dropped and made again."""
        self.resolved = None
        self._client.forget(self.name)

    def resolve(self) -> Plan[Resolved]:
        """Asks for the id and the number of partitions, unless they are known. Raises UnknownFeed."""
        if self.resolved is None:
            self.resolved = resolved((yield self._partitions_call))
            self._client.know(self.name, self.resolved)
        return self.resolved

    def _ask(self, step_of: Callable[[Resolved], Step]) -> Plan[Any]:
        """Carries out the step that ``step_of`` makes for the feed, and returns its result. Raises UnknownFeed.

        A new handle takes over what another one has asked for. If that feed is gone, or has other partitions, it asks.
        """
        if self.resolved is None and (known := self._client.known(self.name)) is not None:
            try:
                result = yield step_of(known)
            except (UnknownFeed, ValueError):
                self.forget()
            else:
                self.resolved = known
                return result
        feed = self.resolved or (yield from self.resolve())
        try:
            return (yield step_of(feed))
        except (UnknownFeed, ValueError):
            self.forget()
            raise

    def ask_again(self) -> Plan[Resolved]:
        """Asks for the id and the number of partitions, even if they are known. Raises UnknownFeed."""
        return resolved((yield self._partitions_call))

    @property
    def _partitions_call(self) -> Call:
        return Call(Opcode.PARTITIONS, {"name": self.name})

    @property
    def _leaders_partitions_call(self) -> Call:
        """The map of the leader, which a majority has confirmed meanwhile: it has all that was acknowledged before."""
        return Call(Opcode.PARTITIONS, {"name": self.name, "leader": True})

    # Writing

    def put(
        self,
        key: bytes,
        value: bytes,
        level: str | None,
        if_version: Version | None,
        if_absent: bool,
        ttl: int | None = None,
    ) -> Plan[Version]:
        """Sets the value of a key, and returns when the write has reached its level.

        Args:
            key: 1 to 4,096 bytes.
            value: At most 16 MiB.
            level: "memory", "disk" or "quorum": the level that the write has reached when this returns. Default: that
                of the feed (`Client.set_feed`). If it has none, "quorum" in a set and "disk" elsewhere, and "disk" for
                a feed in replication mode segment.
            if_version: Write only if this is still the current version of the key.
            if_absent: Write only if the key does not exist.
            ttl: The seconds after which the key expires, 1 to 315,360,000 (ten years). The leader then deletes it,
                unless it was written again. Default: that of the feed (`Client.set_feed`), or never.

        Returns:
            The version of the new value.

        Raises:
            VersionConflict: The condition does not hold. Nothing was written.
            TypeError: The key or the value is not bytes.
            ValueError: The key is empty, the level does not exist, both conditions are given, or the ttl is out of
                its bounds.
            TooLarge: The key or the value is too long.
            UnknownFeed: The feed does not exist.
            OutcomeUnknown: The write may or may not have happened, and a retry could write it twice.
            Retryable: The write has not succeeded in time.
        """
        flags = put_flags(value, if_version, if_absent)
        if ttl is not None:
            ttl = checked_ttl(ttl)
        versions = yield from self._write_one(key, value, level, flags, if_version, ttl)
        # NamedTuple's own constructor takes twice as long.
        return tuple.__new__(Version, (versions.partition, versions.branch, versions.last_seq))

    def delete(self, key: bytes, level: str | None, if_version: Version | None) -> Plan[Version]:
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
        versions = yield from self._write_one(key, None, level, delete_flags(if_version), if_version)
        return Version(versions.partition, versions.branch, versions.last_seq)

    def delete_if_present(self, key: bytes, level: str | None) -> Plan[Version | None]:
        """Deletes a key if it exists. Writes nothing otherwise.

        Args:
            key: 1 to 4,096 bytes.
            level: "memory", "disk" or "quorum", as in `put`.

        Returns:
            The version of the deletion, or None if the key does not exist.

        Raises:
            TailraceError: As in `put`.
        """
        versions = yield from self._write_one(key, None, level, WriteFlag.IF_PRESENT, None)
        if not versions.first_seq:
            return None
        return Version(versions.partition, versions.branch, versions.last_seq)

    def delete_absent(self, key: bytes) -> Plan[Version]:
        """Deletes a key that is not there, for consumers that need its deletion once more.

        Args:
            key: 1 to 4,096 bytes.

        Returns:
            The version of the deletion.

        Raises:
            VersionConflict: The key is there. Nothing was written.
            TailraceError: As in `put`.
        """
        versions = yield from self._write_one(key, None, None, WriteFlag.IF_ABSENT, None)
        return Version(versions.partition, versions.branch, versions.last_seq)

    def _write_one(
        self,
        key: bytes,
        value: bytes | None,
        level: str | None,
        flags: int,
        if_version: Version | None,
        ttl: int | None = None,
    ) -> Plan[VersionRange]:
        check_key(key)
        wanted = self._client.session.levels.of_write(level)

        def step(feed: Resolved) -> Step:
            return row_step(key, value, feed, self._client.lanes, wanted, flags, if_version, ttl, self.name)

        versions: VersionRange = yield from self._ask(step)
        return versions

    def write(self, changes: Sequence[Put | Delete], level: str | None) -> Plan[dict[int, VersionRange]]:
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
        wanted = self._client.session.levels.of_write(level)
        changes = list(changes)  # they are read again if the feed has to be asked for
        written: dict[int, VersionRange] = yield from self._ask(
            lambda feed: WriteBlocks(batch_blocks(changes, feed, self._client.lanes), wanted, self.name)
        )
        return written

    def parked(self) -> FeedCore:
        """Returns the feed of the rows that an index of this feed could not take."""
        return FeedCore(self._client, f"{self.name}{PARKED}")

    def park(self, changes: Sequence[Put]) -> Plan[None]:
        """Writes rows that an index could not take to the feed ``NAME.parked``, which is created if it is missing."""
        parked = self.parked()
        try:
            yield from parked.write(changes, None)
        except UnknownFeed:
            yield from self._client.create_feed(parked.name, partitions=1, exist_ok=True)
            yield from parked.write(changes, None)

    def writer(
        self, level: str | None, batch_bytes: int, batch_rows: int, in_flight_bytes: int, *, linger_s: float = 0.0
    ) -> tuple[Level | None, Batching]:
        """Makes a writer that sends rows in batches without waiting for each answer. Use it as a context manager.

        The rows of a partition are sent when they reach ``batch_bytes`` or ``batch_rows``. They are also sent when the
        batches of all partitions together have half of ``in_flight_bytes``. A feed of many partitions therefore needs a
        larger bound for full batches.

        Args:
            level: "memory", "disk" or "quorum": the level at which rows count as written. Default: as in `put`.
            batch_bytes: The bytes of keys and values at which a batch is sent.
            batch_rows: The rows at which a batch is sent.
            in_flight_bytes: The bytes without an answer at which ``put`` waits. Rows count from when they are added,
                before compression, with 17 bytes more for each.

        Returns:
            A writer.

        Raises:
            ValueError: A bound or the level is not valid.
            NotDurable: The node cannot give this level.
            UnknownFeed: The feed does not exist.
            Retryable: No node has answered in time.
        """
        check_batching(batch_bytes, batch_rows, in_flight_bytes, linger_s)
        batching = Batching(batch_bytes, batch_rows, in_flight_bytes, self.outbox_kind)
        return self._client.session.levels.of_write(level), batching

    def stage(self, batch_bytes: int, batch_rows: int, in_flight_bytes: int) -> Batching:
        """Makes a stage: rows that no consumer sees until `publish` is called. Use it as a context manager.

        Args:
            batch_bytes: The bytes of keys and values at which the rows of a partition are sent.
            batch_rows: The rows at which the rows of a partition are sent.
            in_flight_bytes: The bytes without an answer at which ``put`` waits, counted as in `writer`.

        Returns:
            A stage.

        Raises:
            ValueError: A bound is not valid.
            UnknownFeed: The feed does not exist.
            Retryable: No node has answered in time.
        """
        check_batching(batch_bytes, batch_rows, in_flight_bytes)
        return Batching(batch_bytes, batch_rows, in_flight_bytes, self.outbox_kind)

    def publish(
        self, sink: str, batch: int, stages: Iterable[SealedStage], origin: str | None, compare: bool
    ) -> Plan[Published]:
        """Publishes the rows of sealed stages as one numbered batch of a sink. Returns when they are on the node's
        disk.

        Each partition takes its share in one step, or one of more than 60 MiB in several parts, of which each has all
        rows of its keys. A partition that has this batch already skips it, and one that has some parts of it takes the
        others. So the same call can be repeated after a failure, and so can a batch that was staged again with the same
        rows, in any order.

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
            Retryable: No answer came in time. A node answers after each step of a long publish, and the time begins
                anew. A part may be published; repeat the call.
            ValueError: A name or number is not valid, or a stage is given twice.
        """
        feed = yield from self.resolve()
        request = Call(Opcode.PUBLISH, publish_request(feed.feed_id, sink, batch, stages, origin, compare=compare))
        steps = PublishSteps()
        try:
            while steps.take((yield request)):
                yield Continue()
        except UnknownFeed:
            self.forget()
            raise
        return steps.published

    # Reading

    def get(self, key: bytes, level: str, at_least: Version | None) -> Plan[Item | None]:
        """Returns the current value of a key. Waits for this client's writes that were sent, unless refused for now.

        Args:
            key: 1 to 4,096 bytes.
            level: "memory", "disk" or "quorum": the level that a version must have reached to be returned.
            at_least: A version of any key of the same partition. A follower waits until it has this version, and a
                leader that does not know it answers only if a majority confirms that it leads.

        Returns:
            The value with its version, or None if the key does not exist.

        Raises:
            VersionLost: The leader's history does not have ``at_least``: a failover has lost it, or its branch is
                older than the 25 newest ones.
            ValueError: ``at_least`` belongs to another partition, or the level does not exist.
            UnknownFeed: The feed does not exist.
            Retryable: No answer came in time.
        """
        if at_least is not None:
            return (yield from self._get_at_least(key, level, at_least))
        check_key(key)
        wanted = self.level(level)
        make = tuple.__new__  # the NamedTuple's own takes twice as long
        items: list[Item | None] = yield from self._ask(lambda feed: make(LookUp, (feed.feed_id, wanted, [key])))
        return items[0]

    def _get_at_least(self, key: bytes, level: str, version: Version) -> Plan[Item | None]:
        """Returns the value of ``key`` from a node that has ``version`` while it answers. Raises as `get`."""
        session, tries = self._client.session, 0
        while True:
            connection = session.connections
            log = yield from self._wait_for_version(key, version)
            (item,) = yield from self.get_many([key], level)
            has_kept = shows(item, version) or (yield from self._has_kept(version, log))
            # After a loss of the connection another node may have answered, which need not have come as far.
            if has_kept and session.connections == connection:
                return item
            tries += 1
            pause_s = backoff_seconds(tries, self._client.source.random)
            yield Pause(pause_s, f"the nodes that had come to {version} were lost or rolled back before they answered")

    def _has_kept(self, version: Version, log: FailoverLog) -> Plan[bool]:
        """Asks whether the node still has ``version``, and the history of ``log``: a rollback changes the log."""
        value = yield self._partitions_call
        return has_come_to(value, version) and failover_log(value, version.partition) == log

    def get_many(self, keys: Iterable[bytes], level: str) -> Plan[list[Item | None]]:
        """Returns the current values of many keys.

        Args:
            keys: The keys, in any order.
            level: "memory", "disk" or "quorum", as in `get`.

        Returns:
            The value of each key, or None if it does not exist, in the order of ``keys``.

        Raises:
            TailraceError: As in `get`, with `ValueError`.
        """
        asked = checked_keys(keys)
        wanted = self.level(level)
        items: list[Item | None] = []
        for part in look_ups(asked):
            items += yield from self._ask(lambda feed: LookUp(feed.feed_id, wanted, part))  # noqa: B023 - used at once
        return items

    def _wait_for_version(self, key: bytes, version: Version) -> Plan[FailoverLog]:
        """Waits until the node has ``version``. Returns its partition's log. Raises VersionLost, Unreachable."""
        check_key(key)
        tries = 0
        while True:
            value = yield self._partitions_call
            partition_of(key, key_hash(key), resolved(value).partitions, version)
            if has_come_to(value, version):
                return failover_log(value, version.partition)
            if not self._client.reads_followers:
                # A leader that was deposed does not know all that its successor has acknowledged, and may not know yet
                # that it was deposed.
                return (yield from self._require_at_leader(version))
            if not may_come_to(value, version):
                # Only the leader knows whether the version is lost, or the history of this follower is behind.
                yield AskLeader(lambda _: self._require_at_leader(version))
            tries += 1
            why = f"the node has not come to {version}"
            if tries >= TRIES_OF_A_NODE and self._client.finder.has_others:
                self._client.session.leave(why)
            yield Pause(backoff_seconds(tries, self._client.source.random), why)

    def _require_at_leader(self, version: Version) -> Plan[FailoverLog]:
        """Asks a leader that a majority confirms. Returns its partition's log.

        Raises VersionLost if it does not have ``version``, Unreachable.
        """
        value = yield self._leaders_partitions_call
        if not has_come_to(value, version):
            raise VersionLost(
                f"{version} is not in the history of partition {version.partition}: a failover has lost it, or it is "
                f"older than the {ENTRIES_MAX} newest branches. Read the key without `at_least`"
            )
        return failover_log(value, version.partition)

    def partitions(self) -> Plan[list[PartitionInfo]]:
        """Lists the partitions of the feed.

        Returns:
            The id, hash range, leader and seqs of each partition, in the order of the ids.

        Raises:
            UnknownFeed: The feed does not exist.
            Retryable: No node has answered in time.
        """
        return partition_infos((yield self._partitions_call))

    def partition_map(self) -> Plan[PartitionMap]:
        """Returns the feed's id, and how far each partition has come in which history. Raises UnknownFeed.

        A leader that is asked has everything that was acknowledged before the call.
        """
        reads_followers = self._client.reads_followers
        return partition_map((yield self._partitions_call if reads_followers else self._leaders_partitions_call))
