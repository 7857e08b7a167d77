"""Fetches a feed into a directory: the plans of `Feed.fetch`, without a network. A shell carries out their steps.

    checkpoint of a partition ──> compare ──> parts of the missing files ──> verified, named ──> installed ──> release
                                              └─ written as they arrive

A node that restarted, or that was not asked for a while, keeps the files no longer: the fetch asks for another
checkpoint, and takes over the files that it has.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tailrace.copies.compare import (
    WINDOW_BYTES_FIRST,
    Action,
    Part,
    PartCutter,
    compare,
    copy_of,
    missing_segments,
    next_window,
    part_bytes,
)
from tailrace.copies.directory import CopyDirectory, HeldPartition
from tailrace.copies.layout import TEMPORARY_SUFFIX, FeedCopy, PartitionCopy, SegmentCopy
from tailrace.copies.part_buffers import PartBuffers
from tailrace.copies.receiver import SegmentReceiver
from tailrace.errors import BadCopy, BadSegment, ProtocolError, TailraceError, UnknownCheckpoint
from tailrace.model import FeedInfo, Level
from tailrace.model.arguments import count
from tailrace.model.unreadable import unreadable
from tailrace.requests.client_core import ClientCore
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.plan import Call, Continue
from tailrace.requests.replies import feed_info
from tailrace.wire.bodies import field
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import ASKER_BYTES, CheckpointRequest, PartitionCheckpoint, SegmentRelease

_T = TypeVar("_T")

# The partitions that are fetched at a time, if the shell can: while one waits for the disk, others use the network.
PARTITIONS_AT_ONCE = 4
# The checkpoints that are taken for a partition without a new byte in between.
TRIES_MAX = 3
# The most buffers of 1 MiB for bytes that wait for the disk. Bytes that find none free get memory of their own.
BUFFERS_MAX = 16


class OnDisk(NamedTuple):
    """Calls a function that waits for the disk. The result is the function's."""

    function: Callable[[], Any]


class Exchange(NamedTuple):
    """Fetches ``parts`` of a checkpoint's files: (segment id, offset, bytes) of each.

    ``store`` is called with the number of a part and its next bytes, as they arrive. It waits for the disk and raises
    nothing. The step ends after its last call, also if the fetch fails. Bytes are received into ``buffers``, if one of
    them is free; ``store`` gives it back.
    """

    checkpoint_id: bytes
    parts: list[tuple[bytes, int, int]]
    store: Callable[[int, memoryview], None]
    buffers: PartBuffers


FetchStep: TypeAlias = Call | OnDisk | Exchange | Continue
FetchPlan: TypeAlias = Generator[FetchStep, Any, _T]


class FetchedPartition(NamedTuple):
    """A partition of a copy after a fetch.

    Attributes:
        partition: The partition.
        seq: The last seq that the copy has.
        nbytes: The bytes of all its segments.
        segments: The number of its segments.
        fetched_bytes: The bytes that this fetch has received.
        fetched_segments: The number of files that this fetch has received.
        is_behind: The node had less than the copy, which is unchanged.
        rolled_back_to: The last seq of the earlier copy that the node still had; None if it had all of them.
    """

    partition: int
    seq: int
    nbytes: int
    segments: int
    fetched_bytes: int
    fetched_segments: int
    is_behind: bool
    rolled_back_to: int | None


class Fetched(NamedTuple):
    """The copy of a feed after a fetch.

    Attributes:
        path: The directory.
        partitions: The fetched partitions, by number.
    """

    path: str
    partitions: dict[int, FetchedPartition]

    @property
    def nbytes(self) -> int:
        """The bytes of all segments of these partitions."""
        return sum(partition.nbytes for partition in self.partitions.values())

    @property
    def fetched_bytes(self) -> int:
        """The bytes that this fetch has received."""
        return sum(partition.fetched_bytes for partition in self.partitions.values())


