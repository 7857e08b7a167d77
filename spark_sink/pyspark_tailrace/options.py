"""What a job can say with ``.option(...)``, checked. Plain fields only: Spark pickles them into every task."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.link.address import parse_url

# Longer than a node takes to start again, with what makes it stop; a Spark query ends with its first failed task.
RETRY_FOR_S = 120.0

EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"
# How values are made of the columns.
BINARY = "binary"
JSON = "json"

# What to do if a batch comes again with other rows than were published.
FAIL = "fail"
SKIP = "skip"

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
    "sink_id",
    "first_batch",
    "batch_id",
    "origin",
    "on_changed_batch",
    "value_format",
    "retry_for",
    "level",
)
SINK_ID_CHARS_MAX = 200
# Of the sinks of batch jobs without a number; a node remembers few of them, since such a job does not come back.
JOB_PREFIX = "job:"
# Options that Spark itself reads, and hands over to the source as well.
_OF_SPARK = ("checkpointLocation", "queryName", "path")
# CREATE TABLE adds these; when the table is used later, Spark leaves its options out.
_OF_TABLES = ("provider", "option.")
_NO_TABLES = (
    "Spark does not hand the options of a table on to a source written in Python when the table is used: take a view, "
    "CREATE TEMPORARY VIEW ... USING tailrace OPTIONS (url ..., feed ...), or format('tailrace') with options. What "
    "saveAsTable or toTable has written is in the feed: DROP TABLE the table, and write by save() or start()"
)
# How much an unknown name has to be like one of ours for it to be suggested.
_ALIKE = 0.7
# What other sources and sinks call these options, without case and "_".
_OTHER_WORDS = {
    "keycolumn keyfield": "key",
    "valuecolumn valuefield": "value",
    "deletedcolumn deletecolumn isdeleted": "deleted",
    "sortby orderby sort": "order_by",
    "exactlyonce atleastonce semantics": "delivery",
    "topic table subscribe": "feed",
    "host server servers bootstrapservers nodes": "url",
    "startingtimestamp startingposition startingpositions startingversion since startat": "startingOffsets",
    "endingtimestamp endingposition endingpositions endingversion until endat": "endingOffsets",
    "timestampasof versionasof asof": "endingOffsets",
}


class SortColumn(NamedTuple):
    """A column that ``order_by`` names, and how it sorts."""

    name: str
    is_descending: bool = False
    has_nulls_last: bool = False


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of the sink.

    ``sink_id`` is who publishes: None for the query's own id, or one of the job's own. ``first_batch`` is added to the
    numbers of a query's batches; ``batch_id`` is the number of what a batch job writes, None where it has none, and
    ``origin`` who gives such numbers, None for the sink itself. ``is_compared``: a batch that comes again has to have
    the rows that were published. ``is_deleted_named``: the job has said which column
    ``deleted`` is, so that it has to be there.
    """

    url: str
    feed: str
    token: str | None = field(repr=False)
    key: str
    value: str
    deleted: str
    order_by: tuple[SortColumn, ...]
    partition_column: str | None
    create_feed: bool
    partitions: int | None
    retry_for_s: float
    level: str = "disk"
    delivery: str = EXACTLY_ONCE
    sink_id: str | None = None
    first_batch: int = 0
    batch_id: int | None = None
    origin: str | None = None
    is_compared: bool = True
    value_format: str = BINARY
    is_deleted_named: bool = False

    @property
    def is_json(self) -> bool:
        """The value is made of all columns that have no other use."""
        return self.value_format == JSON


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink. ValueError that names the option and what it may be."""
    check_names(options, NAMES)
    _check_numbering(options)
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
        level=choice(options, "level", LEVELS),
        delivery=choice(options, "delivery", (EXACTLY_ONCE, AT_LEAST_ONCE)),
        sink_id=_name(options, "sink_id"),
        first_batch=number(options, "first_batch") or 0,
        batch_id=number(options, "batch_id"),
        origin=_name(options, "origin"),
        is_compared=choice(options, "on_changed_batch", (FAIL, SKIP)) == FAIL,
        value_format=choice(options, "value_format", (BINARY, JSON)),
        is_deleted_named="deleted" in options,
    )


def check_stream_options(options: SinkOptions) -> None:
    """ValueError for what only a batch job can say: it would be ignored."""
    given = [name for name in ("batch_id", "origin") if getattr(options, name) is not None]
    if given:
        raise ValueError(
            f"option {given[0]!r} is for batch jobs: Spark numbers the batches of a query. Leave it out; a number to "
            "add to them is option 'first_batch'"
        )


def check_job_options(options: SinkOptions) -> None:
    """ValueError for what only a stream can say. (A ``sink_id`` alone changes nothing: the job is written once.)"""
    if options.first_batch:
        raise ValueError("option 'first_batch' is for streams: a batch job has a number of its own, option 'batch_id'")


def check_names(options: Mapping[str, str], names: Sequence[str], others: Sequence[str] = ()) -> None:
    """Raises ValueError for an option that is not known: it would be ignored, and with it, say, an order of rows.

    ``others`` are let through: they are for the other direction, if a job gives both the same options.
    """
    if any(name.lower().startswith(_OF_TABLES) for name in options):
        raise ValueError(f"CREATE TABLE is not for tailrace: {_NO_TABLES}")
    known = {name.lower() for name in (*names, *others, *_OF_SPARK)}
    for name in options:
        if name.lower() not in known:
            meant = _meant(name, names)
            hint = f": {meant!r} is" if meant else ""
            raise ValueError(f"option {name!r} is not known{hint}. The options: {', '.join(names)}")


def _meant(name: str, names: Sequence[str]) -> str | None:
    """Returns the option that was probably meant by ``name``, or None."""
    plain = {known.lower().replace("_", ""): known for known in (*names, *_OF_SPARK)}
    text = name.lower().replace("_", "").replace("-", "")
    for words, meant in _OTHER_WORDS.items():
        if text in words.split() and meant in names:
            return meant
    if text in plain:
        return plain[text]
    close = difflib.get_close_matches(text, plain, n=1, cutoff=_ALIKE)
    return plain[close[0]] if close else None


def _check_numbering(options: Mapping[str, str]) -> None:
    """Checks that a job which numbers its batches names its sink: else each job would begin anew.

    A query has an id of its own, which ``first_batch`` may be given for.
    """
    for name in ("batch_id", "origin"):
        if name in options and "sink_id" not in options:
            raise ValueError(f"option {name!r} numbers the batches of a sink: it goes with option 'sink_id'")
    if options.get("sink_id", "").startswith(JOB_PREFIX):
        raise ValueError(
            f"option 'sink_id' is {options['sink_id'][:60]!r}: what begins with {JOB_PREFIX!r} is for jobs without a "
            "number, which a node forgets sooner. Take another name"
        )
    if "value" in options and choice(options, "value_format", (BINARY, JSON)) == JSON:
        raise ValueError("option 'value' names a column, and with value_format 'json' the value is made of all of them")


def _name(options: Mapping[str, str], name: str) -> str | None:
    """The id of a sink, or of who numbers its batches; None where it is not there."""
    found = options.get(name)
    if found is not None and (not 1 <= len(found) <= SINK_ID_CHARS_MAX or not found.isprintable()):
        raise ValueError(
            f"option {name!r} is {found[:60]!r}, and has to be 1 to {SINK_ID_CHARS_MAX} printable characters"
        )
    return found


# The parsers below are those of reading as well. Each raises a ValueError that names the option and what it may be.


def url(options: Mapping[str, str]) -> str:
    """``url``, which has to be there."""
    if "url" not in options and "feed" not in options:
        raise ValueError(f"options 'url' and 'feed' are missing. If this is a table: {_NO_TABLES}")
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


def number(options: Mapping[str, str], name: str) -> int | None:
    """A whole number from 0; None where it is not there."""
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or len(text) > 18:
        raise ValueError(f"option {name!r} is {text!r}, and has to be a whole number from 0")
    return int(text)


def choice(options: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """One of ``choices``, the first by default."""
    found = options.get(name, choices[0]).strip().lower()
    if found not in choices:
        raise ValueError(f"option {name!r} is {found!r}, none of {', '.join(map(repr, choices))}")
    return found


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


def _order_by(text: str) -> tuple[SortColumn, ...]:
    """Returns the columns of ``"a, b desc, c desc nulls first"``; nulls are least unless it says where they go."""
    columns = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, *words = part.split()
        said = " ".join(words).lower()
        found = re.fullmatch(r"(asc|desc)?(?:(?:^| )nulls (first|last))?", said)
        if found is None:
            raise ValueError(
                f"option 'order_by': {part!r} is no column, nor a column with asc or desc, with nulls first or nulls "
                "last, or with both in this order"
            )
        is_descending = found[1] == "desc"
        columns.append(SortColumn(name, is_descending, is_descending if found[2] is None else found[2] == "last"))
    return tuple(columns)
