"""``tailrace.blocking.connect``: a client without async."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from tailrace.blocking.feed import TIMEOUT, Feed
from tailrace.blocking.runner import BlockingRunner
from tailrace.blocking.stream import Stream
from tailrace.consuming.subscription import Subscription
from tailrace.link.secret import new_session
from tailrace.model import (
    FeedInfo,
    Level,
    LevelName,
    NodeState,
    NodeStatus,
    ReplicationMode,
    Retention,
    TokenInfo,
    TokenRole,
)
from tailrace.model.documented import documented
from tailrace.requests.client_core import ClientCore
from tailrace.requests.plan import Call
from tailrace.requests.senders import FeedOpener
from tailrace.tls.context import context_for
from tailrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from tailrace.serializers import Serializer


class Client:
    """A connection to the leader, or to another node, that the client restores when it breaks. Made by `connect`.

    Threads may share a client and its feeds. Their calls run together on one connection, and each call has its own
    time-out.

    If an exception such as KeyboardInterrupt ends a call, a request that was not
    sent yet is never sent. A request that was sent may still be carried out, and is not sent again after a lost
    connection. If the exception interrupts the client while it does not wait, later calls raise `TailraceError`:
    connect again.

    In a forked process the client and its feeds connect anew, at the next call, and the parent's connection stays as it
    is. Writers, stages, streams, followers and iterators of the parent raise `WrongProcess` there: make others.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        name: str | None,
        tls: ssl.SSLContext | None,
        connect_timeout: float,
        retry_for: float,
        state: str,
    ) -> None:
        self._core = ClientCore(
            url,
            token=token,
            name=name,
            connect_timeout=connect_timeout,
            retry_for=retry_for,
            state=state,
            clock=time.monotonic,
            source=random.SystemRandom(),
            new_session=new_session,
        )
        if self._core.tunnel is not None:
            import tailrace.websocket.engine  # noqa: F401 - without the extra this says so, and not a try to connect
        self._runner = BlockingRunner(self._core, context_for(self._core.secure, tls))

    def __enter__(self) -> Client:
        """Connects. Raises Unreachable if no node has answered within ``connect_timeout`` seconds, or Forbidden."""
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Requests without an answer fail with `Unreachable`, and so does every later call.

        Any thread may call it, also while other threads wait.
        """
        self._runner.close()

    @documented(ClientCore.create_feed, timeout=TIMEOUT)
    def create_feed(
        self,
        name: str,
        *,
        partitions: int | None = None,
        keyspace: str | None = None,
        retention: Retention | None = None,
        history_age_s: float | None = None,
        history_bytes: int | None = None,
        tombstone_age_s: float | None = None,
        replication: ReplicationMode | None = None,
        level: LevelName | None = None,
        ttl_s: float | None = None,
        exist_ok: bool = True,
        timeout: float | None = None,
    ) -> Feed:
        plan = self._core.create_feed(
            name,
            partitions=partitions,
            keyspace=keyspace,
            retention=retention,
            history_age_s=history_age_s,
            history_bytes=history_bytes,
            tombstone_age_s=tombstone_age_s,
            replication=replication,
            level=level,
            ttl_s=ttl_s,
            exist_ok=exist_ok,
        )
        self._runner.run(plan, timeout)
        return self.feed(name)

    @overload
    def feed(self, name: str) -> Feed: ...
    @overload
    def feed(
        self, name: str, *, serializer: Serializer | None = ..., key_serializer: Serializer | None = ...
    ) -> Any: ...
    @documented(FeedOpener.feed, "The handle may be shared by threads.")
    def feed(
        self, name: str, *, serializer: Serializer | None = None, key_serializer: Serializer | None = None
    ) -> Feed:
        from tailrace.requests.typed_feed import feed_core

        return Feed(self._runner, name, feed_core(self._core, name, serializer, key_serializer))

    @documented(ClientCore.feeds, timeout=TIMEOUT)
    def feeds(self, *, timeout: float | None = None) -> list[FeedInfo]:
        return self._runner.run(self._core.feeds(), timeout)

    @documented(ClientCore.set_feed, timeout=TIMEOUT)
    def set_feed(
        self,
        name: str,
        *,
        replication: ReplicationMode | None = None,
        history_age_s: float | None = None,
        history_bytes: float | None = None,
        tombstone_age_s: float | None = None,
        level: LevelName | None = None,
        ttl_s: float | None = None,
        timeout: float | None = None,
    ) -> FeedInfo:
        plan = self._core.set_feed(
            name,
            replication=replication,
            history_age_s=history_age_s,
            history_bytes=history_bytes,
            tombstone_age_s=tombstone_age_s,
            level=level,
            ttl_s=ttl_s,
        )
        return self._runner.run(plan, timeout)

    @documented(ClientCore.drop_feed, timeout=TIMEOUT)
    def drop_feed(self, name: str, *, timeout: float | None = None) -> None:
        self._runner.run(self._core.drop_feed(name), timeout)

    @documented(ClientCore.create_token, timeout=TIMEOUT)
    def create_token(
        self,
        name: str,
        *,
        role: TokenRole,
        feeds: Iterable[str] = (),
        key_prefix: bytes = b"",
        expires_s: float | None = None,
        certificate: str | None = None,
        timeout: float | None = None,
    ) -> str:
        plan = self._core.create_token(
            name, role=role, feeds=feeds, key_prefix=key_prefix, expires_s=expires_s, certificate=certificate
        )
        return self._runner.run(plan, timeout)

    @documented(ClientCore.tokens, timeout=TIMEOUT)
    def tokens(self, *, timeout: float | None = None) -> list[TokenInfo]:
        return self._runner.run(self._core.tokens(), timeout)

    @documented(ClientCore.revoke_token, timeout=TIMEOUT)
    def revoke_token(self, name: str, *, timeout: float | None = None) -> None:
        self._runner.run(self._core.revoke_token(name), timeout)

    @documented(ClientCore.status, timeout=TIMEOUT)
    def status(self, *, timeout: float | None = None) -> NodeStatus:
        return self._runner.run(self._core.status(), timeout)

    @property
    def cluster_id(self) -> bytes:
        """The id of the cluster that the node belongs to, 16 bytes. It raises `Unreachable` before the client has
        connected.
        """
        return self._core.cluster_id

    # For other parts of Tailrace

    def level(self, text: str) -> Level:
        """Returns a level by name. Raises ValueError if it does not exist, NotDurable if the node cannot give it."""
        return self._core.session.levels.level(text)

    @property
    def takes_progress(self) -> bool:
        """Whether the node that was connected last knows PROGRESS."""
        return self._core.takes_progress

    def deadline(self, timeout: float | None) -> float:
        """Returns the time at which a request of now is given up: ``timeout`` or ``retry_for`` seconds from now.

        The time is in monotonic seconds. Raises ValueError or TypeError if ``timeout`` is not a number of seconds.
        """
        return self._runner.deadline(timeout)

    def call(self, opcode: Opcode, value: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Sends a metadata request and returns the JSON object of the answer."""
        answer: dict[str, Any] = self._runner.ask(Call(opcode, value), deadline)
        return answer

    def stream(self, subscription: Subscription, window_bytes: int = 8 * 1024 * 1024) -> Stream:
        """Makes a consumer with a connection of its own. Raises ValueError for a ``window_bytes`` below 1."""
        return self._runner.stream(subscription, window_bytes)


