"""The connections of a node, and those that have something to send.

    a client has news ──────────────────────────────────> sent at the end of the turn, and after each fsync
    a replica has news ──> `run`, in the next pass ──┬──> sent once for all turns of a pass
                  an fsync is about to begin ────────┘
    the leader's seqs moved ──> with the next news to that replica, or soon
    rows of another node are durable ───────────────────> acknowledged after the fsync, all partitions at once

What goes to a replica leaves before this node's fsync, so that both disks work at once. All writes of a pass share it:
each of them alone would cost every node a system call, and the replicas a turn and an fsync. The leader's seqs of one
write nearly always find the rows of the next one to leave with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import trio

from tailrace.errors import Overloaded, ProtocolError, TailraceError, Unreachable
from tailrace.model import EndReason
from tailrace.trio.transport import Transport
from tailrace.wire.messages import encode_error
from tailrace_server.config import Limits
from tailrace_server.host.greetings import Greetings
from tailrace_server.host.line_limit import LimitedLog
from tailrace_server.host.spreading import spread
from tailrace_server.host.turn import Turn
from tailrace_server.replication.leadership import Leadership
from tailrace_server.serving.addresses import AddressCounts, host_of
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.services import Services
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.upkeep.committer import Committer

log = logging.getLogger("tailrace.server")

# A node that stops gives its consumers this many seconds for the rest of a snapshot, and again for the data in flight.
_DRAIN_SECONDS = 1.0
# News for which nothing but a consumer of a follower waits leaves within this time: longer than a client with one write
# after the other takes for the next.
LATER_SECONDS = 0.004
_MORE = "limits.connections_max of its configuration is the bound"
_INTERNAL_ERROR = "connection of %s ended by an internal error"


class Sender(Protocol):
    """A connection that sends what it has when it is asked to."""

    @property
    def transport(self) -> Transport:
        """The connection's bytes."""
        ...

    def flush(self) -> None:
        """Sends what is due. Never waits."""
        ...


