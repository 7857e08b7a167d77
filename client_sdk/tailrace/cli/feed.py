"""``tailrace feed``: create, list, show, set, drop and replay feeds."""

from __future__ import annotations

import enum
import math
import sys
from typing import Annotated, Any, cast

import typer

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json
from tailrace.cli.replay import replay
from tailrace.cli.tls_options import uses_node
from tailrace.errors import UnknownFeed
from tailrace.model import FeedInfo, LevelName, PartitionInfo, ReplicationMode, Retention
from tailrace.model.quantities import Unit, quantity, show_quantity
from tailrace.trio.client import Client

app = typer.Typer(help="Create, list, show, set, drop and replay feeds.", rich_markup_mode=None)


class RetentionOption(enum.StrEnum):
    """The choices of --retention."""

    COMPACT = "compact"
    HISTORY = "history"


class ReplicationOption(enum.StrEnum):
    """The choices of --replication."""

    STREAM = "stream"
    SEGMENT = "segment"


class LevelOption(enum.StrEnum):
    """The choices of --level."""

    MEMORY = "memory"
    DISK = "disk"
    QUORUM = "quorum"
    DEFAULT = "default"


_Replication = Annotated[
    ReplicationOption | None,
    typer.Option(
        "--replication",
        help="Send followers each mutation (stream) or whole segments, seconds later (segment).",
    ),
]
_HistoryAge = Annotated[
    str | None,
    typer.Option(
        "--history-age",
        metavar="TIME",
        help="Keep each mutation of a history so long at least: 90s, 12h, 30d, or 'off'.",
    ),
]
_HistoryBytes = Annotated[
    str | None,
    typer.Option("--history-bytes", metavar="SIZE", help="Keep so much of a history at least: 500MB, 10GiB, or 'off'."),
]
_TombstoneAge = Annotated[
    str | None, typer.Option("--tombstone-age", metavar="TIME", help="Keep each deletion so long at least: 12h, 7d.")
]

_Ttl = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="TIME",
        help="Let keys expire this time after their last put, unless it names a ttl: 90s, 12h, 7d, or 'off'.",
    ),
]

_Level = Annotated[
    LevelOption | None,
    typer.Option(
        "--level",
        help="The level of writes that name none. By default it is the node's: quorum in a set, and disk elsewhere.",
    ),
]


