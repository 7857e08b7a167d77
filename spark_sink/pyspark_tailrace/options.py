"""The options of a sink, as given by ``.option(...)``: parsed and checked.

Fields are plain values, because Spark pickles them into every task.
"""

from __future__ import annotations

import difflib
import math
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.link.address import parse_url
from tailrace.tls.context import NO_FILES, TlsFiles, client_context

# Longer than a restart of a node takes, because the first failed task ends a Spark query.
RETRY_FOR_S = 120.0
# The bytes that a task keeps, by default. Spark takes the messages of all tasks of a micro-batch into the driver, and
# fails a job of more than spark.driver.maxResultSize (1 GiB): 1,000 tasks stay below it.
RESTAGE_BYTES = 1024 * 1024

EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"
# Forms of a value, for option 'value_format'.
BINARY = "binary"
JSON = "json"

# Reactions to a batch that comes again with other rows than were published, for option 'on_changed_batch'.
FAIL = "fail"
SKIP = "skip"

# Without "memory": Spark never sends a committed micro-batch again, and a crash of the node would lose it.
LEVELS = ("disk", "quorum")

NAMES = (
    "url",
    "feed",
    "token",
    "tls_ca",
    "tls_cert",
    "tls_key",
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
    "restage_bytes",
    "restage_dir",
    "level",
)
SINK_ID_CHARS_MAX = 200
# Begins the sink ids of batch jobs without a number. A node remembers few of them, as such a job does not come back.
JOB_PREFIX = "job:"
# Options that Spark itself reads, and also passes to the source.
_OF_SPARK = ("checkpointLocation", "queryName", "path")
# CREATE TABLE adds options with these prefixes. Spark leaves out a table's options when the table is used later.
_OF_TABLES = ("provider", "option.")
_NO_TABLES = (
    "when a table is used, Spark does not pass its options to a source written in Python. Use a view, CREATE TEMPORARY "
    "VIEW ... USING tailrace OPTIONS (url ..., feed ...), or format('tailrace') with options. Rows that saveAsTable or "
    "toTable have written are in the feed: DROP TABLE the table, and write by save() or start()"
)
# The similarity from which one of our names is suggested for an unknown name.
_ALIKE = 0.7
# Names of these options in other sources and sinks, in lower case and without "_".
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

    ``sink_id`` is the publisher's id; None stands for the query's own id. ``first_batch`` is added to the numbers of a
    query's batches. ``batch_id`` is the number of a batch job's rows, None if it has none. ``origin`` is the program
    that gives these numbers, None for the sink itself. ``restage_bytes`` is how much a task keeps in memory, so that
    it may be staged again on another leader. ``restage_dir`` is the folder for more; "" stands for the folder of
    temporary files. ``is_compared``: a batch that comes again must have the rows that were published.
    ``is_deleted_named``: the job has named the column ``deleted``, so the column must exist.
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
    level: str | None = None
    delivery: str = EXACTLY_ONCE
    sink_id: str | None = None
    first_batch: int = 0
    batch_id: int | None = None
    origin: str | None = None
    is_compared: bool = True
    value_format: str = BINARY
    is_deleted_named: bool = False
    restage_bytes: int = RESTAGE_BYTES
    restage_dir: str = ""
    tls: TlsFiles = field(default=NO_FILES, repr=False)

    @property
    def is_json(self) -> bool:
        """Returns whether the value is a JSON object of all columns that have no other use."""
        return self.value_format == JSON


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Returns the options of a sink. Raises ValueError with the option's name and its permitted values."""
    check_names(options, NAMES)
    _check_numbering(options)
    kept = number(options, "restage_bytes")
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
        level=choice(options, "level", LEVELS) if "level" in options else None,
        delivery=choice(options, "delivery", (EXACTLY_ONCE, AT_LEAST_ONCE)),
        sink_id=_name(options, "sink_id"),
        first_batch=number(options, "first_batch") or 0,
        batch_id=number(options, "batch_id"),
        origin=_name(options, "origin"),
        is_compared=choice(options, "on_changed_batch", (FAIL, SKIP)) == FAIL,
        value_format=choice(options, "value_format", (BINARY, JSON)),
        is_deleted_named="deleted" in options,
        restage_bytes=RESTAGE_BYTES if kept is None else kept,
        restage_dir=options.get("restage_dir", ""),
        tls=tls_files(options),
    )


def check_stream_options(options: SinkOptions) -> None:
    """Raises ValueError for an option of batch jobs only, which a stream would ignore."""
    given = [name for name in ("batch_id", "origin") if getattr(options, name) is not None]
    if given:
        raise ValueError(
            f"option {given[0]!r} is for batch jobs: Spark numbers the batches of a query. Leave it out, or give "
            "'first_batch', which is added to Spark's numbers"
        )


def check_job_options(options: SinkOptions) -> None:
    """Raises ValueError for an option of streams only. (A ``sink_id`` without ``batch_id`` only begins a name.)"""
    if options.first_batch:
        raise ValueError("option 'first_batch' is for streams: a batch job gives its number as option 'batch_id'")


