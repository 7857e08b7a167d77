"""``tailrace export``: writes the rows of a feed to a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import trio
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, ReadState, StateOption, Token, Url, target
from tailrace.cli.output import from_argument, print_json, printable
from tailrace.cli.rowfiles.formats import STDIO, Format, format_of
from tailrace.cli.rowfiles.targets import Row, RowWriter, Target
from tailrace.cli.tls_options import uses_node
from tailrace.consuming.events import Mutations
from tailrace.errors import StreamEnded
from tailrace.model import EndReason, Mutation
from tailrace.trio.client import Client
from tailrace.trio.feed import Feed
from tailrace.wire.filters import StreamFilter

# Rows that are written together, in a thread.
ROWS_TOGETHER = 4_096


@uses_node
def export(
    feed: FeedName,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="The file; - is the standard output.", show_default=False)
    ] = STDIO,
    format: Annotated[
        Format | None,
        typer.Option("--format", help="The format. By default the name of the file tells it; JSON lines for -."),
    ] = None,
    mutations: Annotated[
        bool,
        typer.Option(
            "--mutations", help="Write every mutation that the feed keeps, deletions too, not the latest of each key."
        ),
    ] = False,
    key_prefix: Annotated[
        str, typer.Option("--key-prefix", metavar="PREFIX", help="Write only keys that begin with this prefix.")
    ] = "",
    state: ReadState = StateOption.LEADER,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Write the rows of a feed to a file, or to the standard output.

    A row has key, value, deleted, timestamp, partition, seq and expired. It has everything that was acknowledged
    before. The rows of a partition come together; with --mutations they are in the order of their seqs. The file
    appears when it is whole, and replaces one that is there.

    \b
    Examples:
      tailrace export orders orders.parquet
      tailrace export orders --key-prefix 4711/ | jq .value
    """
    kind = format_of(file, format)
    wanted = StreamFilter(from_argument(key_prefix))
    try:
        wanted.check()
    except ValueError as error:
        raise WrongUsage(f"--key-prefix: {error}") from None
    if json and file == STDIO:
        raise WrongUsage("--json prints a summary, and the rows go to the standard output: name a file")
    read = _mutations if mutations else _items

    async def work(client: Client) -> int:
        with Target(file, kind) as writer, _bar() as told:
            taker = _Taker(writer, file, told)
            await read(client.feed(feed), wanted.key_prefix, taker)
            await taker.pass_on()
        return taker.count

    count = target("export", url, node, token, state.value).call(work)
    if json:
        print_json({"feed": feed, "file": file, "rows": count})
    elif file != STDIO:
        print(f"{printable(file)}: {count:,} rows")


class _Taker:
    """Gathers rows, and writes them in a thread: the reader of a pipe may be slow."""

    def __init__(self, writer: RowWriter, file: str, told: Callable[[int], None]) -> None:
        self._writer = writer
        self._file = file
        self._told = told
        self._rows: list[Row] = []
        self.count = 0

    async def take(self, rows: Iterable[Row]) -> None:
        """Adds rows. Raises CommandFailed, BrokenPipeError."""
        self._rows.extend(rows)
        if len(self._rows) >= ROWS_TOGETHER:
            await self.pass_on()

    async def pass_on(self) -> None:
        """Writes the gathered rows. Raises CommandFailed, BrokenPipeError."""
        rows, self._rows = self._rows, []
        await trio.to_thread.run_sync(self._write, rows, abandon_on_cancel=True)
        self.count += len(rows)
        self._told(self.count)

    def _write(self, rows: list[Row]) -> None:
        try:
            self._writer.write(rows)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandFailed(f"{self._file}: {error.strerror or error}") from None


async def _items(feed: Feed, key_prefix: bytes, taker: _Taker) -> None:
    """Takes the latest row of each key."""
    async for item in feed.items(key_prefix=key_prefix):
        mutation = Mutation(item.key, item.value, item.version.seq, item.timestamp, False)
        await taker.take((Row(item.version.partition, mutation),))


async def _mutations(feed: Feed, key_prefix: bytes, taker: _Taker) -> None:
    """Takes every mutation up to now. Raises CommandFailed if the feed loses some meanwhile."""
    try:
        async with feed.consume(until="now", key_prefix=key_prefix, on_rollback="stop") as stream:
            async for event in stream:
                if isinstance(event, Mutations):
                    await taker.take(Row(event.partition, mutation) for mutation in event)
    except StreamEnded as error:
        if error.reason is EndReason.ROLLED_BACK:
            raise CommandFailed(f"the feed lost mutations meanwhile, at a failover: export it anew ({error})") from None
        raise


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int], None]]:
    """Yields the function that shows a number of rows. Nothing is shown without a terminal."""
    if not sys.stderr.isatty():
        yield lambda rows: None
        return
    columns = SpinnerColumn(), TextColumn("export"), TextColumn("{task.fields[rows]:,} rows"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("export", total=None, rows=0)
        yield lambda rows: progress.update(task, rows=rows)
