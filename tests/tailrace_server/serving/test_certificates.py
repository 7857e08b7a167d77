"""Certificates of clients as identities: over frames, HTTP and WebSocket."""

import dataclasses
import hashlib
import json
import logging
import ssl

import pytest
import trio
from tests.tailrace_server.serving.secured import Secured
from trio_websocket import connect_websocket_url, open_websocket

import tailrace
from tailrace.tls import TlsFiles, client_context
from tailrace.tls.engine import PeerIdentity
from tailrace_server.serving.console import http_listener
from tailrace_server.serving.console.live import SUBPROTOCOL
from tailrace_server.serving.tailing import ws_listener


@pytest.fixture(scope="module")
def clients(tmp_path_factory, authority):
    """The authority of clients."""
    return type(authority)(tmp_path_factory.mktemp("clients"))


class WithTls(Secured):
    """A node that requires tokens or certificates, and its two authorities."""

    def __init__(self, running, authority, clients):
        super().__init__(running)
        self.authority, self.clients = authority, clients

    def context(self, name="", *, of=None, expired=False):
        """What a client trusts, with a certificate of this name."""
        cert = (of or self.clients).issue(name, f"{name}.example", expired=expired) if name else ""
        return client_context(TlsFiles(self.authority.path, cert))

    def connect(self, token=None, **options):
        return super().connect(token, **{"tls": self.context()} | options)

    async def permit(self, name, role, certificate, **options):
        async with self.connect(self.admin) as client:
            assert await client.create_token(name, role=role, certificate=certificate, **options) == ""


@pytest.fixture
async def node(run_node, node_config, authority, clients):
    tls = authority.node(client_ca=clients.path, peer_ca=authority.path)
    made = WithTls(await run_node(dataclasses.replace(node_config, auth=True, tls=tls)), authority, clients)
    async with made.connect(made.admin) as client:
        await client.create_feed("orders", partitions=4)
        await client.create_feed("payments", partitions=4)
        await client.feed("orders").put(b"eu/1", b"v")
    return made


def fingerprint_of(authority, name):
    with open(authority.folder / f"{name}.pem") as file:
        text = file.read()
    begin = text.index("-----BEGIN CERTIFICATE")
    der = ssl.PEM_cert_to_DER_cert(text[begin : text.index("-----END CERTIFICATE", begin) + 25])
    return hashlib.sha256(der).hexdigest()


@pytest.mark.parametrize("certificate", ["CN=shop", "DNS:Shop.example", "SHA256:"])
async def test_a_certificate_has_the_rights_of_its_name(node, certificate):
    context = node.context("shop")
    if certificate == "SHA256:":
        certificate += fingerprint_of(node.clients, "shop").upper()
    await node.permit("shop", "write", certificate, feeds=["orders"], key_prefix=b"eu/")
    async with node.connect(tls=context) as client:
        await client.feed("orders").put(b"eu/1", b"w")
        assert [info.name for info in await client.feeds()] == ["orders"]
        with pytest.raises(tailrace.Forbidden, match=r"certificate 'shop' \(role write; feeds orders; key prefix"):
            await client.feed("orders").put(b"us/1", b"w")
        with pytest.raises(tailrace.Forbidden, match="may not use feed 'payments'"):
            await client.feed("payments").get(b"eu/1")
        with pytest.raises(tailrace.Forbidden, match="role admin is needed"):
            await client.tokens()


async def test_a_certificate_of_an_unknown_name_has_no_rights(node, caplog):
    await node.permit("shop", "read", "CN=shop")
    for name in ("other", "shop-2"):
        with pytest.raises(tailrace.Forbidden, match=f"CN={name} has no rights here"):
            async with node.connect(tls=node.context(name)):
                pass
    assert any("CN=other' has no rights" in record.getMessage() for record in caplog.records)


async def test_a_name_counts_by_its_kind(node):
    await node.permit("shop", "read", "CN=shop.example")
    with pytest.raises(tailrace.Forbidden, match="has no rights"):
        async with node.connect(tls=node.context("shop")):
            pass


async def test_a_certificate_of_the_authority_of_nodes_is_no_client(node):
    await node.permit("shop", "admin", "CN=shop")
    with pytest.raises(tailrace.Forbidden, match="requires a token"):
        async with node.connect(tls=node.context("shop", of=node.authority)):
            pass