class FeedFetch:
    """The fetch of a feed into the directory ``path``. The shell calls ``close`` at its end."""

    def __init__(
        self,
        client: ClientCore,
        feed: FeedCore,
        path: str,
        partitions: Iterable[int] | None,
        level: Level,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.path = path
        self._client = client
        self._feed = feed
        self._partitions = partitions
        self._level = level
        self._progress = progress
        self._received_bytes = self._wanted_bytes = 0
        self._directory: CopyDirectory | None = None
        self._feed_id = b""  # until ``begin``
        self._asker = client.source.randbytes(ASKER_BYTES)
        self.buffers = PartBuffers(BUFFERS_MAX)
        self.window_bytes = WINDOW_BYTES_FIRST  # that a partition asks for next: all use one link

    def begin(self) -> FetchPlan[tuple[int, ...]]:
        """Makes the directory a copy of the feed. Returns the partitions that are to be fetched."""
        value = yield Call(Opcode.PARTITIONS, {"name": self._feed.name})
        info = feed_info(field(value, "feed", dict, "the partition map"))
        chosen = _chosen(self._partitions, info)
        copy = FeedCopy(self._client.cluster_id, info._replace(level=None), chosen)

        def open_directory() -> CopyDirectory:
            directory = CopyDirectory(self.path)
            try:
                directory.begin(copy)
            except BaseException:
                directory.close()
                raise
            return directory

        self._directory = yield OnDisk(open_directory)
        self._feed_id = info.feed_id
        return chosen

    def close(self) -> None:
        """Unlocks the directory. May be called again."""
        if self._directory is not None:
            self._directory.close()

    def partition(self, partition: int) -> FetchPlan[FetchedPartition]:
        """Fetches a partition, and returns the copy of it. ``begin`` comes first."""
        assert self._directory is not None, "begin comes first"
        return _PartitionFetch(self, self._directory, self._feed_id, partition).plan()

    def taken(self, nbytes: int) -> None:
        """Notes that a checkpoint has ``nbytes`` that are to be received; negative: they need not be."""
        self._wanted_bytes += nbytes

    def received(self, nbytes: int) -> None:
        """Notes that ``nbytes`` were received."""
        self._received_bytes += nbytes
        if self._progress is not None:
            self._progress(self._received_bytes, self._wanted_bytes)

    @property
    def outstanding_bytes(self) -> int:
        """The bytes that the partitions have still to receive."""
        return self._wanted_bytes - self._received_bytes

    def windowed(self, window_bytes: int, seconds: float) -> None:
        """Notes that ``window_bytes`` took this time; other partitions may have changed the window meanwhile."""
        found = next_window(window_bytes, seconds)
        if found != window_bytes:
            self.window_bytes = (max if found > window_bytes else min)(found, self.window_bytes)

    def ask(self, partition: int) -> FetchPlan[PartitionCheckpoint]:
        """Asks for the checkpoint of a partition. Raises ProtocolError if it is of another one."""
        # A node that has stepped down may lack rows that were acknowledged, or not know that they are stable.
        leader = self._client.state == "leader"
        request = CheckpointRequest(self._feed_id, partition, self._level, flush=True, leader=leader, asker=self._asker)
        told = PartitionCheckpoint.from_json((yield Call(Opcode.SEGMENT_CHECKPOINT, request.to_json())))
        if (told.feed_id, told.partition) != (self._feed_id, partition):
            raise ProtocolError(
                f"the node has told a checkpoint of partition {told.partition} of the feed {told.feed_id.hex()}"
            )
        return told

    @property
    def name(self) -> str:
        """The feed's name."""
        return self._feed.name

    @property
    def clock(self) -> Callable[[], float]:
        """Gives monotonic seconds."""
        return self._client.clock


class _PartitionFetch:
    """The fetch of one partition."""

    def __init__(self, feed: FeedFetch, directory: CopyDirectory, feed_id: bytes, partition: int) -> None:
        self._feed = feed
        self._directory = directory
        self._feed_id = feed_id
        self._partition = partition
        self._bytes = self._segments = 0  # received
        self._damaged: collections.Counter[bytes] = collections.Counter()  # segments that came with wrong bytes

    def plan(self) -> FetchPlan[FetchedPartition]:
        """Fetches the partition until it is as a checkpoint says, and returns the copy."""
        try:
            return (yield from self._until_whole())
        except BadSegment as error:
            raise unreadable(self._feed.name, self._partition, str(error)) from None

    def _until_whole(self) -> FetchPlan[FetchedPartition]:
        tries, bytes_before = 0, 0
        while True:
            told = yield from self._feed.ask(self._partition)
            try:
                fetched = yield from self._take(told)
            except UnknownCheckpoint:
                tries = tries + 1 if self._bytes == bytes_before else 1
                bytes_before = self._bytes
                if tries == TRIES_MAX:
                    raise
                continue
            except (BadCopy, BadSegment):
                yield from self._release(told, [id for id, times in self._damaged.items() if times > 1])
                raise
            yield from self._release(told)
            return fetched

    def _release(self, told: PartitionCheckpoint, damaged: Iterable[bytes] = ()) -> FetchPlan[None]:
        with contextlib.suppress(TailraceError):  # it expires by itself
            yield Call(Opcode.SEGMENT_RELEASE, SegmentRelease(told.id, tuple(damaged)).to_json())

    def _take(self, told: PartitionCheckpoint) -> FetchPlan[FetchedPartition]:
        """Makes the copy what ``told`` says. Raises UnknownCheckpoint; BadCopy if it is of another history."""
        held: HeldPartition = yield OnDisk(partial(self._directory.open_partition, self._feed_id, self._partition))
        action, common_seq = compare(held.copy, told)
        if action is Action.REFUSE:
            raise BadCopy(
                f"{self._directory.folder(self._partition)} has another history than the node, with another branch of "
                f"term {told.log.term}: fetch into another directory, or remove this one",
                path=self._directory.folder(self._partition),
            )
        if action is Action.KEEP:
            assert held.copy is not None, "a copy that is kept is there"
            return self._fetched(held.copy, is_behind=True)
        copy = copy_of(told)
        while missing := missing_segments(copy, held.sizes):
            damages = self._damaged.total()
            try:
                yield from self._receive(told.id, copy, missing, held)
            except BadSegment:
                if self._damaged.total() == damages or max(self._damaged.values()) > 1:
                    raise
            held = yield OnDisk(partial(self._directory.open_partition, self._feed_id, self._partition))
        if copy == held.copy:
            yield OnDisk(partial(self._directory.remove_surplus, copy))
        else:
            yield OnDisk(partial(self._directory.install, self._feed_id, copy))
        return self._fetched(copy, rolled_back_to=common_seq if action is Action.ROLL_BACK else None)

    def _fetched(
        self, copy: PartitionCopy, *, is_behind: bool = False, rolled_back_to: int | None = None
    ) -> FetchedPartition:
        return FetchedPartition(
            self._partition,
            copy.seq,
            copy.nbytes,
            len(copy.segments),
            self._bytes,
            self._segments,
            is_behind,
            rolled_back_to,
        )

    def _receive(
        self, checkpoint_id: bytes, copy: PartitionCopy, missing: list[SegmentCopy], held: HeldPartition
    ) -> FetchPlan[None]:
        """Receives the missing files. Raises UnknownCheckpoint, BadSegment, OSError; received bytes stay."""
        begun = {segment: held.sizes.get(segment.file_name + TEMPORARY_SUFFIX, 0) for segment in missing}
        begun = {segment: nbytes if nbytes <= segment.nbytes else 0 for segment, nbytes in begun.items()}
        wanted = sum(segment.nbytes - nbytes for segment, nbytes in begun.items())
        files = _ReceivedFiles(
            self._directory.folder(self._partition), self._feed_id, self._partition, self._feed.buffers
        )
        self._feed.taken(wanted)
        before = self._bytes
        try:
            # The other partitions that are being fetched need room for their rest, too.
            yield OnDisk(partial(self._directory.require_room, self._feed.outstanding_bytes, held.copy, copy))
            whole = [segment for segment, nbytes in begun.items() if nbytes == segment.nbytes]
            yield OnDisk(partial(files.finish_all, whole))
            cutter = PartCutter(begun.items())
            while parts := cutter.next_parts(window := self._feed.window_bytes, part_bytes(window)):
                began_at, stored = self._feed.clock(), files.stored_bytes
                fetched = [(part.segment.id, part.offset, part.nbytes) for part in parts]
                try:
                    yield Exchange(checkpoint_id, fetched, partial(files.store, parts), self._feed.buffers)
                finally:
                    self._bytes += files.stored_bytes - stored
                    self._feed.received(files.stored_bytes - stored)
                files.check()
                self._feed.windowed(window, self._feed.clock() - began_at)
                yield Continue()
        finally:
            self._feed.taken(self._bytes - before - wanted)
            self._segments += files.finished
            self._damaged.update(files.damaged)
            files.close()


class _ReceivedFiles:
    """The files of one partition that are being received. `finish_all` and `store` wait for the disk."""

    def __init__(self, folder: str, feed_id: bytes, partition: int, buffers: PartBuffers) -> None:
        self._buffers = buffers
        self._place = folder, feed_id, partition
        self._open: dict[bytes, SegmentReceiver] = {}
        self._ends: dict[Part, int] = {}  # where the next bytes of a part belong
        self._early: dict[tuple[bytes, int], memoryview] = {}  # bytes of a segment that wait for those before them
        self._error: BadSegment | OSError | None = None
        self.stored_bytes = 0
        self.finished = 0
        self.damaged: list[bytes] = []  # the ids of segments whose bytes were wrong

    def finish_all(self, whole: Iterable[SegmentCopy]) -> None:
        """Verifies and names files that have all their bytes. BadSegment, OSError."""
        for segment in whole:
            self._finish(self._receiver(segment))

    def store(self, parts: Sequence[Part], number: int, data: memoryview) -> None:
        """Writes the next bytes of part ``number``, and finishes the file if it is whole.

        ``check`` raises the last error; after one of the disk nothing more is written. If the node has refused a part
        for now, bytes of later parts of the file come first.
        """
        part = parts[number]
        place = self._ends.get(part, part.offset)
        self._ends[part] = place + len(data)
        if isinstance(self._error, OSError):
            self._buffers.give_back(data)
            return
        self._early[part.segment.id, place] = data
        try:
            self._store_next(part.segment)
        except (BadSegment, OSError) as error:
            self._error = error

    def _store_next(self, segment: SegmentCopy) -> None:
        receiver = self._receiver(segment)
        while (data := self._early.pop((segment.id, receiver.offset), None)) is not None:
            try:
                receiver.add(data)
            finally:
                self._buffers.give_back(data)
            self.stored_bytes += len(data)
        if receiver.offset == segment.nbytes:
            self._finish(receiver)

    def check(self) -> None:
        """Raises the error that ``store`` has met: BadSegment or OSError."""
        if self._error is not None:
            raise self._error

    def _receiver(self, segment: SegmentCopy) -> SegmentReceiver:
        if segment.id not in self._open:
            self._open[segment.id] = SegmentReceiver(*self._place, segment)
        return self._open[segment.id]

    def _finish(self, receiver: SegmentReceiver) -> None:
        del self._open[receiver.segment.id]
        try:
            receiver.finish()
        except BadSegment:
            self.damaged.append(receiver.segment.id)
            raise
        self.finished += 1

    def close(self) -> None:
        """Closes the files that are not whole."""
        for receiver in self._open.values():
            receiver.close()
        for data in self._early.values():
            self._buffers.give_back(data)


def _chosen(partitions: Iterable[int] | None, info: FeedInfo) -> tuple[int, ...]:
    """Returns the partitions that are meant, rising. Raises ValueError for one that the feed does not have."""
    if partitions is None:
        return tuple(range(info.partitions))
    chosen = tuple(sorted({count("partitions", partition) for partition in partitions}))
    if not chosen:
        raise ValueError("partitions is empty: name one at least, or leave it out for all")
    if chosen[-1] >= info.partitions:
        raise ValueError(f"feed {info.name!r} has the partitions 0 to {info.partitions - 1}, not {chosen[-1]}")
    return chosen
