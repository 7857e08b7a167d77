"""A record of a file: its fields, and the place that errors name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.cli.errors import CommandFailed


class Record(NamedTuple):
    """One row of a file.

    Attributes:
        place: "line 17" or "row 17", counted from 1.
        fields: The values by name.
        text: The record as JSON, if the file has it so.
    """

    place: str
    fields: Mapping[str, Any]
    text: bytes | None = None


class BadRecord(CommandFailed):
    """A record, or the file from there on, cannot be used. The message names the place and what is wrong.

    A ``place`` of "" is the whole file.
    """

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}" if place else why)
        self.place = place
