"""The bodies of frames: JSON objects and packed integers. Pure.

All functions raise ProtocolError for a body that breaks the protocol. ``what`` names the message in the error.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

from tailrace.errors import ProtocolError, TailraceError
from tailrace.model.failover import SEQ_MAX, FailoverLog
from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode

# The partition map of 4,096 partitions, each with a failover log of 25 entries, takes 5.2 MiB.
JSON_BODY_BYTES_MAX = 16 * 1024 * 1024
# A name of the domain name system has 253 characters, and a port is behind it.
ADDRESS_LENGTH_MAX = 300


def encode_json(opcode: Opcode, value: Any, id: int = 0) -> bytes:
    """Returns a frame with a JSON body."""
    return encode_frame(opcode, json.dumps(value, separators=(",", ":")).encode(), id)


def decode_json(body: bytes | memoryview, what: str) -> dict[str, Any]:
    """Returns the JSON object in ``body``."""
    if len(body) > JSON_BODY_BYTES_MAX:
        raise ProtocolError(f"{what}: {len(body)} bytes of JSON; at most {JSON_BODY_BYTES_MAX} are accepted")
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what}: the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{what}: the body is not a JSON object")
    return value


def field(value: dict[str, Any], name: str, kind: type, what: str, default: Any = ...) -> Any:
    """Returns the member ``name``, a ``kind``. If it is missing: ``default``, or an error without one."""
    found = value.get(name, default)
    if found is ...:
        raise ProtocolError(f"{what}: field {name!r} is missing")
    if found is not default and (not isinstance(found, kind) or (kind is int and isinstance(found, bool))):
        raise ProtocolError(f"{what}: field {name!r} is {found!r:.60}, not {kind.__name__}")
    return found


def hex_field(value: dict[str, Any], name: str, size: int, what: str) -> bytes:
    """Returns a member of ``size`` bytes in hex."""
    text = field(value, name, str, what)
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != size:
        raise ProtocolError(f"{what}: field {name!r} is {text!r:.60}, not {size} bytes in hex")
    return found


def seq_field(value: dict[str, Any], name: str, what: str, default: Any = ...) -> Any:
    """Returns a member that is a seq or another number up to SEQ_MAX; ``default`` if it is missing."""
    found = field(value, name, int, what, default)
    if found is not default and not 0 <= found <= SEQ_MAX:
        raise ProtocolError(f"{what}: field {name!r} is {found!r:.60}, not a seq")
    return found


def address_field(value: dict[str, Any], name: str, what: str) -> str:
    """Returns the address of a node, as the peer states it, "" without one. Only its length is checked."""
    text: str = field(value, name, str, what)
    if len(text) > ADDRESS_LENGTH_MAX:
        raise ProtocolError(f"{what}: field {name!r} is no address: it has {len(text)} characters")
    return text


def positive_field(value: dict[str, Any], name: str, what: str, default: int) -> int:
    """Returns a member that is a positive integer; ``default`` if it is missing."""
    found: int = field(value, name, int, what, default)
    if found < 1:
        raise ProtocolError(f"{what}: field {name!r} is {found}, not positive")
    return found


def seconds_field(value: dict[str, Any], name: str, what: str) -> float:
    """Returns a member that is a positive number of seconds, at most SEQ_MAX."""
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise ProtocolError(f"{what}: field {name!r} is {found!r:.60}, not a positive number of seconds")
    return float(min(found, SEQ_MAX))


def text_fields(value: dict[str, Any], name: str, what: str) -> tuple[str, ...]:
    """Returns a member that is a list of strings."""
    found = field(value, name, list, what)
    if not all(isinstance(text, str) for text in found):
        raise ProtocolError(f"{what}: field {name!r} is not a list of strings")
    return tuple(found)


def told_log_field(value: dict[str, Any], what: str) -> FailoverLog:
    """Returns the member ``log``, the failover log of a node's partition. It has at least one entry."""
    log = log_field(value, what)
    if not log:
        raise ProtocolError(f"{what}: field 'log' is empty: a node's partition has at least one branch")
    return log


def log_field(value: dict[str, Any], what: str) -> FailoverLog:
    """Returns the member ``log``, a failover log."""
    try:
        return FailoverLog.from_json(field(value, "log", list, what))
    except (ValueError, TypeError, TailraceError) as error:
        raise ProtocolError(f"{what}: field 'log': {error}") from None


def unpack(layout: struct.Struct, body: bytes | memoryview, what: str) -> tuple[Any, ...]:
    """Unpacks the fixed part at the start of ``body``."""
    try:
        return layout.unpack_from(body)
    except struct.error:
        raise ProtocolError(f"{what}: {len(body)} bytes, too short for its fixed part of {layout.size}") from None
