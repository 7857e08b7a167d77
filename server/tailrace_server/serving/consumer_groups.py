"""The groups of consumers on the node that leads ``_feeds``: members, leases, and who owns which partition.

    JOIN ──> a member ──plan──> GRANT: a row with the next generation ── a majority has it ──> CHANGE to the member
                          └───> REVOKE: CHANGE to its owner ── RELEASE ──> FREE ──plan──> ...
    RENEW ──> its lease begins anew        no RENEW, no connection ──> the lease ends ──> FREE ──plan──> ...

Rows of ``_feeds`` say who owns what (feeds/consumer_rows.py); this file knows in addition who is connected, and until
when leases run. A node that begins to lead knows neither: it honours a full lease of each owner from then on. So does
one whose process was stopped for a while. A member counts its lease from when it sent the renewal, so it ends first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import NotOwner, Overloaded, TailraceError
from tailrace.model.position import Positions
from tailrace.wire.bodies import encode_json
from tailrace.wire.consumer_messages import Change, ConsumerId, Owned, generations_to_json
from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.consumer_rows import OwnedPartition
from tailrace_server.state.assignment import assign
from tailrace_server.state.ownership import Ownership, OwnershipEvent, transition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.wire.consumer_messages import Hold, Join
    from tailrace_server.config import Limits
    from tailrace_server.host.clock import Clock
    from tailrace_server.replication.consumer_changes import ConsumerChanges
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.waiting import WaitingAnswers
    from tailrace_server.serving.joining import Joining

log = logging.getLogger("tailrace.server")

# The leases are looked at so often in each; an end is found that much later.
LOOKS_PER_LEASE = 20
# The members of one group. More than a feed has partitions would have nothing to do.
MEMBERS_MAX = 4_096
# The members of all groups. Each takes a kilobyte in memory, also without a connection, until its lease ends.
ALL_MEMBERS_MAX = 16_384
# A member may have generations raised up to this one: there is room for more above it.
RAISED_MAX = 1 << 62
# The groups that have members. Each takes some kilobytes in memory.
GROUPS_MAX = 1_024


@dataclass(eq=False)
class Member:
    """A program of a group. Without a connection it may come back, as long as its lease runs."""

    id: bytes
    lease_until: float
    join: Join | None = None  # its last request; None of an owner that this node has not heard of since it leads
    connection: Joining | None = None
    request_id: int = 0
    is_ready: bool = False  # its JOIN was answered
    joined_at: float = 0.0

    def tell(self, change: Change) -> None:
        """Sends a change, if it is connected. After a lost one it learns by its next JOIN."""
        if self.connection is not None and not self.connection.is_closing:
            self.connection.answers.add(change.encode(self.request_id))


@dataclass(eq=False)
class Group:
    """One group: its members by id, and the state of each partition. Only `Groups` changes it.

    A look at a group, and a renewal of a member, cost by what they are about, not by the partitions of the group.
    """

    consumer: ConsumerId
    members: dict[bytes, Member] = field(default_factory=dict)
    states: dict[int, Ownership] = field(default_factory=dict)
    # Invariant: ``free`` has those in FREE, ``owners`` the owner of each other one, ``owned`` the same by owner.
    free: set[int] = field(default_factory=set)
    owners: dict[int, bytes] = field(default_factory=dict)
    owned: dict[bytes, set[int]] = field(default_factory=dict)
    revoked_at: dict[int, float] = field(default_factory=dict)  # of those in REVOKING, in monotonic seconds
    ends_at: dict[int, float] = field(default_factory=dict)  # of those that were not released for too long
    failure: str = ""  # why its last plan could not be stored

    def load(self, partition: int, owner: bytes) -> None:
        """Adds a partition as its row has it; ``owner`` is empty if it has none."""
        self.states[partition] = Ownership.OWNED if owner else Ownership.FREE
        if owner:
            self._own(partition, owner)
        else:
            self.free.add(partition)

    def grant(self, partition: int, owner: bytes) -> None:
        """Gives a free partition to a member."""
        self.step(partition, OwnershipEvent.GRANT)
        self.free.discard(partition)
        self._own(partition, owner)

    def _own(self, partition: int, owner: bytes) -> None:
        self.owners[partition] = owner
        self.owned.setdefault(owner, set()).add(partition)

    def step(self, partition: int, event: OwnershipEvent) -> None:
        """Moves the state of a partition on; `grant` gives it an owner."""
        state = self.states[partition] = transition(self.states[partition], event)
        if state is not Ownership.REVOKING:
            self.revoked_at.pop(partition, None)
            self.ends_at.pop(partition, None)
        if state is Ownership.FREE:
            self.free.add(partition)
            owner = self.owners.pop(partition)
            self.owned[owner].discard(partition)
            if not self.owned[owner]:
                del self.owned[owner]

    def owned_by(self, owner: bytes) -> list[int]:
        """Returns the partitions of a member, also those that it does not know of yet."""
        return sorted(self.owned.get(owner, ()))


class Groups:
    """All groups of this node. Only its own methods change their fields."""

    def __init__(
        self,
        changes: ConsumerChanges,
        leadership: Leadership,
        waiting: WaitingAnswers,
        clock: Clock,
        limits: Limits,
        seqs: Callable[[], list[tuple[Any, int]]],
        cluster_id: Callable[[], bytes],
    ) -> None:
        """``seqs``: how far ``_feeds`` has come. ``cluster_id``: of this node."""
        self._changes = changes
        self._leadership = leadership
        self._waiting = waiting
        self._clock = clock
        self._limits = limits
        self._seqs = seqs
        self._cluster_id = cluster_id
        self._groups: dict[ConsumerId, Group] = {}
        self._led: tuple[int, int] | None = None  # the leadership that the groups are of
        self._since = clock.monotonic()  # when this node was seen to lead
        self._wanted = trio.Event()  # set while there are groups

    # Requests

    def join(self, connection: Joining, id: int, join: Join) -> Member:
        """Takes a member, or one that comes again. `joined` answers it.

        Raises UnknownFeed, Overloaded, NotDurable, NoSpace.
        """
        now = self._now()
        self._require_room(join)
        group = self._loaded(join.consumer)
        member = group.members.get(join.member)
        if member is None:
            if len(group.members) >= MEMBERS_MAX:
                raise TailraceError(f"{join.consumer} has {len(group.members)} members, and at most {MEMBERS_MAX}")
            member = group.members[join.member] = Member(join.member, 0.0, joined_at=now)
        member.join = join._replace(held={})  # which may be large
        member.connection, member.request_id, member.is_ready = connection, id, False
        member.lease_until = now + self._limits.group_lease_s
        member.joined_at = member.joined_at or now
        return member

    def _require_room(self, join: Join) -> None:
        """Raises Overloaded if there are too many members for a new one."""
        group = self._groups.get(join.consumer)
        if group is None or join.member not in group.members:
            count = sum(len(each.members) for each in self._groups.values())
            if count >= ALL_MEMBERS_MAX:
                raise Overloaded(f"the groups of this node have {count} members, and at most {ALL_MEMBERS_MAX} may be")

    def joined(self, consumer: ConsumerId, member: Member) -> dict[str, Any]:
        """Returns the answer to a JOIN that a majority has confirmed: its partitions. It gets others from now on."""
        group = self._groups.get(consumer)
        if group is None or group.members.get(member.id) is not member:
            raise NotOwner(f"the lease of this member of {consumer} has ended: join again")
        member.is_ready = True
        owned = self._owned(group, member)
        revoking = tuple(p for p in owned if group.states[p] is Ownership.REVOKING)
        told = self._told(consumer, owned)._replace(lease_s=self._limits.group_lease_s, revoked=revoking)
        return told.to_json()

    def renew(self, hold: Hold) -> None:
        """Begins a lease anew. Raises NotOwner if it has ended: the member has to join again."""
        now = self._now()
        group = self._groups.get(hold.consumer)
        member = None if group is None else group.members.get(hold.member)
        if member is None or member.connection is None:
            raise NotOwner(f"this node knows no such member of {hold.consumer}: join again")
        member.lease_until = now + self._limits.group_lease_s

    def renewed(self, hold: Hold, id: int) -> bytes:
        """Returns the answer to a RENEW that a majority has confirmed: the partitions whose lease is longer now."""
        group = self._groups.get(hold.consumer)
        member = None if group is None else group.members.get(hold.member)
        generations: dict[int, int] = {}
        if group is not None and member is not None:
            owned = self._owned(group, member)
            generations = {p: each.generation for p, each in owned.items() if p not in group.ends_at}
        return encode_json(Opcode.RESULT, {"generations": generations_to_json(generations)}, id)

    def release(self, hold: Hold) -> None:
        """Frees partitions that their owner gives up, and those of a member that leaves. NotDurable, NoSpace."""
        self._now()
        group = self._groups.get(hold.consumer)
        member = None if group is None else group.members.get(hold.member)
        if group is None or member is None:
            return
        known = self._changes.rows().of(hold.consumer)
        owned = {p: known[p] for p in group.owned_by(member.id) if p in known and known[p].owner == member.id}
        released = [p for p, each in owned.items() if hold.leave or hold.generations.get(p) == each.generation]
        above = {p: generation for p, generation in hold.above.items() if generation <= RAISED_MAX}
        raised = {p: above[p] for p in released if above.get(p, 0) > owned[p].generation}
        if raised:  # a restored cluster, or a group that was forgotten: an index has seen later generations
            rows = {p: owned[p]._replace(owner=b"", generation=each) for p, each in raised.items()}
            self._changes.write(group.consumer, rows)
        for partition in released:
            group.step(partition, OwnershipEvent.RELEASED)
        if hold.leave:
            del group.members[hold.member]
        self.plan(group)
        self._disown(group, owned)
        self._end_empty(group)

    def _disown(self, group: Group, partitions: Iterable[int]) -> None:
        """Stores that these have no owner, as far as none has got them: no later leader honours a lease of theirs."""
        known = self._changes.rows().of(group.consumer)
        free = [p for p in partitions if group.states.get(p) is Ownership.FREE and known[p].owner]
        if free:
            self._changes.write(group.consumer, {p: known[p]._replace(owner=b"") for p in free})

    def ended(self, consumer: ConsumerId, connection: Joining) -> None:
        """Notes that the connection of a member has ended. Its lease goes on."""
        group = self._groups.get(consumer)
        for member in () if group is None else group.members.values():
            if member.connection is connection:
                member.connection, member.is_ready = None, False

    def forget(self, consumer: ConsumerId) -> None:
        """Forgets a group whose feed was dropped, before its rows are removed."""
        self._groups.pop(consumer, None)

    def load_owners(self, consumer: ConsumerId) -> None:
        """Has `members` know the owners of an earlier leader, each until a full lease is over. Raises Overloaded."""
        self._now()
        if any(owned.owner for owned in self._changes.rows().of(consumer).values()) and consumer.kind == "group":
            self._loaded(consumer)

    def members(self, consumer: ConsumerId) -> list[tuple[Member, int]]:
        """Returns the members of a group, each with the number of its partitions."""
        group = self._groups.get(consumer)
        if group is None:
            return []
        return [(member, len(self._owned(group, member))) for member in group.members.values()]

    def member_count(self, consumer: ConsumerId) -> int:
        """Returns the number of members of a group."""
        group = self._groups.get(consumer)
        return 0 if group is None else len(group.members)

    def states(self, consumer: ConsumerId) -> Mapping[int, Ownership]:
        """Returns the state of each partition of a group; none if no member is known here."""
        group = self._groups.get(consumer)
        return {} if group is None else group.states

    # What this node knows

    def _now(self) -> float:
        """Returns the time, in monotonic seconds. Forgets all groups if this node leads anew, or no more."""
        now, leadership = self._clock.monotonic(), self._leadership
        if self._led != (leadership.changes, leadership.term):
            self._led, self._since = (leadership.changes, leadership.term), now
            self._groups.clear()
        return now

    def _loaded(self, consumer: ConsumerId) -> Group:
        """Returns a group. Owners of which nothing was heard have a full lease from the time at which this node led."""
        group = self._groups.get(consumer)
        if group is not None:
            return group
        if len(self._groups) >= GROUPS_MAX:
            raise Overloaded(f"{len(self._groups)} groups have members here, and at most {GROUPS_MAX} may")
        group = Group(consumer)
        known = self._changes.rows().of(consumer)
        for partition in self._changes.partitions_of(consumer):
            owned = known.get(partition.id)
            owner = b"" if owned is None else owned.owner
            group.load(partition.id, owner)
            if owner and owner not in group.members:
                group.members[owner] = Member(owner, self._since + self._limits.group_lease_s)
        self._groups[consumer] = group
        self._wanted.set()
        return group

    def _owned(self, group: Group, member: Member) -> dict[int, OwnedPartition]:
        """Returns the partitions that a member owns and knows, or is to know, of."""
        known = self._changes.rows().of(group.consumer)
        knows = (Ownership.OWNED, Ownership.REVOKING)
        owned = ((p, known.get(p)) for p in group.owned_by(member.id) if group.states[p] in knows)
        return {p: each for p, each in owned if each is not None and each.owner == member.id}

    def _told(self, consumer: ConsumerId, owned: Mapping[int, OwnedPartition]) -> Owned:
        return told_owned(self._cluster_id(), consumer, owned)

    # Plans

    def plan(self, group: Group) -> None:
        """Grants free partitions, and revokes others that are to move. Raises NotDurable, NoSpace, Overloaded."""
        live = {id: member for id, member in group.members.items() if member.is_ready and member.connection is not None}
        known = self._changes.rows().of(group.consumer)
        owners, candidates = {}, []
        for partition, state in group.states.items():
            owner = b"" if state is Ownership.FREE else known[partition].owner
            if not owner or owner in live:
                candidates.append(partition)
            if owner and state is not Ownership.REVOKING:
                owners[partition] = owner
        target = assign(candidates, live, owners)
        granted = [p for p, id in target.items() if group.states[p] is Ownership.FREE]
        revoked = [p for p, id in target.items() if group.states[p] is Ownership.OWNED and known[p].owner != id]
        self._revoke(group, revoked)
        if granted:
            self._grant(group, {p: live[target[p]] for p in granted})

    def _grant(self, group: Group, owners: Mapping[int, Member]) -> None:
        rows = {}
        mine: dict[Member, list[int]] = {}
        for partition, owner in owners.items():
            mine.setdefault(owner, []).append(partition)
        for member, chosen in mine.items():
            assert member.join is not None, "it has joined"
            rows.update(self._changes.granted(member.join, self._changes.partitions_of(group.consumer, chosen)))
        self._changes.write(group.consumer, rows)
        for partition, owner in owners.items():
            group.grant(partition, owner.id)
        led = self._led
        level = self._leadership.safest_level
        self._waiting.wait(level, self._seqs(), partial(self._confirmed, led, group, rows))
        self._changes.hurry()

    def _confirmed(
        self,
        led: tuple[int, int] | None,
        group: Group,
        rows: Mapping[int, OwnedPartition],
        error: TailraceError | None,
    ) -> None:
        """Tells members of partitions whose rows cannot be lost any more."""
        if error is not None or led != self._led or self._groups.get(group.consumer) is not group:
            return  # this node leads no more, or anew
        known = self._changes.rows().of(group.consumer)
        told: dict[bytes, dict[int, OwnedPartition]] = {}
        for partition, row in rows.items():
            is_granted = group.states[partition] is Ownership.GRANTING and known[partition].generation == row.generation
            if is_granted:
                group.step(partition, OwnershipEvent.CONFIRMED)
                told.setdefault(row.owner, {})[partition] = known[partition]
        for owner, owned in told.items():
            if (member := group.members.get(owner)) is not None and member.is_ready:
                member.tell(Change(self._told(group.consumer, owned)))
        self._plan_again(group)

    def plan_again(self, consumer: ConsumerId) -> None:
        """Plans a group whose members have changed. It is tried again if there is no room for rows."""
        if (group := self._groups.get(consumer)) is not None:
            self._plan_again(group)

    def _plan_again(self, group: Group) -> None:
        """Plans anew. A failure is logged once, and each look tries it again."""
        try:
            self.plan(group)
        except TailraceError as error:
            before, group.failure = group.failure, str(error)
            if group.failure != before:
                log.warning("%s: partitions cannot be given to members yet: %s", group.consumer, error)
        else:
            group.failure = ""

    def _revoke(self, group: Group, partitions: Iterable[int]) -> None:
        known, now = self._changes.rows().of(group.consumer), self._clock.monotonic()
        by_owner: dict[bytes, list[int]] = {}
        for partition in partitions:
            group.step(partition, OwnershipEvent.REVOKE)
            group.revoked_at[partition] = now
            by_owner.setdefault(known[partition].owner, []).append(partition)
        for owner, mine in by_owner.items():
            group.members[owner].tell(Change(Owned({}, None), revoked=tuple(mine)))

    # Time

    async def run(self, flush: Callable[[], None]) -> None:
        """Ends leases, until cancelled. ``flush`` sends what was told."""
        looked_at = self._clock.monotonic()
        while True:
            if not self._groups:
                self._wanted = trio.Event()
                await self._wanted.wait()
                looked_at = self._clock.monotonic()
            await trio.sleep(self._limits.group_lease_s / LOOKS_PER_LEASE)
            now = self._now()
            # A process that was stopped has renewals before it that it has not read.
            is_late = now - looked_at > self._limits.group_lease_s / 2
            looked_at = now
            for group in list(self._groups.values()):
                if self._changes.is_dropped(group.consumer):
                    del self._groups[group.consumer]
                else:
                    self._look(group, now, is_late=is_late)
            flush()

    def _look(self, group: Group, now: float, *, is_late: bool) -> None:
        lease_s = self._limits.group_lease_s
        if is_late:
            for member in group.members.values():
                member.lease_until = now + lease_s
        for partition, at in group.revoked_at.items():
            if partition not in group.ends_at and now - at > self._limits.group_release_s:
                group.ends_at[partition] = now + lease_s
        dead = [member for member in group.members.values() if now >= member.lease_until]
        overdue = [partition for partition, at in group.ends_at.items() if now >= at]
        if not dead and not overdue:
            if group.free:
                self._plan_again(group)  # there was no room for the rows
            return
        ids = {member.id for member in dead}
        ended = sorted({*overdue, *(partition for id in ids for partition in group.owned_by(id))})
        lost: dict[bytes, list[int]] = {}
        for partition in ended:
            lost.setdefault(group.owners[partition], []).append(partition)
            group.step(partition, OwnershipEvent.EXPIRED)
        for owner, mine in lost.items():
            log.info("%s: member %s has lost %d partitions", group.consumer, owner.hex(), len(mine))
            group.members[owner].tell(Change(Owned({}, None), lost=tuple(mine)))
        for id in ids:
            del group.members[id]
        self._plan_again(group)
        if not group.members:
            try:
                self._disown(group, ended)
            except TailraceError as error:
                log.warning("%s: that it has no members is not stored: %s", group.consumer, error)
        self._end_empty(group)

    def _end_empty(self, group: Group) -> None:
        """Forgets a group without members."""
        if not group.members and self._groups.get(group.consumer) is group:
            del self._groups[group.consumer]


def told_owned(cluster_id: bytes, consumer: ConsumerId, owned: Mapping[int, OwnedPartition]) -> Owned:
    """Returns partitions of a member, as the wire tells them."""
    positions = {partition: each.position for partition, each in owned.items() if each.position is not None}
    generations = {partition: each.generation for partition, each in owned.items()}
    return Owned(generations, Positions(cluster_id, consumer.feed_id, positions) if positions else None)
