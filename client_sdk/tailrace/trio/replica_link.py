"""The connection by which a node copies feeds from another one, under trio."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf

import trio

from tailrace.consuming.replica_session import ReplicaSession
from tailrace.consuming.subscription import Subscription
from tailrace.errors import TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.link.finder import Finder
from tailrace.link.rules import SILENT_INTERVALS_MAX
from tailrace.model import Level
from tailrace.model.position import Positions
from tailrace.trio.host import Host
from tailrace.trio.replica import CopyOptions, ReplicaStream
from tailrace.trio.request import connected
from tailrace.trio.transport import Transport
from tailrace.wire.messages import Hello, HelloOk
from tailrace.wire.replica_messages import Replica

# The feeds that begin to handle their frames in one turn of the loop: about 5 ms of the processor. One read may bring
# frames of ten thousand feeds. On a machine with 25 programs for two processors such a turn takes 0.1 s.
WOKEN_TOGETHER = 16


class ReplicaLink:
    """One connection to one node; made by `replica_link`. Nothing is tried again.

    The streams of all feeds that are copied share it. A task of the link reads always, so a feed that is handled slowly
    holds up no LEADER_CHECK. What has come and is not handled is bounded by the window.
    """

    def __init__(
        self, session: ReplicaSession, transport: Transport, replica: Replica, state: str, answer_timeout_s: float
    ) -> None:
        """See `replica_link`."""
        self.error: TailraceError | None = None  # how the connection has ended
        self._session = session
        self._transport = transport
        self._replica = replica
        self._state = state
        self._answer_timeout_s = answer_timeout_s
        self._streams: dict[object, ReplicaStream] = {}  # by their session's streams
        self._to_wake: dict[object, None] = {}  # those with frames, of which the feeds have not heard
        self._has_to_wake = trio.Event()
        self._has_room = trio.Event()
        self._greeted = trio.Event()
        self._ended = trio.Event()
        self._wake = trio.Event()
        self._heard_at = trio.current_time()

    @property
    def transport(self) -> Transport:
        """The connection's bytes."""
        return self._transport

    @property
    def peer(self) -> HelloOk:
        """The node's HELLO_OK."""
        assert self._session.peer is not None, "the link was entered"
        return self._session.peer

    def copy(
        self, feed: str, positions: Positions, options: CopyOptions | None = None, *, at_once: bool = True
    ) -> ReplicaStream:
        """Asks for a feed, at level memory. Returns its streams. Never waits.

        Args:
            feed: The feed's name. Its id must be that of ``positions``, else the streams raise UnknownFeed. The caller
                compares the cluster's id (`peer`).
            positions: For each partition a position between two published batches: `Position.at` the replica's log and
                seq, with the leader's purge seq until the replica has passed it. Partitions that are left out begin at
                0.
            options: The partitions and their ends.
            at_once: Whether the request leaves now. Else it leaves with the next `flush`, with those of other feeds.
        """
        options = options or CopyOptions()
        streams = self._session.copy(
            Subscription(
                feed,
                positions,
                options.until,
                None if options.partitions is None else frozenset(options.partitions),
                Level.MEMORY,
                state=self._state,
                replica=self._replica._replace(credits_streams=self.peer.takes_stream_credit),
                feed_id=positions.feed_id,
                hold=options.hold,
            )
        )
        stream = self._streams[streams] = ReplicaStream(self, streams)
        if at_once:
            self.flush()
        return stream

    def forget(self, stream: ReplicaStream) -> None:
        """Ends the streams of a feed."""
        self._streams.pop(stream.streams, None)
        stream.streams.leave()
        self.flush()
        if self._session.has_room:
            self._has_room.set()

    async def discard(self) -> None:
        """Lets go of the streams of a link that has ended, a few in a turn: they refer back to it."""
        self._session.discard()
        self._to_wake.clear()
        while self._streams:
            for streams in list(itertools.islice(self._streams, WOKEN_TOGETHER)):
                self._streams.pop(streams).streams.discard()
            await trio.lowlevel.checkpoint()

    def confirm(self, number: int) -> None:
        """Answers a LEADER_CHECK: the node is still followed. Sent at once; never waits."""
        self._session.confirm(number)
        self.flush()

    def flush(self) -> None:
        """Sends the frames that are due. Never waits."""
        buffers = self._session.data_to_send()
        if buffers:
            self._transport.send(b"".join(buffers))
        if self._session.next_retry is not None:
            self._wake.set()

    async def has_room(self) -> None:
        """Waits until so many requests are answered that another feed is asked for without a long wait.

        Returns also if the connection has ended. Always a checkpoint.
        """
        await trio.lowlevel.checkpoint()
        while not self._session.has_room and self.error is None:
            self._has_room = trio.Event()
            await self._has_room.wait()

    async def ended(self) -> None:
        """Waits until the connection has ended. Raises its error."""
        await self._ended.wait()
        assert self.error is not None, "it has ended"
        raise self.error

    async def run(self) -> None:
        """Reads, and keeps the connection alive, until cancelled or until the connection ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep)
            nursery.start_soon(self._wake_feeds)
            try:
                await self._read()
            except TailraceError as error:
                self._end(error)
            except OSError as error:
                self._end(Unreachable(f"the connection broke: {error}"))
            nursery.cancel_scope.cancel()

    async def greeted(self) -> None:
        """Waits for the node's HELLO_OK. Raises the error that has come instead."""
        self.flush()
        await self._greeted.wait()
        if self.error is not None:
            raise self.error

    async def _read(self) -> None:
        while True:
            data = await self._transport.receive()
            if not data:
                raise self.error or Unreachable("the node has closed the connection")
            self._heard_at = trio.current_time()
            found = self._session.receive_data(data)
            if self._session.peer is not None:
                self._greeted.set()
            self.flush()
            if self._session.has_room:
                self._has_room.set()
            if found:
                self._to_wake.update(dict.fromkeys(found))
                if len(self._to_wake) <= WOKEN_TOGETHER:
                    self._wake_some()
                else:
                    self._has_to_wake.set()

    async def _wake_feeds(self) -> None:
        """Tells feeds that frames have arrived, a few in a turn, while others read and keep the connection alive."""
        while True:
            await self._has_to_wake.wait()
            self._wake_some()
            if not self._to_wake:
                self._has_to_wake = trio.Event()
            await trio.lowlevel.checkpoint()

    def _wake_some(self) -> None:
        for streams in list(itertools.islice(self._to_wake, WOKEN_TOGETHER)):
            del self._to_wake[streams]
            stream = self._streams.get(streams)
            if stream is not None:
                stream.arrived()

    def _end(self, error: TailraceError) -> None:
        self.error = self.error or error
        self._transport.close()
        self._greeted.set()
        self._has_room.set()
        self._ended.set()
        for stream in list(self._streams.values()):
            stream.lost()

    async def _keep(self) -> None:
        """Sends signs of life and requests whose pause is over, and notices a node that is silent."""
        while True:
            interval_s = 3.0 if self._session.peer is None else self._session.peer.noop_interval_s
            timeout, retry = interval_s / 2, self._session.next_retry
            if retry is not None:
                timeout = min(max(retry - trio.current_time(), 0.01), timeout)
            self._wake = trio.Event()
            with trio.move_on_after(timeout) as scope:
                await self._wake.wait()
            if scope.cancelled_caught and retry is None:
                self._session.noop()
            self.flush()
            self._look_for_silence(SILENT_INTERVALS_MAX * interval_s)

    def _look_for_silence(self, silent_max_s: float) -> None:
        """Ends the connection to a node that says nothing, or nothing while a request waits for its answer."""
        now = trio.current_time()
        silent_s, asked_s = now - self._heard_at, now - max(self._heard_at, self._session.asked_at)
        if self._session.peer is None:
            return  # the time for its hello is bounded as a whole
        if silent_s > silent_max_s:
            self._end(Unreachable(f"the node has said nothing for {silent_s:.0f} s"))
        elif self._session.awaits_answers and asked_s > self._answer_timeout_s:
            self._end(Unreachable(f"the node has not answered within {self._answer_timeout_s:g} s"))


