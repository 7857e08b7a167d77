"""The options of TLS of all commands that use a node."""

import dataclasses

import pytest
import trio
import typer

from tailrace.cli.commands import installed_commands
from tailrace.cli.errors import WrongUsage
from tailrace.cli.options import DEFAULT_URL, target
from tailrace.cli.tls_options import connect_to, files, uses_node
from tailrace.link.address import parse_url
from tailrace.tls import TlsFiles


def with_files(function, **options):
    return uses_node(function)(**options)


def commands():
    for name, entry in installed_commands().items():
        if entry.module.startswith("tailrace."):
            loaded = entry.load()
            if isinstance(loaded, typer.Typer):
                yield from (
                    (f"{name} {each.name or each.callback.__name__}", each.callback)
                    for each in loaded.registered_commands
                )
            else:
                yield name, loaded


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in commands()])
def test_every_command_that_takes_a_url_takes_files(name, command):
    annotations = command.__annotations__
    assert ("url" in annotations) == ("tls_ca" in annotations) == ("tls_key" in annotations)


def test_the_url_says_whether_tls_is_used(authority):
    assert with_files(lambda: target("x", "tailrace://a", None, None), tls_ca=authority.path).tls is None
    assert with_files(lambda: target("x", "tailraces://a", None, None), tls_ca=authority.path).tls is not None
    assert target("x", "tailraces://a", None, None).tls is not None
    assert target("x", "tailraces://a/shop", "b:1", None).url == "tailraces://b:1/shop"


def test_files_say_so_without_a_url(authority):
    found = with_files(lambda: target("x", DEFAULT_URL, None, None), tls_ca=authority.path)
    assert found.url == "tailraces://127.0.0.1:4700"
    found = with_files(lambda: target("x", DEFAULT_URL, "b", None), tls_ca=authority.path)
    assert found.url == "tailraces://b:4700"
    assert files() == TlsFiles()


def test_a_bad_file_is_wrong_usage(tmp_path):
    with pytest.raises(WrongUsage, match=r"TLS: .*none\.pem: No such file"):
        with_files(lambda: target("x", "tailraces://a", None, None), tls_ca=str(tmp_path / "none.pem"))
    with pytest.raises(WrongUsage, match=r"TLS: .*none\.pem: No such file"):
        with_files(lambda: connect_to(parse_url("tailraces://a")), tls_ca=str(tmp_path / "none.pem"))


@pytest.mark.slow
async def test_commands_over_tls(call, run_node, node_config, authority):
    tls = authority.node(client_ca=authority.path, require_client_cert=True)
    running = await run_node(dataclasses.replace(node_config, tls=tls))
    options = ("--url", running.url, "--tls-ca", authority.path, "--tls-cert", authority.issue("operator"))
    assert (await trio.to_thread.run_sync(call, "feed", "create", "orders", *options)).code == 0
    assert (await trio.to_thread.run_sync(call, "put", "orders", "k", "v", *options)).code == 0
    assert (await trio.to_thread.run_sync(call, "get", "orders", "k", *options)).out == b"v"
    refused = await trio.to_thread.run_sync(call, "get", "orders", "k", *options[:4])
    assert refused.code == 1
    assert "--tls-cert" in refused.err


def test_a_single_node_of_a_url_through_websocket():
    assert target("x", "ws://a:1,b:2/tailrace?cluster=shop", "c", None).url == "ws://c:80/tailrace?cluster=shop"
    assert target("x", "wss://a:1", None, None).tls is not None


def test_a_command_that_goes_to_nodes_by_their_addresses_refuses_websocket():
    with pytest.raises(WrongUsage, match="use tailrace:// or tailraces://"):
        connect_to(parse_url("ws://a:1"))