def check_names(options: Mapping[str, str], names: Sequence[str], others: Sequence[str] = ()) -> None:
    """Raises ValueError for an unknown option, because a misspelt ``order_by`` must not be ignored.

    ``others`` are accepted, too: they are for the other direction, if a job gives the same options to both.
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
    """Checks that a job with numbered batches names its sink; otherwise each job would be another sink.

    ``first_batch`` needs no ``sink_id``, because a query has an id of its own.
    """
    for name in ("batch_id", "origin"):
        if name in options and "sink_id" not in options:
            raise ValueError(f"option {name!r} numbers the batches of a sink: give option 'sink_id', too")
    if options.get("sink_id", "").startswith(JOB_PREFIX):
        raise ValueError(
            f"option 'sink_id' is {options['sink_id'][:60]!r}: names that begin with {JOB_PREFIX!r} are for jobs "
            "without a number, which a node forgets sooner. Take another name"
        )
    if "value" in options and choice(options, "value_format", (BINARY, JSON)) == JSON:
        raise ValueError(
            "option 'value' names one column, and with value_format 'json' the value has all of them: give one of both"
        )


def _name(options: Mapping[str, str], name: str) -> str | None:
    """Returns the id of a sink or of an origin, or None if the option is missing."""
    found = options.get(name)
    if found is not None and (not 1 <= len(found) <= SINK_ID_CHARS_MAX or not found.isprintable()):
        raise ValueError(
            f"option {name!r} is {found[:60]!r}, but must be 1 to {SINK_ID_CHARS_MAX} printable characters"
        )
    return found


# Reading uses these parsers, too. Each raises ValueError with the option's name and its permitted values.


def url(options: Mapping[str, str]) -> str:
    """Returns option ``url``, which is required."""
    if "url" not in options and "feed" not in options:
        raise ValueError(f"options 'url' and 'feed' are missing. If this is a table: {_NO_TABLES}")
    text = required(options, "url", "tailrace://HOST:PORT")
    try:
        parse_url(text)
    except ValueError as error:
        raise ValueError(f"option 'url': {error}") from None
    return text


def tls_files(options: Mapping[str, str]) -> TlsFiles:
    """Returns options ``tls_ca``, ``tls_cert`` and ``tls_key``: paths of files on every executor, or their texts."""
    files = TlsFiles(*(options.get(name, "") for name in ("tls_ca", "tls_cert", "tls_key")))
    if any(files) and not parse_url(url(options)).secure:
        raise ValueError(
            "options 'tls_ca', 'tls_cert' and 'tls_key' need a 'url' that begins with tailraces:// or wss://"
        )
    return files


def context_of(url: str, files: TlsFiles) -> ssl.SSLContext | None:
    """Returns the context of TLS for nodes; None for a plain URL. Raises ValueError if a file cannot be used."""
    if not parse_url(url).secure:
        return None
    try:
        return client_context(files)
    except ValueError as error:
        raise ValueError(f"options 'tls_ca', 'tls_cert', 'tls_key': {error}") from None


def required(options: Mapping[str, str], name: str, example: str) -> str:
    """Returns the text of a required option; ``example`` explains it in the error."""
    value = options.get(name)
    if not value:
        raise ValueError(f"option {name!r} is missing: .option({name!r}, ...) with {example}")
    return value


def boolean(options: Mapping[str, str], name: str, default: str = "false") -> bool:
    """Returns whether an option is "true"; "true" and "false" are permitted, in any case."""
    text = options.get(name, default).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name!r} is {text!r}, neither 'true' nor 'false'")
    return text == "true"


def count(options: Mapping[str, str], name: str) -> int | None:
    """Returns a whole number from 1, or None if the option is missing."""
    text = options.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"option {name!r} is {text!r}, but must be a whole number from 1")
    return number


def number(options: Mapping[str, str], name: str) -> int | None:
    """Returns a whole number from 0, or None if the option is missing."""
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.strip().isdecimal() or len(text) > 18:
        raise ValueError(f"option {name!r} is {text!r}, but must be a whole number from 0")
    return int(text)


def choice(options: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """Returns one of ``choices``, by default the first."""
    found = options.get(name, choices[0]).strip().lower()
    if found not in choices:
        raise ValueError(f"option {name!r} is {found!r}, but must be one of {', '.join(map(repr, choices))}")
    return found


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """Returns a positive number of seconds."""
    text = options.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"option {name!r} is {text!r}, but must be a positive number of seconds")
    return number


def _order_by(text: str) -> tuple[SortColumn, ...]:
    """Returns the columns of ``"a, b desc, c desc nulls first"``. Nulls sort as least by default."""
    columns = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, *words = part.split()
        said = " ".join(words).lower()
        found = re.fullmatch(r"(asc|desc)?(?:(?:^| )nulls (first|last))?", said)
        if found is None:
            raise ValueError(
                f"option 'order_by' has {part!r}: each part is a column, with asc or desc if needed, and then with "
                "nulls first or nulls last"
            )
        is_descending = found[1] == "desc"
        columns.append(SortColumn(name, is_descending, is_descending if found[2] is None else found[2] == "last"))
    return tuple(columns)
