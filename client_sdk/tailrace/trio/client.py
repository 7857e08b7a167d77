"""``tailrace.connect``: a client of one node, or of a set of them."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import trio

from tailrace.consuming.subscription import Subscription
from tailrace.link.forks import OfOneProcess
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
from tailrace.trio.feed import Feed
from tailrace.trio.host import Host, layered
from tailrace.trio.runner import RequestRunner
from tailrace.trio.stream import Stream
from tailrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from tailrace.serializers import Serializer


class Client(OfOneProcess):
    """A connection to the leader, or to another node, that the client restores when it breaks. Made by `connect`.

    All tasks of one trio run may share a client. It must not be used from another thread or another trio run. In a
    forked process every call raises `WrongProcess`, also the calls of the client's feeds, writers, stages, streams and
    followers.

    If a call of the client or of a `Feed` is cancelled, a request that was not sent yet is never sent. A request that
    was sent may still be carried out. It is not sent again after a lost connection, and its outcome stays unknown.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        name: str | None = None,
        tls: ssl.SSLContext | None = None,
        connect_timeout: float = 10.0,
        retry_for: float = 30.0,
        state: NodeState = "leader",
        host: Host | None = None,
    ) -> None:
        host = Host() if host is None else host
        self._core = ClientCore(
            url,
            token=token,
            name=name,
            connect_timeout=connect_timeout,
            retry_for=retry_for,
            state=state,
            clock=trio.current_time,
            source=host.random,
            new_session=host.new_session,
        )
        self._runner = RequestRunner(self._core, layered(host, self._core.secure, self._core.tunnel, tls))
        self._register()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Client:
        """Connects. Raises Unreachable if no node has answered within ``connect_timeout`` seconds, or Forbidden.

        Raises RuntimeError outside of a trio run.
        """
        if not trio.lowlevel.in_trio_run():
            raise RuntimeError(
                "tailrace.connect is for trio, which does not run here: under asyncio use tailrace.asyncio.connect, "
                "and without async tailrace.blocking.connect"
            )
        await self._runner.__aenter__()
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await self._runner.__aexit__(kind, error, traceback)

    # Feeds

    @documented(ClientCore.create_feed)
    async def create_feed(
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
        await self._runner.run(plan)
        return self.feed(name)

    @overload
    def feed(self, name: str) -> Feed: ...
    @overload
    def feed(
        self, name: str, *, serializer: Serializer | None = ..., key_serializer: Serializer | None = ...
    ) -> Any: ...
    @documented(FeedOpener.feed, "The handle may be shared by all tasks of one trio run.")
    def feed(
        self, name: str, *, serializer: Serializer | None = None, key_serializer: Serializer | None = None
    ) -> Feed:
        from tailrace.requests.typed_feed import feed_core

        return Feed(self._runner, name, feed_core(self._core, name, serializer, key_serializer))

    @documented(ClientCore.feeds)
    async def feeds(self) -> list[FeedInfo]:
        return await self._runner.run(self._core.feeds())

    @documented(ClientCore.set_feed)
    async def set_feed(
        self,
        name: str,
        *,
        replication: ReplicationMode | None = None,
        history_age_s: float | None = None,
        history_bytes: float | None = None,
        tombstone_age_s: float | None = None,
        level: LevelName | None = None,
        ttl_s: float | None = None,
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
        return await self._runner.run(plan)

    @documented(ClientCore.drop_feed)
    async def drop_feed(self, name: str) -> None:
        await self._runner.run(self._core.drop_feed(name))

    @documented(ClientCore.create_token)
    async def create_token(
        self,
        name: str,
        *,
        role: TokenRole,
        feeds: Iterable[str] = (),
        key_prefix: bytes = b"",
        expires_s: float | None = None,
        certificate: str | None = None,
    ) -> str:
        plan = self._core.create_token(
            name, role=role, feeds=feeds, key_prefix=key_prefix, expires_s=expires_s, certificate=certificate
        )
        return await self._runner.run(plan)

    @documented(ClientCore.tokens)
    async def tokens(self) -> list[TokenInfo]:
        return await self._runner.run(self._core.tokens())

    @documented(ClientCore.revoke_token)
    async def revoke_token(self, name: str) -> None:
        await self._runner.run(self._core.revoke_token(name))

    @documented(ClientCore.status)
    async def status(self) -> NodeStatus:
        return await self._runner.run(self._core.status())

    # For other parts of Tailrace

    @property
    def cluster_id(self) -> bytes:
        """The id of the cluster of the node that answered last, 16 bytes."""
        return self._core.cluster_id

    def level(self, text: str) -> Level:
        """Returns a level by name. Raises ValueError if it does not exist, NotDurable if the node cannot give it."""
        return self._core.session.levels.level(text)

    async def call(self, opcode: Opcode, value: dict[str, Any]) -> dict[str, Any]:
        """Sends a metadata request and returns the JSON object of the answer."""
        answer: dict[str, Any] = await self._runner.ask(Call(opcode, value))
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
    host: Host | None = None,
) -> Client:
    """Makes a client of one node or of a set of nodes. Nothing is sent before the client is entered.

    Use it as an async context manager: ``async with tailrace.connect(url) as client``. Entering connects. Leaving
    closes the connection, and calls of other tasks that still wait raise `Unreachable`.

    Args:
        url: ``tailrace://HOST:PORT[,HOST:PORT...]``, with the name of the cluster behind a slash if it has one;
            ``tailraces://`` for nodes that speak TLS. ``ws://HOST:PORT[,HOST:PORT...][/PATH][?cluster=NAME]`` and
            ``wss://`` go through WebSocket, perhaps behind a reverse proxy; they need ``pip install 'tailrace[ws]'``.
        token: The token that the greeting carries. A node that requires tokens refuses others (Forbidden).
        name: A name for this program, which the node's status shows.
        tls: How nodes of ``tailraces://`` and ``wss://`` are checked, and this program's certificate. By default the
            machine's authorities are trusted, the certificate has to name the host of the URL, and no certificate is
            shown.
        connect_timeout: The seconds that entering, and each later attempt to connect, may take.
        retry_for: The seconds for which a call retries a failure that may pass. Then it raises a `Retryable` error.
        state: The kind of node to use. "leader": the leader of the set, found from any node of the URL, and found again
            after a failover. "follower": a node of the URL that follows. Its data may be behind, and a write raises
            `NotLeader` after ``retry_for`` seconds. "any": the first node of the URL that answers,
            whatever its role is or becomes.
        host: Clock, network and randomness for a simulator. Programs leave it out.

    Returns:
        A client, not connected yet. All tasks of one trio run may share it.

    Raises:
        ValueError: The URL, ``state`` or a number of seconds is not valid.
        ImportError: The URL asks for WebSocket, and its library is not installed.
        RuntimeError: On entering: trio does not run. Under asyncio use `tailrace.asyncio.connect`.
        Unreachable: On entering: no node could be used within ``connect_timeout`` seconds.
        Forbidden: On entering: the node refuses this client, or its certificate.
        ProtocolError: On entering: the other side does not speak Tailrace's protocol; or TLS, or without it; or its
            certificate is not valid for the host of the URL.
    """
    return Client(
        url,
        token=token,
        name=name,
        tls=tls,
        connect_timeout=connect_timeout,
        retry_for=retry_for,
        state=state,
        host=host,
    )
