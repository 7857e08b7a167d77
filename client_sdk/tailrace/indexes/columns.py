"""Columns of an index, taken from values by JSON path."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.serializers import Serializer

# What SQLite stores in a column without being asked to convert it.
ColumnValue = str | int | float | None

INTEGER_MAX = (1 << 63) - 1  # SQLite's integers
_NAME_MAX_CHARS = 63
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{_NAME_MAX_CHARS - 1}}}")
_STEP = re.compile(
    r"""
      \. (?P<name> [^."\[\]]+ )         # .name
    | \. " (?P<quoted> [^"]* ) "        # ."any name"
    | \[ (?P<index> [0-9]{1,9} ) \]     # [0]: the first of an array
    | \[ \#- (?P<last> [0-9]{1,9} ) \]  # [#-1]: the last
    """,
    re.VERBOSE,
)


# The record of an index without a serializer, whose columns come from JSON.
NO_SERIALIZER = "none"


def name_of(serializer: Serializer | None) -> str:
    """Returns the name of a serializer, as an index records it."""
    return NO_SERIALIZER if serializer is None else serializer.name


def check_name(name: str, what: str) -> str:
    """Returns ``name`` if it can name a table or column; else ValueError. No other name ever reaches a statement."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} {name!r} is not usable: use a letter or underscore, then letters, digits and underscores, "
            f"{_NAME_MAX_CHARS} at most"
        )
    return name


def parse_path(path: str) -> tuple[str | int, ...]:
    """Parses a JSON path of SQLite's kind: names into objects, indexes (negative from the end) into arrays.

    ``$`` is the whole value, ``$.a.b``, ``$."a name"``, ``$[0]``, ``$.list[#-1].x``. ValueError for anything else.
    """
    if not isinstance(path, str) or not path.startswith("$"):
        raise ValueError(f"{path!r} is no JSON path: a path begins with '$', such as '$.address.city'")
    steps: list[str | int] = []
    offset = 1
    while offset < len(path):
        match = _STEP.match(path, offset)
        if match is None:
            raise ValueError(f'{path!r} is no JSON path: {path[offset:]!r} is none of .name, ."name", [0], [#-1]')
        steps.append(_step(match))
        offset = match.end()
    return tuple(steps)


class ColumnReader:
    """Takes the columns out of values. ``names`` are their names, in order."""

    def __init__(self, columns: Mapping[str, str], serializer: Serializer | None = None) -> None:
        """Takes names with their JSON paths. ValueError if a name or a path is not valid."""
        self._serializer = serializer
        self.names = tuple(check_name(name, "the column name") for name in columns)
        self._finders = [finder(parse_path(path)) for path in columns.values()]
        self._nothing: tuple[ColumnValue, ...] = (None,) * len(self.names)

    def read(self, value: bytes) -> tuple[ColumnValue, ...]:
        """Returns the columns of ``value``: text, numbers, booleans as 1 and 0, arrays and objects as JSON, else None.

        All are None if the value is not JSON. Bytes of a JSON text that are not valid UTF-8 become U+FFFD. With a
        serializer a value that it cannot read is a ValueError.
        """
        if not self._finders:
            return ()
        if self._serializer is not None:
            document = self._serializer.loads(value)
            return tuple([_column_value(find(document)) for find in self._finders])
        try:
            document = json.loads(value.decode("utf-8", "replace"))
            return tuple([_column_value(find(document)) for find in self._finders])
        except (ValueError, RecursionError):  # no JSON; or nested too deep for a reader in C
            return self._nothing


def _step(match: re.Match[str]) -> str | int:
    if match["index"] is not None:
        return int(match["index"])
    if match["last"] is not None:
        return -int(match["last"])
    name = match["name"] if match["name"] is not None else match["quoted"]
    assert name is not None
    return name


def finder(steps: tuple[str | int, ...]) -> Callable[[Any], Any]:
    """Returns a function that follows ``steps`` into a document, and returns None if nothing is there."""

    def find(document: Any) -> Any:
        for step in steps:
            if isinstance(step, str):
                if not isinstance(document, dict):
                    return None
                document = document.get(step)
            else:
                if not isinstance(document, list) or not -len(document) <= step < len(document):
                    return None
                document = document[step]
        return document

    return find


def _column_value(found: Any) -> ColumnValue:
    if isinstance(found, str):
        return storable(found)
    if isinstance(found, int):
        return int(found) if -INTEGER_MAX <= found <= INTEGER_MAX else _rounded(found)
    if found is None or isinstance(found, float):
        return found
    return storable(as_text(found))


def as_text(found: Any) -> str:
    """Returns a value as text: an array or an object as JSON, bytes in hexadecimal."""
    if isinstance(found, bytes | bytearray):
        return found.hex()
    if isinstance(found, list | tuple | dict | int | float):
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"), default=as_text)
    return str(found)  # a date or a decimal number of a serializer


def _rounded(number: int) -> float | None:
    """Makes an integer that SQLite has no room for a float, as its own JSON functions do."""
    try:
        return float(number)
    except OverflowError:
        return None


def storable(text: str) -> str:
    """``text`` with U+FFFD for halves of surrogate pairs, which JSON can name and UTF-8 cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
