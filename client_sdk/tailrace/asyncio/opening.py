"""Opens connections under asyncio, to the address of a host that answers first.

The event loop could try several addresses by itself, but loses a socket if that is cancelled (seen on CPython 3.11).
uvloop tries them one after the other only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tailrace.asyncio.transport import Transport
from tailrace.errors import Unreachable
from tailrace.link.address import Address

# The seconds that one address of a host has before the next one is tried beside it (RFC 8305).
EYEBALLS_SECONDS = 0.25


async def open_connection(
    address: Address, context: ssl.SSLContext | None = None, make: Callable[[Address], Transport] = Transport
) -> Transport:
    """Connects to a node, by TLS if there is a context. The time-out is the caller's.

    Raises Unreachable; Forbidden or ProtocolError if no retry can mend it.
    """
    secured: dict[str, Any] = {} if context is None else {"ssl": context, "server_hostname": address.host}
    loop = asyncio.get_running_loop()

    async def connect(host: str) -> Transport:
        _, transport = await loop.create_connection(lambda: make(address), host, address.port, **secured)
        return transport

    try:
        hosts = await _resolved(address)
        return await (connect(hosts[0]) if len(hosts) == 1 else _first(hosts, connect))
    except (OSError, ValueError) as error:
        raise _explained(error, address) from error


async def _resolved(address: Address) -> Sequence[str]:
    """Returns the addresses of a node's host, the preferred one first. Raises OSError."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        infos = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))
    return [address.host]


async def _first(hosts: Sequence[str], connect: Callable[[str], Coroutine[Any, Any, Transport]]) -> Transport:
    """Returns the first connection that can be made. A try begins when those before have failed, or after a while.

    Raises the error of the first try that has failed, if all have.
    """
    left = list(reversed(hosts))
    tries: list[asyncio.Task[Transport]] = []
    pending: set[asyncio.Task[Transport]] = set()
    errors: list[BaseException] = []
    try:
        while left or pending:
            if left:
                tries.append(asyncio.create_task(connect(left.pop())))
                pending.add(tries[-1])
            wait_s = EYEBALLS_SECONDS if left else None
            done, pending = await asyncio.wait(pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    tries.remove(task)
                    return task.result()
                errors.append(error)
        raise errors[0]
    finally:
        for task in tries:
            task.add_done_callback(_drop)
            task.cancel()
        if pending:
            await asyncio.wait(pending)


def _drop(task: asyncio.Task[Transport]) -> None:
    """Closes the connection of a try that another one has overtaken."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _explained(error: OSError | ValueError, address: Address) -> Exception:
    """Returns the error of a client that could not connect."""
    if isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError) or not isinstance(
        error, OSError
    ):
        from tailrace.tls.failures import bad_host, closed, explain

        if isinstance(error, ssl.SSLError):
            return explain(error, str(address))
        return closed(str(address)) if isinstance(error, OSError) else bad_host(str(address), error)
    by_system = error.errno and not isinstance(error, socket.gaierror)
    reason = os.strerror(error.errno) if by_system and error.errno else error.strerror or error
    return Unreachable(f"cannot connect to {address}: {reason}")
