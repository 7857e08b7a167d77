"""Reads JSON lines: an object on each line. Empty lines are skipped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NoReturn

from tailrace.cli.rowfiles.records import BadRecord, Record


def json_records(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yields the objects of ``lines``. Raises BadRecord."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text:
            place = f"line {number}"
            yield Record(place, _object(place, text), text)


def _object(place: str, text: bytes) -> dict[str, object]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise BadRecord(place, f"this is not UTF-8: byte {error.start + 1}") from None
    except RecursionError:
        raise BadRecord(place, "the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BadRecord(place, f"this is not JSON: {error.msg}, at character {error.pos + 1}") from None
    except ValueError as error:
        raise BadRecord(place, f"this is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRecord(place, f'an object is needed, such as {{"key": ...}}, not {str(value)[:40]!r}')
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
