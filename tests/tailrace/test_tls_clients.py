"""Clients of nodes that speak TLS, and of nodes that do not: what works, and what each failure says."""

import asyncio
import dataclasses
import os
import ssl
from pathlib import Path

import pytest
import trio

import tailrace
from tailrace import blocking
from tailrace.errors import Forbidden, ProtocolError, Unreachable
from tailrace.tls import TlsFiles, client_context

ROW_BYTES = 500
ROWS = 20_000


async def greet_trio(url, tls=None, connect_timeout=60):
    async with tailrace.connect(url, tls=tls, connect_timeout=connect_timeout):
        pass


async def greet_blocking(url, tls=None, connect_timeout=60):
    def greet():
        with blocking.connect(url, tls=tls, connect_timeout=connect_timeout):
            pass

    await trio.to_thread.run_sync(greet)


async def greet_asyncio(url, tls=None, connect_timeout=60):
    async def greet():
        async with tailrace.asyncio.connect(url, tls=tls, connect_timeout=connect_timeout):
            pass

    await trio.to_thread.run_sync(lambda: asyncio.run(greet(), debug=True))


GREETS = [greet_trio, *(pytest.param(greet, marks=pytest.mark.slow) for greet in (greet_blocking, greet_asyncio))]
each_shell = pytest.mark.parametrize("greet", GREETS)


