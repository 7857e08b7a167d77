"""The session of a consumer that has a name or a group: what concerns that is handled as it comes. Sans-IO.

A program that waits for a commit asks for no events meanwhile. So the answers to commits do not wait behind blocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from tailrace.consuming.commit_wait import CommitWait
from tailrace.consuming.events import Assigned, Event, ReplicaEvent, Revoked
from tailrace.consuming.membership import Membership
from tailrace.consuming.named_streams import NamedStreams
from tailrace.consuming.session import ConsumerSession
from tailrace.consuming.subscription import Subscription
from tailrace.errors import DataGone, ProtocolError, TailraceError
from tailrace.link.backoff import earliest
from tailrace.wire.messages import Hello, HelloOk

if TYPE_CHECKING:
    from tailrace.consuming.index_membership import IndexMembership


class NamedSession(ConsumerSession):
    """A `ConsumerSession` with a `Membership`."""

    _streams: NamedStreams
    _streams_of = NamedStreams

    def __init__(
        self,
        hello: Hello,
        subscription: Subscription,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random.random,
        check: Callable[[HelloOk], None] = lambda _: None,
        *,
        has_others: bool = False,
    ) -> None:
        """Makes a session without a connection; the arguments are those of `ConsumerSession`."""
        # Only the membership finds starts, of partitions without a position: the others go on wherever they are.
        plain = subscription._replace(start=None, since_us=None)
        super().__init__(hello, plain, clock, jitter, check, has_others=has_others)
        kind = Membership
        if subscription.by_index:
            from tailrace.consuming.index_membership import IndexMembership  # few programs share an index

            kind = IndexMembership
        self._membership = kind(subscription, self._streams, clock, self._emit, self._drop, self._in_hand.disown)
        self._is_group = subscription.claim is not None and subscription.claim.kind == "group"
        self._feed_name = subscription.feed

    def connection_lost(self, error: TailraceError) -> None:
        self._membership.connection_lost()
        super().connection_lost(error)

    def when_linked(self, feed_id: bytes) -> None:
        """Claims the name, or joins the group, on this connection."""
        assert self.peer is not None, "it has said hello"
        if not self.peer.takes_consumers:
            self._streams.fail(
                ProtocolError(f"the node ({self.peer.software:.60}) is too old to store positions under a name")
            )
        self._out.append(self._membership.linked(bytes.fromhex(self.peer.cluster_id), feed_id))

    def receive_data(self, data: bytes | memoryview) -> None:
        """Takes bytes of the node. Handles frames about the name, and those until the feed is known.

        Raises ProtocolError, TooLarge, and Retryable if another node is to be asked.
        """
        frames, membership = self._frames, self._membership
        if not frames:
            self._came_at = self._clock()
        try:
            frames.extend(frame for frame in self._decoder.receive_data(data) if not membership.receive(frame))
            while frames and not self._linked:
                self._receive(frames.popleft())
        except TailraceError as error:
            if self.failure is None:
                raise
            self._queue.clear()
            frames.clear()
            self._error = error  # `next_event` raises it: nothing that has come may be handled any more

    def data_to_send(self) -> list[bytes]:
        if self._linked:
            self._out += self._membership.leave() if self._is_leaving else self._membership.data_to_send()
        return super().data_to_send()

    def handle_all(self) -> None:
        """Handles all frames, as in `ConsumerSession`. Raises what `receive_data` has kept: nothing comes after it."""
        super().handle_all()
        if self._error is not None:
            raise self._error

    @property
    def answered(self) -> bool:
        """True if the name is claimed, and every partition has a stream. A member may have no partition."""
        membership, streams = self._membership, self._streams
        if not membership.joined or membership.is_starting:
            return False
        return streams.answered or (self._is_group and streams.is_empty)

    @property
    def has_frames(self) -> bool:
        """True if the next step may have an event."""
        return not self._membership.is_paused and (bool(self._frames) or bool(self._queue))

    @property
    def next_retry(self) -> float | None:
        return earliest(super().next_retry, self._membership.next_at)

    @property
    def _barriers_due(self) -> bool:
        """True if a barrier is not under way and all streams are open, of which a member may have none."""
        if self._membership.is_taking:
            return False
        if self._is_group and self._streams.is_empty:
            return self._barriers.unsent and self._membership.joined
        return super()._barriers_due

    @property
    def is_leaving(self) -> bool:
        """True if the node has not answered yet that this member leaves its group."""
        return self._membership.is_leaving

    # Events

    def next_event(self) -> Event | ReplicaEvent | DataGone | None:
        """Returns the next event, as in `ConsumerSession`; None while a lease has run out on this side."""
        if self._membership.is_paused:
            return None
        handled = self._in_hand.last
        event = super().next_event()
        if handled is not None and isinstance(handled[0], Revoked):
            self._membership.handled(handled[0])
        if isinstance(event, Revoked):
            self._membership.told(event)
        return event

    def take_together(self, rows_max: int) -> list[Event]:
        events = super().take_together(rows_max)
        if isinstance(events[-1], Revoked):  # it is always the last one
            self._membership.told(events[-1])
        return events

    def has_event(self) -> bool:
        return not self._membership.is_paused and super().has_event()

    def _emit(self, event: Assigned | Revoked) -> None:
        self._queue.append((event, -1, None, 0))

    def _drop(self, partitions: frozenset[int]) -> None:
        """Forgets the events of partitions that are not owned any more. What is in hand stays in hand."""
        kept = [queued for queued in self._queue if queued[1] not in partitions]
        self._streams.drop_bytes(sum(queued[3] for queued in self._queue if queued[1] in partitions))
        self._queue.clear()
        self._queue.extend(kept)

    # Commits

    def commit(self, wake: Callable[[], None]) -> CommitWait:
        """Begins to store the positions that also cover the events in hand; ``wake`` is called when that is over."""
        wait = CommitWait(wake)
        self._membership.commit(self.latest_positions, wait)
        return wait

    def forget_commit(self, wait: CommitWait) -> None:
        """Drops a commit for which no task waits any more."""
        self._membership.forget(wait)

    def end_commits(self, error: TailraceError) -> None:
        """Ends the waits for commits: the stream has ended."""
        self._membership.end(error)

    # For an index that a group fills

    @property
    def of_index(self) -> IndexMembership:
        """The membership, whose partitions begin at positions of an index."""
        assert self._subscription.by_index, "only a follower asks for it"
        return cast("IndexMembership", self._membership)

    def ring_floor(self, partition: int) -> int:
        """Returns the floor of a ring; 0 of a partition that is not owned any more, whose events may wait."""
        return super().ring_floor(partition) if self._streams.has(partition) else 0