@app.command()
@uses_node
def create(
    feed: FeedName,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", help="The number of partitions. It cannot be changed later. [default: 16]"),
    ] = None,
    retention: Annotated[
        RetentionOption | None,
        typer.Option(
            "--retention",
            help="Keep the latest mutation of each key (compact) or all mutations (history). [default: compact]",
        ),
    ] = None,
    replication: _Replication = None,
    history_age: _HistoryAge = None,
    history_bytes: _HistoryBytes = None,
    tombstone_age: _TombstoneAge = None,
    level: _Level = None,
    ttl: _Ttl = None,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Create a feed, or show it if it exists.

    A new feed has retention compact, replication stream, a tombstone age of 3 days, the node's default level, and no
    bounds of a history, unless told otherwise. If the feed exists, the given options have to match it.

    \b
    Example:
      tailrace feed create orders --partitions 32 --retention history --history-age 30d
    """
    age_s = _quantity("--history-age", history_age, Unit.SECONDS)
    nbytes = _quantity("--history-bytes", history_bytes, Unit.BYTES)
    tombstone_age_s = _quantity("--tombstone-age", tombstone_age, Unit.SECONDS)
    ttl_s = _quantity("--ttl", ttl, Unit.SECONDS)

    async def work(client: Client) -> FeedInfo:
        await client.create_feed(
            feed,
            partitions=partitions,
            retention=cast(Retention | None, retention),
            history_age_s=None if age_s == math.inf else age_s,
            history_bytes=None if nbytes is None or nbytes == math.inf else int(nbytes),
            tombstone_age_s=tombstone_age_s,
            replication=cast(ReplicationMode | None, replication),
            level=cast(LevelName | None, level),
            ttl_s=None if ttl_s == math.inf else ttl_s,
        )
        return await _find(client, feed)

    info = target("feed create", url, node, token).call(work)
    if json:
        print_json(_info_to_json(info))
    else:
        print(
            f"feed {info.name}: {info.partitions} partitions, retention {info.retention}"
            f"{_mode_of(info)}{_level_of(info)}{_ttl_of(info)}"
        )


@app.command("list")
@uses_node
def list_feeds(json: Json = False, url: Url = DEFAULT_URL, node: Node = None, token: Token = None) -> None:
    """List all feeds."""
    infos = target("feed list", url, node, token).call(Client.feeds)
    if json:
        for info in infos:
            print_json(_info_to_json(info))
    elif infos:
        columns = [("feed", "left"), ("partitions", "right"), ("retention", "left"), ("level", "left"), ("id", "left")]
        rows = ((i.name, i.partitions, i.retention, i.level or LevelOption.DEFAULT, i.feed_id.hex()) for i in infos)
        make_console().print(make_table("", columns, rows))
    else:
        print("there are no feeds yet; `tailrace feed create NAME` creates one", file=sys.stderr)


@app.command()
@uses_node
def show(feed: FeedName, json: Json = False, url: Url = DEFAULT_URL, node: Node = None, token: Token = None) -> None:
    """Show a feed and the state of its partitions."""

    async def work(client: Client) -> tuple[FeedInfo, list[PartitionInfo]]:
        return await _find(client, feed), await client.feed(feed).partitions()

    info, partitions = target("feed show", url, node, token).call(work)
    if json:
        print_json({**_info_to_json(info), "partitions": [_partition_to_json(partition) for partition in partitions]})
        return
    console = make_console()
    console.print(
        f"feed {info.name}, id {info.feed_id.hex()}, retention {info.retention}, {_settings_of(info)}", markup=False
    )
    columns = [
        ("partition", "right"),
        ("first hash", "left"),
        ("last hash", "left"),
        ("mutations", "right"),
        ("durable", "right"),
        ("term", "right"),
        ("state", "left"),
        ("leader", "left"),
    ]
    rows = (
        (p.id, f"{p.hash_first:016x}", f"{p.hash_last:016x}", p.high_seq, p.durable_seq, p.term, p.state, p.leader)
        for p in partitions
    )
    console.print(make_table("", columns, rows))


@app.command("set")
@uses_node
def set_feed(
    feed: FeedName,
    replication: _Replication = None,
    history_age: _HistoryAge = None,
    history_bytes: _HistoryBytes = None,
    tombstone_age: _TombstoneAge = None,
    level: _Level = None,
    ttl: _Ttl = None,
    partitions: Annotated[str | None, typer.Option("--partitions", hidden=True)] = None,
    retention: Annotated[str | None, typer.Option("--retention", hidden=True)] = None,
    keyspace: Annotated[str | None, typer.Option("--keyspace", hidden=True)] = None,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Change settings of a feed that exists. Its mutations stay.

    Retention goes by new ages and sizes from its next pass on. Mutations that are gone do not come back. A new level
    holds for the next block of each writer. Partitions, keyspace and retention cannot be changed.

    \b
    Examples:
      tailrace feed set orders --replication segment
      tailrace feed set audits --history-age 90d --history-bytes off
      tailrace feed set clicks --level memory
      tailrace feed set sessions --ttl 12h
    """
    fixed = {"--partitions": partitions, "--retention": retention, "--keyspace": keyspace}
    for option, value in fixed.items():
        if value is not None:
            raise WrongUsage(
                f"{option} of a feed cannot be changed: create another feed with it, and copy the rows by "
                f"`tailrace export {feed}` and `tailrace import`"
            )
    age_s = _quantity("--history-age", history_age, Unit.SECONDS)
    nbytes = _quantity("--history-bytes", history_bytes, Unit.BYTES)
    tombstone_age_s = _quantity("--tombstone-age", tombstone_age, Unit.SECONDS)
    ttl_s = _quantity("--ttl", ttl, Unit.SECONDS)
    if all(value is None for value in (replication, age_s, nbytes, tombstone_age_s, level, ttl_s)):
        raise WrongUsage(
            "feed set: give a setting: --replication, --history-age, --history-bytes, --tombstone-age, --level or --ttl"
        )

    async def work(client: Client) -> FeedInfo:
        return await client.set_feed(
            feed,
            replication=cast(ReplicationMode | None, replication),
            history_age_s=age_s,
            history_bytes=nbytes,
            tombstone_age_s=tombstone_age_s,
            level=cast(LevelName | None, level),
            ttl_s=ttl_s,
        )

    info = target("feed set", url, node, token).call(work)
    if json:
        print_json(_info_to_json(info))
    else:
        print(f"feed {info.name}: {_settings_of(info)}")


