"""Clients whose frames go through WebSocket: everything works as without it, and each failure says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from tests.processes.proxy import Proxy

import tailrace
from tailrace import blocking
from tailrace.errors import Forbidden, ProtocolError, Unreachable
from tailrace_server.serving.tailing import ws_listener

ROWS = 5_000


async def greet_trio(url, connect_timeout=60, **options):
    async with tailrace.connect(url, connect_timeout=connect_timeout, **options):
        pass


async def greet_blocking(url, connect_timeout=60, **options):
    def greet():
        with blocking.connect(url, connect_timeout=connect_timeout, **options):
            pass

    await trio.to_thread.run_sync(greet)


async def greet_asyncio(url, connect_timeout=60, **options):
    async def greet():
        async with tailrace.asyncio.connect(url, connect_timeout=connect_timeout, **options):
            pass

    await trio.to_thread.run_sync(lambda: asyncio.run(greet(), debug=True))


GREETS = [greet_trio, *(pytest.param(greet, marks=pytest.mark.slow) for greet in (greet_blocking, greet_asyncio))]
each_shell = pytest.mark.parametrize("greet", GREETS)


@contextlib.asynccontextmanager
async def listening(running, **options):
    """A WebSocket listener in front of a node that may be started again; gives its port."""
    async with ws_listener(
        lambda transport: running.node.handle(transport), running.node, ("127.0.0.1", 0), **options
    ) as address:
        yield address[1]


@pytest.fixture
async def port(running):
    async with listening(running) as port:
        yield port


@pytest.fixture
async def wss_port(tls_running):
    async with listening(tls_running, tls=tls_running.node.host.tls.for_browsers) as port:
        yield port


async def use(url, tmp_path, **options):
    """Writes, reads, follows, waits for barriers, and fetches segments, with both shells."""
    expected = {b"%d" % number: os.urandom(200) for number in range(ROWS)}
    async with tailrace.connect(url, **options) as client:
        feed = await client.create_feed("orders", partitions=2)
        async with feed.writer() as writer:
            for key, value in expected.items():
                await writer.put(key, value)
        found = {}
        async with feed.consume(until="now") as stream:
            async for event in stream:
                if isinstance(event, tailrace.Mutations):
                    found.update(zip(event.keys(), event.values(), strict=True))
        assert found == expected
        index = tailrace.indexes.MemoryIndex()
        async with feed.follow(index) as follower:
            await feed.delete(b"0")
            await follower.barrier()
            assert len(index.snapshot()) == ROWS - 1
        large = os.urandom(3_000_000)
        await feed.put(b"large", large)
        assert (await feed.get(b"large")).value == large
        await feed.fetch(tmp_path / "copy")

    def without_async():
        with blocking.connect(url, **options) as client:
            feed = client.feed("orders")
            assert feed.get(b"large").value == large
            with feed.writer() as writer:
                for key, value in expected.items():
                    writer.put(key, value)
            assert feed.get(b"7").value == expected[b"7"]
            feed.fetch(tmp_path / "copy")

    await trio.to_thread.run_sync(without_async)

    async def under_asyncio():
        async with tailrace.asyncio.connect(url, **options) as client:
            feed = client.feed("orders")
            assert (await feed.get(b"large")).value == large
            async with feed.writer() as writer:
                for key, value in expected.items():
                    await writer.put(key, value)
            assert {item.key: item.value async for item in feed.items()} == {**expected, b"large": large}
            await feed.fetch(tmp_path / "copy")

    await trio.to_thread.run_sync(lambda: asyncio.run(under_asyncio(), debug=True))


@pytest.mark.slow
async def test_everything_works_through_it(port, tmp_path):
    await use(f"ws://127.0.0.1:{port}", tmp_path)


@pytest.mark.slow
async def test_everything_works_through_it_over_tls(wss_port, authority, tmp_path):
    await use(f"wss://127.0.0.1:{wss_port}", tmp_path, tls=authority.client())


@each_shell
async def test_a_reverse_proxy_may_leave_its_prefix(port, greet):
    await greet(f"ws://127.0.0.1:{port}/some/prefix/")


@each_shell
async def test_other_places_of_the_listener_have_no_frames(port, greet):
    async with trio.open_nursery() as nursery:
        proxy = Renaming(port)
        await nursery.start(proxy.run)
        with pytest.raises(ProtocolError, match=r"the subprotocols tailrace\.frames\.v1 is spoken here"):
            await greet(f"ws://127.0.0.1:{proxy.port}")
        nursery.cancel_scope.cancel()


class Renaming:
    """A reverse proxy that passes on to the wrong place."""

    def __init__(self, target):
        self.target = target

    async def run(self, task_status):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self.relay, listeners)

    async def relay(self, client):
        async with client, await trio.open_tcp_stream("127.0.0.1", self.target) as server:
            await server.send_all((await client.receive_some()).replace(b"/frames ", b"/feeds/x "))
            async for data in server:
                await client.send_all(data)


@each_shell
async def test_a_port_of_frames(running, greet):
    with pytest.raises(ProtocolError, match="does not speak WebSocket: use tailrace://"):
        await greet(running.url.replace("tailrace", "ws"))


@each_shell
async def test_frames_to_a_port_of_websocket(port, greet):
    with pytest.raises((ProtocolError, Unreachable)):
        await greet(f"tailrace://127.0.0.1:{port}", connect_timeout=1)


@each_shell
async def test_a_plain_websocket_to_a_port_with_tls(wss_port, greet):
    with pytest.raises(ProtocolError, match="this port speaks TLS: use https:// or wss://"):
        await greet(f"ws://127.0.0.1:{wss_port}")


@each_shell
async def test_a_websocket_over_tls_to_a_plain_port(port, authority, greet):
    with pytest.raises(ProtocolError, match=r"does not speak TLS: .*ws:// in place of wss://"):
        await greet(f"wss://127.0.0.1:{port}", tls=authority.client())


@each_shell
async def test_the_certificate_is_checked(wss_port, greet):
    with pytest.raises(ProtocolError, match="of an authority that this program does not trust"):
        await greet(f"wss://127.0.0.1:{wss_port}")


@each_shell
async def test_a_node_that_is_not_known_by_the_name(port, greet, monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(ProtocolError, match=r"answers 421 .*--allow-host feeds\.example"):
        await greet(f"ws://feeds.example:{port}")


@each_shell
@pytest.mark.slow
async def test_nothing_listens(greet):
    with pytest.raises(Unreachable):
        await greet("ws://127.0.0.1:9", connect_timeout=0.5)


@each_shell
async def test_tokens_are_required(run_node, node_config, greet):
    running = await run_node(dataclasses.replace(node_config, auth=True))
    token = await trio.Path(f"{running.config.data}/admin.token").read_text()
    async with listening(running) as port:
        await greet(f"ws://127.0.0.1:{port}", token=token.strip())
        with pytest.raises(Forbidden):
            await greet(f"ws://127.0.0.1:{port}")


@each_shell
async def test_another_node_of_the_url_is_tried(running, port, greet):
    frames = running.config.listen[1]
    await greet(f"ws://127.0.0.1:9,127.0.0.1:{frames},127.0.0.1:{port}")


@each_shell
async def test_the_cluster_is_checked(run_node, node_config, greet):
    running = await run_node(dataclasses.replace(node_config, cluster="shop"))
    async with listening(running) as port:
        await greet(f"ws://127.0.0.1:{port}?cluster=shop")
        with pytest.raises(Unreachable, match="is of cluster 'shop', and the URL names cluster 'bank'"):
            await greet(f"ws://127.0.0.1:{port}?cluster=bank", connect_timeout=3)


async def test_a_context_for_a_plain_url(authority):
    for connect in (tailrace.connect, tailrace.asyncio.connect, blocking.connect):
        with pytest.raises(ValueError, match="or wss://"):
            connect("ws://127.0.0.1:1", tls=authority.client())


async def test_a_lost_connection_comes_back(running, port):
    async with trio.open_nursery() as nursery:
        proxy = Proxy(("127.0.0.1", port))
        await nursery.start(proxy.run)
        async with tailrace.connect(f"ws://127.0.0.1:{proxy.port}", retry_for=60) as client:
            feed = await client.create_feed("orders")
            proxy.cut()
            proxy.heal()
            await feed.put(b"k", b"v")
            await running.stop()
            await running.start()
            assert (await feed.get(b"k")).value == b"v"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_lost_connection_comes_back_without_async(running, port):
    async with trio.open_nursery() as nursery:
        proxy = Proxy(("127.0.0.1", port))
        await nursery.start(proxy.run)

        def run():
            with blocking.connect(f"ws://127.0.0.1:{proxy.port}", retry_for=60) as client:
                feed = client.create_feed("orders")
                for number in range(20):
                    trio.from_thread.run_sync(proxy.cut)
                    trio.from_thread.run_sync(proxy.heal)
                    feed.put(b"%d" % number, b"v")
                assert feed.get(b"7").value == b"v"

        await trio.to_thread.run_sync(run)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
def test_without_the_library_the_error_names_the_extra():
    code = (
        "import sys; sys.modules['wsproto'] = None\n"
        "import tailrace\n"
        "for connect in (tailrace.connect, tailrace.asyncio.connect, tailrace.blocking.connect):\n"
        "    try: connect('wss://127.0.0.1:9/')\n"
        "    except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == 3 * [
        "URLs that begin with ws:// or wss:// need wsproto: pip install 'tailrace[ws]'"
    ], done.stderr


def test_the_extra_has_the_library():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    [extra] = [line for line in text.splitlines() if line.startswith("ws = ")]
    assert '"wsproto>=' in extra


@each_shell
async def test_a_certificate_comes_along(run_node, node_config, authority, greet):
    tls = authority.node(client_ca=authority.path, require_client_cert=True)
    running = await run_node(dataclasses.replace(node_config, tls=tls))
    async with listening(running, tls=running.node.host.tls.for_browsers) as port:
        await greet(f"wss://127.0.0.1:{port}", tls=authority.client(authority.issue("shop")))
        with pytest.raises((Forbidden, Unreachable), match="certificate"):
            await greet(f"wss://127.0.0.1:{port}", tls=authority.client())
