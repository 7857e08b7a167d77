"""A real nginx, with the configuration of deploy/, in front of a node."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import trio
from tests.certificates import Authority
from trio_websocket import ConnectionRejected, open_websocket_url, wrap_client_stream

import tailrace
from tailrace.testing.ports import free_port
from tailrace.tls import TlsFiles, client_context
from tailrace_server.serving.console import http_listener
from tailrace_server.serving.console.live import SUBPROTOCOL
from tailrace_server.serving.tailing import ws_listener

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx" / "nginx.conf"
NAME = "data.example.org"
MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
INSTALL = "apt-get install nginx libnginx-mod-stream"
POLL_SECONDS = 0.05

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nginx") is None or not MODULE.exists(), reason=f"needs nginx: {INSTALL}"),
]


class Proxy:
    """An nginx with ports of its own. It knows the node's ports, and no other part of its configuration is changed."""

    def __init__(self, folder, frames, http, ws, authority):
        self._folder = folder
        self.web, self.plain, self.secured = free_port(), free_port(), free_port()
        certificate = authority.issue("proxy", NAME, "localhost")
        changes = {
            "modules/ngx_stream_module.so": str(MODULE),
            "worker_processes auto": "worker_processes 1",
            "/run/nginx.pid": f"{folder}/nginx.pid",
            "/var/log/nginx": str(folder),
            "/etc/nginx/data.example.org.pem": certificate,
            "/etc/nginx/data.example.org.key": certificate,
            "listen 443 ssl": f"listen 127.0.0.1:{self.web} ssl",
            "listen 4700": f"listen 127.0.0.1:{self.plain}",
            "listen 4701 ssl": f"listen 127.0.0.1:{self.secured} ssl",
            "127.0.0.1:4700": f"127.0.0.1:{frames}",
            "127.0.0.1:4780": f"127.0.0.1:{http}",
            "127.0.0.1:4790": f"127.0.0.1:{ws}",
        }
        text = CONFIGURATION.read_text()
        assert [each for each in changes if each not in text] == []
        text = re.sub("|".join(map(re.escape, changes)), lambda found: changes[found[0]], text)
        paths = "".join(
            f"{each}_temp_path {folder}/{each};" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(text.replace("http {", f"http {{ {paths}"))

    @contextlib.contextmanager
    def running(self):
        command = ["nginx", "-p", self._folder, "-c", self._folder / "nginx.conf", "-g", "daemon off;"]
        with open(self._folder / "nginx.out", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield self
        finally:
            process.terminate()
            process.wait()

    async def answers(self):
        """Returns once it accepts connections."""
        for port in (self.web, self.plain, self.secured):
            while True:
                with contextlib.suppress(OSError):
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                await trio.sleep(POLL_SECONDS)

    async def get(self, path, host, context):
        """The status and the body of an answer over HTTPS."""
        plain, answer = await trio.open_tcp_stream("127.0.0.1", self.web), b""
        async with trio.SSLStream(plain, context, server_hostname=NAME, https_compatible=True) as stream:
            request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            await stream.send_all(request.encode())
            while data := await stream.receive_some():
                answer += data
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body


@pytest.fixture(scope="module")
def proxy_authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("proxy-authority"))


@pytest.fixture
def context(proxy_authority):
    """The context of a client that trusts the proxy."""
    return client_context(TlsFiles(proxy_authority.path))


@pytest.fixture
async def proxy(running, proxy_authority, tmp_path):
    node, any_port = running.node, ("127.0.0.1", 0)
    async with (
        http_listener(node, any_port, hosts=[NAME]) as http,
        ws_listener(node.handle, node, any_port, hosts=[NAME, "localhost"]) as ws,
    ):
        made = Proxy(tmp_path, running.config.listen[1], http[1], ws[1], proxy_authority)
        with made.running():
            await made.answers()
            yield made


async def test_the_console_answers_the_name_of_the_proxy_and_no_other(proxy, context):
    assert await proxy.get("/readyz", NAME, context) == (200, b'{"ready":true,"role":"leader","failure":null}')
    status, page = await proxy.get("/", f"{NAME}:{proxy.web}", context)
    assert (status, page[:9].lower()) == (200, b"<!doctype")
    assert (await proxy.get("/readyz", "evil.example", context))[0] == 421


async def test_pages_that_came_through_the_proxy_may_open_the_consoles_websockets(proxy, context):
    here = f"localhost:{proxy.web}"

    async def hear(origin):
        """Hears the first message. A connection that `open_websocket_url` was refused would stay open."""
        plain = await trio.open_tcp_stream("localhost", proxy.web)
        tls = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
        async with tls, trio.open_nursery() as nursery:
            options = {"subprotocols": [SUBPROTOCOL], "extra_headers": [("Origin", origin)]}
            ws = await wrap_client_stream(nursery, tls, here, "/api/live", **options)
            assert "hello" in await ws.get_message()
            nursery.cancel_scope.cancel()

    await hear(f"https://{here}")
    with pytest.RaisesGroup(ConnectionRejected) as refused:
        await hear("https://evil.example")
    assert refused.value.exceptions[0].status_code == 403


def urls(proxy):
    """The URLs that clients have for the node behind the proxy."""
    return (
        f"tailrace://localhost:{proxy.plain}",
        f"tailraces://localhost:{proxy.secured}",
        f"wss://localhost:{proxy.web}/tailrace",
    )


async def test_frames_pass_by_all_three_ways(proxy, context, feed):
    for number, url in enumerate(urls(proxy)):
        tls = None if url.startswith("tailrace:") else context
        async with tailrace.connect(url, tls=tls) as client:
            await client.feed("orders").put(b"key", b"%d" % number)
            assert (await client.feed("orders").get(b"key")).value == b"%d" % number


async def test_a_page_tails_a_feed(proxy, context, feed):
    await feed.put(b"key", b"value")
    url = f"wss://localhost:{proxy.web}/tailrace/feeds/orders"
    async with open_websocket_url(url, ssl_context=context, subprotocols=["tailrace.json.v1"]) as ws:
        while '"key":"key"' not in (await ws.get_message()).replace(" ", ""):
            pass


@pytest.mark.parametrize("number", [0, 1])
async def test_a_consumer_goes_on_when_the_node_behind_the_proxy_was_killed(running, proxy, context, feed, number):
    tls = context if number else None
    async with (
        tailrace.connect(urls(proxy)[number], tls=tls, retry_for=60) as client,
        client.feed("orders").consume() as stream,
    ):
        await feed.put(b"1", b"")
        await until_key(stream, b"1")
        await running.kill()
        await running.start()
        await feed.put(b"2", b"")
        await until_key(stream, b"2")


async def until_key(stream, key):
    async for event in stream:
        if isinstance(event, tailrace.Mutations) and key in [each.key for each in event]:
            return
