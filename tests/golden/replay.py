"""Plays one side of a recorded session against a program of today.

`play_requests` sends what the recorded clients sent to a node of today, and compares its answers with those that were
recorded. `FakeNode` sends a client of today what the recorded node sent. Ids that the other side chooses anew are those
of `VARIABLE`: whatever is recorded behind them is replaced by what the other side says now.
"""

from __future__ import annotations

import contextlib
import re

from tests.golden.meaning import meaning_of, read, written
from tests.golden.recording import ANSWERED, THERE

from tailrace.errors import TailraceError
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.wire.frames import FRAME_HEADER_BYTES, FrameDecoder, encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import SegmentFetch

# Members with another value in each run, by name, and why. Their values are not compared. Those in IDS are replaced.
VARIABLE = {
    "timestamp": "the time of the node",
    "node_id": "random, of the directory",
    "cluster_id": "random, of the directory",
    "placement_id": "random, of the directory",
    "branch": "random, of the partition",
    "log": "its branches are random",
    "logs": "its branches are random",
    "checkpoint": "random, of the checkpoint",
    "id": "random, of a checkpoint or a segment",
    "token_id": "random, of the token",
    "session": "random, of the client",
    "token": "random, of the client",
    "producer_id": "random, of the client",
    "cookie": "of the client",
    "checksum": "of a file with times",
    "digest": "of a file with times",
    "nbytes": "of a file, whose format may have changed",
    "data": "of a file with times",
    "kept_s": "a setting",
    "uptime_s": "the time of the node",
    "created_at": "the time of the node",
    "committed_us": "the time of the node",
    "joined_s": "the time of the node",
    "peer": "of this machine",
    "expires_at": "the time of the node",
    "message": "for people",
    "software": "the release",
    "address": "of this machine",
    "leader": "of this machine",
    "members": "of this machine",
    "known": "of the directory",
    "line": "of the directory",
    "held": "it grows with what the node writes of itself",
    "producers": "its branches are random",
}
MISSING = "missing"
_POSITIONS = re.compile(rb"trp1\.[A-Za-z0-9_-]+")
_HEX_ID = re.compile(r"[0-9a-f]{16,64}")
# Frames that come whenever time or the network say so.
UNTIMED = {Opcode.NOOP, Opcode.CREDIT, Opcode.LEADER_CHECK, Opcode.LEADER_CONFIRM}
# Frames of streams that are compared by what they have brought, not one by one.
_STREAM_NEWS = {
    Opcode.SNAPSHOT_START,
    Opcode.BLOCK,
    Opcode.SNAPSHOT_END,
    Opcode.SEQ_ADVANCED,
    Opcode.ROUND_COMPLETE,
    Opcode.TRACE,
    Opcode.LEADER_SEQS,
    Opcode.PRODUCERS,
    Opcode.SINKS,
}
# Bytes of a file with times and random ids: that they are read is enough.
_FILE_PARTS = {Opcode.SEGMENT_DATA, Opcode.STAGE_DATA}


class Substitution:
    """What stands now for each id of the recording."""

    def __init__(self, known):
        self._now = dict(known)

    def learn(self, recorded, now):
        """Takes the ids of two meanings of the same frame."""
        if isinstance(recorded, str) and isinstance(now, str):
            if recorded != now and _HEX_ID.fullmatch(recorded) and len(recorded) == len(now):
                self._now[recorded] = now
        elif isinstance(recorded, dict) and isinstance(now, dict):
            for name in recorded.keys() & now.keys():
                self.learn(recorded[name], now[name])
        elif isinstance(recorded, list) and isinstance(now, list):
            for one, other in zip(recorded, now, strict=False):
                self.learn(one, other)

    def meaning(self, recorded):
        """A recorded meaning, with the ids of now."""
        if isinstance(recorded, dict):
            return {name: self.meaning(value) for name, value in recorded.items()}
        if isinstance(recorded, list):
            return [self.meaning(value) for value in recorded]
        return self._now.get(recorded, recorded) if isinstance(recorded, str) else recorded

    def rows(self, rows):
        """Recorded rows, with the ids of now in their values: those of the feed ``_feeds`` have some."""
        return [
            [key, None if value is None else self.body(bytes.fromhex(value)).hex(), seq] for key, value, seq in rows
        ]

    def body(self, body):
        """A recorded body, with the ids of now."""
        for recorded, now in self._now.items():
            body = body.replace(recorded.encode(), now.encode())
            if _HEX_ID.fullmatch(recorded) and len(recorded) == 32:
                body = body.replace(bytes.fromhex(recorded), bytes.fromhex(now))
        return _POSITIONS.sub(self._positions, body)

    def _positions(self, found):
        """Recorded positions as text, with the ids of now."""
        positions = Positions.parse(found.group().decode())
        there = {
            number: Position.at(
                FailoverLog([(self._id(entry.branch), entry.term, entry.base) for entry in at.log]), *at[1:5]
            )
            for number, at in positions.items()
        }
        return str(Positions(self._id(positions.cluster_id), self._id(positions.feed_id), there)).encode()

    def _id(self, recorded):
        return bytes.fromhex(self._now.get(recorded.hex(), recorded.hex()))


