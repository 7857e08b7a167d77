"""Clients of the SDK that requests over HTTP share: one for each token, and one for all requests without any.

    request ── token ──> client ── loopback ──> this node, if it leads
                               └── frames ────> the leader, by the client's own token

So a request is checked, counted and sent again as that of any other client. A client is closed when no request has used
it for a while. If another node leads, new requests get a new client, which asks for the leader again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import trio
from starlette.requests import Request

from tailrace.errors import Forbidden, Overloaded, TailraceError, UnknownFeed
from tailrace.link.address import Address
from tailrace.tls.engine import PeerIdentity
from tailrace.trio.client import Client
from tailrace.trio.feed import Feed
from tailrace.trio.host import Host
from tailrace.trio.transport import Transport
from tailrace_server.replication.leaderships import Leaderships
from tailrace_server.runtime.host import Host as NodeHost
from tailrace_server.serving.http.patience import patient
from tailrace_server.serving.tailing.loopback import loopback

log = logging.getLogger("tailrace.http")

T = TypeVar("T")

# Each has a connection, which takes the node 12 KiB beside the client's own objects.
CLIENTS_MAX = 64
# A client that no request has used for this time is closed.
IDLE_SECONDS = 60.0
# A request waits this long for a leader, or for an answer. Clients of HTTP ask again by themselves after a 503.
RETRY_SECONDS = 10.0
CONNECT_SECONDS = 5.0
# The feeds whose ids a client keeps.
FEEDS_MAX = 256
NAME = "http"
_OWN = Address("loopback", 4700)


class ForwardingNode(Protocol):
    """The part of a node that is asked."""

    @property
    def handle(self) -> Callable[[Transport], Awaitable[None]]:
        """As ``Node.handle``."""
        ...

    @property
    def listening(self) -> tuple[str, int] | None:
        """As ``Node.listening``."""
        ...

    @property
    def leaderships(self) -> Leaderships:
        """The leaderships of the node."""
        ...

    @property
    def host(self) -> NodeHost:
        """The environment of the node, with its network."""
        ...


class Shown(NamedTuple):
    """What a request shows of its client."""

    token: str | None
    certificate: PeerIdentity | None


class _Wanted(NamedTuple):
    """What the requests of one client have in common: their rights, and who leads."""

    shown: Shown
    leader: str
    changes: int


class Clients:
    """The open clients. Only its own methods change its fields."""

    def __init__(self, node: ForwardingNode, nursery: trio.Nursery) -> None:
        """``nursery`` runs the clients, and the node's end of their connections."""
        self._node = node
        self._nursery = nursery
        self._open: dict[_Wanted, _Shared] = {}

    @contextlib.asynccontextmanager
    async def client(self, request: Request, shown: Shown) -> AsyncIterator[SharedClient]:
        """Gives a client with these rights, for the answer to a request. Raises Forbidden, Unreachable, Overloaded."""
        leadership = self._node.leaderships.system
        wanted = _Wanted(shown, leadership.leader, leadership.changes)
        shared = self._open.get(wanted)
        if shared is None or shared.is_over:
            self._make_room()
            shared = self._open[wanted] = _Shared(self._client(shown))
            self._nursery.start_soon(self._run, wanted, shared)
        with shared.used(), patient(request):
            yield await shared.opened()

    @contextlib.asynccontextmanager
    async def own_client(self, request: Request, peer: str, shown: Shown) -> AsyncIterator[Client]:
        """Gives a client to one request alone: the audit log of the node tells its address. Raises as ``client``."""
        with patient(request):
            async with self._client(shown, peer) as client:
                yield client

    def _make_room(self) -> None:
        """Closes the client that was used first, if there are as many as there may be. Overloaded if all are in use."""
        if len(self._open) < CLIENTS_MAX:
            return
        idle = next((wanted for wanted, shared in self._open.items() if not shared.users), None)
        if idle is None:
            raise Overloaded(f"requests of {len(self._open)} clients are under way: ask again later")
        self._open.pop(idle).close()

    @property
    def _own(self) -> Address:
        """The address of this node, as errors name it to the clients of HTTP."""
        listening = self._node.listening
        return _OWN if listening is None else Address(*listening)

    def _client(self, shown: Shown, peer: str = NAME) -> Client:
        return Client(
            f"tailrace://{self._own}",
            token=shown.token,
            name=NAME,
            connect_timeout=CONNECT_SECONDS,
            retry_for=RETRY_SECONDS,
            host=Host(connect=partial(self.connect, shown, peer)),
        )

    async def connect(self, shown: Shown, peer: str, address: Address) -> Transport:
        """Connects to this node itself as ``peer``, or to the leader.

        Raises Forbidden if the leader would not know the client.
        """
        if address in (_OWN, self._own):
            client, server = loopback(peer, "loopback", shown.certificate)
            self._nursery.start_soon(self._node.handle, server)
            return client
        if shown.token is None and shown.certificate is not None:
            raise Forbidden(
                f"this node does not lead, and cannot show a client's certificate to the leader at {address}: "
                "ask the leader, or give a token"
            )
        return await self._node.host.network.connect(address)

    async def _run(self, wanted: _Wanted, shared: _Shared) -> None:
        try:
            await shared.run()
        except TailraceError as error:
            shared.failed(error)
        except Exception as error:  # a bug of ours
            log.exception("a client of HTTP was ended by an internal error")
            shared.failed(ClientFailed(f"the client of HTTP has failed: {error!r}"))
        finally:
            if self._open.get(wanted) is shared:
                del self._open[wanted]


class ClientFailed(TailraceError):
    """A shared client was ended by a bug of the node."""


class SharedClient:
    """An open client, and its handles of feeds."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._feeds: dict[str, Feed] = {}

    async def on_feed(self, name: str, call: Callable[[Feed], Awaitable[T]]) -> T:
        """Returns the result of ``call``. Calls it again if the feed was dropped and made anew meanwhile.

        Raises UnknownFeed if the feed does not exist, and what ``call`` raises.
        """
        known = self._feeds.get(name)
        if known is not None:
            try:
                return await call(known)
            except UnknownFeed:
                self._feeds.pop(name, None)
        feed = self.client.feed(name)
        result = await call(feed)
        if len(self._feeds) >= FEEDS_MAX:
            self._feeds.clear()
        self._feeds[name] = feed
        return result


class _Shared:
    """A client that requests share. Its task opens it, and closes it when it is idle."""

    def __init__(self, client: Client) -> None:
        self._client = SharedClient(client)
        self._scope = trio.CancelScope()
        self._opened = trio.Event()
        self._error: TailraceError | None = None
        self.users = 0

    @property
    def is_over(self) -> bool:
        """Whether the client was closed, or is about to be."""
        return self._error is not None or self._scope.cancel_called

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keeps the client open while the body runs."""
        self.users += 1
        self._scope.deadline = float("inf")
        try:
            yield
        finally:
            self.users -= 1
            if not self.users:
                self._scope.deadline = trio.current_time() + IDLE_SECONDS

    async def opened(self) -> SharedClient:
        """Returns the client once it is open. Raises why it could not be opened."""
        await self._opened.wait()
        if self._error is not None:
            raise self._error
        return self._client

    async def run(self) -> None:
        """Opens the client, and closes it in the end. Raises why it cannot be used any more."""
        with self._scope:
            async with self._client.client:
                self._opened.set()
                await trio.sleep_forever()

    def failed(self, error: TailraceError) -> None:
        """Notes why the client cannot be used."""
        self._error = error
        self._opened.set()

    def close(self) -> None:
        """Closes the client."""
        self._scope.cancel()
