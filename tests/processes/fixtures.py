"""A node in a process of its own, a network in between that breaks, and what a feed has been through."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections import defaultdict
from typing import NamedTuple

import pytest
import trio

import tailrace

from .ports import free_port

# Planted in a node: of a batch, each partition takes some rows at a time.
SMALL_PARTS = """
from tailrace_server import config
from tailrace_server.publishing import publisher
make_storage = config.StorageConfig.__init__
config.StorageConfig.__init__ = lambda self, **said: make_storage(self, **({"publish_bytes_max": 2_000} | said))
publisher.STEP_S = 0.0
"""
NODE = """
import json, sys, trio
from tailrace.link.address import Address
from tailrace_server.config import Config, Limits
from tailrace_server.node.start import open_node

async def main(data, port, limits, members):
    limits, members = Limits(**json.loads(limits)), tuple(Address("127.0.0.1", port) for port in json.loads(members))
    config = Config(data, ("127.0.0.1", int(port)), http=None, ws=None, limits=limits, members=members)
    async with open_node(config) as node:
        print(node.listening[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        node.check()

trio.run(main, *sys.argv[1:])
"""


class NodeProcess:
    """A node over ``data``; it keeps its port from one start to the next, and ends with the tests' process.

    ``planted``: a program that comes before the node's, and makes it wrong in some way. ``members``: the ports of its
    set, its own ``port`` among them; where there is one, ``start`` is the caller's to call.
    """

    def __init__(self, data, *, planted="", port=None, members=(), **limits):
        self.data = str(data)
        self.planted = planted
        self.limits = limits
        self.members = list(members)
        self.port = port or free_port()
        self._process = None
        if not members:
            self.start()

    def start(self):
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                self.planted + NODE,
                self.data,
                str(self.port),
                json.dumps(self.limits),
                json.dumps(self.members),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self._process.stdout.readline()
        assert line, "the node has not come up: see its stderr"
        self.port = int(line)

    @property
    def url(self):
        return f"tailrace://127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        """SIGKILL."""
        self._process.kill()
        self._end()

    @property
    def is_running(self):
        """It has been started, and has not been ended; it may have ended by itself."""
        return self._process is not None

    def died(self):
        """Whether it has ended by itself, by SIGKILL: it is not running any more then."""
        code = self._process.poll()
        if code is None:
            return False
        assert code == -signal.SIGKILL, f"the node has ended with {code}: see its stderr"
        self._end()
        return True

    def stop(self):
        """A clean stop, after a look at every invariant of the node."""
        if self._process is not None:
            code = self._end()
            assert code == 0, f"the node has ended with {code}: see its stderr"

    def _end(self):
        process, self._process = self._process, None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return process.wait(timeout=120)


@pytest.fixture
def start_node(tmp_path):
    """Starts nodes, each over a directory of its own; limits of ``Limits`` by name."""
    nodes = []

    def start(**limits):
        nodes.append(NodeProcess(tmp_path / f"node-{len(nodes)}", **limits))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def node_process(start_node):
    return start_node()


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory):
    """One node for all tests that neither stop it nor look at the whole of it; take ``feed_name``."""
    node = NodeProcess(tmp_path_factory.mktemp("shared-node"))
    yield node
    node.stop()


@pytest.fixture
def feed_name(request):
    """A name that no other test uses."""
    return f"t-{zlib.crc32(request.node.nodeid.encode()):08x}"


class BadNetwork:
    """Forwards connections to ``port``, and cuts each after some bytes, anywhere in a frame, while ``cutting``.

    ``freeze``: nothing passes any more, and nothing is closed.
    """

    def __init__(self, port, seed):
        self.cutting = True
        self.cuts = 0
        self.connections = 0
        self._random = random.Random(seed)
        self._target = port
        self._thawed = threading.Event()
        self._thawed.set()
        self._open = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self):
        return f"tailrace://127.0.0.1:{self._listener.getsockname()[1]}"

    def freeze(self):
        self._thawed.clear()

    def thaw(self):
        self._thawed.set()

    def close(self):
        self.thaw()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        with self._lock:
            for sock in self._open:
                self._reset(sock)
        for thread in self._threads[1:]:
            thread.join()

    def _reset(self, sock):
        # The last of the forwarding threads closes the socket.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self.connections += 1
            with self._lock:
                self._open |= {client, server}
            left = [2]
            # Some cuts fall into the greetings. Most bytes go towards the node; an answer has 56.
            for source, sink, least, most in ((client, server, 1.5, 6.8), (server, client, 2.0, 4.2)):
                budget = int(10 ** self._random.uniform(least, most))
                thread = threading.Thread(target=self._forward, args=(source, sink, budget, left))
                self._threads.append(thread)
                thread.start()

    def _forward(self, source, sink, budget, left):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._thawed.wait()
                part = data[:budget] if self.cutting else data
                sink.sendall(part)
                budget -= len(part)
                if self.cutting and budget <= 0:
                    self.cuts += 1
                    break
        with self._lock:
            self._reset(source)
            self._reset(sink)
            left[0] -= 1
            if not left[0]:
                for sock in (source, sink):
                    self._open.discard(sock)
                    sock.close()


@pytest.fixture
def bad_network():
    """Makes a bad network in front of a node's port."""
    networks = []

    def start(port, seed=0):
        networks.append(BadNetwork(port, seed))
        return networks[-1]

    yield start
    for network in networks:
        network.close()


class Row(NamedTuple):
    partition: int
    seq: int
    key: bytes
    value: bytes | None


class Contents:
    """All that a feed has been through, in order by partition."""

    def __init__(self, rows, blocks):
        self.rows = rows
        self.blocks = blocks

    def history(self):
        """The values of each key, in order; None is a deletion."""
        found = defaultdict(list)
        for row in self.rows:
            found[row.key].append(row.value)
        return dict(found)

    def state(self):
        """The present value of each key that has one."""
        return {key: values[-1] for key, values in self.history().items() if values[-1] is not None}


@pytest.fixture(scope="session")
def contents():
    """Reads a feed: ``contents(url, feed)``, rows and blocks as the node holds them."""

    async def consume(url, feed):
        rows, blocks = [], []
        async with tailrace.connect(url) as client, client.feed(feed).consume(until="now") as stream:
            async for event in stream:
                if isinstance(event, tailrace.Mutations):
                    rows += [Row(event.partition, m.seq, m.key, m.value) for m in event]
                    blocks.append(event.block)
        return Contents(rows, blocks)

    return lambda url, feed="orders": trio.run(consume, url, feed)
