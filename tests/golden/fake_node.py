"""A node that says to a client of today what the node of a recorded session said then, over a real socket."""

from __future__ import annotations

import contextlib
import json

import trio
from tests.golden.meaning import meaning_of
from tests.golden.record import Stage
from tests.golden.recording import THERE
from tests.golden.replay import UNTIMED, Substitution, differences

from tailrace.link.address import Address
from tailrace.trio.tcp import connect_tcp
from tailrace.wire.frames import FrameDecoder, encode_frame
from tailrace.wire.opcodes import Opcode

_POLL_S = 0.01


class _Accepted:
    """A connection of the client of today: the frames that it has sent and that were not expected yet."""

    def __init__(self, stream):
        self.stream = stream
        self.frames = []
        self._decoder = FrameDecoder()
        self.has_ended = False

    async def run(self):
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in self.stream:
                self.frames += [f for f in self._decoder.receive_data(bytes(data)) if f.opcode not in UNTIMED]
        self.has_ended = True

    def take(self, opcode):
        """The first frame of this kind that has come; None if there is none yet."""
        found = next((frame for frame in self.frames if frame.opcode is opcode), None)
        if found is not None:
            self.frames.remove(found)
        return found


class FakeNode:
    """Plays the node of a recorded session.

    It waits for each recorded frame of the client, and sends each recorded frame of the node. ``wrong`` has what the
    client of today sends otherwise. Clients of 0.2 asked for a feed once for each handle. A client of today does so
    once, so the node passes over a repeated question if another frame comes in its place.
    """

    def __init__(self, session):
        self.wrong = []
        self.address = None
        self._session = session
        self._accepted = []
        self._connections = {}
        self._ids = {}
        self._asked = set()  # the (connection, name of a feed) of each question for its partitions
        self._unasked = set()  # the (connection, id) of each question that was passed over
        self._known = Substitution({})

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        """Listens, and plays the session to its end."""
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = Address("127.0.0.1", listener.socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._accept, [listener])
            task_status.started()
            for frame in self._session.frames:
                await self._play(frame)
            await trio.sleep_forever()

    async def _accept(self, stream):
        accepted = _Accepted(stream)
        self._accepted.append(accepted)
        await accepted.run()

    async def _play(self, recorded):
        opcode = Opcode[recorded.name]
        if opcode in UNTIMED:
            return
        connection = await self._connection(recorded.connection)
        if recorded.way == THERE:
            await self._expect(connection, recorded, opcode)
            return
        if (recorded.connection, recorded.id) in self._unasked:
            return
        id = self._ids.get((recorded.connection, recorded.id), recorded.id)
        frame = encode_frame(opcode, self._known.body(recorded.body), id, recorded.flags)
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the client has read enough
            await connection.stream.send_all(frame)

    async def _connection(self, number):
        """The connection of now for a recorded one: they are made in the same order."""
        while number not in self._connections:
            free = [each for each in self._accepted if each not in self._connections.values()]
            if free:
                self._connections[number] = free[0]
            else:
                await trio.sleep(_POLL_S)
        return self._connections[number]

    async def _expect(self, connection, recorded, opcode):
        is_repeated = self._is_repeated(recorded, opcode)
        while (frame := connection.take(opcode)) is None:
            if is_repeated and (connection.frames or connection.has_ended):
                self._unasked.add((recorded.connection, recorded.id))
                return
            if connection.has_ended:
                self.wrong.append(f"connection {recorded.connection} has ended before {recorded.name}")
                return
            await trio.sleep(_POLL_S)
        self._ids[recorded.connection, recorded.id] = frame.id
        meaning = meaning_of(opcode, bytes(frame.body))
        self._known.learn(recorded.meaning, meaning)
        found = differences(self._known.meaning(recorded.meaning), meaning)
        self.wrong += [f"connection {recorded.connection}, {recorded.name} {recorded.id}{each}" for each in found]

    def _is_repeated(self, recorded, opcode):
        if opcode is not Opcode.PARTITIONS:
            return False
        question = recorded.connection, recorded.meaning["name"]
        is_repeated = question in self._asked
        self._asked.add(question)
        return is_repeated


async def play_sdk(session, program, scratch):
    """Plays a client of today with a recorded node; returns what it sends and is told otherwise."""
    node = FakeNode(session)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        stage = Stage(node.address, scratch, connect_tcp)
        if "admin" in session.told:
            stage.tell("admin", session.told["admin"])
        await program(stage)
        nursery.cancel_scope.cancel()
    return node.wrong + differences(session.told, json.loads(json.dumps(stage.told)), variable=())
