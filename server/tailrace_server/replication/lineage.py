"""Whether a member's directory is an older copy of itself, put back at its own place. Pure.

    start 7 ─── ends at (3, 900) ─── start 8 ─── ends at (4, 120) ─── start 9      what its own MEMBERSHIP says
                                                       ^
                               what another member was told last: start 8, durable up to (4, 100)

Each start of a member has a number and a random token, and what it finds of the journal is where the start before has
ended. A member tells that with what it says, and each other one remembers the last start that it was told of, and up
to where the journal was durable then. A crash takes nothing of that. So a directory that does not know of that start,
or in which that start ended earlier, is an older copy: it lacks what the member may have acknowledged since, and has
forgotten what it promised. Its word counts for nothing until it has caught up with a leader, as that of a replaced
disk does.

Only what was told can be held against a copy. It is told with every look: seconds after it was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.model.failover import SEQ_MAX
from tailrace.wire.bodies import field, hex_field

TOKEN_BYTES = 8
# So many earlier starts are told. Who was away for more of them cannot tell, and believes it.
STARTS_MAX = 16
# So many directories are remembered: those of the members, and of disks that were replaced.
KNOWN_MAX = 64
# What a start ended at whose rows a directory has got from a leader: at or above all that was told of it.
END_MAX = (SEQ_MAX, SEQ_MAX)


class MemberStart(NamedTuple):
    """A start of a member: its number from 1, its token (8 bytes), and the journal's end, as file number and offset.

    The end is where the next start found it, or up to where it was durable when this was told.
    """

    number: int
    token: bytes
    end: tuple[int, int]


class Lineage(NamedTuple):
    """What a member says of its directory: the present start, those before it, newest first, and if it is a copy."""

    now: MemberStart
    before: tuple[MemberStart, ...] = ()
    is_older: bool = False


def why_older(name: str, known: MemberStart | None, told: Lineage | None) -> str:
    """Returns why nothing that the node ``name`` says counts, in a sentence; "" if its directory is no older copy.

    Args:
        name: The node's address.
        known: What was told of the directory last; None if nothing was.
        told: What is told now; None by a member of an earlier version, which is believed.
    """
    if told is None:
        return ""
    if told.is_older or (known is not None and not _goes_on(known, told)):
        return (
            f"{name} is on an older copy of its own directory: it lacks what it has acknowledged since, and has no "
            "vote until it has caught up with a leader"
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
    """Returns what is to be remembered of a directory; ``known`` was remembered, ``told`` follows, or is as old."""
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