def differences(recorded, now, path="", variable=VARIABLE):
    """Where a meaning of now differs from the recorded one; new members of now are none, nor are ``variable`` ones."""
    if path.rpartition(".")[2].partition("[")[0] in variable:
        return []
    if isinstance(recorded, dict) and isinstance(now, dict):
        pairs = [(f"{path}.{name}", recorded[name], now.get(name, MISSING)) for name in sorted(recorded)]
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        pairs = [(f"{path}[{number}]", *both) for number, both in enumerate(zip(recorded, now, strict=True))]
    elif _are_positions(recorded) and _are_positions(now):
        return differences(_seqs(recorded), _seqs(now), path, variable)
    else:
        return [] if recorded == now else [f"{path}: {recorded!r} was recorded, it is {now!r}"]
    return [each for place, *both in pairs for each in differences(*both, place, variable)]


def _are_positions(value):
    return isinstance(value, str) and _POSITIONS.fullmatch(value.encode()) is not None


def _seqs(text):
    return {str(number): seq for number, seq in Positions.parse(text).seqs().items()}


def rows_of(meaning):
    """The rows of a block as a consumer has them, without their times."""
    return [[key, value, seq] for key, value, seq, _ in meaning["rows"]]


class Progress:
    """How far the streams of a connection have come."""

    def __init__(self):
        self.rows = {}
        self.seqs = {}
        self.opcodes = {}

    def take(self, opcode, id, meaning):
        self.opcodes.setdefault(id, set()).add(opcode)
        if opcode is Opcode.BLOCK:
            self.rows.setdefault(id, []).extend(rows_of(meaning))
        elif opcode in (Opcode.SNAPSHOT_END, Opcode.SEQ_ADVANCED):
            self.seqs[id] = max(self.seqs.get(id, 0), meaning[1])

    def has_come_to(self, other):
        """Whether this is as far as another one."""
        return (
            all(self.seqs.get(id, 0) >= seq for id, seq in other.seqs.items())
            and all(len(self.rows.get(id, [])) >= len(rows) for id, rows in other.rows.items())
            and all(self.opcodes.get(id, set()) >= opcodes for id, opcodes in other.opcodes.items())
        )


class _Played:
    """One connection of the recording, as it is played to a node of today."""

    def __init__(self, stream):
        self._stream = stream
        self._decoder = FrameDecoder()
        self._asked = {}
        self._answers = []
        self.now, self.recorded = Progress(), Progress()
        self.file_bytes = {}  # of the segments of checkpoints, by id

    async def send(self, frame, body):
        if Opcode[frame.name] in ANSWERED:
            self._asked[frame.id] = Opcode[frame.name], body
        await self._stream.send_all(encode_frame(Opcode[frame.name], body, frame.id, frame.flags))

    async def _receive(self):
        data = await self._stream.receive_some()
        assert data, "the node has closed the connection, and more was recorded"
        for frame in self._decoder.receive_data(bytes(data)):
            request = self._asked.get(frame.id)
            meaning = meaning_of(frame.opcode, bytes(frame.body), request)
            if frame.opcode in _STREAM_NEWS:
                self.now.take(frame.opcode, frame.id, meaning)
            elif frame.opcode not in UNTIMED:
                self._answers.append((frame, meaning))

    async def answer(self, recorded):
        """The next answer to the same request, or of the same kind if it has no id; and its meaning."""
        while True:
            for found in self._answers:
                if found[0].id == recorded.id:
                    self._answers.remove(found)
                    return found
            await self._receive()

    async def come_as_far(self):
        """Waits until the streams have brought as much as the recorded ones had at this point."""
        while not self.now.has_come_to(self.recorded):
            await self._receive()


