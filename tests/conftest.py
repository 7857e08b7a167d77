"""A node in this process on a free port, clients of it, and a client that says anything at all."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import os
import shutil
import signal
from contextlib import asynccontextmanager

import hypothesis
import pytest
import trio
from tests.certificates import Authority
from tests.tailrace_server.replication.made_set import make_set

import tailrace
from tailrace.errors import TailraceError
from tailrace.testing.ports import free_port
from tailrace.wire.frames import FrameDecoder, encode_frame
from tailrace.wire.messages import Hello, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Config
from tailrace_server.node.start import open_node

# The tests of a tier (make quick, make test, make soak), and their way to the processes that run them.
pytest_plugins = ["tests.tiers", "tests.scheduling", "tests.rewriting", "tests.shaking"]

# No test is about time: where others use the machine, an example of a millisecond may take a second. And no run of the
# tests is about luck: each tries the same examples. TAILRACE_EXAMPLES=new looks for others.
hypothesis.settings.register_profile(
    "tailrace",
    deadline=None,
    derandomize=os.environ.get("TAILRACE_EXAMPLES") != "new",
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tailrace")

# No test of a few seconds takes so long, however little it gets of the machine: one that does hangs, and fails instead.
TEST_SECONDS_MAX = 300.0
ANSWER_SECONDS_MAX = 60.0


def pytest_configure():
    # A shell starts commands of the background with SIGINT ignored, and processes inherit that: the tests of Ctrl-C
    # would wait in vain.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    for item in items:
        if inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.obj = _in_time(item.obj)


def _in_time(function):
    @functools.wraps(function)
    async def test(*arguments, **fixtures):
        with trio.fail_after(TEST_SECONDS_MAX):
            await function(*arguments, **fixtures)

    return test


class RunningNode:
    """A node that can be stopped and started again at the same address, as processes are."""

    def __init__(self, config):
        host, port = config.listen
        self.config = dataclasses.replace(config, listen=(host, port or free_port()))
        self.node = None
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()

    @property
    def url(self):
        return f"{'tailraces' if self.config.tls else 'tailrace'}://127.0.0.1:{self.config.listen[1]}"

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        self._scope, self._stopped = trio.CancelScope(), trio.Event()
        async with open_node(self.config) as self.node:
            self.config = dataclasses.replace(self.config, listen=self.node.listening)
            task_status.started()
            with self._scope:
                await trio.sleep_forever()
            self.node.check()
        self._stopped.set()

    async def stop(self):
        """Stops cleanly."""
        self._scope.cancel()
        await self._stopped.wait()

    async def kill(self):
        """Stops, and leaves the directory as a process that was killed would."""
        await self.stop()
        os.remove(os.path.join(self.config.data, "CLEAN"))

    def copy_data(self, target):
        """What a crash at this moment would leave, where everything written has come to the disk.

        Without files that are about to be renamed, by a thread: they may be gone when their turn comes.
        """
        shutil.copytree(self.config.data, target, ignore=shutil.ignore_patterns("*.new"))

    def put_back(self, source):
        """Makes the data of a stopped node what ``copy_data`` took: whatever came after it is lost."""
        shutil.rmtree(self.config.data)
        shutil.copytree(source, self.config.data)

    def cut_connections(self):
        """Every connection breaks, at the node's side."""
        for connection in list(self.node.connections):
            connection.transport.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """An authority whose certificates the tests share."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def tls_node_config(node_config, authority):
    """A node that speaks TLS."""
    return dataclasses.replace(node_config, tls=authority.node())


@pytest.fixture
async def tls_running(run_node, tls_node_config):
    """A node that speaks TLS, and that may be stopped and started again."""
    return await run_node(tls_node_config)


@pytest.fixture
def node_config(tmp_path):
    return Config(str(tmp_path / "data"), listen=("127.0.0.1", 0), http=None, ws=None)


@pytest.fixture
async def run_node(nursery):
    """A function that starts a node with a config and gives it as `RunningNode`."""

    async def run(config):
        running = RunningNode(config)
        await nursery.start(running.run)
        running.start = functools.partial(nursery.start, running.run)
        return running

    return run


@pytest.fixture
async def running(run_node, node_config):
    """A node that may be stopped and started again."""
    return await run_node(node_config)


@pytest.fixture
async def lose(running, tmp_path):
    """A context: what is done in its body the node forgets at its end, and comes back."""
    copies = (tmp_path / f"copy {number}" for number in itertools.count())

    @asynccontextmanager
    async def losing():
        copy = next(copies)
        running.copy_data(copy)
        yield
        await running.kill()
        running.put_back(copy)
        await running.start()

    return losing


@pytest.fixture
async def node(running):
    """The node of ``running``, for tests that never restart it."""
    return running.node


@pytest.fixture
async def client(running):
    async with tailrace.connect(running.url, retry_for=ANSWER_SECONDS_MAX) as connected:
        yield connected


@pytest.fixture
async def feed(client):
    """A feed of four partitions."""
    return await client.create_feed("orders", partitions=4)


@pytest.fixture
def new_set(tmp_path, nursery):
    """A function that makes a set of new nodes, none of them started."""
    return functools.partial(make_set, tmp_path, nursery)


@pytest.fixture
def set_options():
    """Changes to the configuration of the nodes of ``members``. A file of tests may have its own."""
    return {}


@pytest.fixture
async def members(new_set, set_options):
    """A set of three, with a leader."""
    made = new_set(**set_options)
    await made.start()
    await made.settled()
    return made


class RawClient:
    """A connection that sends whatever it is told to, and reads frames."""

    def __init__(self, stream):
        self.stream = stream
        self._decoder = FrameDecoder()
        self._frames = []

    async def send(self, *parts):
        await self.stream.send_all(b"".join(parts))

    async def ask(self, opcode, body=b"", id=1):
        """Sends a frame; the next frame that comes."""
        await self.send(encode_frame(opcode, bytes(body), id))
        return await self.receive()

    async def hello(self, **fields):
        await self.send(Hello(**fields).encode())
        frame = await self.receive()
        assert frame.opcode is Opcode.HELLO_OK, bytes(frame.body)
        return self

    async def receive(self):
        """The next frame that is no NOOP; None at the end."""
        with trio.fail_after(ANSWER_SECONDS_MAX):
            while True:
                while not self._frames:
                    data = await self.stream.receive_some()
                    if not data:
                        return None
                    self._frames = self._decoder.receive_data(bytes(data))
                frame = self._frames.pop(0)
                if frame.opcode is not Opcode.NOOP:
                    return frame

    async def error(self, id=0):
        """The next frame, which has to be an ERROR, as an exception; of the whole connection where ``id`` is 0."""
        frame = await self.receive()
        assert frame is not None, "the connection ended without a word"
        assert (frame.opcode, frame.id) == (Opcode.ERROR, id)
        error = decode_error(frame.body)
        assert isinstance(error, TailraceError)
        return error

    async def is_closed(self):
        """The node has closed the connection."""
        return await self.receive() is None


@pytest.fixture
def raw(running):
    """A function that opens a `RawClient` as a context."""

    @asynccontextmanager
    async def connect():
        stream = await trio.open_tcp_stream("127.0.0.1", running.config.listen[1])
        async with stream:
            yield RawClient(stream)

    return connect


@pytest.fixture
def terminal():
    """A terminal's two ends, as descriptors: the one to read from, and the one that a program writes to."""
    pty = pytest.importorskip("pty")
    try:
        ends = pty.openpty()
    except OSError as error:
        pytest.skip(f"this machine lends no terminals: {error}")
    yield ends
    for end in ends:
        os.close(end)
