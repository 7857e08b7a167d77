"""The certificates of a node: which files it takes, and how they are renewed."""

import dataclasses
import logging
import os
import shutil

import pytest
import trio

import tailrace
from tailrace.errors import ProtocolError
from tailrace_server.config import TlsConfig
from tailrace_server.host import tls as module
from tailrace_server.host.tls import NodeTls


@pytest.fixture
def files(authority, tmp_path):
    """A configuration with files of its own."""
    path = tmp_path / "node.pem"
    shutil.copy(authority.issue("first"), path)
    return TlsConfig(str(path), client_ca=authority.path)


def replace(files, source):
    """Replaces the file in one step, as tools for certificates do."""
    new = f"{files.cert}.new"
    shutil.copy(source, new)
    os.replace(new, files.cert)


async def in_thread(function):
    await trio.lowlevel.checkpoint()
    return function()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"cert": ""}, "--tls-cert"),
        ({"cert": "", "key": "x"}, "--tls-cert"),
        ({"require_client_cert": True}, "--tls-client-ca"),
    ],
)
def test_a_configuration_that_contradicts_itself(fields, match):
    with pytest.raises(ValueError, match=match):
        TlsConfig(**({"cert": "node.pem"} | fields))


def test_a_file_that_cannot_be_used(files, tmp_path):
    with pytest.raises(ValueError, match=r"none\.pem: No such file"):
        NodeTls(dataclasses.replace(files, cert=str(tmp_path / "none.pem")))
    with pytest.raises(ValueError, match=r"none\.pem: No such file"):
        NodeTls(dataclasses.replace(files, client_ca=str(tmp_path / "none.pem")))


def test_status(files, authority):
    tls = NodeTls(files)
    assert tls.status()["client_certificates"] == "accepted"
    assert tls.status()["node_certificates"]
    assert tls.status()["error"] is None
    assert NodeTls(dataclasses.replace(files, client_ca="")).status()["client_certificates"] == "none"
    expired = NodeTls(TlsConfig(authority.issue("old", expired=True)))
    assert expired.status()["expires_in_s"] < 0


async def test_changed_files_are_read_again(files, authority, autojump_clock):
    tls = NodeTls(files)
    first = tls.listening
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tls.keep_renewed, in_thread)
        await trio.sleep(10 * module.CHECK_SECONDS)
        assert tls.listening is first
        replace(files, authority.issue("second"))
        await trio.sleep(2 * module.CHECK_SECONDS)
        assert tls.listening is not first
        nursery.cancel_scope.cancel()


async def test_broken_files_keep_the_certificate_and_are_logged_once(files, authority, autojump_clock, caplog):
    tls = NodeTls(files)
    first = tls.listening
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tls.keep_renewed, in_thread)
        with open(files.cert, "w") as file:  # noqa: ASYNC230
            file.write("secret")
        await trio.sleep(10 * module.CHECK_SECONDS)
        assert tls.listening is first
        [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "the certificate in use stays" in line.getMessage()
        assert "secret" not in line.getMessage()
        assert "node.pem" in tls.status()["error"]
        replace(files, authority.issue("second"))
        await trio.sleep(2 * module.CHECK_SECONDS)
        assert tls.listening is not first
        assert tls.status()["error"] is None
        nursery.cancel_scope.cancel()


async def test_new_connections_see_the_new_certificate_and_open_ones_stay(run_node, node_config, files, authority):
    running = await run_node(dataclasses.replace(node_config, tls=files))
    async with tailrace.connect(running.url, tls=authority.client()) as client:
        feed = await client.create_feed("orders")
        [before] = running.node.connections
        replace(files, authority.issue("other", "db.example"))
        assert running.node.host.tls.has_changed()
        assert running.node.host.tls.reload()
        await feed.put(b"k", b"v")
        assert before in list(running.node.connections)
        with pytest.raises(ProtocolError, match="another host"):
            async with tailrace.connect(running.url, tls=authority.client()):
                pass
