"""The JSON of etcd's HTTP gateway (v3): requests, answers and errors. Pure.

Keys and values are base64, 64-bit numbers are texts, and zeros are left out.
"""

from __future__ import annotations

import base64
import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tailrace_server.coordination.coordinator import Entry, Put, StoreDamaged, Unchanged

_TEXT_MAX = 300


class Header(NamedTuple):
    """The part that each answer has: the id of etcd's cluster, and the revision of its last change."""

    cluster_id: int
    revision: int


class Change(NamedTuple):
    """An event of a watch: ``key`` has this entry now; an entry without a value is a deletion."""

    key: str
    entry: Entry


class Watched(NamedTuple):
    """A message of a watch. ``ended``: why etcd ends it; "" if it goes on. ``compacted``: it asked for lost changes."""

    header: Header
    changes: tuple[Change, ...]
    ended: str
    compacted: bool


class Newest(NamedTuple):
    """The number of the keys in a range, and the revision of their last change; 0 without keys.

    A deletion lowers the number, and any other change raises the revision. So equal ones are of the same keys.
    """

    keys: int
    revision: int


class Fault(enum.Enum):
    """The kinds of errors, by what they mean for the request."""

    #: The member has no leader, is overloaded, or is stopping: another one may answer.
    UNAVAILABLE = "unavailable"
    #: The token is missing, unknown or too old: a new one helps.
    TOKEN = "token"
    #: The user, the password or the permissions are refused.
    REFUSED = "refused"
    #: The lease has ended.
    LEASE_GONE = "lease gone"
    #: Etcd takes no writes: its space is used up (NOSPACE), or its data is corrupt.
    READ_ONLY = "read only"
    #: Something else.
    OTHER = "other"


# The codes of gRPC that the gateway tells.
_INVALID_ARGUMENT, _DEADLINE, _NOT_FOUND, _DENIED, _EXHAUSTED, _PRECONDITION = 3, 4, 5, 7, 8, 9
_ABORTED, _INTERNAL, _UNAVAILABLE, _DATA_LOSS, _UNAUTHENTICATED = 10, 13, 14, 15, 16


def encode(text: str | bytes) -> str:
    """Returns a key or value as the gateway wants it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def prefix_range(prefix: str) -> dict[str, str]:
    """Returns the range of the keys that begin with ``prefix``, which is not empty and ends with an ASCII character."""
    return {"key": encode(prefix), "range_end": encode(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def newest_range(range: dict[str, str]) -> dict[str, Any]:
    """Returns the question for the `Newest` of a range."""
    return {**range, "limit": "1", "keys_only": True, "sort_target": "MOD", "sort_order": "DESCEND"}


def newest_in(value: dict[str, Any]) -> Newest:
    """Returns the answer to ``newest_range``. Raises StoreDamaged."""
    return Newest(number(value, "count"), newest_of(entries_of(value)).revision)


def newest_of(entries: Mapping[str, Entry]) -> Newest:
    """Returns the `Newest` of these keys."""
    return Newest(len(entries), max((entry.revision for entry in entries.values()), default=0))


def txn_body(comparisons: Sequence[Unchanged], puts: Sequence[Put]) -> dict[str, Any]:
    """Returns the body of a transaction."""
    compare = [
        {"key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
        for key, revision in comparisons
    ]
    return {"compare": compare, "success": [_request(put) for put in puts], "failure": []}


def _request(put: Put) -> dict[str, Any]:
    if put.value is None:
        return {"request_delete_range": {"key": encode(put.key)}}
    return {"request_put": {"key": encode(put.key), "value": encode(put.value), "lease": str(put.lease)}}


def parse(data: bytes) -> dict[str, Any]:
    """Returns the object in an answer. Raises StoreDamaged."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise StoreDamaged(f"etcd answered {data[:_TEXT_MAX]!r}, which is no JSON") from None
    if not isinstance(value, dict):
        raise StoreDamaged(f"etcd answered {data[:_TEXT_MAX]!r}, which is no object")
    return value


