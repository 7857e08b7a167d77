"""Finds the line of a setting in a TOML file, for messages: the standard library's reader does not tell lines. Pure."""

from __future__ import annotations

import re

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_KEY = re.compile(r"\s*([\w\"'.\s-]+?)\s*=")


def line_of(text: str, path: tuple[str, ...]) -> int:
    """Returns the number of the line that sets ``path``, a setting or a table; 0 if there is none to be found."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        heading = _TABLE.fullmatch(line)
        if heading is not None:
            table = _parts(heading[1])
            found = table
        else:
            key = _KEY.match(line)
            found = () if key is None else (*table, *_parts(key[1]))
        if found and found[: len(path)] == path:
            return number
    return 0


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
