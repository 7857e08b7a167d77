"""What the frames carry: one small class a message, each with ``encode`` and ``decode``. Pure.

Rare messages are JSON, frequent ones packed integers (little-endian). Every ``decode`` takes bytes from outside and
raises ProtocolError, never anything else, where they are not what they should be. Layouts: docs/messages.md.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, NamedTuple

from tailrace.errors import BadBlock, ProtocolError, TailraceError
from tailrace.failover import SEQ_MAX, FailoverLog
from tailrace.model import EndReason, Item, Level, Version, VersionRange
from tailrace.wire.failures import error_from_wire, error_to_wire
from tailrace.wire.filters import EVERYTHING, StreamFilter
from tailrace.wire.frames import FRAME_HEADER_BYTES, encode_frame, frame_header
from tailrace.wire.opcodes import Opcode

PROTOCOL_VERSION = 1
COOKIE_BYTES_MAX = 64
# A GET of more keys is several GETs: bounds the work of one frame.
GET_KEYS_MAX = 4_096
# The partition map of 4,096 partitions, each with a failover log of 25 entries, takes 5.2 MiB.
JSON_BODY_BYTES_MAX = 16 * 1024 * 1024


def encode_json(opcode: Opcode, value: Any, id: int = 0) -> bytes:
    """A frame whose body is JSON."""
    return encode_frame(opcode, json.dumps(value, separators=(",", ":")).encode(), id)


def decode_json(body: bytes | memoryview, what: str) -> dict[str, Any]:
    """The JSON object in ``body``; ProtocolError where it is none. ``what`` names the message in the error."""
    if len(body) > JSON_BODY_BYTES_MAX:
        raise ProtocolError(f"{what}: {len(body)} bytes of JSON; at most {JSON_BODY_BYTES_MAX} are accepted")
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what}: the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{what}: the body is not a JSON object")
    return value


def _field(value: dict[str, Any], name: str, kind: type, what: str, default: Any = ...) -> Any:
    found = value.get(name, default)
    if found is ...:
        raise ProtocolError(f"{what}: field {name!r} is missing")
    if found is not default and (not isinstance(found, kind) or (kind is int and isinstance(found, bool))):
        raise ProtocolError(f"{what}: field {name!r} is {found!r}, not {kind.__name__}")
    return found


def _hex(value: dict[str, Any], name: str, size: int, what: str) -> bytes:
    text = _field(value, name, str, what)
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != size:
        raise ProtocolError(f"{what}: field {name!r} is {text!r}, not {size} bytes in hex")
    return found


def _seq(value: dict[str, Any], name: str, what: str, default: Any = ...) -> Any:
    found = _field(value, name, int, what, default)
    if found is not default and not 0 <= found <= SEQ_MAX:
        raise ProtocolError(f"{what}: field {name!r} is {found}, not a seq")
    return found


def _positive(value: dict[str, Any], name: str, what: str, default: int) -> int:
    found: int = _field(value, name, int, what, default)
    if found < 1:
        raise ProtocolError(f"{what}: field {name!r} is {found}, not positive")
    return found


def _seconds(value: dict[str, Any], name: str, what: str) -> float:
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise ProtocolError(f"{what}: field {name!r} is {found!r}, not a positive number of seconds")
    return float(min(found, SEQ_MAX))


def _texts(value: dict[str, Any], name: str, what: str) -> tuple[str, ...]:
    found = _field(value, name, list, what)
    if not all(isinstance(text, str) for text in found):
        raise ProtocolError(f"{what}: field {name!r} is not a list of strings")
    return tuple(found)


def _log(value: dict[str, Any], what: str) -> FailoverLog:
    try:
        return FailoverLog.from_json(_field(value, "log", list, what))
    except (ValueError, TypeError, TailraceError) as error:
        raise ProtocolError(f"{what}: field 'log': {error}") from None


def _unpack(layout: struct.Struct, body: bytes | memoryview, what: str) -> tuple[Any, ...]:
    try:
        return layout.unpack_from(body)
    except struct.error:
        raise ProtocolError(f"{what}: {len(body)} bytes, too short for its fixed part of {layout.size}") from None


def encode_error(error: TailraceError, id: int = 0) -> bytes:
    """An ERROR frame; ``id`` is the request or stream that failed, 0 the whole connection."""
    return encode_json(Opcode.ERROR, error_to_wire(error), id)


def decode_error(body: bytes | memoryview) -> TailraceError:
    """The exception in an ERROR frame."""
    try:
        return error_from_wire(decode_json(body, "ERROR"))
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        return ProtocolError(f"ERROR: {error}")


class Hello(NamedTuple):
    """The client's first frame."""

    versions: tuple[int, ...] = (PROTOCOL_VERSION,)
    name: str = ""
    token: str | None = None
    window_bytes: int = 8 * 1024 * 1024

    def encode(self) -> bytes:
        return encode_json(Opcode.HELLO, {**self._asdict(), "versions": list(self.versions)})

    @classmethod
    def decode(cls, body: memoryview) -> Hello:
        value = decode_json(body, "HELLO")
        versions = _field(value, "versions", list, "HELLO")
        if not versions or not all(isinstance(v, int) for v in versions):
            raise ProtocolError("HELLO: field 'versions' is not a list of integers")
        window_bytes = _positive(value, "window_bytes", "HELLO", cls().window_bytes)
        name = _field(value, "name", str, "HELLO", "")
        return cls(tuple(versions), name[:200], _field(value, "token", str, "HELLO", None), window_bytes)


