"""Small files that people can read, and that know when they are damaged. Pure.

One line of JSON, an object whose first members are ``format`` and ``version``; and a second line with XXH3-64 of the
first one, without its line feed, as 16 hexadecimal digits.
"""

from __future__ import annotations

import json
from typing import Any

import xxhash


class UnknownVersion(ValueError):
    """The file is good, and of a version that this Tailrace does not know."""


def seal(format: str, version: int, members: dict[str, Any]) -> bytes:
    """The content of a file with these members."""
    text = json.dumps({"format": format, "version": version, **members}, separators=(",", ":")).encode("ascii")
    return b"%s\n%016x\n" % (text, xxhash.xxh3_64_intdigest(text))


def unseal(data: bytes, format: str, version: int) -> dict[str, Any]:
    """The members that ``seal`` was given. ValueError, which says what is wrong, for anything else.

    UnknownVersion where only the version is another. What the members hold is not looked at.
    """
    text, _, checksum = data.partition(b"\n")
    if checksum != b"%016x\n" % xxhash.xxh3_64_intdigest(text):
        raise ValueError("its checksum is wrong")
    try:
        members = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(members, dict) or members.pop("format", None) != format:
        raise ValueError(f"it is no {format!r}")
    found = members.pop("version", None)
    if found != version:
        raise UnknownVersion(f"it has version {found!r:.20}, known is {version}")
    return members