async def play_requests(session, connect, known):
    """Sends the requests of a session to a node; returns what in its answers differs from the recording.

    ``connect`` opens a stream to the node, and ``known`` has what stands for texts of the recording.
    """
    found, played, ids = [], {}, Substitution(known)
    async with contextlib.AsyncExitStack() as streams:
        for frame in session.frames:
            if frame.connection not in played:
                played[frame.connection] = _Played(await streams.enter_async_context(await connect()))
            wrong = await _play(frame, played[frame.connection], ids)
            found += [f"connection {frame.connection}, {frame.name} {frame.id}{each}" for each in wrong]
            if found:
                break
    for number, connection in played.items():
        for id, rows in connection.recorded.rows.items():
            now, rows = connection.now.rows.get(id, [])[: len(rows)], ids.rows(rows)
            found += [] if now == rows else [f"connection {number}, stream {id}: {now}, and {rows} were recorded"]
    return found


async def _play(frame, connection, ids):
    """Plays one frame; returns what is different."""
    opcode = Opcode[frame.name]
    if frame.way == THERE:
        if opcode is not Opcode.NOOP:
            await connection.send(frame, _fitting(opcode, ids.body(frame.body), connection.file_bytes))
    elif opcode in _STREAM_NEWS:
        connection.recorded.take(opcode, frame.id, frame.meaning)
        await connection.come_as_far()
    elif opcode not in UNTIMED:
        answer, meaning = await connection.answer(frame)
        if answer.opcode is not opcode:
            return [f" is now {answer.opcode.name} {meaning}"]
        ids.learn(frame.meaning, meaning)
        if isinstance(meaning, dict) and "segments" in meaning:
            connection.file_bytes.update({each["id"]: each["nbytes"] for each in meaning["segments"]})
        return [] if opcode in _FILE_PARTS else differences(ids.meaning(frame.meaning), meaning)
    return []


def _fitting(opcode, body, file_bytes):
    """The body of a request, which asks for no more bytes of a segment's file than it has now."""
    if opcode is not Opcode.SEGMENT_FETCH:
        return body
    fetch = SegmentFetch.decode(body)
    nbytes = file_bytes.get(fetch.segment_id.hex(), fetch.nbytes)
    return fetch._replace(nbytes=min(fetch.nbytes, nbytes)).encode(0)[FRAME_HEADER_BYTES:]


# Both sides, frame by frame


def misread(session):
    """Yields what is read otherwise than the session's release read it."""
    for frame, request in session.requests():
        try:
            [found] = FrameDecoder().receive_data(frame.encode())
        except TailraceError as error:
            yield f"{frame.name} {frame.id}: {error}"
            continue
        if (found.opcode.name, found.id, found.flags) != (frame.name, frame.id, frame.flags):
            yield f"{frame.name} {frame.id} is read as {found[:3]}"
        else:
            yield from _unlike(frame, meaning_of(found.opcode, frame.body, request))


def miswritten(session):
    """Yields what means something else after it is read and written by this program."""
    for frame, request in session.requests():
        if isinstance(frame.meaning, dict) and "refused" in frame.meaning:
            continue
        opcode = Opcode[frame.name]
        made = written(opcode, read(opcode, frame.body, request), frame.id, request)
        if made is not None:
            [found] = FrameDecoder().receive_data(bytes(made))
            yield from _unlike(frame, meaning_of(found.opcode, bytes(found.body), request))


def _unlike(frame, meaning):
    return [f"{frame.name} {frame.id}{each}" for each in differences(frame.meaning, meaning, variable=())]
