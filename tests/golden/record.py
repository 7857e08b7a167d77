"""Records sessions of the present release: ``python -m tests.golden.record`` (tests/README.md, "Golden data").

The SDK and nodes of this program talk over sockets of this machine. Every frame goes into the session's file, with what
it means to this release. Ids, branches and times are those of the run. Recordings that are there stay, unless they are
named: ``python -m tests.golden.record writes``.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import trio
from tests.conftest import RawClient
from tests.golden import client_sessions, node_sessions, raw_sessions
from tests.golden.archive import HERE
from tests.golden.make import STORAGE
from tests.golden.raw_sessions import block, connection_of
from tests.golden.recording import SUFFIX, Recorder
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config, until

import tailrace
from tailrace.link.address import Address
from tailrace.model import Level
from tailrace.trio.host import Host
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Write
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Limits
from tailrace_server.state.producers import PRODUCERS_MAX

# No NOOP comes between other frames, however slow the machine is.
LIMITS = Limits(noop_interval_s=100.0)
SEED = 2
# Far more seconds than anything takes on a busy machine.
_PATIENT = {"retry_for": 60, "connect_timeout": 60}


class Stage:
    """What a session plays on: connections that are recorded, and what it tells."""

    def __init__(self, address, scratch, connect):
        self.address = address
        self.scratch = scratch
        self.told = {}
        self._connect = connect
        self._random = random.Random(SEED)

    def client(self, **options):
        """A client of the node. Its ids are the same in each play, so that recordings of two runs differ little."""
        host = Host(connect=self._connect, random=self._random, new_session=lambda: self._random.randbytes(16).hex())
        return tailrace.connect(f"tailrace://{self.address}", host=host, **_PATIENT | options)

    @asynccontextmanager
    async def raw(self, address=None):
        """A connection that sends what it is told to."""
        transport = await self._connect(address or self.address)
        try:
            yield connection_of(transport)
        finally:
            transport.close()

    def tell(self, name, value):
        assert name not in self.told
        self.told[name] = value


class Play(NamedTuple):
    """A session with one node: its program, the node's configuration, and what is done before the recording.

    ``others``: the members of the node's set, besides it, that are not there.
    """

    program: Callable
    changes: Mapping[str, object] = MappingProxyType({})
    prepare: Callable | None = None
    others: int = 0


async def two_branches(node):
    """Gives the node a feed with rows of a branch that has ended."""
    async with tailrace.connect(node.url, retry_for=60) as client:
        await client.call(
            Opcode.CREATE_FEED, {"name": "orders", "feed_id": raw_sessions.FEED_ID.hex(), "partitions": 1}
        )
        for number in range(3):
            await client.feed("orders").put(b"%d" % number, b"1")
    await node.kill()
    await node.start()


async def many_producers(node):
    """Has a partition forget producers: more write to it than it remembers."""
    async with await trio.open_tcp_stream(*node.address) as stream, trio.open_nursery() as nursery:
        connection = RawClient(stream)
        await raw_sessions.feed_of(await raw_sessions.greeted(connection))
        body = Write.encode_fixed(raw_sessions.FEED_ID, Level.MEMORY, 0, None)
        frames = (encode_frame(Opcode.WRITE, body + block(), 10 + id) for id in range(PRODUCERS_MAX + 1))
        nursery.start_soon(connection.send, *frames)
        for _ in range(PRODUCERS_MAX + 1):
            written = await connection.receive()
            assert written.opcode is Opcode.WRITTEN, bytes(written.body)


async def no_space(node):
    """Waits until the node has seen that its disk is nearly full."""
    await until(lambda: node.node.storage.space.low)


_CHANGES = {
    "tokens": {"auth": True},
    "bounds": {"limits": replace(LIMITS, streams_max=1)},
    "full": {"storage": replace(STORAGE, free_bytes_min=1 << 60)},
}
_PREPARATIONS = {"branches": two_branches, "full": no_space, "forgotten": many_producers}
PLAYS = {
    name: Play(program, _CHANGES.get(name, {}), _PREPARATIONS.get(name), 2 if name == "promises" else 0)
    for name, program in {**client_sessions.SESSIONS, **raw_sessions.SESSIONS}.items()
}


@asynccontextmanager
async def open_stage(play, scratch, connect):
    """A node that is ready for a play, and the stage of it."""
    address, *others = free_addresses(1 + play.others)
    members = (address, *others) if others else ()
    async with trio.open_nursery() as nursery:
        changes = {"storage": STORAGE, "limits": LIMITS, "members": members} | play.changes
        config = make_config(scratch / "data", address, **changes)
        node = MadeNode(config, nursery)
        await node.start()
        if play.prepare is not None:
            await play.prepare(node)
        stage = Stage(Address(*address), scratch, connect)
        if config.auth:
            stage.tell("admin", (scratch / "data" / "admin.token").read_text().strip())
        if members:
            stage.tell("members", [str(member) for member in members])
        yield stage
        await node.stop()


def known_texts(session, stage):
    """What stands now for texts of a recorded session."""
    known = dict(zip(session.told.get("members", ()), stage.told.get("members", ()), strict=True))
    return known | ({session.told["admin"]: stage.told["admin"]} if "admin" in session.told else {})


async def record_play(play, scratch):
    """Records a session of clients with one node."""
    recorder = Recorder()
    async with open_stage(play, scratch, recorder.connect) as stage:
        await play.program(stage)
    return recorder.session(stage.told)


# Members ask each other for their state all the time.
_LOOKS_MAX = 8


async def record_nodes(session, scratch):
    """Records a session of nodes."""
    recorder = Recorder()
    async with trio.open_nursery() as nursery:
        await session(scratch, nursery, recorder)
        nursery.cancel_scope.cancel()
    looks = {Opcode.HELLO, Opcode.HELLO_OK, Opcode.MEMBER, Opcode.RESULT}
    found = [number for number, opcodes in recorder.opcodes().items() if set(opcodes) <= looks]
    return recorder.session({}, drops=frozenset(found[_LOOKS_MAX:]))


def recordings():
    """The name of each session, and the function that records it in a folder."""
    plays = {name: partial(record_play, play) for name, play in PLAYS.items()}
    return plays | {name: partial(record_nodes, session) for name, session in node_sessions.SESSIONS.items()}


def main():
    target = HERE / ".".join(tailrace.__version__.split(".")[:2])
    wanted = sys.argv[1:] or recordings().keys()
    for name, record in recordings().items():
        path = target / f"{name}{SUFFIX}"
        if name not in wanted or (path.exists() and name not in sys.argv):
            continue
        with tempfile.TemporaryDirectory() as made:
            recorded = trio.run(record, Path(made))
        print(f"{path}: {len(recorded.frames)} frames, {recorded.store(path):,} bytes")


if __name__ == "__main__":
    main()
