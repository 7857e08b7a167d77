"""The subscription of a consumer, and the first state and the requests of its partitions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, cast

from tailrace.block.lazy import require_numpy
from tailrace.consuming.partition import ConsumedPartition
from tailrace.consuming.resume import bounds, floor_without_ring
from tailrace.consuming.ring import RING_ROWS, Ring, RingChange
from tailrace.errors import BadPosition, UnknownFeed
from tailrace.model import Level
from tailrace.model.arguments import count
from tailrace.model.failover import SEQ_MAX, FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.model.times import to_us
from tailrace.wire.filters import EVERYTHING, StreamFilter
from tailrace.wire.replica_messages import Replica
from tailrace.wire.stream_messages import StreamRequest

if TYPE_CHECKING:
    from tailrace.codec import Codec
    from tailrace.consuming.renewals import Renewals
    from tailrace.requests.feed_core import FeedCore
    from tailrace.wire.segment_messages import PartitionCheckpoint

# In front of a number of mutations.
_LAST = "last:"
_ON_ROLLBACK = ("follow", "stop", "restart")
_ON_DATA_GONE = ("raise", "restart")
_CATCH_UP = ("auto", "segments", "stream")

# The beginning of a stream, as `consume` takes it.
Since: TypeAlias = str | Positions | Mapping[int, int] | datetime


class ChosenStart(NamedTuple):
    """The start that a program has chosen: the seq of each partition, or a number of mutations."""

    seqs: Mapping[int, int] | None
    last: int | None


class Claim(NamedTuple):
    """The name under which a consumer stores its positions, and the id of this program, 16 random bytes."""

    kind: str
    name: str
    member: bytes


class Subscription(NamedTuple):
    """The feed, the bounds and the options that a consumer asks for.

    Attributes:
        feed: The name of the feed.
        since: "beginning", "now" or positions.
        until: None, "now", or the last seq of each partition.
        partitions: The partitions to read; None for all of them.
        visibility: The level at which a mutation has to be held before it is sent.
        on_rollback: "follow", "stop" or "restart".
        stored: The positions among the arguments. They have to be of this feed.
        ring_rows: The number of keys that the ring of a partition keeps.
        rings: The stored rings, by partition.
        by_index: True if an index may go back by itself. It says how far by `PartitionStreams.settle`.
        filter: Selects the mutations.
        since_us: The stream begins at this time, in microseconds since 1970 UTC; then ``since`` is "now".
        until_us: The stream ends at this time, in microseconds since 1970 UTC; then ``until`` is None.
        state: The state of the node, as in `tailrace.connect`.
        replica: The node that copies the feed (`tailrace.consuming.replica`); None for a consumer.
        until_logs: The histories that the seqs of ``until`` are of, as far as they are known.
        feed_id: The id of the feed; another feed of its name is refused. None: any feed of the name.
        hold: For a replica: chooses from the ``partitions`` of the partition map the ones that are not asked for until
            `ReplicaStreams.release`. None: all are asked for.
        catch_up: "auto", "segments" or "stream": how a partition that is behind reads what the node has in segments.
        checkpoints: Checkpoints that another program has taken. Their partitions read these segments first, and do not
            release them.
        renewals: Checkpoints that other consumers of the same plan will read, to be kept alive; None if there are none.
        exact_end: True if the program reads nothing above ``until``: the blocks of segments above it are not fetched.
        caught_up: True if the program is told once that it has everything that was there.
        claim: The name of the consumer; None if it has none.
        start: The start, if the program has named seqs or a number of mutations; then ``since`` is "beginning" until
            the node has told what is there.
        on_data_gone: "raise" or "restart".
        share: The number of a share of the partitions, from 1, and how many there are; None: ``partitions`` counts.
        codec: Makes typed keys and values for the program; None: it gets bytes.
    """

    feed: str
    since: str | Positions = "beginning"
    until: str | Mapping[int, int] | None = None
    partitions: frozenset[int] | None = None
    visibility: Level = Level.DISK
    on_rollback: str = "follow"
    stored: tuple[Positions, ...] = ()
    ring_rows: int = RING_ROWS
    rings: Mapping[int, RingChange] = MappingProxyType({})
    by_index: bool = False
    filter: StreamFilter = EVERYTHING
    since_us: int | None = None
    until_us: int | None = None
    state: str = "leader"
    replica: Replica | None = None
    until_logs: Mapping[int, FailoverLog] = MappingProxyType({})
    feed_id: bytes | None = None
    hold: Callable[[Sequence[Any]], frozenset[int]] | None = None
    catch_up: str = "stream"
    checkpoints: Mapping[int, PartitionCheckpoint] = MappingProxyType({})
    exact_end: bool = False
    renewals: Renewals | None = None
    caught_up: bool = False
    claim: Claim | None = None
    start: ChosenStart | None = None
    on_data_gone: str = "raise"
    share: tuple[int, int] | None = None
    codec: Codec | None = None

    @property
    def finds_start(self) -> bool:
        """True if the node has to be asked where a partition begins: by a time, seqs or a number of mutations."""
        return self.start is not None or self.since_us is not None

    def require_feed(self, cluster_id: bytes, feed_id: bytes, fail: Callable[[BadPosition], None]) -> None:
        """Calls ``fail`` if stored positions are of another feed or cluster than these."""
        for positions in self.stored:
            try:
                positions.require_feed(cluster_id, feed_id)
            except BadPosition as error:
                fail(error)

    def map_request(self, *, is_first: bool) -> dict[str, Any]:
        """Returns the request for the partition map. ``is_first``: the feed is not known yet."""
        asked: dict[str, Any] = {"name": self.feed}
        if is_first and self.until == "now" and self.state == "leader":
            asked["leader"] = True  # the end is fixed by it: a leader that was deposed does not know all rows
        return asked

    def chosen(self, partitions: Iterable[int], fail: Callable[[UnknownFeed], NoReturn]) -> list[int]:
        """Returns those of a feed's partitions that are read, in their order.

        Calls ``fail`` if the feed does not have one that is asked for, or has fewer than there are shares.
        """
        known = sorted(partitions)
        if self.share is not None:
            number, shares = self.share
            if number > len(known):
                few = f"feed {self.feed!r} has only {len(known)}: use fewer shares"
                fail(UnknownFeed(f"partitions is '{number}/{shares}', but {few}"))
            return known[number - 1 :: shares]
        missing = (self.partitions or frozenset()).difference(known)
        if missing:
            fail(UnknownFeed(f"feed {self.feed!r} has no partition {min(missing)}: it has {len(known)}"))
        return known if self.partitions is None else sorted(self.partitions)


def consume(
    feed: FeedCore,
    since: Since,
    until: str | Positions | datetime | None,
    *,
    partitions: Iterable[int] | str | None,
    visibility: str,
    key_prefix: bytes,
    keys_only: bool,
    on_rollback: str,
    ring: int,
    catch_up: str,
    caught_up: bool,
    name: str | None,
    group: str | None,
    on_data_gone: str,
) -> Subscription:
    """Makes a stream of the feed's mutations: a snapshot first, then live. Use it as a context manager.

    Positions do not contain the filter. Resume with the same ``key_prefix`` and ``keys_only``.

    Args:
        since: The beginning of the stream. "beginning"; "now", which is fixed on entering; stored positions; or an
            aware datetime. From a time on, only mutations that the node stamped then or later are delivered.
            "last:100": the mutations with the last 100 seqs of each partition, as of entering; a compact feed that has
            dropped superseded ones among them delivers fewer. A mapping from partitions to seqs: the mutations above
            these seqs, as for a consumer that stood there in the node's present history; other partitions from the
            beginning.
        until: The end of the stream. None: it has no end. "now": everything that exists on entering; in a set a
            majority confirms the leader first. Positions; or an aware datetime, which ends the stream when
            everything stamped before it was delivered.
        partitions: Only these partitions. "2/5" is the second of five shares: five programs with a share each read all,
            and each partition once. Default: all.
        visibility: "memory", "disk" or "quorum": the level that mutations must have reached.
        key_prefix: Only mutations whose key begins with these bytes.
        keys_only: Deliver no values. ``Mutation.value`` is None then, and ``Mutation.deleted`` marks deletions.
        window_bytes: The bytes that the node may send before the loop has handled them.
        on_rollback: What to do if the node has lost delivered mutations. "follow": a `Rollback` event, then the
            present values of its keys, then the stream continues. "restart": a `Rollback` event without keys, then
            the partition from the beginning. "stop": `StreamEnded`.
        ring: The number of recent keys to remember for each partition, for "follow". All partitions together use at
            most 256 MiB. A rollback that goes further back is a restart.
        catch_up: How partitions that are behind read what the node has in segments. "auto": far behind, they read
            the segments as files, and then the stream. "segments": they do so however little it is; needs numpy.
            "stream": never. Events and positions mean the same. Segments use another ``window_bytes`` of memory.
        caught_up: Deliver a `CaughtUp` event, once, when everything was delivered that had been acknowledged when
            the streams of all partitions were open.
        name: The name under which the node stores positions, on ``await stream.commit()``. The stream begins at them;
            ``since``, of any kind, counts for partitions without one. The program that was started last under a name
            owns it: the one before ends with NotOwner.
        group: The group whose members share the partitions, each of which begins at the group's last commit. `Assigned`
            and `Revoked` events tell what this member owns. ``since`` counts for partitions without a commit.
        on_data_gone: What to do if mutations that a partition would get next have been trimmed or purged. "raise":
            `DataGone` ends this partition, and the next step goes on with the others. "restart": a `Rollback` event
            without keys, then all that is kept of the partition.

    Returns:
        A stream. It is not connected yet.

    Raises:
        ValueError: An argument is not valid.
        ImportError: ``catch_up`` is "segments", and numpy is not installed.
        ProtocolError: On entering: ``catch_up`` is "segments", and the node is too old to send any.
        UnknownFeed: On entering: the feed does not exist.
        BadPosition: On entering: the positions belong to another feed or cluster.
        DataGone: Later: mutations that were asked for have been trimmed or purged. On entering: of all partitions.
        NotOwner: Later: another program was started under this name.
        StreamEnded: Later: the stream has ended for good; the error has the reason.
    """
    subscription = checked_subscription(
        feed.name,
        since,
        until,
        partitions=partitions,
        level=feed.level(visibility),
        filter=StreamFilter(key_prefix, keys_only),
        on_rollback=on_rollback,
        ring=ring,
        catch_up=catch_up,
        caught_up=caught_up,
        on_data_gone=on_data_gone,
    )._replace(codec=feed.codec)
    if name is not None and group is not None:
        raise ValueError(
            "name and group are given: a consumer has a name of its own, or shares the positions of a group"
        )
    if group is not None and (until is not None or partitions is not None or caught_up):
        raise ValueError(
            "until, partitions and caught_up have no meaning in a group, whose members share all partitions"
        )
    if group is not None:
        return _named(subscription, feed, "group", group)
    return subscription if name is None else _named(subscription, feed, "name", name)


def group_claim(feed: FeedCore, group: str | None) -> Claim | None:
    """Returns the claim of a member of a group; None without a group. Raises ValueError or TypeError."""
    return None if group is None else _claim(feed, "group", group)


def _named(subscription: Subscription, feed: FeedCore, kind: str, name: str) -> Subscription:
    return subscription._replace(claim=_claim(feed, kind, name))


def _claim(feed: FeedCore, kind: str, name: str) -> Claim:
    from tailrace.wire.consumer_messages import why_no_name  # few programs have a name

    if not isinstance(name, str):
        raise TypeError(f"{kind} is {name!r}, and has to be a str")
    if why := why_no_name(name):
        raise ValueError(f"{kind}: {why}")
    if feed.reads_followers:
        raise ValueError(
            f"{kind}: positions are stored by the leader: connect without state=, which reads from followers"
        )
    return Claim(kind, name, feed.new_member_id())


def checked_subscription(
    feed: str,
    since: Since,
    until: str | Positions | datetime | None,
    *,
    partitions: Iterable[int] | str | None,
    level: Level,
    filter: StreamFilter,
    on_rollback: str,
    ring: int,
    catch_up: str,
    caught_up: bool = False,
    on_data_gone: str = "raise",
) -> Subscription:
    """Checks the arguments of `consume`, and returns the subscription. Raises ValueError or TypeError."""
    start = None
    if isinstance(since, str):
        if since.startswith(_LAST):
            since, start = "beginning", _start_of_last(since)
    elif isinstance(since, Mapping) and not isinstance(since, Positions):
        since, start = "beginning", _start_at(cast("Mapping[int, int]", since))
    _check_bound("since", since, ("beginning", "now"))
    _check_bound("until", until, (None, "now"))
    if on_rollback not in _ON_ROLLBACK:
        raise ValueError(f"on_rollback is {on_rollback!r}, but has to be one of {', '.join(map(repr, _ON_ROLLBACK))}")
    if on_data_gone not in _ON_DATA_GONE:
        raise ValueError(f"on_data_gone is {on_data_gone!r}, but has to be 'raise' or 'restart'")
    filter.check()
    require_catch_up(catch_up)
    share, only = None, None
    if isinstance(partitions, str):
        share = read_share(partitions)
    elif partitions is not None:
        only = frozenset(count("partitions", id) for id in partitions)
    if only is not None and not only:
        raise ValueError("partitions is empty: name at least one, or leave it out to read all of them")
    since_us = to_us(since, "since") if isinstance(since, datetime) else None
    until_us = to_us(until, "until") if isinstance(until, datetime) else None
    if since_us is not None and until_us is not None and until_us < since_us:
        raise ValueError(f"until is {until}, which is before since, {since}")
    if catch_up == "segments" and (since_us is not None or until_us is not None):
        raise ValueError('catch_up is "segments", but times are read by the stream: use "auto", or seqs as positions')
    return Subscription(
        feed,
        "now" if isinstance(since, datetime) else since,
        until.seqs() if isinstance(until, Positions) else None if isinstance(until, datetime) else until,
        only,
        level,
        on_rollback,
        tuple(value for value in (since, until) if isinstance(value, Positions)),
        count("ring", ring),
        filter=filter,
        since_us=since_us,
        until_us=until_us,
        until_logs={id: at.log for id, at in until.items()} if isinstance(until, Positions) else {},
        catch_up=catch_up,
        caught_up=caught_up,
        share=share,
        start=start,
        on_data_gone=on_data_gone,
    )


def require_since(since: str | Mapping[int, int]) -> None:
    """Raises ValueError or TypeError unless ``since`` is a number of mutations, or seqs of partitions."""
    _ = _start_of_last(since) if isinstance(since, str) else _start_at(since)


def _start_at(seqs: Mapping[int, int]) -> ChosenStart:
    """Returns the start at a seq of each partition. Raises ValueError or TypeError."""
    checked = {count("since", id): count(f"since[{id!r}]", seq) for id, seq in seqs.items()}
    if checked and max(checked.values()) > SEQ_MAX:
        raise ValueError(f"since names seq {max(checked.values())}, and the greatest seq is {SEQ_MAX}")
    return ChosenStart(checked, None)


def _start_of_last(text: str) -> ChosenStart:
    """Returns the start of ``last:N``. Raises ValueError."""

    number = text.removeprefix(_LAST)
    if not (number.isascii() and number.isdigit()) or int(number) > SEQ_MAX:
        raise ValueError(f'since is {text!r}, but has to be as "last:100", with a number of mutations from 0 on')
    return ChosenStart(None, int(number))


def read_share(text: str) -> tuple[int, int]:
    """Reads a share, such as "2/5". Raises ValueError."""
    number, slash, shares = text.partition("/")
    if slash and number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares):
        return int(number), int(shares)
    raise ValueError(f'partitions is {text!r}, but has to be numbers, or a share such as "2/5", the second of five')


def require_catch_up(mode: str) -> None:
    """Raises ValueError if there is no such way to catch up, ImportError if a library is missing for it."""
    if mode not in _CATCH_UP:
        raise ValueError(f"catch_up is {mode!r}, but has to be one of {', '.join(map(repr, _CATCH_UP))}")
    if mode == "segments":
        require_numpy()


def _check_bound(name: str, value: str | Positions | datetime | None, words: tuple[str | None, ...]) -> None:
    if not isinstance(value, Positions | datetime) and value not in words:
        hint = "; Positions.parse reads a stored string" if isinstance(value, str) else ""
        names = ", ".join(map(repr, words))
        more = ', "last:N", a mapping from partitions to seqs' if name == "since" else ""
        raise ValueError(f"{name} is {value!r}, but has to be {names}{more}, Positions or an aware datetime{hint}")


def subscribed_partition(
    subscription: Subscription,
    id: int,
    high_seq: int,
    ring_bytes_max: int,
    now: float,
    stored: Position | None = None,
    ring: RingChange | None = None,
) -> ConsumedPartition:
    """Returns a partition that is asked for at once.

    Args:
        subscription: The subscription of the consumer.
        id: The partition, from 0.
        high_seq: The newest seq of the node.
        ring_bytes_max: The bytes that its ring may hold.
        now: Monotonic seconds.
        stored: The position that the node has stored, or that was chosen by seqs; None: that of the subscription.
        ring: Its stored ring; None: that of the subscription.
    """
    end_seq = None
    if subscription.until == "now":
        end_seq = high_seq
    elif subscription.until is not None:
        assert not isinstance(subscription.until, str)
        end_seq = subscription.until.get(id, 0)
    start = _start(subscription, id) if stored is None else stored
    made = _ring(subscription, ring or subscription.rings.get(id), start, ring_bytes_max)
    return ConsumedPartition(id, start, made, end_seq, now, subscription.until_logs.get(id))


def _start(subscription: Subscription, id: int) -> Position | None:
    if isinstance(subscription.since, Positions):
        return subscription.since.get(id, Position.at(FailoverLog(), 0))
    return None if subscription.since == "now" else Position.at(FailoverLog(), 0)


def _ring(subscription: Subscription, stored: RingChange | None, start: Position | None, bytes_max: int) -> Ring:
    if stored is None:
        return Ring(subscription.ring_rows, bytes_max, 0 if start is None else floor_without_ring(start))
    ring = Ring(subscription.ring_rows, bytes_max)
    ring.apply(stored)
    return ring


def stream_request(
    subscription: Subscription, partition: ConsumedPartition, node_state: str, feed_id: bytes
) -> StreamRequest:
    """Returns the request for the stream of a partition; ``node_state`` is "leader" or "follower"."""
    position = partition.position
    seq, first, last = (0, 0, 0) if position is None else bounds(partition.resume_state)
    since_us = None
    if position is None:
        position, since_us = Position.at(FailoverLog(), 0), subscription.since_us
    return StreamRequest(
        feed_id,
        partition.id,
        position.log,
        seq if partition.position is not None else None,
        first,
        last,
        position.purge_seq,
        partition.end_seq,
        subscription.visibility,
        node_state,
        subscription.filter,
        since_us,
        subscription.until_us,
        subscription.replica,
    )
