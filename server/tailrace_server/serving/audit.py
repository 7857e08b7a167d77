"""The audit log of administration: a line for each request that changes feeds, tokens or members.

    token 'admin' (role admin) at 10.0.0.7:50122: DROP_FEED {"feed": "orders"}: done
    token 'shop' (role write) at 10.0.0.9:41830: CREATE_TOKEN {"name": "x", ...}: refused: Forbidden: ...

The line is written with the answer. The logger is ``tailrace.audit``. Of many requests that are refused, the first
ones have a line each, and the rest one together: `line_limit`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailrace.errors import TailraceError
from tailrace.wire.bodies import decode_json
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.host.line_limit import LineLimit
from tailrace_server.serving.addresses import host_of
from tailrace_server.state.principal import OPEN, Principal

if TYPE_CHECKING:
    from tailrace.wire.frames import Frame
    from tailrace_server.feeds.catalog import Catalog

log = logging.getLogger("tailrace.audit")

AUDITED = frozenset(
    (
        Opcode.CREATE_FEED,
        Opcode.SET_FEED,
        Opcode.DROP_FEED,
        Opcode.CREATE_TOKEN,
        Opcode.REVOKE_TOKEN,
        Opcode.PROMOTE,
        Opcode.HANDOVER,
        Opcode.MEMBER_CHANGE,
    )
)
_ASKED_CHARS_MAX = 500
_ERROR_CHARS_MAX = 300


def asked(frame: Frame, feeds: Catalog) -> str:
    """Returns what a request asks for, in one line without control characters: the names of feeds and tokens."""
    try:
        value = decode_json(frame.body, frame.opcode.name)
    except TailraceError:
        value = {}
    value.pop("secret_hash", None)
    if frame.opcode in (Opcode.DROP_FEED, Opcode.SET_FEED):
        value["feed"] = _feed_name(value, feeds)
    elif frame.opcode is Opcode.REVOKE_TOKEN:
        value["name"] = _token_name(value, feeds)
    return f"{frame.opcode.name} {json.dumps(value):.{_ASKED_CHARS_MAX}}"


def _id_of(value: dict[str, Any], member: str) -> bytes:
    try:
        return bytes.fromhex(str(value.get(member)))
    except ValueError:
        return b""


def _feed_name(value: dict[str, Any], feeds: Catalog) -> str | None:
    feed = feeds.find(_id_of(value, "feed_id"))
    return None if feed is None else feed.info.name


def _token_name(value: dict[str, Any], feeds: Catalog) -> str | None:
    try:
        record = feeds.tokens().find(_id_of(value, "token_id"))
    except TailraceError:  # the handler meets the same error, and answers with it
        return None
    return None if record is None else record.info.name


class AuditLog:
    """The audit log of a node."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._refused = LineLimit()

    def write(self, who: Principal, peer: str, what: str, answer: bytes | None) -> None:
        """Writes the line of a request. ``answer``: the frame of the answer; None if the connection ended before it."""
        name = "anyone" if who is OPEN else str(who)
        if answer is None:
            log.warning("%s at %s: %s: not known: the connection ended before the answer", name, peer, what)
            return
        opcode, body = answer[4], memoryview(answer)[16:]
        if opcode != Opcode.ERROR:
            log.info("%s at %s: %s: done", name, peer, what)
            return
        if not self._refused.permits(f"{name} at {host_of(peer)}: {what.partition(' ')[0]}", self._monotonic()):
            return
        error = decode_error(body)
        text = json.dumps(str(error))[1:-1]
        log.warning("%s at %s: %s: refused: %s: %.*s", name, peer, what, type(error).__name__, _ERROR_CHARS_MAX, text)

    def tick(self, now: float) -> None:
        """Writes how many refused requests had no line. Called now and then."""
        for cause, count in self._refused.ended(now):
            log.warning("%s: refused %d more times", cause, count)