@app.command()
@uses_node
def drop(
    feed: FeedName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Drop a feed and all its mutations.

    The command asks for confirmation. A script has to give --yes.
    """
    if not yes and not sys.stdin.isatty():
        raise CommandFailed(f"nothing was dropped: give --yes to drop feed {feed} and all its mutations")
    if not yes and not typer.confirm(f"Drop feed {feed} and all its mutations?", err=True):
        raise CommandFailed("nothing was dropped")

    async def work(client: Client) -> None:
        await client.drop_feed(feed)

    target("feed drop", url, node, token).call(work)


app.command()(replay)


def _quantity(option: str, text: str | None, unit: Unit) -> float | None:
    """Returns the number of an option; infinity for 'off', None if it is not given. Raises WrongUsage."""
    if text is None:
        return None
    if text == "off" and option != "--tombstone-age":
        return math.inf
    try:
        number = quantity(text, unit)
    except ValueError as error:
        raise WrongUsage(f"{option} {error}") from None
    if number < 0:
        raise WrongUsage(f"{option} is {text!r}, and has to be 0 or more")
    return number


def _settings_of(info: FeedInfo) -> str:
    """Returns all settings that can be changed, for people."""
    parts = [f"replication {info.replication}"]
    if info.retention == "history":
        age, nbytes = info.history_age_s, info.history_bytes
        parts.append(f"history age {'off' if age is None else show_quantity(age, Unit.SECONDS)}")
        parts.append(f"history bytes {'off' if nbytes is None else show_quantity(nbytes, Unit.BYTES)}")
    else:
        parts.append(f"tombstone age {show_quantity(info.tombstone_age_s, Unit.SECONDS)}")
    return ", ".join([*parts, f"level {info.level or LevelOption.DEFAULT}"]) + _ttl_of(info)


def _mode_of(info: FeedInfo) -> str:
    """Returns what is shown of a replication mode other than the default."""
    return "" if info.replication == "stream" else f", replication {info.replication}"


def _level_of(info: FeedInfo) -> str:
    """Returns what is shown of a level of the feed's own."""
    return "" if info.level is None else f", level {info.level}"


def _ttl_of(info: FeedInfo) -> str:
    """Returns the text about a ttl of the feed's own."""
    return "" if info.ttl_s is None else f", ttl {show_quantity(info.ttl_s, Unit.SECONDS)}"


async def _find(client: Client, feed: str) -> FeedInfo:
    for info in await client.feeds():
        if info.name == feed:
            return info
    raise UnknownFeed(f"there is no feed {feed!r}; `tailrace feed list` lists the feeds")


def _info_to_json(info: FeedInfo) -> dict[str, Any]:
    return {**info._asdict(), "feed_id": info.feed_id.hex()}


def _partition_to_json(partition: PartitionInfo) -> dict[str, Any]:
    # Hashes are strings, because many JSON readers round numbers of 64 bits.
    bounds = {"hash_first": f"{partition.hash_first:016x}", "hash_last": f"{partition.hash_last:016x}"}
    return {**partition._asdict(), **bounds, "log": partition.log.to_json()}
