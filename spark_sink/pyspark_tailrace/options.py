"""What a job can say with ``.option(...)``, checked. Plain fields only: Spark pickles them into every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.address import parse_url

# Longer than a node takes to start again, with what makes it stop; a Spark query ends with its first failed task.
RETRY_FOR_S = 120.0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of the sink. ``order_by`` are names of columns, each with True for descending."""

    url: str
    feed: str
    token: str | None
    key: str
    value: str
    deleted: str
    order_by: tuple[tuple[str, bool], ...]
    partition_column: str | None
    create_feed: bool
    partitions: int
    retry_for_s: float


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink. ValueError that names the option and what it may be."""
    url = _required(options, "url", "tailrace://HOST:PORT")
    try:
        parse_url(url)
    except ValueError as error:
        raise ValueError(f"option 'url': {error}") from None
    return SinkOptions(
        url=url,
        feed=_required(options, "feed", "the name of a feed"),
        token=options.get("token"),
        key=options.get("key", "key"),
        value=options.get("value", "value"),
        deleted=options.get("deleted", "deleted"),
        order_by=_order_by(options.get("order_by", "")),
        partition_column=options.get("partition_column"),
        create_feed=_boolean(options, "create_feed"),
        partitions=int(_number(options, "partitions", 16)),
        retry_for_s=_number(options, "retry_for", RETRY_FOR_S),
    )


def _required(options: Mapping[str, str], name: str, example: str) -> str:
    value = options.get(name)
    if not value:
        raise ValueError(f"option {name!r} is missing: .option({name!r}, ...) with {example}")
    return value


def _boolean(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name!r} is {text!r}, neither 'true' nor 'false'")
    return text == "true"


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number > 0:
        raise ValueError(f"option {name!r} is {text!r}, and has to be a positive number")
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