async def test_a_token_counts_before_the_certificate(node):
    await node.permit("shop", "admin", "CN=shop")
    context = node.context("shop")
    token = await node.token("reader", "read")
    async with node.connect(token, tls=context) as client:
        with pytest.raises(tailrace.Forbidden, match=r"token 'reader' \(role read\)"):
            await client.tokens()
    with pytest.raises(tailrace.Forbidden, match="the token is unknown here"):
        async with node.connect("tr1_wrong", tls=context):
            pass


async def test_a_certificate_is_named_once(node):
    await node.permit("shop", "read", "CN=shop")
    with pytest.raises(tailrace.TailraceError, match="'CN=shop' has the rights of 'shop' already"):
        await node.permit("shop-2", "admin", "cn=shop")
    with pytest.raises(ValueError, match="it begins with SHA256:, CN="):
        await node.permit("shop-2", "admin", "shop")


async def test_the_rights_are_listed_and_outlive_a_restart(node):
    await node.permit("shop", "read", "CN=shop")
    await node.running.stop()
    await node.running.start()
    async with node.connect(node.admin) as client:
        assert [(info.name, info.certificate) for info in await client.tokens()] == [("admin", ""), ("shop", "CN=shop")]
    async with node.connect(tls=node.context("shop")) as client:
        assert (await client.feed("orders").get(b"eu/1")).value == b"v"


async def test_no_token_has_the_rights_of_a_certificate(node):
    await node.permit("shop", "admin", "CN=shop")
    async with node.connect(node.admin) as client:
        _, info = await client.tokens()
    for secret in (bytes(32).hex(), ""):
        with pytest.raises(tailrace.Forbidden, match="the token is unknown here"):
            async with node.connect(f"tr1_{info.token_id.hex()}_{secret}"):
                pass


async def to_end(stream):
    async for _ in stream:
        pass


async def test_revoked_rights_end_the_streams(node):
    await node.permit("shop", "read", "CN=shop")
    async with node.connect(node.admin) as admin:
        with pytest.raises(tailrace.Forbidden, match="certificate 'shop' was revoked"):  # noqa: PT012
            async with node.connect(tls=node.context("shop")) as client, client.feed("orders").consume() as stream:
                await anext(aiter(stream))
                await admin.revoke_token("shop")
                await to_end(stream)
        with pytest.raises(tailrace.Forbidden, match="has no rights"):
            async with node.connect(tls=node.context("shop")):
                pass
        await admin.create_token("shop", role="read", certificate="CN=shop")
        async with node.connect(tls=node.context("shop")) as client:
            await client.feeds()


async def test_rights_expire(node):
    await node.permit("shop", "read", "CN=shop", expires_s=0.001)
    with pytest.raises(tailrace.Forbidden, match="has no rights here, or had some that expired"):
        async with node.connect(tls=node.context("shop")):
            pass


async def test_a_connection_ends_with_its_certificate(node):
    await node.permit("shop", "read", "CN=shop")
    authority = node.running.node.services.authority
    async with node.connect(tls=node.context("shop")), node.connect(node.admin):
        [principal] = [
            each.access.principal
            for each in node.running.node.connections
            if each.access.principal.kind == "certificate"
        ]
        expelled = []

        class Guest:
            access = type("Access", (), {"principal": principal._replace(expires_us=1)})

            def expel(self, message):
                expelled.append(message)

        authority._next_expiry_us = 1
        authority.check([Guest()])
    assert expelled == ["certificate 'shop' was revoked or has expired"]


async def test_an_expired_certificate_of_an_open_connection_has_no_rights(node):
    """A client of HTTP, or a page of the console, keeps its connection and asks again."""
    await node.permit("shop", "read", "CN=shop")
    authority, now_us = node.running.node.services.authority, node.running.node.services.clock.wall_us()
    [trusted] = node.running.node.host.tls._loaded.client_authorities
    shown = PeerIdentity("CN=shop", (), trusted, ("CN=shop",), now_us + 60_000_000)
    assert authority.identify(None, "127.0.0.1:1", shown).principal.name == "shop"
    with pytest.raises(tailrace.Forbidden, match="has expired since this connection began"):
        authority.identify(None, "127.0.0.1:1", shown._replace(expires_us=now_us))


