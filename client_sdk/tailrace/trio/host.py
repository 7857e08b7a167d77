"""The host of a client: its connections, the workers of its indexes, and its randomness.

``tailrace.connect(..., host=Host(...))`` is for simulators and tests, which run client and node in one trio run without
a socket, a thread or real randomness; its time is that of the run's clock. Everybody else leaves it out.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from tailrace.link.secret import new_session
from tailrace.trio.tcp import connect_tcp
from tailrace.trio.transport import Connect
from tailrace.trio.worker_thread import WorkerThread

T = TypeVar("T")


class Worker(Protocol):
    """Runs an index's functions one after the other, for one task; `WorkerThread` is the ordinary one."""

    def start(self) -> None:
        """Called once, before the first ``run``."""
        ...

    def stop(self) -> None:
        """Called after the last ``run``."""
        ...

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Runs ``function(*args)`` and returns its result or raises its error. A cancellation waits for the end."""
        ...

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Runs ``function(*args)``, which raises nothing, after all that is to be run already. Does not wait."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """``connect`` makes a transport to an address, or raises Unreachable; the time-out is the caller's.

    ``worker`` makes what an index works on, from a name. ``random`` decides how retries are spread, and gives the ids
    of producers and feeds, so it must not repeat itself from one process to the next unless all is to be repeated.
    ``new_session`` returns the secret by which a node recognises a client's connections (`Hello`); "" for none.
    """

    connect: Connect = connect_tcp
    worker: Callable[[str], Worker] = WorkerThread
    random: random.Random = field(default_factory=random.SystemRandom)
    new_session: Callable[[], str] = new_session


def layered(host: Host, secure: bool, tunnel: str | None, tls: ssl.SSLContext | None) -> Host:
    """Returns ``host`` with the connections that a client's URL asks for.

    Args:
        host: The host of the client.
        secure: Whether the URL asks for TLS.
        tunnel: The path of the URL's WebSocket; None without one.
        tls: The context of TLS, if it is given.

    Raises ValueError for a context that would not be used, and ImportError without the library of WebSocket.
    """
    # Few programs need these modules, and all would wait for the imports.
    if secure or tls is not None:
        from tailrace.tls.context import context_for
        from tailrace.trio.tls import connect_tls

        context = context_for(secure, tls)
        if context is not None:
            host = replace(host, connect=partial(connect_tls, host.connect, context))
    if tunnel is not None:
        from tailrace.trio.websocket import connect_websocket

        host = replace(host, connect=partial(connect_websocket, host.connect, tunnel))
    return host
