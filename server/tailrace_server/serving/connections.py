"""The connections of a node, and those that have something to send."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import trio

from tailrace.errors import Overloaded, ProtocolError, Unreachable
from tailrace.model import EndReason
from tailrace.trio.transport import Transport
from tailrace.wire.messages import encode_error
from tailrace_server.replication.leadership import Leadership
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.services import Services
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.upkeep.committer import Committer

log = logging.getLogger("tailrace.server")

# A node that stops gives its consumers this many seconds for the rest of a snapshot, and again for the data in flight.
_DRAIN_SECONDS = 1.0
_INTERNAL_ERROR = "connection of %s ended by an internal error"


class Connections:
    """Accepts connections, and sends to each what concerns it."""

    def __init__(self, committer: Committer, connections_max: int, has_replicas: Callable[[], bool]) -> None:
        self._committer = committer
        self._connections_max = connections_max
        self._has_replicas = has_replicas
        self._open: dict[Connection, None] = {}
        self._sessions: dict[str, Connection] = {}  # the newest connection of each client that has named its session
        self._to_flush: dict[Connection, None] = {}

    def __iter__(self) -> Iterator[Connection]:
        """The open connections, as they are now: any of them may end while the caller goes through them."""
        return iter(list(self._open))

    def __len__(self) -> int:
        return len(self._open)

    # Sending

    def has_news(self, connection: Connection) -> None:
        """Notes that ``connection`` has something to send; the next ``flush`` sends it."""
        self._to_flush[connection] = None

    def turn_ended(self, asker: object = None) -> None:
        """Commits what ``asker`` wrote, now or soon, and sends the news; ``asker`` has been handled.

        The blocks for replicas leave first, so that their disks work while this one does.
        """
        if self._to_flush and self._has_replicas():
            self.flush()
        self._committer.turn_ended(asker)
        if self._to_flush:
            self.flush()

    def flush(self) -> None:
        """Sends the news to each connection that has any."""
        while self._to_flush:
            connections, self._to_flush = self._to_flush, {}
            for connection in connections:
                try:
                    connection.flush()
                except Exception:  # a bug, as in ``handle``: it must not end the others
                    log.exception(_INTERNAL_ERROR, connection.transport.peer)
                    connection.transport.close()

    def end_streams(self, which: Callable[[PartitionStream], bool], reason: EndReason, message: str) -> None:
        """Ends every stream for which ``which`` is true; ``flush`` sends the end."""
        for connection in self:
            connection.end_streams(which, reason, message)

    # The open connections

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
        return (connection.status(now) for connection in self)

    def tick(self, now: float) -> None:
        """Looks at each connection: idle ones say something, and silent peers are dropped."""
        for connection in self:
            connection.tick(now)

    async def handle(self, services: Services, transport: Transport, unnamed: Leadership) -> None:
        """Serves one connection to its end. An error in it does not end the others.

        ``unnamed``: the leadership that messages of the connection are about if they name no group.
        """
        if len(self._open) >= self._connections_max:
            transport.send(encode_error(Overloaded(f"this node serves {len(self._open)} connections already")))
            transport.close()
            return
        connection: Connection | None = None
        try:
            async with trio.open_nursery() as nursery:
                connection = Connection(services, transport, nursery, unnamed)
                self._open[connection] = None
                try:
                    nursery.start_soon(transport.run)
                    await connection.run()
                finally:
                    del self._open[connection]
                    if self._sessions.get(connection.session) is connection:
                        del self._sessions[connection.session]
                    self._to_flush.pop(connection, None)
                    nursery.cancel_scope.cancel()
        except Exception:
            # A bug that one connection has met must not end the others; it is logged in full.
            log.exception(_INTERNAL_ERROR, transport.peer)
        finally:
            transport.close()
            if connection is not None:
                connection.memory.forget()

    async def drain(self) -> None:
        """Ends every stream with DRAINING, if there is time at the end of its snapshot, and sends that."""
        for end in (Connection.drain, Connection.end_drained):
            for connection in self:
                end(connection)
            with trio.move_on_after(_DRAIN_SECONDS):
                for connection in self:
                    await connection.drained()
