"""Numbers with units, as users write them: "256 MiB", "90 s", "7d", "20 MiB/s". Pure."""

from __future__ import annotations

import enum
import re
from typing import Any


class Unit(enum.StrEnum):
    """The unit of a number. The value is its name in messages."""

    NONE = ""
    BYTES = "bytes"
    SECONDS = "seconds"
    RATE = "bytes per second"


_NUMBER = re.compile(r"\s*([+-]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([^\s]*)\s*")
_BYTES = {
    "": 1,
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
}
_MOST = 1e300  # far above all bounds, and far below what a float can have
_SECONDS = {"": 1, "s": 1, "ms": 0.001, "min": 60, "m": 60, "h": 3_600, "d": 86_400}
UNITS: dict[Unit, dict[str, float]] = {
    Unit.NONE: {"": 1},
    Unit.BYTES: _BYTES,
    Unit.SECONDS: _SECONDS,
    Unit.RATE: {form: factor for name, factor in _BYTES.items() for form in (name, f"{name}/s" if name else "")},
}


def quantity(value: Any, unit: Unit) -> int | float:
    """Returns the number in ``unit``. A number without a unit is in ``unit`` already.

    Raises:
        ValueError: The value is no number, or has another kind of unit. The message says what can be written.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"is {value!r:.100}, which is no number{_forms(unit)}")
    digits, name = match.groups()
    if name not in UNITS[unit]:
        raise ValueError(f"is {value!r:.100}: {name!r:.20} is no unit of it{_forms(unit)}")
    number = float(digits) if any(mark in digits for mark in ".eE") else int(digits)
    factor = UNITS[unit][name]
    if abs(number) > _MOST / max(factor, 1):
        raise ValueError(f"is {value!r:.100}, which is too much{_forms(unit)}")
    scaled = number * factor
    return int(scaled) if scaled == int(scaled) else scaled


def show_quantity(number: float, unit: Unit) -> str:
    """Returns a number as `quantity` reads it, in the largest unit that divides it."""
    if unit is Unit.SECONDS:
        fitting = [name for name in ("d", "h", "min") if number and number % _SECONDS[name] == 0]
        name = fitting[0] if fitting else "ms" if 0 < number < _SECONDS["ms"] else "s"
        return f"{number / _SECONDS[name]:g} {name}"
    if unit is Unit.NONE:
        return f"{number:g}" if isinstance(number, float) else f"{number:_}"
    fitting = [name for name in ("TiB", "GiB", "MiB", "KiB") if number and number % _BYTES[name] == 0]
    name = fitting[0] if fitting else "B"
    return f"{int(number / _BYTES[name])} {name}{'/s' if unit is Unit.RATE else ''}"


def _forms(unit: Unit) -> str:
    names = [name for name in UNITS[unit] if name]
    return f"; write a number of {unit}, or one with {', '.join(names)}" if names else "; write a number"
