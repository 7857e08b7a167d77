"""The consumers of a node that have a name or a group: who reads under a name now, and how far each has come.

    JOIN ── the next generation of each partition, in one block of ``_feeds`` ──> the program owns the name
         └─ who had the name is told that it has lost its partitions; a commit of it is refused from then on
    COMMIT ── the generation is the partition's? ── a row of ``_feeds``

A name has one owner, the program that joined last. So a program that is started again need not wait until the node
notices that the one before is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.errors import NotOwner, Overloaded, TailraceError, UnknownFeed
from tailrace.wire.consumer_messages import Change, Owned
from tailrace_server.segment import SegmentDamaged
from tailrace_server.state.ownership import Ownership

if TYPE_CHECKING:
    from tailrace.model.position import Position
    from tailrace.wire.consumer_messages import Commit, ConsumerId, Join, Reset
    from tailrace_server.feeds.catalog import Catalog
    from tailrace_server.feeds.consumer_rows import OwnedPartition
    from tailrace_server.host.clock import Clock
    from tailrace_server.replication.consumer_changes import ConsumerChanges
    from tailrace_server.replication.leaderships import Leaderships
    from tailrace_server.serving.consumer_groups import Groups, Member
    from tailrace_server.serving.joining import Joining


# The names and groups of one connection. The SDK has one for each stream, which has a connection of its own.
JOINED_MAX = 256


class Session(NamedTuple):
    """The connection of a program that has joined, the id of its request, and when that came, in monotonic seconds."""

    connection: Joining
    id: int
    member: bytes
    joined_at: float


class Consumers:
    """The sessions of consumers on this node. Only its own methods change its fields."""

    def __init__(
        self, changes: ConsumerChanges, feeds: Catalog, leaderships: Leaderships, clock: Clock, groups: Groups
    ) -> None:
        self._changes = changes
        self._feeds = feeds
        self._leaderships = leaderships
        self._clock = clock
        self._sessions: dict[ConsumerId, Session] = {}
        self._of_connection: dict[Joining, set[ConsumerId]] = {}
        self.groups = groups

    def join(self, connection: Joining, id: int, join: Join) -> Mapping[int, OwnedPartition]:
        """Returns the partitions that a program owns from now on, as they are stored.

        Raises NotOwner (it comes again, and another program has taken the name), UnknownFeed, Overloaded, NoSpace,
        NotDurable.
        """
        self._forget_dropped()
        self._require_room(connection, join.consumer)
        partitions = self._changes.partitions_of(join.consumer, join.partitions)
        owned = self._still_owned(join) if join.held else self._changes.grant(join, partitions)
        before = self._sessions.get(join.consumer)
        if before is not None and before.member != join.member:
            self._tell_lost(before, join.consumer)
        self._sessions[join.consumer] = Session(connection, id, join.member, self._clock.monotonic())
        self._of_connection.setdefault(connection, set()).add(join.consumer)
        return owned

    def join_group(self, connection: Joining, id: int, join: Join) -> Member:
        """Takes a member of a group, as `Groups.join`."""
        self._forget_dropped()
        self._require_room(connection, join.consumer)
        member = self.groups.join(connection, id, join)
        self._of_connection.setdefault(connection, set()).add(join.consumer)
        return member

    def _forget_dropped(self) -> None:
        """Forgets the consumers of feeds that were dropped; a group before the rows that it needs."""
        for consumer in self._changes.dropped():
            self.groups.forget(consumer)
            self._changes.forget(consumer)

    def _require_room(self, connection: Joining, consumer: ConsumerId) -> None:
        """Raises Overloaded if a connection has joined too often. One stream has one connection, and one name."""
        joined = self._of_connection.get(connection, ())
        if len(joined) >= JOINED_MAX and consumer not in joined:
            raise Overloaded(f"this connection has joined {len(joined)} names and groups: use another one")

    def _still_owned(self, join: Join) -> dict[int, OwnedPartition]:
        known = self._changes.rows().of(join.consumer)
        lost = [
            partition
            for partition, generation in join.held.items()
            if partition not in known
            or (known[partition].owner, known[partition].generation) != (join.member, generation)
        ]
        if lost:
            raise NotOwner(_TAKEN.format(join.consumer), partitions=lost)
        return {partition: known[partition] for partition in join.held}

    def _tell_lost(self, session: Session, consumer: ConsumerId) -> None:
        """Tells a program that another one has its name now."""
        if not session.connection.is_closing:
            lost = tuple(self._changes.rows().of(consumer))
            session.connection.answers.add(Change(Owned({}, None), lost=lost).encode(session.id))

    def commit(self, commit: Commit) -> list[int]:
        """Stores positions, as `ConsumerChanges.commit`."""
        return self._changes.commit(commit)

    def ended(self, connection: Joining) -> None:
        """Forgets the sessions of a connection that has ended."""
        for consumer in self._of_connection.pop(connection, ()):
            self.groups.ended(consumer, connection)
            session = self._sessions.get(consumer)
            if session is not None and session.connection is connection:  # else a later one has taken its place
                del self._sessions[consumer]

    # Status

    def status(self, most: int) -> list[dict[str, Any]]:
        """Returns the consumers of the feeds that this node has, ``most`` at most, as status shows them.

        On a follower they may be behind, and have no members. May read segments; of damaged ones it knows none.
        """
        try:
            rows = self._changes.rows()
        except SegmentDamaged:  # which status tells elsewhere
            return []
        known = sorted((each for each in rows if each.feed_id in self._feeds), key=lambda each: each[1:])
        return [self._told(consumer) for consumer in known[:most]]

    def _told(self, consumer: ConsumerId) -> dict[str, Any]:
        feed, owned = self._feeds.of_id(consumer.feed_id), self._changes.rows().of(consumer)
        level = self._leaderships.system.safest_level
        partitions = feed.partitions
        return {
            "feed": feed.info.name,
            "kind": consumer.kind,
            "name": consumer.name,
            "partitions": len(owned),
            "lag": sum(
                _lag(each, partitions[p].visible_seq(level)) for p, each in owned.items() if p < len(partitions)
            ),
            "committed_us": max(each.committed_us for each in owned.values()),
            "generation": max(each.generation for each in owned.values()),
            "unowned": self.readers(consumer)[1],
            "members": self._members(consumer, len(owned)),
        }

    def reset(self, reset: Reset) -> None:
        """Moves positions, as `ConsumerChanges.reset`.

        Raises TailraceError while a program reads under the name, or the lease of a member may run that an earlier
        leader has given.
        """
        self.groups.load_owners(reset.consumer)
        members = self._members(reset.consumer, 0)
        if members:
            peers = ", ".join(each["peer"] or f"member {each['member'][:8]}, whose lease runs" for each in members)
            raise TailraceError(f"{reset.consumer} is read by {peers}: stop what reads it first")
        self._changes.reset(reset)

    def whole(self, consumer: ConsumerId) -> dict[str, Any]:
        """Returns a consumer with each of its partitions. Raises UnknownFeed."""
        feed, owned = self._feeds.of_id(consumer.feed_id), self._changes.rows().of(consumer)
        if not owned:
            raise UnknownFeed(f"feed {feed.info.name!r} has no {consumer}")
        level, states = self._leaderships.system.safest_level, self.groups.states(consumer)
        known = sorted((p, each) for p, each in owned.items() if p < len(feed.partitions))
        told = [
            {
                "partition": p,
                "state": states[p].value if p in states else "owned" if each.owner else "free",
                "owner": each.owner.hex(),
                "generation": each.generation,
                "seq": None if each.position is None else each.position.seq,
                "lag": _lag(each, feed.partitions[p].visible_seq(level)),
                "committed_us": each.committed_us,
            }
            for p, each in known
        ]
        return {**self._told(consumer), "owned": told}

    def positions(self, consumer: ConsumerId) -> dict[int, Position]:
        """Returns the positions of a consumer."""
        rows = self._changes.rows().of(consumer)
        return {p: each.position for p, each in rows.items() if each.position is not None}

    def readers(self, consumer: ConsumerId) -> tuple[int, int]:
        """Returns the number of programs that read, and of the partitions that none of them may handle now."""
        partitions = len(self._changes.rows().of(consumer))
        if consumer.kind == "name":
            return (1, 0) if consumer in self._sessions else (0, partitions)
        states, members = self.groups.states(consumer), self.groups.member_count(consumer)
        owned = sum(state in (Ownership.OWNED, Ownership.REVOKING) for state in states.values())
        return members, max(len(states), partitions) - owned

    def _members(self, consumer: ConsumerId, partitions: int) -> list[dict[str, Any]]:
        """Returns who reads under a name now, or the members of a group on the node that leads."""
        session = self._sessions.get(consumer)
        if session is not None:
            return [self._member(session.member, session.connection, partitions, session.joined_at)]
        members = self.groups.members(consumer)
        return [self._member(each.id, each.connection, owned, each.joined_at) for each, owned in members]

    def _member(self, id: bytes, connection: Joining | None, partitions: int, joined_at: float) -> dict[str, Any]:
        return {
            "member": id.hex(),
            "name": "" if connection is None else connection.name,
            "peer": "" if connection is None else connection.transport.peer,
            "partitions": partitions,
            "joined_s": self._clock.monotonic() - joined_at,
        }


def _lag(owned: OwnedPartition, visible_seq: int) -> int:
    return max(visible_seq - (0 if owned.position is None else owned.position.seq), 0)


_TAKEN = (
    "{} is another program's now: it was started later. If both are to share the partitions, give them a group; if "
    "both are to read all, give each a name of its own"
)
