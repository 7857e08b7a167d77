"""The part of a follower that all shells share: where it begins, how far it is, and what its callers wait for."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tailrace.consuming.events import Rollback
from tailrace.consuming.ring import RING_ROWS
from tailrace.consuming.stream_status import StreamStatus
from tailrace.consuming.subscription import Claim, Subscription, checked_subscription
from tailrace.errors import StreamEnded, VersionLost
from tailrace.indexes import Index, IndexBusy, SharedIndex, Taken
from tailrace.indexes.applier import (
    Applier,
    IndexQueue,
    IndexRelease,
    IndexRollback,
    IndexTake,
    Job,
    Source,
)
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.parking import Parking
from tailrace.model import EndReason, Level, Version
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Positions
from tailrace.wire.filters import StreamFilter
from tailrace.wire.messages import TRACING_MODULE

if TYPE_CHECKING:
    from tailrace.consuming.index_membership import IndexMembership
    from tailrace.indexes.shared_applier import SharedApplier

# A program that starts while another one has the index locked is told so after a while.
OPEN_BUSY_SECONDS = 60.0
_ON_ERROR = ("stop", "park")

# The followers of this process, by the id of their index.
_followed: dict[int, FollowerCore] = {}


class FollowedStream(Source, Protocol):
    """The stream that a follower reads."""

    def status(self) -> StreamStatus: ...
    def failover_log(self, partition: int) -> FailoverLog: ...
    def settle(self, event: Rollback, point: int | None) -> None: ...


class Awaited(enum.Enum):
    """What a caller of ``wait_for`` needs next."""

    MOVE = enum.auto()  # the index, or a partition's history, has changed
    BARRIER = enum.auto()  # a barrier has come back, and the index holds the events before it


class FollowOptions(NamedTuple):
    """What `Feed.follow` is asked for beside the index.

    Attributes:
        visibility: The level that mutations must have reached.
        ring: The number of recent keys of each partition that the index stores.
        catch_up: "auto", "segments" or "stream".
        key_prefix: Only keys that begin with these bytes.
        partitions: Only these partitions; None for all.
        on_error: "stop" or "park": the treatment of rows that the index cannot take.
        claim: The group whose members fill the index together; None: this follower does it alone.
    """

    visibility: str = "disk"
    ring: int = RING_ROWS
    catch_up: str = "auto"
    key_prefix: bytes = b""
    partitions: Iterable[int] | None = None
    on_error: str = "stop"
    claim: Claim | None = None


class FollowerCore:
    """A follower without tasks. The shell runs the index's calls, one after another, and wakes its callers."""

    def __init__(self, feed: str, index: Index, options: FollowOptions) -> None:
        """Makes the follower of ``index``.

        Raises ValueError or TypeError if an option is not valid, and ImportError if it needs a library that is missing.
        """
        self._wanted = checked_subscription(
            feed,
            "beginning",
            None,
            partitions=options.partitions,
            level=Level.DISK,
            filter=StreamFilter(options.key_prefix),
            on_rollback="follow",
            ring=options.ring,
            catch_up=options.catch_up,
        )._replace(by_index=True, claim=options.claim)
        if options.on_error not in _ON_ERROR:
            raise ValueError(f"on_error is {options.on_error!r}, but has to be 'stop' or 'park'")
        of_feed: Callable[[str], Index] | None = getattr(index, "of_feed", None)  # of an index for several feeds
        index = self.index = index if of_feed is None else of_feed(feed)
        parks = options.on_error == "park"
        self._shared = None if options.claim is None else _shared_applier(index, options, options.claim, parks=parks)
        self.applier = self._shared or Applier(index, parks=parks)
        self.parked_rows = 0
        self.applied_rows = 0
        self._feed = feed
        self._applied = 0  # events
        self._positions: Positions | None = None
        self._partitions: frozenset[int] = frozenset()
        self._stream: FollowedStream
        self.jobs: IndexQueue

    # Its begin and its end

    def claim(self) -> None:
        """Begins to use the index. Raises ValueError if another follower of this process uses it."""
        if _followed.setdefault(id(self.index), self) is not self:
            raise ValueError(
                f"the index {self.index!r} is followed already, and two followers would mix their positions: give "
                "each one an index of its own"
            )

    def release(self) -> None:
        """Ends the use of the index."""
        del _followed[id(self.index)]

    def subscription(self, checkpoint: Checkpoint | None, level: Level) -> Subscription:
        """Returns the subscription that goes on from the index's checkpoint, or begins anew."""
        subscription = self._wanted._replace(visibility=level)
        if checkpoint is None:
            return subscription
        positions, rings = checkpoint.positions, checkpoint.rings
        self._require_partitions(positions)
        return subscription._replace(since=positions, stored=(positions,), rings=rings)

    def _require_partitions(self, positions: Positions) -> None:
        """Raises ValueError if the index has partitions that would not be followed any more."""
        only = self._wanted.partitions
        left = [] if only is None else [partition for partition in positions if partition not in only]
        if left:
            raise ValueError(
                f"the index has the partitions {left} of feed {self._feed!r}, which partitions={sorted(only or ())} "
                "leaves out: they would not be followed any more. Name them, too, or take a new index"
            )

    def open(self) -> Checkpoint | None:
        """Opens the index, on its thread. Raises its errors, and ValueError if it was filled with another prefix."""
        checkpoint = self.applier.open()
        self.applier.keep_prefix(self._wanted.filter.key_prefix)
        return checkpoint

    def begin(self, stream: FollowedStream, checkpoint: Checkpoint | None) -> None:
        """Begins with the events of ``stream``, which has every partition now."""
        self._stream = stream
        self.jobs = IndexQueue(stream)
        self._positions = stream.positions if checkpoint is None else checkpoint.positions
        self._partitions = frozenset(status.partition for status in stream.status().partitions)

    def require_running(self, failure: Exception | None, *, ended: bool) -> None:
        """Raises StreamEnded if the follower's tasks have failed, or have ended."""
        if failure is not None:
            raise StreamEnded(f"the follower has ended: {failure}", reason=EndReason.ERROR)
        if ended:
            raise StreamEnded("the follower was closed", reason=EndReason.CLOSED)

    # Applying

    def call_of(self, job: Job) -> Callable[[], int | Parking | Taken | None]:
        """Returns the call of the index that does ``job``, for the index's thread. It may raise IndexBusy."""
        if isinstance(job, IndexTake):
            return partial(self._in_group.take, job)
        if isinstance(job, IndexRelease):
            return partial(self._in_group.release, job)
        if isinstance(job, IndexRollback):
            return lambda: self.applier.roll_back(job)
        apply = partial(self.applier.apply, job)
        if TRACING_MODULE in sys.modules:
            from tailrace.tracing import applying

            return applying(self._feed, job.mutations, apply, IndexBusy)
        return apply

    @property
    def _in_group(self) -> SharedApplier:
        assert self._shared is not None, "only a member of a group is given partitions"
        return self._shared

    def parked(self, parking: Parking) -> None:
        """Notes that the bad rows of a batch are parked."""
        self.parked_rows += len(parking.rows)

    def done(self, job: Job, result: int | Taken | None) -> None:
        """Notes the result of ``call_of(job)``."""
        if self._shared is not None and (refused := self._shared.take_refused()):
            self._stream.for_group(lambda group: group.give_up(refused, {}))
        if isinstance(job, IndexRollback):
            assert not isinstance(result, Taken)
            self._stream.settle(job.event, result)
        elif isinstance(result, int):
            self.applied_rows += result
        if self._shared is None:
            self._positions = self.applier.positions
        else:
            self._done_in_group(self._shared, job, result)

    def _done_in_group(self, applier: SharedApplier, job: Job, result: int | Taken | None) -> None:
        if isinstance(job, IndexTake) and isinstance(result, Taken):
            taken = result
            self._stream.for_group(lambda group: _begin(group, job.generations, taken))
            applier.begun(self._stream.for_group(lambda group: group.reads()))
        positions = applier.positions
        if positions is not None:
            self._positions = positions
            self._stream.for_group(lambda group: group.applied(positions))

    def covers(self, events: int) -> None:
        """Notes that the index holds the first ``events`` events of the stream."""
        self._applied = events

    def has_applied(self, events: int) -> bool:
        """Tells whether the index holds the first ``events`` events of the stream."""
        return self._applied >= events

    # State

    @property
    def positions(self) -> Positions:
        """The positions of the index. Everything up to them is applied and stored."""
        assert self._positions is not None
        return self._positions

    @property
    def lag(self) -> dict[int, int]:
        """The number of seqs, by partition, between the index and the newest seq that the follower knows."""
        seqs = self.positions.seqs()
        return {s.partition: max(s.seq + s.lag - seqs.get(s.partition, 0), 0) for s in self._stream.status().partitions}

    def wait_for(self, version: Version) -> Iterator[Awaited]:
        """Waits until the index holds a version, or a later mutation of its key. Cancelling it changes nothing.

        With a group it also waits until this member has the version's partition: another one may keep it.

        Right after a failover the version may be newer than everything that the follower knows. It counts as lost only
        if a barrier has completed since the call and the version is still not in the history.

        Args:
            version: The version that a write has returned, in this process or another one.

        Raises:
            VersionLost: The version's history was dropped, or is older than the 25 newest branches.
            ValueError: The feed has no such partition.
            StreamEnded: The follower has ended.
        """
        partition, branch, seq = version
        if self._shared is not None:
            while partition not in self._shared.owned:
                yield Awaited.MOVE
        elif partition not in self._partitions:
            raise ValueError(
                f"{version} is of partition {partition}, and the index follows {len(self._partitions)} of feed "
                f"{self._feed!r}, of which this is none: wait for a version of these"
            )
        is_confirmed = False
        while not self._has(version):
            if self._shared is not None and partition not in self._shared.owned:
                yield Awaited.MOVE
            elif self._stream.failover_log(partition).may_have(branch, seq):
                is_confirmed = False
                yield Awaited.MOVE
            elif not is_confirmed:
                yield Awaited.BARRIER  # only the node that leads can tell, and a barrier asks it
                is_confirmed = True
            else:
                raise VersionLost(f"{version} is lost: the history of partition {partition} does not have it any more")

    def _has(self, version: Version) -> bool:
        position = self.positions.get(version.partition)
        return position is not None and position.has(version.branch, version.seq)


def _shared_applier(index: Index, options: FollowOptions, claim: Claim, *, parks: bool) -> SharedApplier:
    """Returns the applier of a member of a group. Raises ValueError or TypeError if the index cannot be shared."""
    from tailrace.indexes.shared_applier import SharedApplier

    if options.partitions is not None:
        raise ValueError("partitions has no meaning in a group, whose members share all partitions")
    if not isinstance(index, SharedIndex):
        raise TypeError(
            f"the index {index!r} cannot be shared by the members of group {claim.name!r}: it has no methods "
            "open_shared, take and give_back (tailrace.indexes.SharedIndex). SQLiteIndex, PostgresIndex and "
            "DuckDBIndex have; or follow without a group"
        )
    return SharedApplier(index, claim.name, parks=parks)


def _begin(group: IndexMembership, generations: Mapping[int, int], taken: Taken) -> None:
    """Begins what the index has taken, and gives up what it has of later owners."""
    mine = {p: generation for p, generation in generations.items() if p not in taken.later}
    refused = {p: generation for p, generation in generations.items() if p in taken.later}
    found = taken.checkpoint
    group.taken(mine, found.positions if found else {}, found.rings if found else {})
    group.give_up(refused, taken.later)