def connect(
    url: str,
    *,
    token: str | None = None,
    name: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_timeout: float = 10.0,
    retry_for: float = 30.0,
    state: NodeState = "leader",
) -> Client:
    """Makes a client for programs without async. Use it as a context manager; entering connects.

    Nothing is sent or received between two calls. Pauses of a second or more do not count towards ``retry_for``.

    Args:
        url: ``tailrace://HOST:PORT[,HOST:PORT...]``, with the name of the cluster behind a slash if it has one;
            ``tailraces://`` for nodes that speak TLS; or ``ws://`` or ``wss://``, as in `tailrace.connect`.
        token: The token that the greeting carries. A node that requires tokens refuses others (Forbidden).
        name: A name for this program, which the node's status shows.
        tls: How nodes of ``tailraces://`` and ``wss://`` are checked, and this program's certificate, as in
            `tailrace.connect`.
        connect_timeout: The seconds that entering, and each later attempt to connect, may take.
        retry_for: The seconds for which a call retries a failure that may pass. Then it raises a `Retryable` error.
        state: The kind of node to use: "leader", "follower" or "any", as in `tailrace.connect`.

    Returns:
        A client, not connected yet. Threads may share it.

    Raises:
        ValueError: The URL, ``state`` or a number of seconds is not valid.
        ImportError: The URL asks for WebSocket, and its library is not installed.
        Unreachable: On entering: no node could be used within ``connect_timeout`` seconds.
        Forbidden: On entering: the node refuses this client, or its certificate.
        ProtocolError: On entering: the other side does not speak Tailrace's protocol; or TLS, or without it; or its
            certificate is not valid for the host of the URL.
    """
    return Client(
        url, token=token, name=name, tls=tls, connect_timeout=connect_timeout, retry_for=retry_for, state=state
    )
