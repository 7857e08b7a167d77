"""What of a filter the node can do: less is sent, and Spark applies the filter to that all the same. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tailrace.times import to_us


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Rows outside of these bounds do not matter: each from its ``first`` on, and before its ``stop``, if any.

    Timestamps are microseconds since 1970 UTC. ``partitions`` None: all.
    """

    partitions: frozenset[int] | None = None
    seq_first: int = 0
    seq_stop: int | None = None
    stamped_first: int = 0
    stamped_stop: int | None = None
    key_first: bytes = b""
    key_stop: bytes | None = None

    @property
    def key_prefix(self) -> bytes:
        """The longest that every key between the bounds begins with."""
        if self.key_stop is None:
            return b""
        for size in range(len(self.key_first), 0, -1):
            stop = _stop_of(self.key_first[:size])
            if stop is None or self.key_stop <= stop:
                return self.key_first[:size]
        return b""

    @property
    def key(self) -> bytes | None:
        """The only key that matters, if there is only one."""
        return self.key_first if self.key_stop == self.key_first + b"\0" else None


def narrowed(filters: Iterable[Filter]) -> Narrowed:
    """What all of ``filters`` together leave; one that says nothing to a node leaves everything."""
    found = Narrowed()
    for wanted in filters:
        attribute: tuple[str, ...] = getattr(wanted, "attribute", ())
        if len(attribute) == 1:
            found = _applied(found, attribute[0], wanted)
    return found


def _applied(found: Narrowed, column: str, wanted: Filter) -> Narrowed:
    if column == "partition":
        return _in_partitions(found, wanted)
    bounds = _BOUNDS.get(column)
    if bounds is None:
        return found
    literals = wanted.value if isinstance(wanted, In) else [getattr(wanted, "value", None)]
    values = [bounds.value(literal) for literal in literals]
    if not values or None in values:
        return found
    first, stop, value = bounds.first, bounds.stop, values[0]
    match wanted:
        case EqualTo() | EqualNullSafe() | In():
            return _at_most(_at_least(found, first, min(values)), stop, bounds.after(max(values)))
        case GreaterThanOrEqual():
            return _at_least(found, first, value)
        case GreaterThan():
            return _at_least(found, first, bounds.after(value))
        case LessThanOrEqual():
            return _at_most(found, stop, bounds.after(value))
        case LessThan():
            return _at_most(found, stop, value)
    return found


def _in_partitions(found: Narrowed, wanted: Filter) -> Narrowed:
    if isinstance(wanted, EqualTo | EqualNullSafe):
        named = {wanted.value}
    elif isinstance(wanted, In):
        named = set(wanted.value)
    else:
        return found
    partitions = frozenset(id for id in named if type(id) is int)
    return replace(found, partitions=partitions if found.partitions is None else found.partitions & partitions)


def _at_least(found: Narrowed, name: str, value: Any) -> Narrowed:
    return replace(found, **{name: max(getattr(found, name), value)})


def _at_most(found: Narrowed, name: str, value: Any) -> Narrowed:
    present = getattr(found, name)
    return replace(found, **{name: value if present is None else min(present, value)})


def _stop_of(prefix: bytes) -> bytes | None:
    """The least key that is greater than all that begin with ``prefix``; None where there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


class _Bounds:
    """How a column is bounded: the fields of Narrowed, and what its values are to them."""

    def __init__(self, first: str, stop: str) -> None:
        self.first = first
        self.stop = stop

    def value(self, literal: Any) -> Any:
        """``literal`` as the fields have it; None where it is nothing that can be compared."""
        return literal if type(literal) is int else None

    def after(self, value: Any) -> Any:
        """The next one."""
        return value + 1


class _Stamps(_Bounds):
    def value(self, literal: Any) -> Any:
        if not isinstance(literal, datetime.datetime):
            return None
        # Spark hands over moments without a zone where they are in that of this process.
        return to_us(literal if literal.tzinfo else literal.astimezone(), "the time")


class _Keys(_Bounds):
    def value(self, literal: Any) -> Any:
        return bytes(literal) if isinstance(literal, bytes | bytearray) else None

    def after(self, value: Any) -> Any:
        return value + b"\0"


_BOUNDS = {
    "seq": _Bounds("seq_first", "seq_stop"),
    "timestamp": _Stamps("stamped_first", "stamped_stop"),
    "key": _Keys("key_first", "key_stop"),
}
