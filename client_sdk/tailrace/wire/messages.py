"""The messages of greetings, writes, look-ups and errors: a small class each, with ``encode`` and ``decode``. Pure.

The messages of streams are in stream_messages.py. Rare messages are JSON, frequent ones packed integers
(little-endian). Each ``decode`` takes bytes of a peer, and raises ProtocolError alone if they break the protocol.
Layouts: docs/protocol/messages.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

from tailrace._version import __version__
from tailrace.errors import BadBlock, ProtocolError, TailraceError
from tailrace.model import Item, Level, Version, VersionRange
from tailrace.wire.bodies import (
    decode_json,
    encode_json,
    field,
    hex_field,
    positive_field,
    seconds_field,
    seq_field,
    text_fields,
    unpack,
)
from tailrace.wire.failures import error_from_wire, error_to_wire
from tailrace.wire.frames import FRAME_HEADER_BYTES, FRAME_HEADER_FORMAT, encode_frame, frame_header, header_check
from tailrace.wire.opcodes import Opcode

PROTOCOL_VERSION = 1
# The keys of one GET; it bounds the work of one frame.
GET_KEYS_MAX = 4_096
# As globals: an attribute of an Enum is slow to read, and each lone request needs them.
_GET_OPCODE, _GOT_OPCODE = int(Opcode.GET), int(Opcode.GOT)
_WRITE_OPCODE, _WRITTEN_OPCODE = int(Opcode.WRITE), int(Opcode.WRITTEN)
_SESSION = re.compile(r"[0-9a-f]{32}")


def encode_error(error: TailraceError, id: int = 0) -> bytes:
    """Returns an ERROR frame. ``id`` is that of the request or stream that failed; 0: the whole connection."""
    return encode_json(Opcode.ERROR, error_to_wire(error), id)


def decode_error(body: bytes | memoryview) -> TailraceError:
    """Returns the exception of an ERROR frame."""
    try:
        return error_from_wire(decode_json(body, "ERROR"))
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        return ProtocolError(f"ERROR: {error}")


class Hello(NamedTuple):
    """The client's first frame.

    ``token`` is a secret of `model.tokens`. ``session`` is 32 hex digits that only this client knows, or "". The node
    ends an earlier connection with the same digits. ``of_node`` is true if the client is another node, ``takes_traces``
    if it knows TRACE, ``takes_ttls`` if it reads blocks with ttls and expiries, as this program does.
    """

    versions: tuple[int, ...] = (PROTOCOL_VERSION,)
    name: str = ""
    token: str | None = None
    window_bytes: int = 8 * 1024 * 1024
    session: str = ""
    of_node: bool = False
    takes_traces: bool = False
    takes_ttls: bool = True

    def __repr__(self) -> str:
        """Shows neither secret: tracebacks and logs have this text."""
        return f"Hello(name={self.name!r}, window_bytes={self.window_bytes}, of_node={self.of_node})"

    def encode(self) -> bytes:
        value = {**self._asdict(), "versions": list(self.versions)}
        for name in ("session", "of_node", "takes_traces", "takes_ttls"):
            if not value[name]:
                del value[name]
        return encode_json(Opcode.HELLO, value)

    @classmethod
    def decode(cls, body: memoryview) -> Hello:
        value = decode_json(body, "HELLO")
        versions = field(value, "versions", list, "HELLO")
        if not versions or not all(isinstance(v, int) for v in versions):
            raise ProtocolError("HELLO: field 'versions' is not a list of integers")
        window_bytes = positive_field(value, "window_bytes", "HELLO", cls().window_bytes)
        name = field(value, "name", str, "HELLO", "")
        token = field(value, "token", str, "HELLO", None)
        session = field(value, "session", str, "HELLO", "")
        if session and not _SESSION.fullmatch(session):
            raise ProtocolError(f"HELLO: field 'session' is {session!r:.60}, and 32 hex digits are needed")
        of_node = field(value, "of_node", bool, "HELLO", False)
        takes_traces = field(value, "takes_traces", bool, "HELLO", False)
        takes_ttls = field(value, "takes_ttls", bool, "HELLO", False)
        return cls(tuple(versions), name[:200], token, window_bytes, session, of_node, takes_traces, takes_ttls)


class HelloOk(NamedTuple):
    """The node's answer to HELLO: its identity, and the limits that it accepts.

    ``window_bytes`` is the number of bytes that it has under way at most. ``role`` is "leader" or "follower". ``term``
    is the node's term, which grows with each change of leadership. ``leader`` is the address ("HOST:PORT") of the
    leader that the node knows; "" if it knows none or leads itself. ``cluster`` is the name of the cluster, "" if it
    has none. ``default_level`` is the level of a write that names none, in feeds of replication mode stream; "" if the
    node is too old to know writes without a level. ``takes_stream_credit`` is true if it knows a CREDIT of a stream,
    ``takes_traces`` if it knows TRACE, ``takes_progress`` if it knows PROGRESS, ``takes_consumers`` if it knows
    CONSUMER_JOIN, ``takes_ttls`` if it knows rows with ttls.
    """

    version: int
    node_id: str
    cluster_id: str
    software: str
    frame_body_bytes_max: int
    noop_interval_s: float
    levels: tuple[str, ...]
    window_bytes: int = Hello().window_bytes
    role: str = "leader"
    term: int = 0
    leader: str = ""
    cluster: str = ""
    default_level: str = ""
    takes_stream_credit: bool = False
    takes_traces: bool = False
    takes_progress: bool = False
    takes_consumers: bool = False
    takes_ttls: bool = False

    def check_version(self) -> None:
        """Raises ProtocolError if the node speaks another version of the protocol."""
        if self.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the node ({self.software:.60}) speaks version {self.version} of the protocol, this is tailrace "
                f"{__version__} with version {PROTOCOL_VERSION}: use a release that speaks the node's version"
            )

    def encode(self) -> bytes:
        return encode_json(Opcode.HELLO_OK, {**self._asdict(), "levels": list(self.levels)})

    @classmethod
    def decode(cls, body: memoryview) -> HelloOk:
        value = decode_json(body, "HELLO_OK")
        what = "HELLO_OK"
        return cls(
            field(value, "version", int, what),
            hex_field(value, "node_id", 16, what).hex(),
            hex_field(value, "cluster_id", 16, what).hex(),
            field(value, "software", str, what),
            field(value, "frame_body_bytes_max", int, what),
            seconds_field(value, "noop_interval_s", what),
            text_fields(value, "levels", what),
            positive_field(value, "window_bytes", what, Hello().window_bytes),
            field(value, "role", str, what, "leader"),
            seq_field(value, "term", what, 0),
            field(value, "leader", str, what, ""),
            field(value, "cluster", str, what, ""),
            field(value, "default_level", str, what, ""),
            field(value, "takes_stream_credit", bool, what, False),
            field(value, "takes_traces", bool, what, False),
            field(value, "takes_progress", bool, what, False),
            field(value, "takes_consumers", bool, what, False),
            field(value, "takes_ttls", bool, what, False),
        )


# A program that traces has imported this module by itself. A look into ``sys.modules`` is all that the others pay.
TRACING_MODULE = "opentelemetry.trace"
_TRACE = struct.Struct("<16s8sB7xQQ")


class Trace(NamedTuple):
    """The context of a sampled write, as OpenTelemetry has it: ids, and the flags of W3C's Trace Context.

    The seqs are those of the write's rows; 0 in a request, which has none yet.
    """

    trace_id: bytes
    span_id: bytes
    flags: int
    first_seq: int = 0
    last_seq: int = 0

    def encode(self, id: int) -> bytes:
        """Returns the frame. ``id`` is that of the request that follows, or of the stream."""
        return frame_header(Opcode.TRACE, _TRACE.size, id) + _TRACE.pack(*self)

    @classmethod
    def decode(cls, body: memoryview) -> Trace:
        return cls(*unpack(_TRACE, body, "TRACE"))

    def of_request(self) -> Trace:
        """Returns the context alone."""
        return Trace(self.trace_id, self.span_id, self.flags)


class WriteFlag:
    """Bits of a WRITE."""

    RESEND = 1  # this block may have been received before
    IF_ABSENT = 2
    IF_VERSION = 4
    IF_PRESENT = 8  # the deletion is accepted only if the key has a value


_WRITE = struct.Struct("<16sBB6x16sQ")
# The level of a WRITE that leaves the choice to the node. Only a node whose HELLO_OK names its default level knows it.
NODES_LEVEL = 3
_LEVELS = (*Level, None)
_NO_BRANCH = bytes(16)


class Write(NamedTuple):
    """A block for a partition of a feed, behind the fixed part. A frame has one block, and gets one answer.

    ``level`` is None if the node is to choose it (`NODES_LEVEL`).
    """

    feed_id: bytes
    level: Level | None
    flags: int
    branch: bytes  # of if_version, else zeros
    seq: int  # of if_version, else 0
    block: memoryview

    @staticmethod
    def encode_fixed(feed_id: bytes, level: int, flags: int = 0, version: Version | None = None) -> bytes:
        """Returns the part before the block."""
        branch, seq = (version.branch, version.seq) if version is not None else (_NO_BRANCH, 0)
        return _WRITE.pack(feed_id, level, flags, branch, seq)

    @classmethod
    def decode(cls, body: memoryview) -> Write:
        feed_id, level, flags, branch, seq = unpack(_WRITE, body, "WRITE")
        if level > NODES_LEVEL:
            raise BadBlock(f"WRITE: unknown level {level}")
        if flags > 15:
            raise BadBlock(f"WRITE: unknown flags 0x{flags:x}")
        # The constructors of NamedTuple and Enum take four times as long.
        return tuple.__new__(cls, (feed_id, _LEVELS[level], flags, branch, seq, body[_WRITE.size :]))


_WRITTEN = struct.Struct("<I4x16sQQ")


class Written(NamedTuple):
    """The answer to a WRITE: the versions of its rows. First seq 0: IF_PRESENT found no value, nothing was written."""

    partition: int
    branch: bytes
    first_seq: int
    last_seq: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.WRITTEN, _WRITTEN.size, id) + _WRITTEN.pack(*self)

    @classmethod
    def decode(cls, body: memoryview) -> VersionRange:
        return tuple.__new__(VersionRange, unpack(_WRITTEN, body, "WRITTEN"))


_GET = struct.Struct("<16sBB2xI")
_LONE_GET = struct.Struct(_GET.format + "I")


class Get(NamedTuple):
    """A look-up of keys. After the fixed part: a u32 length for each key, then the keys.

    ``state`` is the required role of the node: 0 leader, 1 follower.
    """

    feed_id: bytes
    level: Level
    keys: list[bytes]
    state: int = 0

    def encode(self, id: int) -> bytes:
        feed_id, level, keys, state = self
        lengths = struct.pack(f"<{len(keys)}I", *map(len, keys))
        body = b"".join((_GET.pack(feed_id, level, state, len(keys)), lengths, *keys))
        return encode_frame(Opcode.GET, body, id)

    @classmethod
    def decode(cls, body: memoryview) -> Get:
        feed_id, level, state, count = unpack(_GET, body, "GET")
        if state > 1:
            raise ProtocolError(f"GET: unknown state {state}")
        if level > Level.QUORUM or not 1 <= count <= GET_KEYS_MAX or len(body) < _GET.size + 4 * count:
            raise ProtocolError(f"GET: level {level}, {count} keys in {len(body)} bytes; at most {GET_KEYS_MAX} keys")
        offset = _GET.size + 4 * count
        if count == 1 and _LONE_GET.unpack_from(body)[4] == len(body) - offset:  # the most frequent, in fewer steps
            return tuple.__new__(cls, (feed_id, _LEVELS[level], [bytes(body[offset:])], state))
        lengths = struct.unpack_from(f"<{count}I", body, _GET.size)
        if offset + sum(lengths) != len(body):
            raise ProtocolError("GET: the keys' lengths and the body's length differ")
        # The constructors of NamedTuple and Enum take four times as long.
        return tuple.__new__(cls, (feed_id, _LEVELS[level], _cut(body[offset:], lengths), state))


def _cut(data: memoryview, lengths: Sequence[int]) -> list[bytes]:
    """Cuts ``data`` into strings of these lengths, which are at least one: by one call if all are equally long."""
    width = lengths[0]
    if width and lengths.count(width) == len(lengths):
        return [string for (string,) in struct.iter_unpack(f"{width}s", data)]
    whole = data.tobytes()  # slices of bytes take half the time of those of a view
    return [whole[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]


def lone_write_start(feed_id: bytes, level: int, block_bytes: int, id: int) -> bytes:
    """Returns the part before the block of a WRITE without flags and conditions."""
    return frame_header(_WRITE_OPCODE, _WRITE.size + block_bytes, id) + _WRITE.pack(feed_id, level, 0, _NO_BRANCH, 0)


def lone_get(feed_id: bytes, level: Level, key: bytes, state: int, id: int) -> bytes:
    """Returns the frame of a `Get` of one key, without the steps of a list."""
    body = _LONE_GET.pack(feed_id, level, state, 1, len(key)) + key
    return frame_header(_GET_OPCODE, len(body), id) + body


GOT_COUNT = struct.Struct("<I4x")
GOT_ITEM = struct.Struct("<IIQQ16s")  # found, partition, seq, timestamp, branch


_LONE_GOT = struct.Struct(GOT_COUNT.format + GOT_ITEM.format[1:])


def lone_got(id: int, partition: int, branch: bytes, seq: int, timestamp: int, value: bytes) -> bytes:
    """Returns the frame of a `Got` of one row, without the steps of several."""
    nbytes = len(value)
    head = _LONE_GOT.pack(1, nbytes + 1, partition, seq, timestamp, branch)
    return b"".join((frame_header(_GOT_OPCODE, _LONE_GOT.size + nbytes, id), head, value))


class Got(NamedTuple):
    """The answer to a GET, in the order of its keys: (version, timestamp, value), or None for a key without a value.

    If the values are large it may have fewer items than keys. The client asks again for the other keys.
    """

    items: list[tuple[Version, int, bytes] | None]

    def encode(self, id: int) -> bytes:
        count = len(self.items)
        heads, values = bytearray(count * GOT_ITEM.size), [b""] * count
        for number, item in enumerate(self.items):
            if item is not None:
                (partition, branch, seq), timestamp, value = item
                GOT_ITEM.pack_into(heads, number * GOT_ITEM.size, len(value) + 1, partition, seq, timestamp, branch)
                values[number] = value
        nbytes = GOT_COUNT.size + len(heads) + sum(map(len, values))
        return b"".join((frame_header(Opcode.GOT, nbytes, id), GOT_COUNT.pack(count), heads, *values))

    @staticmethod
    def decode(body: memoryview, keys: list[bytes]) -> list[Item | None]:
        """Returns the items, at least one. ``keys`` are those of the GET."""
        (count,) = unpack(GOT_COUNT, body, "GOT")
        if not 1 <= count <= len(keys) or len(body) < GOT_COUNT.size + count * GOT_ITEM.size:
            raise ProtocolError(f"GOT: {count} items for {len(keys)} keys in {len(body)} bytes")
        items: list[Item | None] = []
        offset = GOT_COUNT.size + count * GOT_ITEM.size
        data = body.tobytes()  # slices of bytes take half the time of those of a view
        heads, new = data[GOT_COUNT.size : offset], tuple.__new__  # the NamedTuples' own takes twice as long
        # Not by columns: tuples that live on at once have the interpreter search for garbage more often.
        for key, (found, partition, seq, timestamp, branch) in zip(keys, GOT_ITEM.iter_unpack(heads), strict=False):
            if not found:
                items.append(None)
                continue
            start, offset = offset, offset + found - 1
            version = new(Version, (partition, branch, seq))
            items.append(new(Item, (key, data[start:offset], version, timestamp)))
        if offset != len(body):
            raise ProtocolError("GOT: the values' lengths and the body's length differ")
        return items


_WRITTEN_FRAME = struct.Struct(FRAME_HEADER_FORMAT + _WRITTEN.format[1:])
_GOT_FRAME = struct.Struct(FRAME_HEADER_FORMAT + _LONE_GOT.format[1:])

# The row of a key: (version, timestamp, value); None for a key without a value.
Row: TypeAlias = tuple[Version, int, bytes] | None


def lone_written(data: bytes | memoryview) -> tuple[int, VersionRange] | None:
    """Reads a WRITTEN that is all of ``data``, as ``lone_answer``."""
    if len(data) != _WRITTEN_FRAME.size:
        return None
    body_bytes, opcode, flags, reserved, id, check, *versions = _WRITTEN_FRAME.unpack(data)
    if body_bytes != _WRITTEN.size or opcode != _WRITTEN_OPCODE or flags or reserved or check != header_check(data):
        return None
    return id, tuple.__new__(VersionRange, versions)


def lone_answer(data: bytes | memoryview) -> tuple[int, VersionRange | Row] | None:
    """Reads a WRITTEN, or a GOT of one key, that is all of ``data``, by one look.

    Returns:
        The id of the request, with the versions of a WRITTEN or the row of a GOT. None for all other bytes: a
        FrameDecoder, `Written` and `Got` find out whether they break the protocol.
    """
    if len(data) == _WRITTEN_FRAME.size:
        return lone_written(data)
    if len(data) < _GOT_FRAME.size:
        return None
    body_bytes, opcode, flags, reserved, id, check, count, found, partition, seq, timestamp, branch = (
        _GOT_FRAME.unpack_from(data)
    )
    if opcode != _GOT_OPCODE or flags or reserved or count != 1 or check != header_check(data):
        return None
    value_bytes = len(data) - _GOT_FRAME.size
    if body_bytes != len(data) - FRAME_HEADER_BYTES or value_bytes != (found - 1 if found else 0):
        return None
    if not found:
        return id, None
    return id, (tuple.__new__(Version, (partition, branch, seq)), timestamp, bytes(data[_GOT_FRAME.size :]))
