"""Connections to a host with one address, or with several."""

import asyncio
import contextlib
import socket

import pytest
from tests.tailrace.asyncio.bridge import run, until

from tailrace.asyncio import opening
from tailrace.asyncio.opening import open_connection
from tailrace.asyncio.transport import closing
from tailrace.errors import Unreachable
from tailrace.link.address import Address
from tailrace.testing.ports import free_port

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")  # all of this machine


@pytest.fixture
def resolve(monkeypatch):
    """A function that gives "feeds.example" its addresses, without a thread that asks for them."""

    def give(*hosts):
        async def resolved(loop, host, port, **_):
            if not hosts:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in hosts]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolved)

    return give


@contextlib.asynccontextmanager
async def serving(host, port):
    """Accepts connections at an address; gives the writers of those that were made."""
    made = []
    server = await asyncio.start_server(lambda _, writer: made.append(writer), host, port)
    async with server:
        yield made
    for writer in made:
        writer.close()


def peer_of(transport):
    return transport._transport.get_extra_info("peername")[0]


def test_nothing_listens(resolve):
    port = free_port()
    resolve(*HOSTS)

    async def main():
        for host in ("127.0.0.1", "feeds.example"):
            with pytest.raises(Unreachable, match=rf"^cannot connect to {host}:{port}: Connection refused$"):
                await open_connection(Address(host, port))

    run(main)


def test_a_host_without_an_address(resolve):
    resolve()

    async def main():
        with pytest.raises(Unreachable, match=r"^cannot connect to feeds\.example:1: Name or service not known$"):
            await open_connection(Address("feeds.example", 1))

    run(main)


def test_an_address_that_refuses_is_passed_over(resolve):
    port = free_port()
    resolve(*HOSTS)

    async def main():
        async with serving(HOSTS[2], port):
            transport = await open_connection(Address("feeds.example", port))
            async with closing(transport):
                assert peer_of(transport) == HOSTS[2]

    run(main)


def hold(monkeypatch, *held):
    """Lets connections to these addresses wait for the event that is returned."""
    released = asyncio.Event()
    connect = asyncio.BaseEventLoop.create_connection

    async def create_connection(loop, make, host, *args, **options):
        made = await connect(loop, make, host, *args, **options)
        if host in held:
            try:
                await released.wait()
            except asyncio.CancelledError:
                made[0].abort()
                raise
        return made

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", create_connection)
    return released


def test_an_address_that_is_slow_is_overtaken_by_the_next_one(resolve, monkeypatch):
    """A network may lose all packets to one of the addresses of a host."""
    port = free_port()
    resolve(*HOSTS[:2])
    monkeypatch.setattr(opening, "EYEBALLS_SECONDS", 0.0)

    async def main():
        hold(monkeypatch, HOSTS[0])
        async with serving(HOSTS[0], port), serving(HOSTS[1], port):
            transport = await open_connection(Address("feeds.example", port))
            async with closing(transport):
                assert peer_of(transport) == HOSTS[1]

    run(main)


@pytest.mark.filterwarnings("error")
def test_a_cancelled_call_leaves_no_socket(resolve, monkeypatch):
    """Connections are complete at that moment, and nobody has them yet."""
    port = free_port()
    resolve(*HOSTS)
    monkeypatch.setattr(opening, "EYEBALLS_SECONDS", 0.0)

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            made = [await stack.enter_async_context(serving(host, port)) for host in HOSTS]
            for turns in range(30):
                task = asyncio.create_task(open_connection(Address("feeds.example", port)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if not task.cancel():
                    (await task).close()
                    continue
                with pytest.raises(asyncio.CancelledError):
                    await task
            await until(lambda: sum(map(len, made)) > 0)

    run(main)
