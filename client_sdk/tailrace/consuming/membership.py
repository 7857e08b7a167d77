"""A consumer that has a name, or is a member of a group: its partitions, and its commits. Sans-IO.

    JOIN ──RESULT: generations, positions──> the streams begin ──> COMMIT, at most one under way, with all that is due
     ^                                                              │
     └── each new connection, with the generations that it has <────┘
    a group:  RENEW, again and again          CHANGE ──> granted: Assigned, and the streams begin
                                                    └──> revoked: Revoked ──handled──> RELEASE
                                                    └──> lost: Revoked(lost)

A commit carries the generation of each partition, and the node refuses a stale one. A member counts its lease from when
it sent the renewal that was answered; if it has run out, no event is handed out until the node has answered again.
Source: docs/protocol/consumers.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tailrace.consuming.commit_wait import CommitWait
from tailrace.consuming.events import Assigned, Revoked
from tailrace.errors import BadPosition, NotOwner, ProtocolError, Retryable, TailraceError
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.wire.bodies import decode_json, field
from tailrace.wire.consumer_messages import (
    COMMIT_PARTITIONS_MAX,
    Change,
    Commit,
    ConsumerId,
    Hold,
    Join,
    Owned,
    generations_field,
    partition_numbers,
)
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from tailrace.consuming.first_positions import FirstPositions
    from tailrace.consuming.named_streams import NamedStreams
    from tailrace.consuming.subscription import Subscription
    from tailrace.wire.frames import Frame

_OPCODES = (Opcode.RESULT, Opcode.ERROR, Opcode.CONSUMER_CHANGE)
# The renewals that are sent in the time of a lease: two may be late.
RENEWALS_PER_LEASE = 4


class Membership:
    """The name or the group of one consumer, across connections. Only this file sets its fields."""

    def __init__(
        self,
        subscription: Subscription,
        streams: NamedStreams,
        clock: Callable[[], float],
        emit: Callable[[Assigned | Revoked], None],
        drop: Callable[[frozenset[int]], None],
        disown: Callable[[Iterable[int]], None],
    ) -> None:
        """Makes the membership of a consumer that has not claimed its name yet.

        ``emit`` takes an event. ``drop`` forgets the events of partitions that the program has not been given, and
        ``disown`` the positions of those that it handles now.
        """
        claim = subscription.claim
        assert claim is not None, "a consumer without a name has no membership"
        self._claim = claim
        self._subscription = subscription
        self._streams = streams
        self._clock = clock
        self._emit = emit
        self._drop = drop
        self._disown = disown
        self._consumer: ConsumerId | None = None  # once the feed's id is known
        self._cluster_id = b""
        self.joined = False  # on this connection
        # The generations of the partitions that are owned. Those of ``_revoked`` are to be released, of ``_releasing``
        # are released, and the node has not answered yet.
        self._generations: dict[int, int] = {}
        self._revoked: set[int] = set()
        self._releasing: set[int] = set()
        self._lost: set[int] = set()  # others own them, and the program has not been told by an event yet
        # Positions by partition. Invariant: those of ``_sent`` are in the COMMIT that is under way, in the generations
        # of ``_generations``: its answer is not about those that were lost, or lost and granted again, meanwhile.
        self._committed: dict[int, Position] = {}
        self._wanted: dict[int, Position] = {}
        self._sent: dict[int, Position] = {}
        self._starting: set[int] = set()  # partitions that begin once their first position is stored
        self._first: FirstPositions | None = None  # those whose first position the node is asked for
        if subscription.finds_start:
            from tailrace.consuming.first_positions import FirstPositions  # few programs name a time or seqs

            self._first = FirstPositions(subscription, streams)
        self._waits: list[CommitWait] = []  # of positions that are in ``_wanted`` or in ``_sent``
        # Of this connection; 0: not under way.
        self._join_id = self._commit_id = self._release_id = self._leave_id = 0
        self._sent_release: Mapping[int, int] = {}  # the generations of the RELEASE that is under way
        # When each renewal was sent that is not answered; None if its answer does not count any more. While the program
        # works at an event no answer is read, and the next renewals are sent all the same.
        self._renewals: dict[int, float | None] = {}
        # The lease: its seconds, its end for each partition, and when the name was claimed.
        self._lease_s = 0.0
        self._leases: dict[int, float] = {}
        self._lease_until = math.inf  # Invariant: the first of these ends
        self._asked_at = self._answered_until = 0.0
        self._has_left = False
        self._renew_at = math.inf
        self._renews_soon = False  # once none is under way, for partitions that were granted

    # The connection

    def connection_lost(self) -> None:
        """Has the name claimed again, and commits that are not stored yet sent again, on the next connection."""
        self.joined = False
        self._join_id = self._commit_id = self._release_id = self._leave_id = 0
        self._renewals.clear()
        self._renew_at = math.inf
        self._sent_release = {}
        if self._first is not None:
            self._first.connection_lost()
        self._wanted = {**self._sent, **self._wanted}
        self._sent = {}

    def linked(self, cluster_id: bytes, feed_id: bytes) -> bytes:
        """Returns the frame that claims the name, on a connection whose feed is known."""
        self._consumer, self._cluster_id = ConsumerId(feed_id, self._claim.kind, self._claim.name), cluster_id
        return self._join(self._consumer)

    def _join(self, consumer: ConsumerId) -> bytes:
        subscription = self._subscription
        is_all = subscription.partitions is None and subscription.share is None
        self._join_id, self._asked_at = self._streams.new_id(), self._clock()
        join = Join(
            consumer,
            self._claim.member,
            subscription.since if isinstance(subscription.since, str) and self._first is None else "given",
            subscription.visibility,
            None if is_all else tuple(self._streams.chosen_ids),
            self._generations,
        )
        return join.encode(self._join_id)

    def data_to_send(self) -> list[bytes]:
        """Returns the frames that are due: a commit, unless one is under way; then released partitions; a renewal."""
        consumer = self._consumer
        if not self.joined or consumer is None:
            if consumer is None or self._join_id:
                return []
            return [self._join(consumer)]  # its lease had ended
        out = [] if self._first is None else self._first.data_to_send(consumer.feed_id)
        if self._wanted and not self._commit_id:
            partitions = list(self._wanted)[:COMMIT_PARTITIONS_MAX]
            self._sent = {partition: self._wanted.pop(partition) for partition in partitions}
            self._commit_id = self._streams.new_id()
            generations = {partition: self._generations[partition] for partition in self._sent}
            positions = Positions(self._cluster_id, consumer.feed_id, self._sent)
            out.append(Commit(consumer, self._claim.member, generations, positions).encode(self._commit_id))
        due = self._releasing - self._wanted.keys()
        if due and not self._release_id:
            self._release_id = self._streams.new_id()
            self._sent_release = {partition: self._generations[partition] for partition in due}
            out.append(self._hold(consumer, self._sent_release).encode(Opcode.CONSUMER_RELEASE, self._release_id))
        if (now := self._clock()) >= self._renews_at:
            id, self._renews_soon = self._streams.new_id(), False
            self._renewals[id], self._renew_at = now, now + self._lease_s / RENEWALS_PER_LEASE
            out.append(Hold(consumer, self._claim.member).encode(Opcode.CONSUMER_RENEW, id))
        return out

    def _hold(self, consumer: ConsumerId, released: Mapping[int, int]) -> Hold:
        return Hold(consumer, self._claim.member, released)

    def leave(self) -> list[bytes]:
        """Returns the frames by which a member leaves its group, with the commits that are due."""
        if not self.joined or self._consumer is None or self._claim.kind == "name" or self._has_left:
            return self.data_to_send()
        self._renew_at, self._renews_soon, self._has_left = math.inf, False, True
        frames, self._leave_id = self.data_to_send(), self._streams.new_id()
        hold = Hold(self._consumer, self._claim.member, leave=True)
        return [*frames, hold.encode(Opcode.CONSUMER_RELEASE, self._leave_id)]

    @property
    def is_leaving(self) -> bool:
        """True if the node has not answered yet that this member leaves."""
        return self._leave_id != 0

    @property
    def next_at(self) -> float | None:
        """When the next renewal is due, in monotonic seconds; None if none waits for the clock."""
        return None if self._renews_at == math.inf else self._renews_at

    @property
    def _renews_at(self) -> float:
        return 0.0 if self._renews_soon and self.joined and not self._renewals else self._renew_at

    @property
    def is_paused(self) -> bool:
        """True if the lease of a partition has run out, as far as this side knows."""
        return self._clock() >= self._lease_until

    # Frames in

    def receive(self, frame: Frame) -> bool:
        """Handles a frame if it is about the name. Returns whether it was.

        Raises Retryable (the connection is to be dropped, and another node asked), and the error that ends the
        consumer for good, after `PartitionStreams.fail` has noted it.
        """
        opcode, _, id, body = frame
        if self._first is not None and (found := self._first.takes(frame)) is not None:
            for partition, position in found.items():
                self._begin_unstored(partition, position)
            return True
        if opcode is Opcode.CONSUMER_CHANGE:
            self._changed(Change.decode(body))
            return True
        if opcode not in _OPCODES or not id:
            return False
        if id == self._join_id:
            answered: Callable[[memoryview], object] = self._on_joined
        elif id == self._commit_id:
            answered = self._on_committed
        elif id in self._renewals:
            sent_at = self._renewals.pop(id)
            if sent_at is None:
                return True
            answered = partial(self._on_renewed, sent_at)
        elif id == self._release_id:
            answered = self._on_released
        elif id == self._leave_id:  # whatever the answer is
            self._leave_id = 0
            return True
        else:
            return False
        if opcode is Opcode.ERROR:
            self._refused(decode_error(body), id)
        else:
            answered(body)
        return True

    def _refused(self, error: TailraceError, id: int) -> None:
        if isinstance(error, Retryable):
            raise error
        is_lease = self._claim.kind == "group" and isinstance(error, NotOwner)
        if id == self._commit_id:
            sent, self._sent, self._commit_id = self._sent, {}, 0
            if self._starting & sent.keys():
                self._fail(error)
            self._end_waits(error)
        elif is_lease:  # it has ended: this program comes again as a new member
            self.joined, self._join_id, self._release_id = False, 0, 0
            self._renewals, self._renew_at = dict.fromkeys(self._renewals), math.inf
            self._lose(tuple(self._generations))
        else:
            self._fail(error)

    def _on_joined(self, body: memoryview) -> None:
        owned = self._owned(Owned.of_json(decode_json(body, "RESULT"), "RESULT"))
        self._join_id, self.joined = 0, True
        self._lease_s = owned.lease_s
        if self._claim.kind == "name":
            if not self._generations:
                self._begin(owned)
            return  # the node has found all generations to be the present ones
        now_owned = owned.generations
        gone = [p for p, generation in self._generations.items() if now_owned.get(p) != generation]
        known = self._generations.keys() - set(gone)
        # The node has taken these back, and its answer was lost with the connection.
        self._forget([p for p in gone if p in self._releasing and p not in self._wanted])
        if lost := tuple(p for p in gone if p in self._generations):
            self._lose(lost)
        self._begin(owned, known)
        self._revoke(tuple(p for p in owned.revoked if p not in self._revoked and p not in self._releasing))
        self._renew(now_owned, self._asked_at)
        self._renew_at = self._asked_at + self._lease_s / RENEWALS_PER_LEASE if self._lease_s else math.inf

    def _owned(self, owned: Owned) -> Owned:
        """Returns what the node has told. Raises ProtocolError for positions of another feed."""
        if owned.positions is not None:
            assert self._consumer is not None, "it has asked for them"
            try:
                owned.positions.require_feed(self._cluster_id, self._consumer.feed_id)
            except BadPosition as error:
                raise ProtocolError(f"the positions of {self._consumer}: {error}") from None
        return owned

    def _begin(self, owned: Owned, known: Iterable[int] = ()) -> None:
        """Begins the streams of the partitions that were granted, but for those that are ``known``."""
        stored: Mapping[int, Position] = owned.positions or {}
        given = self._subscription.since
        start: Mapping[int, Position] = given if isinstance(given, Positions) else {}
        granted = sorted(owned.generations.keys() - set(known))
        generations = {partition: owned.generations[partition] for partition in granted}
        self._generations.update(generations)
        # One that was released may come back before the node's answer to that, which is no longer about it.
        self._revoked.difference_update(granted)
        self._releasing.difference_update(granted)
        if granted and self._claim.kind == "group":
            self._tell_assigned(generations)
        for partition in granted:
            position = stored.get(partition)
            if position is None and self._first is not None:
                self._first.add(partition)
            elif position is None:
                self._begin_unstored(partition, start.get(partition, Position.at(FailoverLog(), 0)))
            else:
                self._begin_at(partition, position)

    def _begin_unstored(self, partition: int, position: Position) -> None:
        """Has the position stored, at which a partition begins then."""
        self._wanted[partition] = position
        self._starting.add(partition)

    def _begin_at(self, partition: int, position: Position) -> None:
        """Begins at a position that the node has stored."""
        self._committed[partition] = position
        self._streams.add(partition, position)

    def _tell_assigned(self, generations: Mapping[int, int]) -> None:
        self._emit(Assigned(tuple(generations)))

    def _tell_revoked(self, generations: Mapping[int, int], *, lost: bool) -> None:
        self._emit(Revoked(tuple(generations), lost))

    def _renew(self, generations: Mapping[int, int], sent_at: float) -> None:
        """Notes that the lease of these partitions runs from when the answered request was sent."""
        if not self._lease_s:
            return
        until = self._answered_until = sent_at + self._lease_s
        for partition, generation in generations.items():
            if self._generations.get(partition) == generation and partition not in self._revoked | self._releasing:
                self._leases[partition] = until
        self._note_leases()

    def _note_leases(self) -> None:
        self._lease_until = min(self._leases.values(), default=math.inf)

    def _on_renewed(self, sent_at: float, body: memoryview) -> None:
        self._renew(generations_field(decode_json(body, "RESULT"), "generations", "RESULT"), sent_at)

    def _on_released(self, body: memoryview) -> None:
        released, self._sent_release, self._release_id = self._sent_release, {}, 0
        self._forget([p for p, generation in released.items() if self._has(p, generation)])

    def _on_committed(self, body: memoryview) -> None:
        value = decode_json(body, "RESULT")
        stale = partition_numbers(field(value, "stale", list, "RESULT"), "RESULT")
        sent, self._sent, self._commit_id = self._sent, {}, 0
        self._committed.update({p: position for p, position in sent.items() if p not in stale})
        for partition in sorted(self._starting & sent.keys() - set(stale)):
            self._starting.discard(partition)
            self._streams.add(partition, sent[partition])
        if lost := tuple(p for p in stale if p in sent):
            self._lose(lost)
        if not self._wanted:
            self._end_waits(None)

    def _changed(self, change: Change) -> None:
        if change.lost:
            self._lose(change.lost)
        granted = self._owned(change.granted)
        self._begin(granted, [p for p, generation in granted.generations.items() if self._has(p, generation)])
        if granted.generations and self._lease_s:
            # They are leased as the others are: by the last renewal that was answered.
            self._leases.update(dict.fromkeys(granted.generations, self._answered_until))
            self._note_leases()
            self._renews_soon = True
        self._revoke(change.revoked)

    def _has(self, partition: int, generation: int) -> bool:
        return self._generations.get(partition) == generation

    def _revoke(self, partitions: Iterable[int]) -> None:
        """Ends the streams of partitions that are to be released, and tells the program."""
        mine = tuple(p for p in partitions if p in self._generations and p not in self._revoked | self._releasing)
        if not mine:
            return
        self._end_streams(mine)
        self._starting.difference_update(mine)  # a commit of its first position may be under way
        self._revoked.update(mine)
        self._tell_revoked({p: self._generations[p] for p in mine}, lost=False)

    def _lose(self, partitions: tuple[int, ...]) -> None:
        """Ends the streams of partitions that others own. A name is lost as a whole, and the consumer ends."""
        if self._claim.kind == "name":
            self._fail(
                NotOwner(
                    f"consumer {self._claim.name!r} is another program's now, which was started later and goes on from "
                    "the last commit. If both are to read all, give each a name of its own",
                    partitions=partitions,
                )
            )
        mine = tuple(p for p in partitions if p in self._generations)
        if not mine:
            return
        generations = {p: self._generations[p] for p in mine}
        self._end_streams(mine)
        self._disown(mine)
        self._forget(mine)
        self._lost.update(mine)
        self._end_waits(self._not_owner())
        self._tell_revoked(generations, lost=True)

    def _not_owner(self) -> NotOwner:
        lost = sorted(self._lost)
        return NotOwner(
            f"partitions {', '.join(map(str, lost))} are not owned by this member of group {self._claim.name!r} any "
            "more, since its lease has ended, or the group was reset: the next owner goes on from the last commit",
            partitions=lost,
        )

    def _end_streams(self, partitions: tuple[int, ...]) -> None:
        if self._first is not None:
            self._first.discard(partitions)
        for partition in partitions:
            self._streams.remove(partition)
            self._leases.pop(partition, None)
        self._note_leases()
        self._drop(frozenset(partitions))

    def _forget(self, partitions: Iterable[int]) -> None:
        """Forgets partitions that are not owned any more."""
        for partition in partitions:
            self._generations.pop(partition, None)
            self._committed.pop(partition, None)
            self._wanted.pop(partition, None)
            self._sent.pop(partition, None)
            self._starting.discard(partition)
            self._revoked.discard(partition)
            self._releasing.discard(partition)

    def _fail(self, error: TailraceError) -> None:
        self._end_waits(error)
        self._streams.fail(error)

    def _end_waits(self, error: TailraceError | None) -> None:
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.end(error)

    # For the session

    @property
    def is_taking(self) -> bool:
        """True if partitions begin when an index has taken them."""
        return False

    @property
    def is_starting(self) -> bool:
        """True if a partition waits for its first position to be stored."""
        return bool(self._starting) or (self._first is not None and self._first.is_waiting)

    def handled(self, event: Revoked) -> None:
        """Releases what the program has finished: it has asked for the event after this one."""
        released = self._revoked & set(event.partitions)
        self._revoked -= released
        self._releasing |= released
        self._streams.forget_handled(p for p in event.partitions if p not in self._generations or p in released)

    def told(self, event: Revoked) -> None:
        """Notes that the program has this event in hand."""
        if event.lost:
            self._lost.difference_update(event.partitions)

    def commit(self, positions: Mapping[int, Position], wait: CommitWait) -> None:
        """Stores those of these positions that are not stored yet, and ends ``wait`` when all are."""
        for partition, position in positions.items():
            known = self._wanted.get(partition) or self._sent.get(partition) or self._committed.get(partition)
            if partition in self._generations and partition not in self._releasing and position != known:
                self._wanted[partition] = position
        if self._lost:
            wait.end(self._not_owner())
        elif self._wanted or self._sent:
            self._waits.append(wait)
        else:
            wait.end(None)

    def forget(self, wait: CommitWait) -> None:
        """Drops a wait of a task that waits no more. The positions are stored all the same."""
        if wait in self._waits:
            self._waits.remove(wait)

    def end(self, error: TailraceError) -> None:
        """Ends all waits: the stream has ended."""
        self._end_waits(error)
