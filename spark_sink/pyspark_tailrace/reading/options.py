"""The options of a reader, as given by ``.option(...)``: parsed and checked.

Fields are plain values, because Spark pickles them into every task.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark_tailrace import options as parsers
from tailrace.block import KEY_BYTES_MAX
from tailrace.errors import BadPosition
from tailrace.model import Level
from tailrace.model.position import MAGIC, Positions
from tailrace.model.times import looks_like_time, parse_time, to_us
from tailrace.tls.context import NO_FILES, TlsFiles

EARLIEST, LATEST = "earliest", "latest"
STATE, MUTATIONS = "state", "mutations"
FAIL, FOLLOW = "fail", "follow"
AUTO, SEGMENTS, STREAM = "auto", "segments", "stream"

# A node shows 200 characters of a name, with "spark " before it.
QUERY_NAME_MAX = 100

# Names with capitals are those of Spark's other sources.
NAMES = (
    "url",
    "feed",
    "token",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "retry_for",
    "visibility",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    "on_rollback",
    "query_name",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "read",
    "partition_ids",
    "key_prefix",
    "catch_up",
)

# Options of one kind of job, and the reason why the other kind cannot use them.
_OF_STREAMS = {
    "query_name": "the progress of a query is shown under it, and a batch has none",
    "maxRowsPerTrigger": "a batch has no micro-batches",
    "maxBytesPerTrigger": "a batch has no micro-batches",
    "on_rollback": "a batch ends if the history changes while it is read: run it again",
}
_OF_BATCHES = {
    "endingOffsets": "Trigger.AvailableNow ends a query at the rows that exist when it starts",
    "read": "a stream gives every mutation",
    "partition_ids": "filter the stream",
    "key_prefix": "filter the stream",
    "catch_up": "a micro-batch is read within a second of its end, and seldom from segments",
}

_CHOICES = {
    "visibility": ("disk", "quorum", "memory"),
    "on_rollback": (FAIL, FOLLOW),
    "read": (STATE, MUTATIONS),
    "catch_up": (AUTO, SEGMENTS, STREAM),
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a reader.

    ``start`` is "earliest", "latest", positions as a string, or microseconds since 1970 UTC. ``end``, of a batch, is
    one of these except "earliest". A batch reads the partitions ``partition_ids``, None for all, and only keys that
    begin with ``key_prefix``. ``query_name``: under which nodes show a
    streaming query. ``catch_up``: whether the tasks of a batch read segments, as in ``Feed.consume``.
    """

    url: str
    feed: str
    token: str | None = field(repr=False)
    retry_for_s: float
    level: Level
    start: str | int
    end: str | int
    fail_on_data_loss: bool
    on_rollback: str
    max_rows: int | None
    max_bytes: int | None
    min_partitions: int | None
    read: str
    partition_ids: frozenset[int] | None
    key_prefix: bytes
    catch_up: str
    query_name: str = ""
    tls: TlsFiles = field(default=NO_FILES, repr=False)


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    """Returns the options of a streaming read. Raises ValueError as ``read_options``, and for options of batches."""
    return replace(_of_kind(options, _OF_BATCHES, "batch reads"), catch_up=STREAM)


def batch_options(options: Mapping[str, str]) -> ReadOptions:
    """Returns the options of a batch read. Raises ValueError as ``read_options``, and for options of streams."""
    found = _of_kind(options, _OF_STREAMS, "streams")
    if found.read == STATE and found.start != EARLIEST:
        raise ValueError(
            "option 'startingOffsets' is for read 'mutations', because a state has no beginning: set option 'read', or "
            "leave 'startingOffsets' out"
        )
    return found


