"""``tailrace explain-resume``: what would become of a consumer that resumed with its positions now."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tailrace.cli.errors import WrongUsage
from tailrace.cli.inputs import read_positions
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json
from tailrace.consuming.explain import Explanation, Outcome
from tailrace.trio.client import Client

_COLUMNS = (
    ("partition", "right"),
    ("stands at", "right"),
    ("outcome", "left"),
    ("from", "right"),
    ("behind", "right"),
    ("why", "left"),
)


def explain_resume(
    feed: FeedName,
    positions: Annotated[
        str,
        typer.Argument(
            metavar="POSITIONS",
            help="The positions that the consumer has stored; @FILE reads a file, - the standard input.",
            show_default=False,
        ),
    ],
    visibility: Annotated[
        str, typer.Option("--visibility", metavar="LEVEL", help="The level of the consumer: memory or disk.")
    ] = "disk",
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Say what would happen if a consumer of FEED resumed with POSITIONS now, and why. Nothing is changed by it."""
    parsed = read_positions("POSITIONS", positions, may_be_stdin=True)
    if visibility not in ("memory", "disk", "quorum"):
        raise WrongUsage(f"--visibility: {visibility!r} is none of memory, disk, quorum")

    async def work(client: Client) -> dict[int, Explanation]:
        return await client.feed(feed).explain_resume(parsed, visibility=visibility)

    explained = target("explain-resume", url, node, token).call(work)
    if json:
        for explanation in explained.values():
            print_json(explanation.to_json())
    else:
        _show(feed, list(explained.values()))


def _show(feed: str, explained: list[Explanation]) -> None:
    """A table, and a sentence for each partition that does not just go on."""
    rows = [
        (e.partition, e.seq, e.outcome.value, _number(e.resumes_at), _number(e.behind), e.reason) for e in explained
    ]
    console = make_console()
    console.print(make_table(f"{feed}, resumed now", _COLUMNS, rows))
    for explanation in explained:
        if explanation.outcome is not Outcome.GOES_ON:
            console.print(Text(f"partition {explanation.partition}: {explanation.message}"))


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