class HelloOk(NamedTuple):
    """The server's answer: who it is and what it accepts. ``window_bytes``: what it will have under way at most."""

    version: int
    node_id: str
    cluster_id: str
    software: str
    frame_body_bytes_max: int
    noop_interval_s: float
    levels: tuple[str, ...]
    window_bytes: int = Hello().window_bytes

    def encode(self) -> bytes:
        return encode_json(Opcode.HELLO_OK, {**self._asdict(), "levels": list(self.levels)})

    @classmethod
    def decode(cls, body: memoryview) -> HelloOk:
        value = decode_json(body, "HELLO_OK")
        what = "HELLO_OK"
        return cls(
            _field(value, "version", int, what),
            _hex(value, "node_id", 16, what).hex(),
            _hex(value, "cluster_id", 16, what).hex(),
            _field(value, "software", str, what),
            _field(value, "frame_body_bytes_max", int, what),
            _seconds(value, "noop_interval_s", what),
            _texts(value, "levels", what),
            _positive(value, "window_bytes", what, Hello().window_bytes),
        )


class WriteFlag:
    """Bits of a WRITE."""

    RESEND = 1  # this block may have been received before
    IF_ABSENT = 2
    IF_VERSION = 4
    IF_PRESENT = 8  # a deletion that is taken only where there is something to delete


_WRITE = struct.Struct("<16sBB6x16sQ")


class Write(NamedTuple):
    """A block for a partition of a feed; the block follows the fixed part. One frame, one block, one answer."""

    feed_id: bytes
    level: Level
    flags: int
    branch: bytes  # of if_version, else zeros
    seq: int  # of if_version, else 0
    block: memoryview

    @staticmethod
    def encode_fixed(feed_id: bytes, level: int, flags: int = 0, version: Version | None = None) -> bytes:
        """The part before the block."""
        branch, seq = (version.branch, version.seq) if version is not None else (bytes(16), 0)
        return _WRITE.pack(feed_id, level, flags, branch, seq)

    @classmethod
    def decode(cls, body: memoryview) -> Write:
        feed_id, level, flags, branch, seq = _unpack(_WRITE, body, "WRITE")
        if level > Level.QUORUM:
            raise BadBlock(f"WRITE: unknown level {level}")
        if flags > 15:
            raise BadBlock(f"WRITE: unknown flags 0x{flags:x}")
        return cls(feed_id, Level(level), flags, branch, seq, body[_WRITE.size :])


_WRITTEN = struct.Struct("<I4x16sQQ")


class Written(NamedTuple):
    """The answer to a WRITE: the versions that its rows have. first 0: nothing was written, as nothing was there."""

    partition: int
    branch: bytes
    first_seq: int
    last_seq: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.WRITTEN, _WRITTEN.size, id) + _WRITTEN.pack(*self)

    @classmethod
    def decode(cls, body: memoryview) -> VersionRange:
        return tuple.__new__(VersionRange, _unpack(_WRITTEN, body, "WRITTEN"))


