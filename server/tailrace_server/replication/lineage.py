"""Recognises a member on an older copy of its own directory, put back at its own place. Pure.

    start 7 ─── ends at (3, 900) ─── start 8 ─── ends at (4, 120) ─── start 9      what its own MEMBERSHIP says
                                                       ^
                               what another member was told last: start 8, durable up to (4, 100)

Each start of a member has a number and a random token. The journal's end that a start finds is the end of the start
before it. A member tells its starts with its answers. Each other member remembers the last start that it was told of,
and the journal's durable end then. A crash takes nothing of that. So a directory is an older copy if it does not know
of that start, or if that start ended earlier in it. It lacks rows that the member may have acknowledged since, and has
forgotten promises. Its answers do not count until it has caught up with a leader, as those of a replaced disk.

Only a start that was told can expose a copy. Members tell them with every look, seconds after they were written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.model.failover import SEQ_MAX
from tailrace.wire.bodies import field, hex_field

TOKEN_BYTES = 8
# The number of earlier starts that are told. A member that was away for more starts cannot tell, and believes the
# other.
STARTS_MAX = 16
# The number of directories that are remembered: those of the members, and of disks that were replaced.
KNOWN_MAX = 64
# The end of a start whose rows a directory has got from a leader: at or above all ends that were told of it.
END_MAX = (SEQ_MAX, SEQ_MAX)


class MemberStart(NamedTuple):
    """A start of a member: its number from 1, its token (8 bytes), and the journal's end, as file number and offset.

    The end is the one that the next start found, or the durable end when the start was told.
    """

    number: int
    token: bytes
    end: tuple[int, int]


class Lineage(NamedTuple):
    """The starts of a directory as a member tells them: the present one, earlier ones, and if it is an older copy."""

    now: MemberStart
    before: tuple[MemberStart, ...] = ()
    is_older: bool = False


def why_older(name: str, known: MemberStart | None, told: Lineage | None) -> str:
    """Returns the sentence why the answers of the node ``name`` do not count; "" if its directory is no older copy.

    Args:
        name: The node's address.
        known: The last start of the directory that this node was told of; None without any.
        told: The present answer; None by a member of an earlier version, which is believed.
    """
    if told is None:
        return ""
    if told.is_older or (known is not None and not _goes_on(known, told)):
        return (
            f"{name} is on an older copy of its own directory: it lacks writes that it has acknowledged since, and has "
            "no vote until it has caught up with a leader"
        )
    return ""


def _goes_on(known: MemberStart, told: Lineage) -> bool:
    back = told.now.number - known.number
    if back <= 0:
        return back == 0 and told.now.token == known.token
    if back > len(told.before):
        # It tells of its last starts only, or of those since it has caught up with a leader. One that has done neither
        # tells of all its starts.
        return True
    then = told.before[back - 1]
    return then.token == known.token and then.end >= known.end


def learned(known: MemberStart | None, told: MemberStart) -> MemberStart:
    """Returns the start to remember of a directory: ``known`` was remembered, and ``told`` follows or is as old."""
    if known is None or told.number > known.number:
        return told
    if (told.number, told.token) == (known.number, known.token):
        return max(known, told)
    return known


def line_to_json(line: Lineage) -> dict[str, Any]:
    """Returns the member ``line`` of a message."""
    return {
        "start": start_to_json(line.now),
        "before": [start_to_json(start) for start in line.before],
        "older": line.is_older,
    }


def line_from_json(value: dict[str, Any], what: str) -> Lineage | None:
    """Returns the member ``line`` of a message; None if it is missing. Raises ProtocolError."""
    if "line" not in value:
        return None
    line = field(value, "line", dict, what)
    before = tuple(_start(start, what) for start in field(line, "before", list, what))
    if len(before) > STARTS_MAX:
        raise ProtocolError(f"{what}: {len(before)} earlier starts are told, at most {STARTS_MAX} are")
    return Lineage(_start(line.get("start"), what), before, field(line, "older", bool, what))


def start_to_json(start: MemberStart) -> list[Any]:
    """Returns a start as it stands in messages and files."""
    return [start.number, start.token.hex(), *start.end]


def start_from_json(value: Any) -> MemberStart:
    """Returns the reverse of ``start_to_json``. Raises ValueError."""
    try:
        number, token, file, offset = value
        found = MemberStart(int(number), bytes.fromhex(token), (int(file), int(offset)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{value!r:.100} is no start of a member: {error}") from None
    if len(found.token) != TOKEN_BYTES or min(found.number, *found.end) < 0:
        raise ValueError(f"{value!r:.100} is no start of a member")
    return found


def _start(value: Any, what: str) -> MemberStart:
    try:
        return start_from_json(value)
    except ValueError as error:
        raise ProtocolError(f"{what}: {error}") from None


def known_to_json(known: Mapping[bytes, MemberStart]) -> dict[str, Any]:
    """Returns the member ``known`` of a message: the last start that was told of each directory, by placement id."""
    return {placement_id.hex(): start_to_json(start) for placement_id, start in known.items()}


def known_from_json(value: dict[str, Any], what: str) -> dict[bytes, MemberStart]:
    """Returns the member ``known`` of a message; nothing if it is missing. Raises ProtocolError."""
    found = field(value, "known", dict, what, {})
    if len(found) > KNOWN_MAX:
        raise ProtocolError(f"{what}: {len(found)} directories are told of, at most {KNOWN_MAX} are")
    return {hex_field({"known": text}, "known", 16, what): _start(start, what) for text, start in found.items()}