async def test_the_audit_log_names_it(node, caplog):
    caplog.set_level(logging.INFO, "tailrace.audit")
    await node.permit("operator", "admin", "CN=olga")
    async with node.connect(tls=node.context("olga")) as client:
        await client.create_feed("later", partitions=1)
    lines = [record.getMessage() for record in caplog.records if record.name == "tailrace.audit"]
    assert 'CREATE_TOKEN {"name": "operator"' in lines[-2]
    assert '"certificate": "CN=olga"' in lines[-2]
    assert lines[-1].startswith("certificate 'operator' (role admin) at 127.0.0.1:")


@pytest.fixture
def browsers(node):
    return node.running.node.host.tls.for_browsers


async def http_get(address, context, path, token=None):
    stream = await trio.open_ssl_over_tcp_stream(*address, ssl_context=context, https_compatible=True)
    authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
    async with stream:
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}Connection: close\r\n\r\n"
        await stream.send_all(request.encode())
        answer = b""
        while data := await stream.receive_some():
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def test_http(node, browsers):
    await node.permit("shop", "read", "CN=shop", feeds=["orders"])
    async with http_listener(node.running.node, ("127.0.0.1", 0), tls=browsers) as address:
        code, body = await http_get(address, node.context("shop"), "/api/status")
        assert code == 200
        assert [feed["name"] for feed in json.loads(body)["feeds"]] == ["orders"]
        code, body = await http_get(address, node.context("shop"), "/api/feeds")
        assert (code, "orders" in body, "payments" in body) == (200, True, False)
        assert (await http_get(address, node.context("other"), "/api/feeds"))[0] == 401
        code, body = await http_get(address, node.context("other"), "/api/status")
        assert (code, "CN=other has no rights" in body) == (401, True)
        assert (await http_get(address, node.context("shop"), "/api/status", "tr1_wrong"))[0] == 401
        assert (await http_get(address, node.context(), "/api/status"))[0] == 401


async def test_websocket(node, browsers):
    await node.permit("shop", "read", "CN=shop", feeds=["orders"])
    running = node.running.node
    async with ws_listener(running.handle, running, ("127.0.0.1", 0), tls=browsers) as address:
        context = node.context("shop")
        async with open_websocket(*address, "/feeds/orders", use_ssl=context) as socket:
            assert json.loads(await socket.get_message())["type"] != "error"
            async with node.connect(node.admin) as client:
                await client.revoke_token("shop")
            while (message := json.loads(await socket.get_message()))["type"] != "error":
                pass
            assert message["error"] == "Forbidden"
        await node.permit("shop", "read", "CN=shop", feeds=["orders"])
        async with open_websocket(*address, "/feeds/payments", use_ssl=context) as socket:
            assert json.loads(await socket.get_message())["error"] == "Forbidden"


async def test_the_console_takes_a_certificate(node, browsers):
    await node.permit("shop", "read", "CN=shop", feeds=["orders"])
    context = node.context("shop")

    async def first(path, subprotocol, watch, wanted):
        """The first message of a type, over TLS."""
        url = f"wss://127.0.0.1:{address[1]}{path}"
        async with trio.open_nursery() as nursery:
            ws = await connect_websocket_url(nursery, url, context, subprotocols=[subprotocol])
            if watch:
                await ws.send_message(json.dumps({"watch": watch}))
            while (message := json.loads(await ws.get_message()))["type"] != wanted:
                pass
            await ws.aclose()
            nursery.cancel_scope.cancel()
        return message

    async with http_listener(node.running.node, ("127.0.0.1", 0), tls=browsers) as address:
        message = await first("/api/live", SUBPROTOCOL, [{"topic": "overview"}], "value")
        assert message["value"]["principal"]["name"] == "shop"
        message = await first("/api/feeds/orders/tail?since=beginning", "tailrace.json.v1", None, "mutations")
        assert [row["key"] for row in message["rows"]] == ["eu/1"]
        message = await first("/api/feeds/payments/tail", "tailrace.json.v1", None, "error")
        assert message["error"] == "Forbidden"