_GET = struct.Struct("<16sB3xI")


class Get(NamedTuple):
    """A look-up of keys. After the fixed part: a u32 length for each key, then the keys."""

    feed_id: bytes
    level: Level
    keys: list[bytes]

    def encode(self, id: int) -> bytes:
        lengths = struct.pack(f"<{len(self.keys)}I", *map(len, self.keys))
        body = _GET.pack(self.feed_id, self.level, len(self.keys)) + lengths + b"".join(self.keys)
        return encode_frame(Opcode.GET, body, id)

    @classmethod
    def decode(cls, body: memoryview) -> Get:
        feed_id, level, count = _unpack(_GET, body, "GET")
        if level > Level.QUORUM or not 1 <= count <= GET_KEYS_MAX or len(body) < _GET.size + 4 * count:
            raise ProtocolError(f"GET: level {level}, {count} keys in {len(body)} bytes; at most {GET_KEYS_MAX} keys")
        lengths = struct.unpack_from(f"<{count}I", body, _GET.size)
        offset = _GET.size + 4 * count
        if offset + sum(lengths) != len(body):
            raise ProtocolError("GET: the keys' lengths and the body's length differ")
        keys = []
        for length in lengths:
            keys.append(bytes(body[offset : offset + length]))
            offset += length
        return cls(feed_id, Level(level), keys)


_GOT_COUNT = struct.Struct("<I4x")
_GOT_ITEM = struct.Struct("<IIQQ16s")  # found, partition, seq, timestamp, branch
_NONE = _GOT_ITEM.pack(0, 0, 0, 0, bytes(16))


class Got(NamedTuple):
    """The answer to a GET, in the order of its keys: (version, timestamp, value), or None where there is nothing.

    It may end early where the values are large: the client asks again for the keys that are left.
    """

    items: list[tuple[Version, int, bytes] | None]

    def encode(self, id: int) -> bytes:
        parts, values = [_GOT_COUNT.pack(len(self.items))], []
        for item in self.items:
            if item is None:
                parts.append(_NONE)
                continue
            (partition, branch, seq), timestamp, value = item
            parts.append(_GOT_ITEM.pack(len(value) + 1, partition, seq, timestamp, branch))
            values.append(value)
        return encode_frame(Opcode.GOT, b"".join(parts + values), id)

    @staticmethod
    def decode(body: memoryview, keys: list[bytes]) -> list[Item | None]:
        """The items, one at least; ``keys`` are those of the GET."""
        (count,) = _unpack(_GOT_COUNT, body, "GOT")
        if not 1 <= count <= len(keys) or len(body) < _GOT_COUNT.size + count * _GOT_ITEM.size:
            raise ProtocolError(f"GOT: {count} items for {len(keys)} keys in {len(body)} bytes")
        items: list[Item | None] = []
        offset = _GOT_COUNT.size + count * _GOT_ITEM.size
        for row, key in enumerate(keys[:count]):
            found, partition, seq, timestamp, branch = _GOT_ITEM.unpack_from(
                body, _GOT_COUNT.size + row * _GOT_ITEM.size
            )
            if not found:
                items.append(None)
                continue
            value = bytes(body[offset : offset + found - 1])
            offset += found - 1
            items.append(Item(key, value, Version(partition, branch, seq), timestamp))
        if offset != len(body):
            raise ProtocolError("GOT: the values' lengths and the body's length differ")
        return items


