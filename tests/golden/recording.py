"""Recorded sessions of the protocol: every frame of some connections, in order, with what it meant to its release."""

from __future__ import annotations

import json
import lzma
from typing import NamedTuple

from tests.golden.archive import HERE
from tests.golden.meaning import CODECS, meaning_of

from tailrace.trio.tcp import connect_tcp
from tailrace.wire.frames import FrameDecoder, encode_frame
from tailrace.wire.opcodes import Opcode

SUFFIX = ".session.xz"
# The connecting side, which a client or another node is, and the side that accepts.
THERE, BACK = "there", "back"


class Recorded(NamedTuple):
    """A frame: the number of its connection, its way, its opcode by name and number, and what it meant.

    ``meaning``: the members as the recording release read them (meaning.py).
    """

    connection: int
    way: str
    name: str
    opcode: int
    flags: int
    id: int
    body: bytes
    meaning: object

    def encode(self):
        """The bytes that went over the wire."""
        return encode_frame(self.opcode, self.body, self.id, self.flags)

    def to_json(self):
        return [*self[:6], self.body.hex(), self.meaning]

    @classmethod
    def from_json(cls, value):
        *fields, body, meaning = value
        return cls(*fields, bytes.fromhex(body), meaning)


class Session(NamedTuple):
    """The frames of all connections, in one order, and what the session's program was told by the SDK."""

    frames: list[Recorded]
    told: dict[str, object]

    def store(self, path):
        """Writes the session to a file, and returns its length."""
        value = {"told": self.told, "frames": [frame.to_json() for frame in self.frames]}
        path.write_bytes(lzma.compress(json.dumps(value, sort_keys=True).encode(), preset=9))
        return path.stat().st_size

    @classmethod
    def load(cls, path):
        value = json.loads(lzma.decompress(path.read_bytes()))
        return cls([Recorded.from_json(frame) for frame in value["frames"]], value["told"])

    def requests(self):
        """For each frame in turn: it, and the opcode and body of the request that it answers, or None."""
        asked = {}
        for frame in self.frames:
            if frame.way == THERE:
                if frame.opcode in ANSWERED:
                    asked[frame.connection, frame.id] = Opcode(frame.opcode), frame.body
                yield frame, None
            else:
                yield frame, asked.get((frame.connection, frame.id))


# Requests whose answer is read by what was asked.
ANSWERED = frozenset(CODECS) - {Opcode.HELLO, Opcode.NOOP, Opcode.TRACE, Opcode.CREDIT, Opcode.BARRIER}


def sessions_of(release):
    """The recorded sessions of a release, by name."""
    return {path.name.removesuffix(SUFFIX): path for path in sorted((HERE / release).glob(f"*{SUFFIX}"))}


class Recorder:
    """Records the frames of connections that are made by ``connect``."""

    def __init__(self):
        self._frames = []
        self._connections = 0

    async def connect(self, address):
        """Connects to a node over TCP; the frames of both ways are recorded, as the connecting side has them."""
        transport = await connect_tcp(address)
        self._connections += 1
        return _RecordedTransport(transport, self._frames, self._connections)

    def session(self, told, drops=frozenset()):
        """What was recorded, without the connections whose numbers are in ``drops``."""
        frames, asked = [], {}
        for number, way, frame in self._frames:
            if number in drops:
                continue
            body = bytes(frame.body)
            if way == THERE and frame.opcode in ANSWERED:
                asked[number, frame.id] = frame.opcode, body
            meaning = meaning_of(frame.opcode, body, asked.get((number, frame.id)) if way == BACK else None)
            frames.append(
                Recorded(number, way, frame.opcode.name, int(frame.opcode), frame.flags, frame.id, body, meaning)
            )
        return Session(frames, told)

    def opcodes(self):
        """The opcodes of each connection, by its number."""
        found = {}
        for number, _, frame in self._frames:
            found.setdefault(number, []).append(frame.opcode)
        return found


class _RecordedTransport:
    """A Transport whose bytes are recorded. It has none of the faster ways of a TcpTransport."""

    def __init__(self, inner, frames, number):
        self._inner = inner
        self._frames = frames
        self._number = number
        self._decoders = {THERE: FrameDecoder(), BACK: FrameDecoder()}

    def _take(self, way, data):
        self._frames += [(self._number, way, frame) for frame in self._decoders[way].receive_data(bytes(data))]

    @property
    def on_drained(self):
        return self._inner.on_drained

    @on_drained.setter
    def on_drained(self, value):
        self._inner.on_drained = value

    @property
    def backlog_bytes(self):
        return self._inner.backlog_bytes

    @property
    def is_broken(self):
        return self._inner.is_broken

    @property
    def peer(self):
        return self._inner.peer

    def send(self, *buffers):
        self._take(THERE, b"".join(buffers))
        self._inner.send(*buffers)

    async def receive(self):
        data = await self._inner.receive()
        self._take(BACK, data)
        return data

    async def run(self):
        await self._inner.run()

    def finish(self):
        self._inner.finish()

    def close(self):
        self._inner.close()