@pytest.mark.slow
async def test_rows_there_and_back(tls_running, authority):
    async with tailrace.connect(tls_running.url, tls=authority.client()) as client:
        feed = await client.create_feed("orders", partitions=2)
        async with feed.writer() as writer:
            for number in range(ROWS):
                await writer.put(b"%d" % number, b"%d" % number * (ROW_BYTES // 5))
        found = {}
        async with feed.consume(until="now") as stream:
            async for event in stream:
                if isinstance(event, tailrace.Mutations):
                    found.update(zip(event.keys(), event.values(), strict=True))
    assert found == {b"%d" % number: b"%d" % number * (ROW_BYTES // 5) for number in range(ROWS)}


@pytest.mark.slow
async def test_rows_there_and_back_without_async(tls_running, authority):
    def run():
        with blocking.connect(tls_running.url, tls=authority.client()) as client:
            feed = client.create_feed("orders", partitions=2)
            with feed.writer() as writer:
                for number in range(ROWS):
                    writer.put(b"%d" % number, bytes(ROW_BYTES))
            large = bytes(range(256)) * 8_000
            feed.put(b"large", large)
            assert feed.get(b"large").value == large
            assert all(item.value == bytes(ROW_BYTES) for item in feed.get_many([b"1", b"19999"]))

    await trio.to_thread.run_sync(run)


@pytest.mark.slow
async def test_rows_there_and_back_under_asyncio(tls_running, authority):
    async def run():
        async with tailrace.asyncio.connect(tls_running.url, tls=authority.client()) as client:
            feed = await client.create_feed("orders", partitions=2)
            async with feed.writer() as writer:
                for number in range(ROWS):
                    await writer.put(b"%d" % number, bytes(ROW_BYTES))
            large = bytes(range(256)) * 8_000
            await feed.put(b"large", large)
            assert (await feed.get(b"large")).value == large
            assert len([item async for item in feed.items()]) == ROWS + 1

    await trio.to_thread.run_sync(lambda: asyncio.run(run(), debug=True))


@each_shell
async def test_a_plain_client_of_a_node_with_tls(tls_running, greet):
    with pytest.raises(ProtocolError, match="this node speaks TLS: use tailraces://"):
        await greet(tls_running.url.replace("tailraces", "tailrace"))


@each_shell
async def test_a_client_with_tls_of_a_plain_node(running, authority, greet):
    with pytest.raises(ProtocolError, match="does not speak TLS: use tailrace://"):
        await greet(running.url.replace("tailrace", "tailraces"), authority.client())


@each_shell
async def test_an_unknown_authority(tls_running, greet):
    with pytest.raises(ProtocolError, match=r"an authority that this program does not trust .*--tls-ca"):
        await greet(tls_running.url)


@each_shell
async def test_another_host(run_node, node_config, authority, greet):
    config = dataclasses.replace(node_config, tls=authority.node("db.example", name="other"))
    running = await run_node(config)
    with pytest.raises(ProtocolError, match="is for another host"):
        await greet(running.url, authority.client())


@each_shell
async def test_an_expired_certificate(run_node, node_config, authority, greet):
    config = dataclasses.replace(node_config, tls=authority.node())
    config = dataclasses.replace(config, tls=dataclasses.replace(config.tls, cert=authority.issue("old", expired=True)))
    running = await run_node(config)
    with pytest.raises(ProtocolError, match="has expired: renew the file of its --tls-cert"):
        await greet(running.url, authority.client())


@each_shell
async def test_a_certificate_that_is_not_valid_yet(run_node, node_config, authority, greet):
    tls = dataclasses.replace(authority.node(), cert=authority.issue("early", early=True))
    running = await run_node(dataclasses.replace(node_config, tls=tls))
    with pytest.raises(ProtocolError, match="is not valid yet: compare the clocks of both machines"):
        await greet(running.url, authority.client())


@each_shell
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_certificate_that_is_required(run_node, node_config, authority, greet, version):
    tls = authority.node(client_ca=authority.path, require_client_cert=True)
    running = await run_node(dataclasses.replace(node_config, tls=tls))
    with_certificate = authority.client(authority.issue("shop"))
    without = authority.client()
    for context in (with_certificate, without):
        context.minimum_version = context.maximum_version = version
    await greet(running.url, with_certificate)
    with pytest.raises(Forbidden, match=r"requires a certificate of this program: .*--tls-cert"):
        await greet(running.url, without)


@each_shell
async def test_a_certificate_of_another_authority(run_node, node_config, authority, greet, tmp_path):
    others = type(authority)(tmp_path / "others")
    tls = authority.node(client_ca=authority.path, require_client_cert=True)
    running = await run_node(dataclasses.replace(node_config, tls=tls))
    context = client_context(TlsFiles(authority.path, others.issue("shop")))
    with pytest.raises(Forbidden, match="refuses the certificate of this program"):
        await greet(running.url, context)


async def test_another_node_of_the_url_may_do(running, run_node, tmp_path, tls_node_config, authority):
    """The first address speaks no TLS: no reason to give up, if there is another one."""
    tls_running = await run_node(dataclasses.replace(tls_node_config, data=str(tmp_path / "other")))
    urls = f"tailraces://127.0.0.1:{running.config.listen[1]},127.0.0.1:{tls_running.config.listen[1]}"
    async with tailrace.connect(urls, tls=authority.client()) as client:
        assert await client.feeds() == []


async def test_a_lost_connection_comes_back(tls_running, authority):
    async with tailrace.connect(tls_running.url, tls=authority.client()) as client:
        feed = await client.create_feed("orders")
        tls_running.cut_connections()
        await feed.put(b"k", b"v")
        await tls_running.stop()
        await tls_running.start()
        assert (await feed.get(b"k")).value == b"v"


async def test_a_context_for_a_plain_url(authority):
    with pytest.raises(ValueError, match="tls= is for URLs that begin with tailraces://"):
        tailrace.connect("tailrace://127.0.0.1:1", tls=authority.client())
    with pytest.raises(ValueError, match="tls= is for URLs that begin with tailraces://"):
        blocking.connect("tailrace://127.0.0.1:1", tls=authority.client())
    with pytest.raises(ValueError, match="tls= is for URLs that begin with tailraces://"):
        tailrace.asyncio.connect("tailrace://127.0.0.1:1", tls=authority.client())


@each_shell
@pytest.mark.slow
async def test_nothing_listens(greet, authority):
    with pytest.raises(Unreachable):
        await greet("tailraces://127.0.0.1:9", authority.client(), connect_timeout=0.5)


@pytest.mark.slow
async def test_segments_are_fetched_as_they_are(tls_running, authority, tmp_path):
    async with tailrace.connect(tls_running.url, tls=authority.client()) as client:
        feed = await client.create_feed("orders", partitions=2)
        await feed.write([tailrace.Put(b"k%d" % number, os.urandom(2_000)) for number in range(4_000)])
        fetched = await feed.fetch(tmp_path / "copy")
        assert fetched.fetched_bytes > 8_000_000

        def fetch():
            with blocking.connect(tls_running.url, tls=authority.client()) as client:
                client.feed("orders").fetch(tmp_path / "other")

        await trio.to_thread.run_sync(fetch)
        feed_id = (await feed.resolve()).feed_id.hex()
    node = files_of(Path(tls_running.config.data) / "feeds" / feed_id)
    assert files_of(tmp_path / "copy") == files_of(tmp_path / "other") == node


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.seg")}
