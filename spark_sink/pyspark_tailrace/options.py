"""What a job can say with ``.option(...)``, checked. Plain fields only: Spark pickles them into every task."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.address import parse_url

# Longer than a node takes to start again, with what makes it stop; a Spark query ends with its first failed task.
RETRY_FOR_S = 120.0

AT_LEAST_ONCE = "at_least_once"

# A micro-batch that Spark has committed is never sent again, so what a crash of a node can lose is none of these.
LEVELS = ("disk", "quorum")

NAMES = (
    "url",
    "feed",
    "token",
    "key",
    "value",
    "deleted",
    "order_by",
    "partition_column",
    "create_feed",
    "partitions",
    "delivery",
    "retry_for",
    "level",
)
# How much an unknown name has to be like one of ours to be taken for a slip of the pen; Spark has options of its own.
_ALIKE = 0.8


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of the sink. ``order_by`` are names of columns, each with True for descending."""

    url: str
    feed: str
    token: str | None = field(repr=False)
    key: str
    value: str
    deleted: str
    order_by: tuple[tuple[str, bool], ...]
    partition_column: str | None
    create_feed: bool
    partitions: int | None
    retry_for_s: float
    level: str


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink. ValueError that names the option and what it may be."""
    check_names(options, NAMES)
    _check_delivery(options)
    return SinkOptions(
        url=url(options),
        feed=required(options, "feed", "the name of a feed"),
        token=options.get("token"),
        key=options.get("key", "key"),
        value=options.get("value", "value"),
        deleted=options.get("deleted", "deleted"),
        order_by=_order_by(options.get("order_by", "")),
        partition_column=options.get("partition_column"),
        create_feed=boolean(options, "create_feed"),
        partitions=count(options, "partitions"),
        retry_for_s=seconds(options, "retry_for", RETRY_FOR_S),
        level=_level(options),
    )


def check_names(options: Mapping[str, str], names: Sequence[str], others: Sequence[str] = ()) -> None:
    """ValueError for a name that is almost one of ``names``: it would be ignored, and with it, say, an order of rows.

    ``others`` are let through: what is meant for the other direction, where a job gives both the same options.
    """
    plain = {name.lower().replace("_", ""): name for name in names}
    known = {name.lower() for name in (*names, *others)}
    for name in options:
        if name.lower() in known:
            continue
        close = difflib.get_close_matches(name.lower().replace("_", "").replace("-", ""), plain, n=1, cutoff=_ALIKE)
        if close:
            raise ValueError(f"option {name!r} is not known: {plain[close[0]]!r} is. The options: {', '.join(names)}")


def _check_delivery(options: Mapping[str, str]) -> None:
    delivery = options.get("delivery", AT_LEAST_ONCE)
    if delivery != AT_LEAST_ONCE:
        raise ValueError(f"option 'delivery' is {delivery!r}; this version of the sink has {AT_LEAST_ONCE!r} only")


def _level(options: Mapping[str, str]) -> str:
    level = options.get("level", LEVELS[0]).strip().lower()
    if level not in LEVELS:
        raise ValueError(f"option 'level' is {level!r}, none of {', '.join(map(repr, LEVELS))}")
    return level


# The parsers below are those of reading as well. Each raises a ValueError that names the option and what it may be.


def url(options: Mapping[str, str]) -> str:
    """``url``, which has to be there."""
    text = required(options, "url", "tailrace://HOST:PORT")
    try:
        parse_url(text)
    except ValueError as error:
        raise ValueError(f"option 'url': {error}") from None
    return text


def required(options: Mapping[str, str], name: str, example: str) -> str:
    """A text that has to be there; ``example`` says what it is."""
    value = options.get(name)
    if not value:
        raise ValueError(f"option {name!r} is missing: .option({name!r}, ...) with {example}")
    return value


def boolean(options: Mapping[str, str], name: str, default: str = "false") -> bool:
    """ "true" or "false", in any case."""
    text = options.get(name, default).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name!r} is {text!r}, neither 'true' nor 'false'")
    return text == "true"


def count(options: Mapping[str, str], name: str) -> int | None:
    """A whole number from 1; None where it is not there."""
    text = options.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"option {name!r} is {text!r}, and has to be a whole number from 1")
    return number


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A positive number of seconds."""
    text = options.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"option {name!r} is {text!r}, and has to be a positive number of seconds")
    return number


def _order_by(text: str) -> tuple[tuple[str, bool], ...]:
    """``"a, b desc"`` as (("a", False), ("b", True))."""
    columns = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, *direction = part.split()
        if len(direction) > 1 or (direction and direction[0].lower() not in ("asc", "desc")):
            raise ValueError(f"option 'order_by': {part!r} is no column, nor a column with asc or desc")
        columns.append((name, bool(direction) and direction[0].lower() == "desc"))
    return tuple(columns)
