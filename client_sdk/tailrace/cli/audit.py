"""``tailrace audit``: tells whether an index equals its feed, and which keys differ."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer
from rich.text import Text

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json, printable
from tailrace.cli.tls_options import uses_node
from tailrace.consuming.events import Mutations
from tailrace.consuming.explain import Outcome
from tailrace.errors import BadPosition, StreamEnded
from tailrace.indexes.audit import PartitionAudit, PartitionState
from tailrace.indexes.audited import Audited, audited
from tailrace.model import EndReason

if TYPE_CHECKING:
    from tailrace.model.position import Positions
    from tailrace.trio.client import Client
    from tailrace.trio.feed import Feed

_COLUMNS = (
    ("partition", "right"),
    ("stands at", "right"),
    ("rows", "right"),
    ("changed since", "right"),
    ("feed", "left"),
    ("index", "left"),
    ("differing", "right"),
)


@uses_node
def audit(
    feed: FeedName,
    index: Annotated[
        str,
        typer.Argument(
            metavar="INDEX",
            help="A file of SQLite or DuckDB, a directory of Parquet files, or a URL of PostgreSQL.",
            show_default=False,
        ),
    ],
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="TABLE",
            help="The table in a database. Default: the one with the name of the feed, or items.",
            show_default=False,
        ),
    ] = None,
    keys: Annotated[
        int, typer.Option("--keys", metavar="N", min=0, help="The differing keys to print, for each partition.")
    ] = 20,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Tell whether an index equals its feed at its position.

    Compares checksums, partition by partition, and prints the keys that differ. A key that has changed after the
    position of the index is left out. Neither the index nor the feed is changed; a follower may go on meanwhile, but
    for DuckDB. Exit code 1: they differ.

    \b
    Examples:
      tailrace audit orders orders.db
      tailrace audit orders postgresql://shop@db/shop --table orders
    """

    async def work(client: Client) -> list[PartitionAudit]:
        with contextlib.ExitStack() as stack:
            try:
                held = stack.enter_context(audited(index, table, feed))
            except ValueError as error:
                raise WrongUsage(f"INDEX: {error}") from None
            except (ImportError, BadPosition) as error:
                raise CommandFailed(str(error)) from None
            return await _compare(client.feed(feed), held, keys)

    compared = target("audit", url, node, token).call(work)
    if json:
        for one in compared:
            print_json(_to_json(one))
    else:
        _show(feed, index, compared)
    if not all(one.is_equal for one in compared):
        raise typer.Exit(1)


async def _compare(feed: Feed, index: Audited, keys_max: int) -> list[PartitionAudit]:
    positions = index.positions
    if positions is None:
        raise CommandFailed("the index holds nothing yet: there is no position at which to compare it")
    for explanation in (await feed.explain_resume(positions)).values():
        if explanation.outcome is not Outcome.GOES_ON or explanation.goes_back_to is not None:
            raise CommandFailed(
                f"partition {explanation.partition} cannot be compared: a follower {explanation.outcome.value}. "
                f"{explanation.message} Let the index follow the feed first"
            )
    return [
        await _compare_partition(feed, index, positions, partition, keys_max)
        for partition in sorted({*positions, *index.partitions()})
    ]


async def _compare_partition(
    feed: Feed, index: Audited, positions: Positions, partition: int, keys_max: int
) -> PartitionAudit:
    position = positions.get(partition)
    state = PartitionState(position.seq if position is not None else 0)
    try:
        async with feed.consume(
            until="now", partitions=[partition], key_prefix=index.key_prefix, on_rollback="stop", catch_up="auto"
        ) as stream:
            async for event in stream:
                if isinstance(event, Mutations):
                    state.add(event)
    except StreamEnded as error:
        if error.reason is EndReason.ROLLED_BACK:
            raise CommandFailed(f"the feed lost mutations meanwhile, at a failover: compare again ({error})") from None
        raise
    return await trio.to_thread.run_sync(state.compare, partition, index, keys_max)


def _to_json(one: PartitionAudit) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "seq": one.seq,
        "equal": one.is_equal,
        "rows": one.rows,
        "changed_since": one.changed_since,
        "feed_checksum": _sum(one.feed_sum),
        "index_checksum": _sum(one.index_sum),
        "differing": one.differing,
        "keys": [{"key": printable(key), "why": why} for key, why in one.differences],
    }


def _show(feed: str, index: str, compared: list[PartitionAudit]) -> None:
    console = make_console()
    rows = [
        (one.partition, one.seq, one.rows, one.changed_since, _sum(one.feed_sum), _sum(one.index_sum), one.differing)
        for one in compared
    ]
    console.print(make_table(f"{feed} and {printable(index)}", _COLUMNS, rows))
    for one in compared:
        for key, why in one.differences:
            console.print(Text(f"partition {one.partition}: {printable(key)}: {_WHY[why]}"))
    differing = sum(one.differing for one in compared)
    said = f"{differing:,} keys differ" if differing else "they are equal at the position of the index"
    console.print(Text(said))


def _sum(checksum: int) -> str:
    return f"{checksum:016x}"


_WHY = {
    "missing": "the index does not have it",
    "extra": "the feed does not have it",
    "value": "the values differ",
}
