"""The part of a long list that is asked for: parameters of a request, checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.errors import TailraceError

ROWS_MAX = 200
ROWS_DEFAULT = 100
PARTITIONS_MAX = 256
# A text to look for, a name: longer ones name nothing.
_TEXT_CHARS_MAX = 200
_STATES = ("", "current", "moving", "waiting", "stuck", "away")


class BadRequest(TailraceError):
    """A parameter is missing, unknown or out of its bounds."""


class NotFound(TailraceError):
    """There is nothing of that name."""


class Page(NamedTuple):
    """The rows that are asked for. ``after`` is a name, ``offset`` a number of rows to leave out."""

    limit: int
    find: str = ""
    after: str = ""
    offset: int = 0
    feed: str = ""
    state: str = ""

    @classmethod
    def of_feeds(cls, values: Mapping[str, Any]) -> Page:
        """Returns the page of a list of feeds. Raises BadRequest."""
        return cls(
            number_of(values, "limit", ROWS_DEFAULT, 1, ROWS_MAX), text_of(values, "find"), text_of(values, "after")
        )

    @classmethod
    def of_consumers(cls, values: Mapping[str, Any]) -> Page:
        """Returns the page of a list of consumers. Raises BadRequest."""
        state = text_of(values, "state")
        if state not in _STATES:
            raise BadRequest(f"state is {state!r}: {', '.join(_STATES[1:])} are known")
        return cls(
            number_of(values, "limit", ROWS_DEFAULT, 1, ROWS_MAX),
            text_of(values, "find").lower(),
            "",
            number_of(values, "after", 0, 0, 1_000_000),
            text_of(values, "feed"),
            state,
        )

    @classmethod
    def of_partitions(cls, values: Mapping[str, Any]) -> Page:
        """Returns the page of the partitions of a feed, or of a consumer. Raises BadRequest."""
        limit = number_of(values, "limit", PARTITIONS_MAX // 2, 1, PARTITIONS_MAX)
        return cls(limit, offset=number_of(values, "from", 0, 0, 1_000_000))


def text_of(values: Mapping[str, Any], name: str) -> str:
    """Returns a text among ``values``; "" without it. Raises BadRequest."""
    text = values.get(name, "")
    if not isinstance(text, str) or len(text) > _TEXT_CHARS_MAX:
        raise BadRequest(f"{name} has to be a text of at most {_TEXT_CHARS_MAX} characters")
    return text


def number_of(values: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """Returns a number among ``values``, which may be a text. Raises BadRequest."""
    value = values.get(name, default)
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) <= len(str(most)):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequest(f"{name} is {value!r:.50}, and has to be a whole number from {least} to {most}")
    return value
