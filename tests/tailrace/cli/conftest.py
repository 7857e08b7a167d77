"""A node that the command line serves, and ways to call the command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from tests.processes.fixtures import node_process, start_node

import tailrace
from tailrace.cli.commands import run

__all__ = ["node_process", "start_node"]

TAILRACE = Path(sys.executable).with_name("tailrace")
SECONDS_MAX = 120


class Done(NamedTuple):
    """What a command has left."""

    code: int
    out: bytes
    err: str


@pytest.fixture(scope="session")
def served_url(tmp_path_factory):
    """The URL of a node that all tests here share; ``unused_name`` keeps their feeds apart."""
    command = [TAILRACE, "serve", "--data", str(tmp_path_factory.mktemp("served")), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, "--http", "off", "--ws", "off"], stdout=subprocess.PIPE, text=True) as process:
        words = process.stdout.readline().replace(",", "").split()
        yield f"tailrace://{words[words.index('frames') + 2]}"
        process.terminate()


@pytest.fixture
def unused_name(request):
    """A name of a feed that no other test takes."""
    return f"t-{zlib.crc32(request.node.nodeid.encode()):08x}"


@pytest.fixture
def environment(served_url, monkeypatch):
    """The environment of commands that find the node by it."""
    monkeypatch.setenv("TAILRACE_URL", served_url)
    return dict(os.environ)


@pytest.fixture
def call(environment, capsysbinary):
    """Runs a command in this process."""

    def call(*arguments):
        capsysbinary.readouterr()
        code = run([os.fsdecode(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        return Done(code, captured.out, captured.err.decode())

    return call


@pytest.fixture
def start(environment):
    """Runs a command as a process, with pipes; killed at the end."""

    @contextlib.contextmanager
    def start(*arguments, **settings):
        settings = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
        with subprocess.Popen([TAILRACE, *arguments], env=environment, **settings) as process:
            try:
                yield process
            finally:
                process.kill()

    return start


@pytest.fixture
def made_feed(served_url, unused_name):
    """The name of a feed of two partitions."""

    async def make():
        async with tailrace.connect(served_url) as client:
            await client.create_feed(unused_name, partitions=2)

    trio.run(make)
    return unused_name


@pytest.fixture
def write(served_url, made_feed):
    """Writes to ``made_feed``: keys and values; None deletes."""

    def write(*changes):
        async def connected():
            async with tailrace.connect(served_url) as client:
                feed = client.feed(made_feed)
                for key, value in changes:
                    await (feed.delete(key) if value is None else feed.put(key, value))

        trio.run(connected)

    return write