class StreamRequest(NamedTuple):
    """Asks for a partition from a position on. S, A, B, P: docs/streams.md. ``seq`` None: from now on, or since the

    first mutation that was stamped at ``since_us`` or later (microseconds since 1970 UTC). ``until_us``: likewise, the
    stream ends before the first one that was stamped then or later.
    """

    feed_id: bytes
    partition: int
    log: FailoverLog
    seq: int | None
    snapshot_first: int
    snapshot_last: int
    purge_seq: int | None
    end_seq: int | None
    level: Level
    state: str = "leader"
    filter: StreamFilter = EVERYTHING
    since_us: int | None = None
    until_us: int | None = None

    def encode(self, id: int) -> bytes:
        return encode_json(Opcode.STREAM_REQUEST, self.to_json(), id)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "feed_id": self.feed_id.hex(),
            "partition": self.partition,
            "log": self.log.to_json(),
            "seq": self.seq,
            "snapshot_first": self.snapshot_first,
            "snapshot_last": self.snapshot_last,
            "purge_seq": self.purge_seq,
            "end_seq": self.end_seq,
            "level": self.level.name.lower(),
            "state": self.state,
        }
        if self.filter != EVERYTHING:
            value["filter"] = self.filter.to_json()
        if self.since_us is not None:
            value["since_us"] = self.since_us
        if self.until_us is not None:
            value["until_us"] = self.until_us
        return value

    @classmethod
    def decode(cls, body: memoryview) -> StreamRequest:
        what = "STREAM_REQUEST"
        value = decode_json(body, what)
        try:
            level = Level.parse(_field(value, "level", str, what))
        except ValueError as error:
            raise ProtocolError(f"{what}: {error}") from None
        state = _field(value, "state", str, what)
        if state not in ("leader", "follower"):
            raise ProtocolError(f"{what}: field 'state' is {state!r}, neither 'leader' nor 'follower'")
        request = cls(
            _hex(value, "feed_id", 16, what),
            _seq(value, "partition", what),
            _log(value, what),
            _seq(value, "seq", what, None),
            _seq(value, "snapshot_first", what),
            _seq(value, "snapshot_last", what),
            _seq(value, "purge_seq", what, None),
            _seq(value, "end_seq", what, None),
            level,
            state,
            StreamFilter.from_json(value.get("filter"), what),
            _seq(value, "since_us", what, None),
            _seq(value, "until_us", what, None),
        )
        if request.seq is not None and not request.snapshot_first <= request.seq <= request.snapshot_last:
            raise ProtocolError(f"{what}: seq {request.seq} lies outside of its snapshot")
        if request.seq is not None and request.since_us is not None:
            raise ProtocolError(f"{what}: field 'since_us' is for a request without a seq, this one has {request.seq}")
        return request


class StreamOk(NamedTuple):
    """The stream begins at ``seq``; ``log`` is the partition's failover log.

    ``snapshot``: the run that ``seq`` lies in, where it begins and ends, of a stream that begins at a time.
    """

    partition: int
    seq: int
    log: FailoverLog
    high_seq: int
    snapshot: tuple[int, int] | None = None

    def encode(self, id: int) -> bytes:
        value = {**self._asdict(), "log": self.log.to_json()}
        del value["snapshot"]
        if self.snapshot is not None:
            value["snapshot_first"], value["snapshot_last"] = self.snapshot
        return encode_json(Opcode.STREAM_OK, value, id)

    @classmethod
    def decode(cls, body: memoryview) -> StreamOk:
        what = "STREAM_OK"
        value = decode_json(body, what)
        seq = _seq(value, "seq", what)
        first, last = _seq(value, "snapshot_first", what, None), _seq(value, "snapshot_last", what, None)
        snapshot = None if first is None or last is None else (first, last)
        if snapshot is not None and not first <= seq <= last:
            raise ProtocolError(f"{what}: seq {seq} lies outside of its snapshot")
        return cls(_seq(value, "partition", what), seq, _log(value, what), _seq(value, "high_seq", what), snapshot)


class RollBack(NamedTuple):
    """The stream cannot begin where it was asked for: go back to ``seq`` and ask again from there."""

    partition: int
    seq: int
    log: FailoverLog
    why: str

    def encode(self, id: int) -> bytes:
        return encode_json(Opcode.ROLLBACK, {**self._asdict(), "log": self.log.to_json()}, id)

    @classmethod
    def decode(cls, body: memoryview) -> RollBack:
        what = "ROLLBACK"
        value = decode_json(body, what)
        return cls(
            _seq(value, "partition", what),
            _seq(value, "seq", what),
            _log(value, what),
            _field(value, "why", str, what, ""),
        )


