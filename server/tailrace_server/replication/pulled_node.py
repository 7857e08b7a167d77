"""The connection by which this node pulls feeds from another one: for following and for promotions.

    PulledNode ── one connection ──┬── the ReplicaPuller of a feed: a task while it has frames
                                   ├── ...
                                   └── LEADER_CHECK: answered at once

A pair of nodes has one such connection, however many feeds there are. A feed without news has no task, and costs
nothing. If one feed is unknown to the other node, or a partition cannot go on, the others do. The connection ends if
the other node does not lead or follow as it should, or if this node cannot write.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import trio

from tailrace.errors import Forbidden, TailraceError
from tailrace.link.address import Address
from tailrace.trio.replica_link import ReplicaLink, replica_link
from tailrace.wire.replica_messages import Replica
from tailrace_server.replication.eligibility import why_other_cluster
from tailrace_server.replication.peers import host_of

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode

# The bytes under way to a replica, of all feeds: as much as a fast network carries during an fsync.
WINDOW_BYTES = 16 * 1024 * 1024
# The feeds whose pullers begin, or are stopped, before other tasks have their turn: about 5 ms of the processor.
PULLERS_TOGETHER = 8


class Puller(Protocol):
    """The pull of one feed (replica_puller.py)."""

    async def begin(self) -> None:
        """Asks for the feed, with the next `flush` of the link."""
        ...

    def stop(self) -> None:
        """Stops pulling and acknowledging."""
        ...

    def leave(self) -> None:
        """Stops, and closes the streams of the feed."""
        ...

    def discard(self) -> None:
        """Lets go of all parts that refer back to it, when it has stopped."""
        ...


class PulledNode:
    """One connection to one node. ``run`` may be called once."""

    def __init__(
        self, node: LocalNode, leadership: Leadership, address: Address, replica: Replica, *, state: str = "leader"
    ) -> None:
        """Prepares the connection.

        Args:
            node: this node.
            leadership: that of the group whose partitions are pulled.
            address: the other node.
            replica: what this node says of itself as a replica.
            state: the role that the other node has to have.
        """
        self.address = address
        self.replica = replica
        self.state = state
        self.ended = trio.Event()  # set once no step is under way
        self._node = node
        self._leadership = leadership
        self._pullers: dict[Puller, None] = {}
        self._to_begin: collections.deque[Callable[[], Puller | None]] = collections.deque()
        self._more = trio.Event()  # set when a puller is to begin
        self._link: ReplicaLink | None = None
        self._nursery: trio.Nursery | None = None
        self._stopped = False
        self._scope = trio.CancelScope()

    @property
    def link(self) -> ReplicaLink:
        """The connection, once it is made."""
        assert self._link is not None, "the node was reached"
        return self._link

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, or the connection has ended: no puller changes or acknowledges anything."""
        return self._stopped

    def stop(self) -> None:
        """Stops taking and acknowledging rows. ``ended`` is set once no step is under way.

        It costs the same with any number of feeds: pullers ask ``is_stopped``, and are put away later.
        """
        self._stopped = True
        self._scope.cancel()

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Connects, and pulls feeds until ``body`` returns, or until ``stop``.

        Raises:
            Forbidden: The other node is of another cluster.
            Unreachable, NotLeader: It cannot be reached, or has not the role ``state``, or not any more.
            StreamEnded: It stops.
            NoSpace, NotDurable: This node cannot write.
        """
        failure: BaseException | None = None
        try:
            with self._scope:
                await self._run(body)
        except* (TailraceError, OSError) as group:
            failure = _first(group)
        finally:
            self.stop()
            with trio.CancelScope(shield=True):
                await self._stop_pullers()
            self.ended.set()
        if failure is not None:
            raise failure

    async def discard(self) -> None:
        """Lets go of the pullers and streams after ``run``, a few in a turn.

        They refer to each other and to this. The interpreter would free them in a full search for cyclic garbage only,
        which holds the loop for seconds with ten thousand feeds.
        """
        self._to_begin.clear()
        number = 0
        while self._pullers:
            puller, _ = self._pullers.popitem()
            puller.discard()
            number += 1
            if number % PULLERS_TOGETHER == 0:
                await trio.lowlevel.checkpoint()
        if self._link is not None:
            await self._link.discard()

    async def _run(self, body: Callable[[], Awaitable[None]]) -> None:
        connection = replica_link(
            self.address,
            self.replica,
            host=host_of(self._node),
            state=self.state,
            window_bytes=WINDOW_BYTES,
            timeout_s=self._node.config.replication.step_timeout_s,
            on_check=self._on_check,
            token=self._node.config.peer_token,
        )
        async with connection as self._link:
            self._require_cluster()
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._link.ended)
                self._nursery.start_soon(self._begin_pullers)
                if not self._stopped:
                    await body()
                self._nursery.cancel_scope.cancel()

    def _require_cluster(self) -> None:
        told, own = bytes.fromhex(self.link.peer.cluster_id), self._node.identity.cluster_id
        why = why_other_cluster(own, str(self.address), told)
        if why:
            raise Forbidden(f"{why}: nothing is taken")

    def _on_check(self, number: int) -> None:
        """Tells the leader that it is followed. A promise of a higher term would have stopped this."""
        if not self._stopped and self._link is not None:
            self._link.confirm(number)
            self._leadership.watch.heard(self._node.clock.monotonic())

    # Pullers

    @property
    def takes_tasks(self) -> bool:
        """Whether `start` may be called: no task has failed, and none was stopped."""
        return not self._stopped and self._nursery is not None and not self._nursery.cancel_scope.cancel_called

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Runs a task whose error ends the connection."""
        assert self._nursery is not None, "the node was reached"
        self._nursery.start_soon(task)

    def begin(self, make: Callable[[], Puller | None], *, first: bool = False) -> None:
        """Asks soon for the feed of the puller that ``make`` returns then; None if the feed is not pulled any more.

        Thousands of pullers are made in many turns of the loop, and no more than the other node answers. ``first``:
        before all that wait.
        """
        if first:
            self._to_begin.appendleft(make)
        else:
            self._to_begin.append(make)
        self._more.set()

    def end(self, puller: Puller) -> None:
        """Stops a puller, and closes the streams of its feed; the connection goes on."""
        self._pullers.pop(puller, None)
        puller.leave()

    async def _begin_pullers(self) -> None:
        while True:
            for _ in range(min(len(self._to_begin), PULLERS_TOGETHER)):
                puller = self._to_begin.popleft()()
                if puller is not None:
                    self._pullers[puller] = None
                    await puller.begin()
            self.link.flush()  # once for all of them
            await self.link.has_room()  # a feed that has to come first waits for few others
            if not self._to_begin:
                self._more = trio.Event()
                await self._more.wait()

    async def _stop_pullers(self) -> None:
        """Stops the pullers, of which no task runs any more, a few in a turn."""
        for number, puller in enumerate(list(self._pullers), 1):
            puller.stop()
            if number % PULLERS_TOGETHER == 0:
                await trio.lowlevel.checkpoint()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
