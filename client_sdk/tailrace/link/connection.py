"""Decides, for the links of all shells, when a node counts as dead, and what an error of a connection ends. Pure.

next_try ──> shell: waits, connects ──> session.connection_made
    ^                                        │  bytes, until an error, silence, or a later leader
    └──────────────── lost ──────────────────┘
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tailrace.errors import NotLeader, ProtocolError, TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.link.finder import LONG_WAIT_SECONDS, Finder
from tailrace.link.place import Place
from tailrace.link.rules import SILENT_INTERVALS_MAX, LongWaits, SetUpRefused

if TYPE_CHECKING:
    from tailrace.wire.messages import Hello, HelloOk


class LinkSession(Protocol):
    """The side of a session that a link uses. `RequestSession` and `ConsumerSession` have it."""

    @property
    def hello(self) -> Hello: ...
    @property
    def peer(self) -> HelloOk | None: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def has_progressed(self) -> bool: ...
    @property
    def waiting(self) -> Collection[object]: ...
    def connection_made(self) -> None: ...
    def connection_lost(self, error: TailraceError) -> None: ...
    def is_final(self, error: TailraceError) -> bool: ...
    def receive_data(self, data: bytes | memoryview) -> None: ...
    def place(self) -> Place | None: ...
    def data_to_send(self) -> Sequence[bytes | memoryview]: ...
    def noop(self) -> None: ...
    def expire(self) -> None: ...


class LinkCore:
    """The part of a link that all shells share. See the module."""

    def __init__(self, session: LinkSession, finder: Finder, connect_timeout_s: float) -> None:
        self.finder = finder
        self._session = session
        self._connect_timeout_s = connect_timeout_s
        self._long_waits = LongWaits(finder.clock, LONG_WAIT_SECONDS)
        self._leaves: NotLeader | None = None  # why this side ends the connection

    @property
    def hello(self) -> Hello:
        """The first message of each connection."""
        return self._session.hello

    def bound_tries(self, seconds_max: float) -> None:
        """Bounds each try, for a shell whose caller waits for the whole of it."""
        self._connect_timeout_s = min(self._connect_timeout_s, seconds_max)

    @property
    def try_seconds(self) -> float:
        """The seconds that a node may take to accept a connection and to say hello; time is left for the others."""
        return self.finder.try_seconds(self._connect_timeout_s)

    @property
    def noop_interval_s(self) -> float:
        """The seconds within which the node sends something, and expects something; a part of a try until its hello."""
        peer = self._session.peer if self._session.is_open else None
        return self.try_seconds / SILENT_INTERVALS_MAX if peer is None else peer.noop_interval_s

    def is_dead(self, silent_s: float) -> bool:
        """Tells whether a node that has been silent for ``silent_s`` seconds counts as dead."""
        return silent_s > SILENT_INTERVALS_MAX * self.noop_interval_s

    def no_answer(self) -> Unreachable:
        """Returns the error for a try that took too long."""
        return Unreachable(f"cannot connect to {self.finder.address}: no answer within {self.try_seconds:g} s")

    def next_look(self, waits: bool | None = None) -> Address | None:
        """Returns the address of another node to look at now, or None, as `Finder.next_look`.

        ``waits`` tells whether a request has had no answer for a while. None: the session is asked.
        """
        return self.finder.next_look(self._long_waits.look(self._session.waiting) if waits is None else waits)

    def looks(self) -> Iterator[Address | None]:
        """Returns the next looks, for ever if there are other nodes: an address, or None if none is due yet."""
        while self.finder.looks:
            yield self.next_look()

    def is_superseded(self) -> bool:
        """Tells whether another node leads in a later term. The shell ends the connection, and ``lost`` goes there."""
        error = self.finder.superseded()
        if error is not None:
            self._leaves = error
        return error is not None

    def lost(self, error: Exception, *, is_reported: bool = False) -> TailraceError | None:
        """Handles the end of a try or a connection: the finder names another node, and the session asks again.

        Args:
            error: How it ended.
            is_reported: True if the finder knows the error already.

        Returns:
            The error, for the shell to raise, if no retry can mend it; otherwise None.
        """
        if self._leaves is not None:
            error, self._leaves = self._leaves, None
        if not isinstance(error, TailraceError):
            error = Unreachable(f"the connection broke: {getattr(error, 'strerror', None) or error}")
        self.finder.log_loss(error, was_open=self._session.is_open)
        if isinstance(error, ProtocolError) and not isinstance(error, SetUpRefused) and self._session.peer is None:
            error = ProtocolError(f"the answer from {self.finder.address} cannot be used: {error}")
        # Another program, or another version, at one address says nothing of the nodes at the others.
        is_final = self._session.is_final(error) and not (isinstance(error, ProtocolError) and self.finder.has_others)
        if not is_reported:
            self.finder.failed(error, progressed=self._session.has_progressed)
        self._session.connection_lost(error)
        return error if is_final else None


class SendingSession(Protocol):
    """The side of a session that a `SendingLink` uses."""

    def connection_made(self) -> None: ...
    def data_to_send(self, now: float | None = None) -> Sequence[bytes | memoryview]: ...


class Connection(Protocol):
    """The side of a transport that a `SendingLink` uses."""

    def send(self, *buffers: bytes | memoryview) -> None: ...
    def close(self) -> None: ...


SessionT = TypeVar("SessionT", bound=SendingSession)
ConnectionT = TypeVar("ConnectionT", bound=Connection)


class SendingLink(Generic[SessionT, ConnectionT]):
    """The base of the links with async: what the session has to send leaves at once on the present connection."""

    def __init__(self, session: SessionT, core: LinkCore) -> None:
        self._session = session
        self._core = core
        self._transport: ConnectionT | None = None  # the present connection
        self._reads = 0  # and connections

    def _send(self, now: float | None = None) -> None:
        """Sends the session's buffers. ``now`` is the session's time, if the caller has it."""
        if self._transport is not None:
            buffers = self._session.data_to_send(now)
            if buffers:
                self._transport.send(*buffers)

    def _begin(self, transport: ConnectionT) -> None:
        """Begins to use a connection."""
        self._transport = transport
        self._reads += 1
        self._session.connection_made()
        self._send()

    def _leave(self) -> None:
        """Closes the connection; another one is made."""
        if self._transport is not None:
            self._transport.close()