class StreamEnd(NamedTuple):
    """The stream of a partition is over. ``first_seq``: where what was trimmed is the reason, the oldest seq kept."""

    partition: int
    reason: EndReason
    message: str
    term: int = 0
    first_seq: int = 0

    def encode(self, id: int) -> bytes:
        value = {**self._asdict(), "reason": self.reason.value}
        if not self.first_seq:
            del value["first_seq"]
        return encode_json(Opcode.STREAM_END, value, id)

    @classmethod
    def decode(cls, body: memoryview) -> StreamEnd:
        what = "STREAM_END"
        value = decode_json(body, what)
        try:
            reason = EndReason(_field(value, "reason", str, what))
        except ValueError:
            reason = EndReason.ERROR  # from a newer server: reopened, like every end that is not known to be final
        return cls(
            _seq(value, "partition", what),
            reason,
            _field(value, "message", str, what, ""),
            _seq(value, "term", what, 0),
            _seq(value, "first_seq", what, 0),
        )


class ResumeAnswer(NamedTuple):
    """The RESULT of an EXPLAIN_RESUME: what the node would answer to that STREAM_REQUEST, and what it decides by.

    Empty log and zeros: the node has no such partition.
    """

    answer: StreamOk | RollBack | StreamEnd
    log: FailoverLog = FailoverLog()
    high_seq: int = 0
    visible_seq: int = 0
    purge_seq: int = 0
    trim_seq: int = 0

    def to_json(self) -> dict[str, Any]:
        answer = self.answer
        frame = answer.encode(0)
        return {
            **self._asdict(),
            "opcode": Opcode(frame[4]).name,
            "answer": json.loads(frame[FRAME_HEADER_BYTES:]),
            "log": self.log.to_json(),
        }

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> ResumeAnswer:
        what = "RESULT"
        kinds: dict[str, type[StreamOk | RollBack | StreamEnd]] = {
            "STREAM_OK": StreamOk,
            "ROLLBACK": RollBack,
            "STREAM_END": StreamEnd,
        }
        opcode = _field(value, "opcode", str, what)
        if opcode not in kinds:
            raise ProtocolError(f"{what}: field 'opcode' is {opcode!r}, none of {', '.join(kinds)}")
        body = json.dumps(_field(value, "answer", dict, what)).encode()
        seqs = (_seq(value, name, what) for name in ("high_seq", "visible_seq", "purge_seq", "trim_seq"))
        return cls(kinds[opcode].decode(memoryview(body)), _log(value, what), *seqs)


_SNAPSHOT_START = struct.Struct("<II16sQQQ")
_SEQ = struct.Struct("<I4xQ")
_U64 = struct.Struct("<Q")


class SnapshotStartMessage(NamedTuple):
    """All that happened after ``after_seq`` up to ``last_seq`` follows. ``complete``: no superseded row is left out."""

    partition: int
    complete: bool
    branch: bytes
    after_seq: int
    last_seq: int
    purge_seq: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.SNAPSHOT_START, _SNAPSHOT_START.size, id) + _SNAPSHOT_START.pack(*self)

    @classmethod
    def decode(cls, body: memoryview) -> SnapshotStartMessage:
        partition, flags, *rest = _unpack(_SNAPSHOT_START, body, "SNAPSHOT_START")
        return tuple.__new__(cls, (partition, flags & 1 == 1, *rest))


def encode_seq(opcode: Opcode, partition: int, seq: int, id: int) -> bytes:
    """SNAPSHOT_END or SEQ_ADVANCED."""
    return frame_header(opcode, _SEQ.size, id) + _SEQ.pack(partition, seq)


def decode_seq(body: memoryview, what: str) -> tuple[int, int]:
    """(partition, seq) of SNAPSHOT_END or SEQ_ADVANCED."""
    partition, seq = _unpack(_SEQ, body, what)
    return partition, seq


def encode_number(opcode: Opcode, number: int) -> bytes:
    """ROUND_COMPLETE (its number) or CREDIT (bytes consumed)."""
    return frame_header(opcode, _U64.size) + _U64.pack(number)


def decode_number(body: memoryview, what: str) -> int:
    """The number in ROUND_COMPLETE or CREDIT."""
    (number,) = _unpack(_U64, body, what)
    return int(number)


def decode_cookie(body: memoryview, what: str) -> bytes:
    """A barrier's cookie, 1 to 64 bytes."""
    if not 1 <= len(body) <= COOKIE_BYTES_MAX:
        raise ProtocolError(f"{what}: a cookie of {len(body)} bytes; 1 to {COOKIE_BYTES_MAX} are accepted")
    return bytes(body)