def _of_kind(options: Mapping[str, str], others: Mapping[str, str], kind: str) -> ReadOptions:
    found = read_options(options)
    given = {name.lower() for name in options}
    for name, why in others.items():
        if name.lower() in given:
            raise ValueError(f"option {name!r} is for {kind}: {why}")
    return found


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Returns the options of a reader. Raises ValueError with the option's name and its permitted values."""
    canonical = {name.lower(): name for name in NAMES}
    given = {canonical.get(name.lower(), name.lower()): value for name, value in options.items()}
    if "value_schema" in given or "valueschema" in given:
        raise ValueError(
            "option 'value_schema' is not for a source: a source written in Python cannot call Spark's functions. Use "
            "pyspark_tailrace.decode(df, schema), which runs from_json() on the column 'value' inside the JVM"
        )
    if "pushdown" in given:
        raise ValueError(
            "option 'pushdown' was removed: Spark 4 keeps filters that a source written in Python has accepted when it "
            "uses the DataFrame again, so rows would be missing. Spark filters by itself; 'partition_ids' and "
            "'key_prefix' make a batch read less"
        )
    if "level" in given:
        raise ValueError("option 'level' is for writing; 'visibility' says which mutations are read")
    parsers.check_names(given, NAMES, parsers.NAMES)
    return ReadOptions(
        url=parsers.url(given),
        feed=parsers.required(given, "feed", "the name of a feed"),
        token=given.get("token"),
        retry_for_s=parsers.seconds(given, "retry_for", parsers.RETRY_FOR_S),
        level=Level.parse(_choice(given, "visibility")),
        start=_place(given, "startingOffsets", EARLIEST, (EARLIEST, LATEST)),
        end=_place(given, "endingOffsets", LATEST, (LATEST,)),
        fail_on_data_loss=parsers.boolean(given, "failOnDataLoss", "true"),
        on_rollback=_choice(given, "on_rollback"),
        max_rows=parsers.count(given, "maxRowsPerTrigger"),
        max_bytes=parsers.count(given, "maxBytesPerTrigger"),
        min_partitions=parsers.count(given, "minPartitions"),
        read=_choice(given, "read"),
        partition_ids=_partition_ids(given.get("partition_ids")),
        key_prefix=_key_prefix(given.get("key_prefix", "")),
        catch_up=_choice(given, "catch_up"),
        query_name=_query_name(given.get("query_name", "")),
        tls=parsers.tls_files(given),
    )


def _choice(options: Mapping[str, str], name: str) -> str:
    allowed = _CHOICES[name]
    text = options.get(name, allowed[0]).strip().lower()
    if text not in allowed:
        raise ValueError(f"option {name!r} is {text!r}, but must be one of {', '.join(map(repr, allowed))}")
    return text


def _partition_ids(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise ValueError(f"option 'partition_ids' is {text[:60]!r}, but must be numbers of partitions, such as '0, 3'")
    return frozenset(map(int, parts))


def _key_prefix(text: str) -> bytes:
    prefix = text.encode()
    if len(prefix) > KEY_BYTES_MAX:
        raise ValueError(f"option 'key_prefix' has {len(prefix)} bytes in UTF-8, and a key at most {KEY_BYTES_MAX}")
    return prefix


def _query_name(text: str) -> str:
    name = text.strip()
    if len(name) > QUERY_NAME_MAX or not name.isprintable():
        raise ValueError(
            f"option 'query_name' is {name[:60]!r}, but must have at most {QUERY_NAME_MAX} "
            "characters, all of them printable"
        )
    return name


def _place(options: Mapping[str, str], name: str, default: str, words: tuple[str, ...]) -> str | int:
    """Returns one of ``words``, positions as a string, or a time in microseconds since 1970 UTC."""
    text = options.get(name, default).strip()
    try:
        if text.lower() in words:
            return text.lower()
        if text.startswith(MAGIC):
            return str(Positions.parse(text))
        if looks_like_time(text):
            return to_us(parse_time(text, datetime.datetime.now(datetime.UTC)), "the time")
    except (BadPosition, ValueError) as error:
        raise ValueError(f"option {name!r}: {error}") from None
    raise ValueError(
        f"option {name!r} is {text[:40]!r}, but must be {', '.join(map(repr, words))}, a time (2026-11-21T10:00:00Z, "
        "or -15m) or a positions string"
    )
