"""A real process with few descriptors: it has more segments than these, and clients take all that are left."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import pytest
import trio

import tailrace

pytestmark = pytest.mark.slow

DESCRIPTORS = 96
PARTITIONS = 48

NODE = """
import resource, sys, trio
from tailrace_server.config import Config, StorageConfig
from tailrace_server.node.start import open_node

async def main(data, descriptors):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), int(descriptors)))
    storage = StorageConfig(flush_age_s=0.2, journal_file_bytes_max=20_000, reserve_bytes=0)
    async with open_node(Config(data, ("127.0.0.1", 0), http=None, ws=None, storage=storage)) as node:
        print(node.listening[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        node.check()
        assert node.storage.journal.failed is None and not node.storage.damages
        print(sum(len(p.chain.segments) for p in node.feeds.partitions()), flush=True)

trio.run(main, *sys.argv[1:])
"""


class FewDescriptors:
    """A node; ``stop`` ends it cleanly, and tells how many segments it had."""

    def __init__(self, data):
        command = [sys.executable, "-c", NODE, str(data), str(DESCRIPTORS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self._process.stdout.readline())
        self.url = f"tailrace://127.0.0.1:{self.port}"

    def stop(self):
        output, _ = self._process.communicate("")
        assert self._process.returncode == 0
        return int(output)

    def kill(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def few(tmp_path):
    node = FewDescriptors(tmp_path / "data")
    yield node
    node.kill()


async def write(feed, round_):
    async with feed.writer() as writer:
        for number in range(10 * PARTITIONS):
            await writer.put(b"k%d" % number, b"%d" % round_ * 50)


async def flushed(client):
    """Once no partition has anything in its write queue."""
    with trio.fail_after(120):
        while True:
            status = await client.status()
            if not any(feed["memory_bytes"] for feed in status.details["feeds"]):
                return
            await trio.sleep(0.05)


async def read(feed):
    found = {}
    async with feed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                found.update((row.key, row.value) for row in event)
    return found


def take_connections(port, most=DESCRIPTORS):
    """As many connections as the node takes, and some that it cannot accept."""
    with contextlib.ExitStack() as opened:
        for _ in range(most):
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        return opened.pop_all()


async def test_a_node_with_few_descriptors_has_many_segments_and_many_clients(few):
    async with tailrace.connect(few.url, retry_for=60) as client:
        feed = await client.create_feed("orders", partitions=PARTITIONS)
        for round_ in range(3):
            await write(feed, round_)
            await flushed(client)
        with take_connections(few.port):
            for round_ in range(3, 6):
                await write(feed, round_)
        expected = {b"k%d" % number: b"5" * 50 for number in range(10 * PARTITIONS)}
        await flushed(client)
        assert await read(feed) == expected
        assert [row.value for row in await feed.get_many(list(expected)[:50])] == [b"5" * 50] * 50
    assert await trio.to_thread.run_sync(few.stop) > 3 * PARTITIONS / 4
