"""``tailrace fetch``: copies a feed into a directory, as segments."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tailrace.cli.errors import WrongUsage
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, ReadState, StateOption, Token, Url, target
from tailrace.cli.output import print_json, printable
from tailrace.cli.tls_options import uses_node
from tailrace.copies.fetch import Fetched, FetchedPartition
from tailrace.trio.client import Client

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


@uses_node
def fetch(
    feed: FeedName,
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR", help="A new or empty directory, or an earlier copy.", show_default=False),
    ],
    partitions: Annotated[
        str | None,
        typer.Option("--partitions", metavar="LIST", help="Only these partitions, such as 0-3,7. [default: all]"),
    ] = None,
    state: ReadState = StateOption.LEADER,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Copy a feed into a directory, or bring the copy up to date.

    The copy has every mutation that was acknowledged before, in a set at level quorum. Run again, the command fetches
    only what is new. A fetch that was interrupted goes on where it ended.

    \b
    Examples:
      tailrace fetch orders ./orders-copy
      tailrace fetch orders ./orders-copy --partitions 0-3
    """
    chosen = None if partitions is None else parse_partitions(partitions)

    async def work(client: Client) -> Fetched:
        with _bar() as progress:
            return await client.feed(feed).fetch(directory, partitions=chosen, progress=progress)
        raise AssertionError("a bar swallows no error")

    try:
        fetched = target("fetch", url, node, token, state.value).call(work)
    except ValueError as error:  # a partition that the feed does not have
        raise WrongUsage(str(error)) from None
    for partition in fetched.partitions.values():
        if json:
            print_json(partition._asdict())
        elif note := _note(partition):
            print(note, file=sys.stderr)
    if not json:
        print(
            f"{printable(directory)}: {len(fetched.partitions)} partitions, {fetched.nbytes:,} bytes; "
            f"{fetched.fetched_bytes:,} bytes fetched"
        )


def parse_partitions(text: str) -> list[int]:
    """Returns the partitions of a list such as ``0-3,7``. Raises WrongUsage."""
    chosen: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise WrongUsage(f"--partitions is {text!r}, and has to be numbers and ranges such as 0-3,7")
        chosen.update(range(first, last + 1))
    return sorted(chosen)


def _note(partition: FetchedPartition) -> str:
    """Returns a line about a partition that did not just grow; "" if it did."""
    if partition.is_behind:
        return f"partition {partition.partition}: the node is behind the copy, which stays at seq {partition.seq}"
    if partition.rolled_back_to is not None:
        return (
            f"partition {partition.partition}: the node has lost the mutations above seq {partition.rolled_back_to} of "
            f"the earlier copy; the copy has its present history, up to seq {partition.seq}"
        )
    return ""


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int], None] | None]:
    """Yields the function that moves a progress bar; None if the output is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = TextColumn("fetch"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("fetch", total=None)
        yield lambda received, wanted: progress.update(task, completed=received, total=wanted)
