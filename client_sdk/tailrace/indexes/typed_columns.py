"""Columns of an index whose store wants a type for each: text, integer, real, boolean, json."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.indexes.columns import INTEGER_MAX, as_text, check_name, finder, parse_path, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tailrace.serializers import Serializer

FIXED_COLUMNS = ("key", "value", "partition", "seq", "timestamp")


class TypedColumn(NamedTuple):
    """A column, and where its value is.

    Attributes:
        name: The name of the column.
        path: The JSON path.
        type: "text", "integer", "real", "boolean" or "json".
    """

    name: str
    path: str
    type: str


class TypedColumns:
    """Takes typed columns out of values. What has another type, or is not there, is None."""

    def __init__(
        self,
        columns: Mapping[str, str | tuple[str, str]],
        taken: Iterable[str] = FIXED_COLUMNS,
        serializer: Serializer | None = None,
    ) -> None:
        """Takes a path, or a path and a type, for each name. ValueError if a name, a path or a type is not valid."""
        self._loads = _parsed if serializer is None else serializer.loads
        reserved = {name.lower() for name in taken}
        self.columns: list[TypedColumn] = []
        for name, spec in columns.items():
            path, kind = (spec, "text") if isinstance(spec, str) else spec
            if kind not in _CASTS:
                raise ValueError(f"the column {name!r} has the type {kind!r}, but has to have one of {list(_CASTS)}")
            if check_name(name, "the column name").lower() in reserved:
                raise ValueError(f"the column name {name!r} is taken; case makes no difference")
            reserved.add(name.lower())
            self.columns.append(TypedColumn(name, path, kind))
        self.names = [column.name for column in self.columns]
        self._readers = [(finder(parse_path(column.path)), _CASTS[column.type]) for column in self.columns]

    def describe(self) -> str:
        """Returns the columns as text, for the record of how an index was made."""
        return json.dumps({column.name: [column.path, column.type] for column in self.columns}, sort_keys=True)

    def read(self, values: Sequence[bytes | None]) -> list[list[Any]]:
        """Returns a list for each column, with the value of each row. ValueError if a serializer cannot read one."""
        found: list[list[Any]] = [[] for _ in self.columns]
        for value in values if found else ():
            document = None if value is None else self._loads(value)
            for (find, cast), column in zip(self._readers, found, strict=True):
                column.append(_read(find, cast, document))
        return found


def _parsed(value: bytes) -> Any:
    try:
        return json.loads(value.decode("utf-8", "replace"))
    except (ValueError, RecursionError):  # no JSON; or nested too deep for a reader in C
        return None


def _read(find: Callable[[Any], Any], cast: Callable[[Any], Any], document: Any) -> Any:
    found = find(document)
    try:
        return None if found is None else cast(found)
    except (ValueError, OverflowError, RecursionError):
        return None


def _text(found: Any) -> str:
    text = storable(found if isinstance(found, str) else as_text(found))
    return text.replace("\0", "\ufffd")  # PostgreSQL's text has no such character


def _integer(found: Any) -> int | None:
    is_integer = isinstance(found, int) and not isinstance(found, bool)
    return found if is_integer and -INTEGER_MAX <= found <= INTEGER_MAX else None


def _real(found: Any) -> float | None:
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _boolean(found: Any) -> bool | None:
    return found if isinstance(found, bool) else None


def _json(found: Any) -> str:
    """Returns JSON that every store reads: without NaN, and without the character 0."""
    return json.dumps(_without_zero(found), ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=as_text)


def _without_zero(found: Any) -> Any:
    if isinstance(found, str):
        return storable(found).replace("\0", "\ufffd")
    if isinstance(found, list):
        return [_without_zero(item) for item in found]
    if isinstance(found, dict):
        return {_without_zero(name): _without_zero(item) for name, item in found.items()}
    return found


_CASTS: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "integer": _integer,
    "real": _real,
    "boolean": _boolean,
    "json": _json,
}
