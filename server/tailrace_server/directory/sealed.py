"""The format of small, readable files with a checksum. Pure.

The first line is a JSON object, whose first members are ``format`` and ``version``. The second line is XXH3-64 of the
first one without its line feed, in 16 hexadecimal digits.
"""

from __future__ import annotations

import json
from typing import Any

import xxhash


class UnknownVersion(ValueError):
    """The file is intact, but of a version that this program does not know."""


def why_damaged(error: Exception) -> str:
    """Returns the reason that an error of a parser gives; a KeyError tells only which member is missing."""
    return f"its member {error} is missing" if isinstance(error, KeyError) else str(error)


def seal(format: str, version: int, members: dict[str, Any]) -> bytes:
    """Returns the content of a file with these members."""
    text = json.dumps({"format": format, "version": version, **members}, separators=(",", ":")).encode("ascii")
    return b"%s\n%016x\n" % (text, xxhash.xxh3_64_intdigest(text))


def unseal(data: bytes, format: str, version: int) -> dict[str, Any]:
    """Returns the members that ``seal`` was given, without a check of their values.

    Raises UnknownVersion if only the version differs, and ValueError, with the reason, for other content.
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
