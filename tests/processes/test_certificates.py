"""Certificates that are replaced while real nodes run: by SIGHUP, by a change of the files, and of a whole set."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import time
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.processes.node import NodeProcess

from tailrace import blocking
from tailrace.errors import ProtocolError
from tailrace.testing.ports import free_ports
from tailrace.tls import TlsFiles, client_context

pytestmark = pytest.mark.slow

SECONDS_MAX = 120.0


def until(holds):
    """Waits until ``holds()``; nothing tells when another process has got so far."""
    give_up = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


class Files:
    """The files of a node or a client, which are replaced as an operator does it."""

    def __init__(self, folder):
        folder.mkdir()
        self.cert, self.ca = folder / "cert.pem", folder / "ca.pem"

    def replace(self, path, text):
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(path)

    def show(self, issued):
        self.replace(self.cert, Path(issued).read_text())

    def trust(self, *authorities):
        self.replace(self.ca, "".join(Path(authority.path).read_text() for authority in authorities))


def shown(port):
    """The certificate that a new connection sees."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        return sock.getpeercert(binary_form=True)


def issued(path):
    """The first certificate of a file."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = Path(path).read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index(begin) : text.index(end)] + end)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path / "files")


@pytest.fixture
def node(tmp_path, files, authority):
    files.show(authority.issue("first"))
    log = tmp_path / "log"
    node = NodeProcess(tmp_path / "data", options=["--tls-cert", str(files.cert)], log_path=log, log_level="info")
    node.start()
    yield node
    node.kill()


def secure_url(*nodes):
    return "tailraces://" + ",".join(node.address for node in nodes)


def test_sighup_and_a_change_of_the_file_replace_the_certificate(node, files, authority):
    """Open connections stay; a file that cannot be used changes nothing, and is told of."""
    before = shown(node.port)
    with blocking.connect(secure_url(node), tls=authority.client()) as client:
        feed = client.create_feed("orders")
        files.show(authority.issue("second"))
        node.signal(signal.SIGHUP)
        until(lambda: shown(node.port) != before)
        second = shown(node.port)
        files.cert.write_text("no certificate")
        node.signal(signal.SIGHUP)
        until(lambda: client.status().details["tls"]["error"] is not None)
        assert "cert.pem" in client.status().details["tls"]["error"]
        assert "the certificate in use stays" in node.log_path.read_text()
        assert shown(node.port) == second
        files.show(authority.issue("third"))  # without a signal
        until(lambda: shown(node.port) != second)
        until(lambda: client.status().details["tls"]["error"] is None)
        feed.put(b"k", b"v")
        assert client.status().details["connections"][0]["age_s"] > 0
    assert "PRIVATE KEY" not in node.log_path.read_text()


def test_sighup_reads_files_that_look_the_same(node):
    node.signal(signal.SIGHUP)
    until(lambda: "the certificates were read again" in node.log_path.read_text())


@pytest.mark.long
def test_a_running_set_gets_another_authority(tmp_path, authority):
    """In the order of docs/guides/tls.md, with writes at quorum at each step, and a member that starts anew."""
    other = Authority(tmp_path / "other")
    ports = free_ports(3)
    members = ",".join(f"127.0.0.1:{port}" for port in ports)
    all_files = [Files(tmp_path / f"files-{number}") for number in range(3)]
    of_client = Files(tmp_path / "client")
    nodes = []
    for number, (port, files) in enumerate(zip(ports, all_files, strict=True)):
        files.trust(authority)
        files.show(authority.issue(f"node-{number}"))
        options = ["--members", members, "--tls-cert", str(files.cert), "--tls-client-ca", str(files.ca)]
        nodes.append(NodeProcess(tmp_path / f"data-{number}", port=port, options=options))
    of_client.trust(authority)

    def certificates_are_read():
        for node in nodes:
            node.signal(signal.SIGHUP)

    def rows_are_written(key):
        """Writes, and starts a member anew: its connections are all made again, in both directions."""
        context = client_context(TlsFiles(str(of_client.ca)))
        with blocking.connect(secure_url(*nodes), tls=context, retry_for=SECONDS_MAX, connect_timeout=60.0) as client:
            feed = client.feed("orders")
            feed.put(key, b"v", level="quorum")
            late = nodes[key[0] % 3]
            late.kill()
            feed.put(key + b"-without", b"v", level="quorum")
            late.start()
            until(lambda: all_follow(client))
            feed.put(key + b"-after", b"v", level="quorum")

    def all_follow(client):
        replication = client.status().details["replication"]
        return replication["role"] == "leader" and len(replication["replicas"]) == 2

    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(node.kill)
            node.launch()
        for node in nodes:
            node.require_ready()
        context = client_context(TlsFiles(str(of_client.ca)))
        with blocking.connect(secure_url(*nodes), tls=context, retry_for=SECONDS_MAX, connect_timeout=60.0) as client:
            client.create_feed("orders")
        for files in (*all_files, of_client):
            files.trust(authority, other)
        certificates_are_read()
        rows_are_written(b"0 both are trusted")
        for number, files in enumerate(all_files):
            files.show(other.issue(f"node-{number}"))
            nodes[number].signal(signal.SIGHUP)
            rows_are_written(b"%d shows the new one" % number)
        for files in (*all_files, of_client):
            files.trust(other)
        certificates_are_read()
        rows_are_written(b"2 the old one is trusted no more")
        for node in nodes:
            until(lambda node=node: shown(node.port) == issued(other.folder / f"node-{nodes.index(node)}.pem"))
            with (
                pytest.raises(ProtocolError, match="does not trust"),
                blocking.connect(secure_url(node), tls=authority.client(), connect_timeout=5.0),
            ):
                pass
