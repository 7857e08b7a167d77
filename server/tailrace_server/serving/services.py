"""The parts of a node that a connection and the handlers of its requests work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import trio

from tailrace.wire.opcodes import Opcode
from tailrace_server.host.turn import Turn
from tailrace_server.replication.expirer import Expirer
from tailrace_server.replication.local_node import LocalNode
from tailrace_server.serving.stopped_consumers import StoppedConsumers
from tailrace_server.serving.waiting_requests import WaitingRequests
from tailrace_server.state.traffic import Traffic
from tailrace_server.stream.open_streams import OpenStreams
from tailrace_server.stream.rounds import Rounds

if TYPE_CHECKING:
    from tailrace.errors import TailraceError
    from tailrace_server.publishing.publisher import Publisher
    from tailrace_server.publishing.stages import Stages
    from tailrace_server.replication.member import Member
    from tailrace_server.replication.token_changes import TokenChanges
    from tailrace_server.serving.answer_memory import AnswerMemory
    from tailrace_server.serving.audit import AuditLog
    from tailrace_server.serving.authority import Authority
    from tailrace_server.serving.consumers import Consumers
    from tailrace_server.stream.filter import FilterCache


class OpenConnection(Protocol):
    """One connection, as its parts see it: its streams, its tasks, and its waiting requests."""

    node: Services
    rounds: Rounds
    nursery: trio.Nursery
    waiting: WaitingRequests

    def has_news(self) -> None:
        """Notes that the connection has something to send."""

    def has_replica_news(self) -> None:
        """Notes that the connection has something to send to a replica, which need not leave in this turn."""

    def has_later_replica_news(self) -> None:
        """Notes that the connection has something for a replica, which leaves with other news to it, or soon."""


class OpenConnections(OpenStreams, Protocol):
    """All connections of the node."""

    def __iter__(self) -> Iterator[Any]:
        """Returns the open connections, as they are now."""

    def has_news(self, sender: Any) -> None:
        """Notes that ``sender`` has something to send. It leaves when this turn has ended, or with the next fsync."""

    def admits(self, connection: Any) -> bool:
        """Counts a client's connection. Ends it, and returns False, if clients have as many as they may have."""

    def greeted(self, connection: Any) -> None:
        """Notes that a connection's HELLO was accepted."""

    def ended_before_hello(self, peer: str, error: TailraceError) -> None:
        """Logs why a connection ends whose HELLO was not accepted; of many the first ones."""

    def begin_session(self, connection: Any) -> None:
        """Ends the earlier connection of the same client."""

    def status(self, now: float) -> Iterable[dict[str, Any]]:
        """Each connection as status shows it."""


@dataclass(eq=False)
class Services(LocalNode):
    """The parts of a node that connections use. The composition root makes one for all connections.

    Only it sets fields later, while the node starts: ``members``, ``unclean_start``, ``listening`` and
    ``cluster_status``.
    """

    connections: OpenConnections
    turn: Turn
    stages: Stages
    publisher: Publisher
    traffic: Traffic
    stopped: StoppedConsumers
    filtered: FilterCache
    answer_memory: AnswerMemory
    authority: Authority
    audit: AuditLog
    token_changes: TokenChanges
    consumers: Consumers
    expirer: Expirer
    handlers: Mapping[Opcode, Callable[[Any, Any], None]]
    # By opcode: handles the usual requests that a read begins with, and returns the number of their bytes.
    short_ways: Mapping[int, Callable[[Any, bytes], int]]
    members: dict[int, Member]  # by the number of the group; empty of a node that is alone
    started_at: float
    unclean_start: str | None
    # The coordinator and this node's place in its set; None without one.
    cluster_status: Callable[[], dict[str, Any]] | None = None