@asynccontextmanager
async def replica_link(
    address: Address,
    replica: Replica,
    *,
    host: Host | None = None,
    state: str = "leader",
    window_bytes: int = 8 * 1024 * 1024,
    timeout_s: float = 5.0,
    on_check: Callable[[int], None] | None = None,
    token: str | None = None,
) -> AsyncIterator[ReplicaLink]:
    """A connection to the node at ``address`` while the body runs, for the node that ``replica`` names.

    Args:
        address: The node to copy from.
        replica: The node that follows.
        host: Clock, network and randomness; those of the machine by default.
        state: The role that the node must have, "leader" or "follower".
        window_bytes: The bytes that may be sent and not yet handled, of all feeds together.
        timeout_s: The seconds that the node may take to say hello, and that it may be silent while it is asked.
        on_check: Called with the number of each LEADER_CHECK, at once; `ReplicaLink.confirm` answers it.
        token: The secret by which the node recognises this one, if it requires one.

    Raises:
        Unreachable, NotLeader: The node cannot be reached, or does not have the role ``state``.
    """
    host = Host() if host is None else host
    finder = Finder((address,), state, trio.current_time)
    session = ReplicaSession(
        Hello(
            name=f"replica {replica.address or replica.placement_id.hex()}",
            token=token,
            window_bytes=window_bytes,
            of_node=True,
            takes_traces=True,
        ),
        finder.check,
        on_check or _ignore,
        trio.current_time,
        host.random.random,
    )
    with trio.move_on_after(timeout_s) as in_time:
        async with connected(host.connect, address) as transport:
            failure: Exception | None = None
            async with trio.open_nursery() as nursery:
                link = ReplicaLink(session, transport, replica, state, timeout_s)
                nursery.start_soon(link.run)
                try:
                    await link.greeted()
                    in_time.deadline = inf
                    yield link
                except Exception as error:  # raised below, outside of the nursery, which would wrap it in a group
                    failure = error
                nursery.cancel_scope.cancel()
            if failure is not None:
                raise failure
    if in_time.cancelled_caught:
        raise Unreachable(f"{address} has not answered within {timeout_s:g} s")


def _ignore(number: int) -> None:
    """Leaves a LEADER_CHECK to another connection."""
