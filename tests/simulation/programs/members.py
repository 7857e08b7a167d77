"""Members of a group: they share the feed, commit now and then, leave, and are killed like all programs."""

from __future__ import annotations

import contextlib
import math

import trio

from tailrace import Assigned, Mutations, NotOwner, Retryable, Revoked, Rollback
from tailrace.wire.bodies import decode_json

from ..sizes import LEASE_SECONDS
from .process import PATIENT_S, Process

GROUP = "simulated"
# So many members there are.
MEMBERS = 3


class GroupMember(Process):
    """A program of the group, with one membership in each session.

    The first one goes on alone when the others have ended, until it has read all, and checks that nothing is missing.
    """

    def __init__(self, world, name, book, others=()):
        super().__init__(world, name)
        self._book = book
        self._others = others  # that have to end before the last look
        self._is_last = False
        self._who = ""
        self._read = {}  # how far each partition is read

    async def session(self):
        self._who = f"{self.name} in session {self._sessions + 1}"
        options = {"window_bytes": self.random.choice((1, 5_000, 8 * 1024 * 1024)), "visibility": "quorum"}
        started = False
        try:
            async with self.connect(retry_for=PATIENT_S, connect_timeout=5.0) as client:
                feed = client.feed(self.world.feed_name)
                with self.world.damage():
                    async with feed.consume(group=GROUP, **options) as stream:
                        started = True
                        self._watch_commits(stream)
                        await self._consume(stream)
        except Retryable:
            if started:
                raise
            await trio.sleep(0.1)

    async def end(self):
        for other in self._others:
            await other.ended.wait()
        if self._others:
            self._is_last = True
            await self._read_all()

    async def _read_all(self):
        """Reads what is left, as the only member, and compares what all have been given with the feed."""
        async with self.connect(retry_for=PATIENT_S, connect_timeout=5.0) as client:
            feed = client.feed(self.world.feed_name)
            async with feed.consume(group=GROUP, visibility="quorum") as stream:
                self._who, self._read = f"{self.name} at the end", {}
                self._watch_commits(stream)
                goal = {info.id: info.high_seq for info in await feed.partitions()}
                while any(self._read.get(partition, -1) < seq for partition, seq in goal.items()):
                    await self._handle(stream, await anext(stream))
                await self._commit(stream)
            self._book.check_all_came({item.key: item.value async for item in feed.items()})
        self.world.report.operation("group has read all")

    async def _consume(self, stream):
        self._read = {}
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._leave_later, scope)
                while True:
                    await self._handle(stream, await anext(stream))
                    if self.random.random() < 0.15:
                        await self._be_stopped(stream)
                        await self._commit(stream)
                    if self.random.random() < 0.3:
                        await trio.sleep(self.random.choice((0.0, 0.01, 0.3)))
                    if self.random.random() < 0.5:
                        await self._commit(stream)

    async def _be_stopped(self, stream):
        """Renews nothing and reads nothing for a while, as a process that is stopped with an event in hand."""
        membership = stream._core._named._membership
        membership._renew_at, membership._renews_soon = math.inf, False
        self.world.report.operation("member is stopped")
        await self.pause(LEASE_SECONDS * self.random.choice((0.5, 3.0, 6.0)))
        membership._renew_at = min(membership._renew_at, trio.current_time())

    async def _leave_later(self, scope):
        await self.pause(self.random.choice((0.3, 1.5, 4.0, 20.0)))
        self.world.report.operation("member leaves")
        scope.cancel()

    async def _handle(self, stream, event):
        if isinstance(event, Assigned):
            positions, generations = stream.positions, generations_of(stream)
            for partition in event.partitions:
                if partition in generations and partition in positions:  # else it is lost already
                    self._read[partition] = positions[partition].seq
                    self._book.assigned(self._who, partition, generations[partition], positions[partition])
        elif isinstance(event, Revoked):
            self.world.report.operation("partition lost" if event.lost else "partition revoked")
            if not event.lost:
                await self._commit(stream)
            for partition in event.partitions:
                self._read.pop(partition, None)
        elif isinstance(event, Rollback):  # deletions were purged that the group has not seen
            if event.keys is None:
                of = self.world.partition_of
                self._book.begins_anew({key for key in self._book.handed_out if of(key) == event.partition})
        elif isinstance(event, Mutations):
            generation = generations_of(stream).get(event.partition)
            if generation is not None:  # else it was lost in this very moment
                self._book.handed(self._who, event.partition, generation, event)
        for partition, position in stream.latest_positions.items():
            if partition in self._read:
                self._read[partition] = position.seq

    async def _commit(self, stream):
        with contextlib.suppress(NotOwner):
            await stream.commit()

    def _watch_commits(self, stream):
        """Notes each COMMIT that is sent, and each answer: a program may be told NotOwner before that comes."""
        membership, book, who, under_way = stream._core._named._membership, self._book, self._who, []
        send, answered = membership.data_to_send, membership._on_committed

        def data_to_send():
            before = membership._commit_id
            frames = send()
            if membership._commit_id not in (0, before):
                generations = {partition: membership._generations[partition] for partition in membership._sent}
                under_way[:] = [book.commit_sent(generations, membership._sent)]
            return frames

        def on_committed(body):
            stale = decode_json(body, "RESULT")["stale"]
            sent = under_way.pop()
            book.commit_stored(who, {partition: each for partition, each in sent.items() if partition not in stale})
            answered(body)

        membership.data_to_send, membership._on_committed = data_to_send, on_committed


def generations_of(stream):
    """Returns the generations of the partitions that a member may commit."""
    membership = stream._core._named._membership
    given_up = membership._releasing
    return {p: generation for p, generation in membership._generations.items() if p not in given_up}
