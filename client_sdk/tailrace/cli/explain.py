"""``tailrace explain-resume``: explains how a consumer would resume with its positions now."""

from __future__ import annotations

from typing import Annotated, cast

import typer
from rich.text import Text

from tailrace.cli.errors import WrongUsage
from tailrace.cli.inputs import read_positions
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json
from tailrace.cli.tls_options import uses_node
from tailrace.consuming.explain import Explanation, Outcome
from tailrace.model import LevelName
from tailrace.trio.client import Client

_COLUMNS = (
    ("partition", "right"),
    ("stands at", "right"),
    ("outcome", "left"),
    ("from", "right"),
    ("behind", "right"),
    ("why", "left"),
)


@uses_node
def explain_resume(
    feed: FeedName,
    positions: Annotated[
        str,
        typer.Argument(
            metavar="POSITIONS",
            help="The stored positions of the consumer. @FILE reads a file, - reads standard input.",
            show_default=False,
        ),
    ],
    visibility: Annotated[
        str, typer.Option("--visibility", metavar="LEVEL", help="The level of the consumer: memory, disk or quorum.")
    ] = "disk",
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Explain how a consumer would resume.

    Prints for each partition whether a consumer of FEED that resumed with POSITIONS now would go on, start over, wait
    or end, and the reason. Nothing is changed.

    \b
    Example:
      tailrace explain-resume orders @positions.txt
    """
    parsed = read_positions("POSITIONS", positions, may_be_stdin=True)
    if visibility not in ("memory", "disk", "quorum"):
        raise WrongUsage(f"--visibility is {visibility!r}, but has to be memory, disk or quorum")

    async def work(client: Client) -> dict[int, Explanation]:
        return await client.feed(feed).explain_resume(parsed, visibility=cast(LevelName, visibility))

    explained = target("explain-resume", url, node, token).call(work)
    if json:
        for explanation in explained.values():
            print_json(explanation.to_json())
    else:
        _show(feed, list(explained.values()))


def _show(feed: str, explained: list[Explanation]) -> None:
    """Prints a table, and the explanation of each partition that does not go on."""
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