class Connections:
    """Accepts connections, and sends to each what concerns it."""

    def __init__(self, committer: Committer, limits: Limits, greetings: Greetings | None = None) -> None:
        """``greetings``: the count of connections that have not greeted, if others are counted there, too."""
        self._committer = committer
        self._limits = limits
        self._open: dict[Connection, None] = {}
        self._clients: dict[Connection, None] = {}  # those of `_open` that clients have greeted on
        self._refused: dict[Connection, None] = {}  # those of `_open` that `admits` has ended, and that are still there
        # Has those of `_open` without an accepted HELLO, and handshakes of TLS. An empty one is false, but not None.
        self.greetings = Greetings(limits) if greetings is None else greetings
        self._addresses = AddressCounts()
        self._strangers = LimitedLog(log, "connections ended before HELLO")
        self._sessions: dict[str, Connection] = {}  # the newest connection of each client that has named its session
        self._to_flush: dict[Sender, None] = {}
        self._replicas: dict[Sender, None] = {}  # the connections of replicas that have something to send
        self._wanted = trio.Event()  # set when `run` has something to send
        # Those with news for a replica that may wait, and when it leaves at the latest; the earliest is first.
        self._later: dict[Sender, float] = {}
        self._later_wanted = trio.Event()  # set when some are among those

    def __iter__(self) -> Iterator[Connection]:
        """The open connections, as they are now: any of them may end while the caller goes through them."""
        return iter(list(self._open))

    def __len__(self) -> int:
        return len(self._open)

    # Sending

    def has_news(self, sender: Sender) -> None:
        """Notes that ``sender`` has something to send. It leaves when this turn has ended, or with the next fsync."""
        self._to_flush[sender] = None

    def has_replica_news(self, sender: Sender) -> None:
        """Notes that ``sender`` has something for a replica. It leaves before the next fsync, or in the next pass."""
        if not self._replicas:  # else `run` knows
            self._wanted.set()
        self._replicas[sender] = None

    def has_later_replica_news(self, sender: Sender) -> None:
        """Notes that ``sender`` has something for a replica. It leaves with other news to it, or in LATER_SECONDS."""
        if sender not in self._later:
            self._later[sender] = trio.current_time() + LATER_SECONDS
            self._later_wanted.set()

    def has_acknowledgements(self, link: Sender) -> None:
        """Notes that ``link``, to the node that is followed, has something to send.

        It leaves when this turn has ended, or after this fsync, or in the next pass.
        """
        self._to_flush[link] = None
        self._wanted.set()

    def turn_ended(self, asker: object = None) -> None:
        """Commits what ``asker`` wrote, now or soon, and sends the news; ``asker`` has been handled."""
        self._committer.turn_ended(asker)
        if self._to_flush:
            self.flush_clients()

    def flush(self) -> None:
        """Sends the news to each connection that has any."""
        while self._to_flush or self._replicas:
            self.flush_replicas()
            self.flush_clients()

    def flush_clients(self) -> None:
        """Sends the news to clients, and the acknowledgements to the node that is followed."""
        while self._to_flush:
            senders, self._to_flush = self._to_flush, {}
            _flush(senders)

    def flush_replicas(self) -> None:
        """Sends the news to replicas."""
        if self._replicas:
            senders, self._replicas = self._replicas, {}
            if self._later:
                for sender in senders:
                    self._later.pop(sender, None)
            _flush(senders)

    async def run(self) -> None:
        """Sends the news between nodes in the pass of the loop after the one in which they came, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_later)
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                self.flush()

    async def _send_later(self) -> None:
        """Sends the news that have found no others to leave with."""
        while True:
            await self._later_wanted.wait()
            self._later_wanted = trio.Event()
            while self._later:
                await trio.sleep_until(next(iter(self._later.values())))
                now = trio.current_time()
                self._replicas.update((sender, None) for sender, at in self._later.items() if at <= now)
                self.flush_replicas()

    def end_streams(
        self,
        which: Callable[[PartitionStream], bool],
        reason: EndReason,
        message: str,
        *,
        feed_id: bytes | None = None,
    ) -> None:
        """Ends every stream for which ``which`` is true, of one feed or of all; ``flush`` sends the end."""
        for connection in self:
            connection.end_streams(which, reason, message, feed_id=feed_id)

    def end_replicas(self, leadership: Leadership, error: TailraceError) -> None:
        """Ends the connections of the replicas that follow by ``leadership``."""
        for connection in self:
            if connection.replica is not None and connection.replica.leadership is leadership:
                connection.fail(error)

    # The open connections

    def admits(self, connection: Connection) -> bool:
        """Counts a client's connection. Ends it, and returns False, if clients have as many as they may have.

        The others are kept for nodes: while clients are many, the members of a set still choose a leader.
        """
        count = len(self._clients)
        if count >= self._limits.client_connections_max:
            why = f"this node serves {count} connections already, and keeps the rest for nodes: {_MORE}"
            connection.fail(Overloaded(why))
            self._refused[connection] = None
            return False
        self._clients[connection] = None
        return True

    def _has_room(self) -> bool:
        """Returns whether another connection may open. A refused client that has not gone yet makes room for it."""
        if len(self._open) < self._limits.connections_max:
            return True
        gone = next(iter(self._refused), None)
        if gone is None:
            return False
        del self._refused[gone], self._open[gone]
        gone.transport.close()
        return True

    def greeted(self, connection: Connection) -> None:
        """Notes that a connection's HELLO was accepted."""
        self.greetings.over(connection)

    def ended_before_hello(self, peer: str, error: TailraceError) -> None:
        """Logs why a connection ends whose HELLO was not accepted; of many the first ones."""
        now, message = trio.current_time(), "connection of %s ends: %s"
        self._strangers.write(now, host_of(peer), logging.INFO, message, peer, error)

    def begin_session(self, connection: Connection) -> None:
        """Ends the earlier connection of the same client: its requests were given up there, or come again."""
        earlier = self._sessions.get(connection.session)
        self._sessions[connection.session] = connection
        if earlier is not None:
            earlier.fail(ProtocolError("the client has connected anew: this is an earlier connection of it"))

    def end_sessions(self, message: str) -> None:
        """Ends the request connections of clients, which then connect anew. Those of nodes have no session."""
        for connection in list(self._sessions.values()):
            connection.fail(Unreachable(message))

    def status(self, now: float) -> Iterator[dict[str, Any]]:
        """Each connection as status shows it."""
        return (_status_of(connection, now) for connection in self)

    async def tick(self, turn: Turn, seconds: float) -> None:
        """Looks at each connection, at many over ``seconds``: idle ones say something, silent peers are dropped."""
        self._strangers.tell(trio.current_time())

        def look(some: Sequence[Connection]) -> None:
            now = turn.begin()
            for connection in some:
                if connection in self._open:
                    connection.tick(now)

        await spread(list(self._open), seconds, look)

    async def handle(self, services: Services, transport: Transport, unnamed: Leadership) -> None:
        """Serves one connection to its end. An error in it does not end the others.

        ``unnamed``: the leadership that messages of the connection are about if they name no group.
        """
        host = host_of(transport.peer)
        if not self._has_room():
            why = f"this node serves {len(self._open)} connections already: {_MORE}"
            transport.send(encode_error(Overloaded(why)))
            transport.close()
            return
        most = self._limits.connections_per_address_max
        if not self._addresses.admits(host, most):
            why = f"this node serves {most} connections of {host} already: limits.connections_per_address_max"
            transport.send(encode_error(Overloaded(f"{why} of its configuration is the bound")))
            transport.close()
            return
        connection: Connection | None = None
        try:
            async with trio.open_nursery() as nursery:
                connection = Connection(services, transport, nursery, unnamed)
                self._open[connection] = None
                self.greetings.begin(connection, partial(_end_ungreeted, connection))
                services.traffic.connection_opened()
                try:
                    nursery.start_soon(transport.run)
                    await connection.run()
                finally:
                    self._open.pop(connection, None)
                    self.greetings.over(connection)
                    window = connection.rounds.window
                    services.traffic.connection_ended(window.sent_blocks, window.sent_bytes)
                    self._clients.pop(connection, None)
                    self._refused.pop(connection, None)
                    if self._sessions.get(connection.session) is connection:
                        del self._sessions[connection.session]
                    self._to_flush.pop(connection, None)
                    self._replicas.pop(connection, None)
                    nursery.cancel_scope.cancel()
        except Exception:
            # A bug that one connection has met must not end the others; it is logged in full.
            log.exception(_INTERNAL_ERROR, transport.peer)
        finally:
            self._addresses.left(host)
            transport.close()
            if connection is not None:
                connection.memory.forget()

    async def drain(self) -> None:
        """Ends every stream with DRAINING, if there is time at the end of its snapshot, and sends that.

        It may be called again, for connections that have begun since.
        """
        drained = [connection for connection in self if not connection.draining]
        for end in (Connection.drain, Connection.end_drained):
            for connection in drained:
                end(connection)
            with trio.move_on_after(_DRAIN_SECONDS):
                for connection in drained:
                    await connection.drained()


def _status_of(connection: Connection, now: float) -> dict[str, Any]:
    """Returns a connection as status shows it."""
    rounds, stuck_s = connection.rounds, connection.stuck_seconds(now)
    return {
        "peer": connection.transport.peer,
        "name": connection.name,
        "age_s": now - connection.opened_at,
        "streams": len(rounds.slots),
        "barriers": len(rounds.barriers),
        "outstanding_bytes": rounds.window.outstanding_bytes,
        "backlog_bytes": connection.transport.backlog_bytes,
        "streams_moved": rounds.moves,
        "stuck_s": stuck_s,
        "slow": stuck_s >= connection.node.config.limits.slow_after_s,
    }


def _end_ungreeted(connection: Connection) -> None:
    connection.fail(Overloaded("too many connections have not greeted: greet at once"))
    connection.transport.close()


def _flush(senders: Iterable[Sender]) -> None:
    for sender in senders:
        try:
            sender.flush()
        except Exception:  # a bug, as in ``handle``: it must not end the others
            log.exception(_INTERNAL_ERROR, sender.transport.peer)
            sender.transport.close()