def header_of(value: dict[str, Any]) -> Header:
    """Returns the header of an answer. Raises StoreDamaged."""
    header = value.get("header")
    if not isinstance(header, dict):
        raise StoreDamaged("an answer of etcd has no header")
    return Header(number(header, "cluster_id"), number(header, "revision"))


def number(value: dict[str, Any], name: str) -> int:
    """Returns a number of an answer, 0 if it is left out. Raises StoreDamaged."""
    try:
        return int(value.get(name, 0))
    except (TypeError, ValueError):
        raise StoreDamaged(f"etcd: {name} is {value.get(name)!r:.100}, which is no number") from None


def entries_of(value: dict[str, Any]) -> dict[str, Entry]:
    """Returns the keys in the answer to a range. Raises StoreDamaged."""
    return dict(_pair(each) for each in _list(value, "kvs"))


def _pair(value: Any) -> tuple[str, Entry]:
    try:
        key = base64.b64decode(value["key"], validate=True).decode()
        data = base64.b64decode(value.get("value", ""), validate=True)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StoreDamaged("etcd: a key or value cannot be read") from None
    revision, created, lease = (number(value, name) for name in ("mod_revision", "create_revision", "lease"))
    return key, Entry(data, revision, created, lease)


def watched_of(line: bytes) -> Watched:
    """Returns a message of a watch. Raises StoreDamaged."""
    message = parse(line)
    result = message.get("result")
    if not isinstance(result, dict):
        return Watched(Header(0, 0), (), error_text(message) or "etcd ended the watch", compacted=False)
    changes = tuple(_changes(_list(result, "events")))
    compacted = number(result, "compact_revision") > 0
    ended = ""
    if result.get("canceled"):
        reason = str(result.get("cancel_reason", ""))[:_TEXT_MAX]
        ended = reason or ("its revision was compacted" if compacted else "etcd ended the watch")
    return Watched(header_of(result), changes, ended, compacted)


def _changes(events: Iterable[Any]) -> Iterable[Change]:
    for event in events:
        if not isinstance(event, dict):
            raise StoreDamaged("etcd: an event cannot be read")
        key, entry = _pair(event.get("kv"))
        gone = event.get("type") == "DELETE"
        yield Change(key, Entry(None, entry.revision) if gone else entry)


def _list(value: dict[str, Any], name: str) -> list[Any]:
    found = value.get(name, [])
    if not isinstance(found, list):
        raise StoreDamaged(f"etcd: {name} is no list")
    return found


def error_text(value: dict[str, Any]) -> str:
    """Returns the text of an error, "" if there is none."""
    error = value.get("error", value.get("message", ""))
    if isinstance(error, dict):  # an error within a stream
        error = error.get("message", "")
    return str(error)[:_TEXT_MAX]


def fault_of(status: int, value: dict[str, Any]) -> Fault:
    """Returns the kind of an error, by the status of HTTP and the body."""
    error = value.get("error")
    inner = error if isinstance(error, dict) else value
    code, text = inner.get("code", inner.get("grpc_code", 0)), error_text(value)
    if "auth token" in text or "auth revision" in text or "user name is empty" in text or code == _UNAUTHENTICATED:
        return Fault.TOKEN
    if "authentication" in text or "permission denied" in text or code == _DENIED or status in (401, 403):
        return Fault.REFUSED
    if "lease not found" in text:
        return Fault.LEASE_GONE
    if code in (_EXHAUSTED, _DATA_LOSS) and ("space" in text or "corrupt" in text):
        return Fault.READ_ONLY
    if code in (_DEADLINE, _EXHAUSTED, _ABORTED, _INTERNAL, _UNAVAILABLE) or status >= 500 or status == 429:
        return Fault.UNAVAILABLE
    return Fault.OTHER
