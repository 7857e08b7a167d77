"""``tailrace group``: lists consumers with a name and groups, shows one, and moves its positions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tailrace.cli.errors import WrongUsage
from tailrace.cli.inputs import read_positions
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json
from tailrace.cli.status import consumers_table
from tailrace.cli.tls_options import uses_node
from tailrace.consuming.explain import Explanation
from tailrace.consuming.subscription import Since, require_since
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.model.times import looks_like_time, parse_time, to_text
from tailrace.trio.client import Client
from tailrace.wire.consumer_messages import COMMIT_PARTITIONS_MAX, ConsumerId, Reset
from tailrace.wire.opcodes import Opcode

app = typer.Typer(
    help="List groups and consumers with a name, show one, and move its positions.", rich_markup_mode=None
)

GroupName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a group, or of a consumer.", show_default=False)
]
_PARTITIONS = (
    ("partition", "right"),
    ("state", "left"),
    ("owner", "left"),
    ("generation", "right"),
    ("seq", "right"),
    ("behind", "right"),
    ("last commit", "right"),
)
# Words of other systems for the same.
_SAME = {"earliest": "beginning", "latest": "now"}
_SEQS = re.compile(r"\d{1,5}=\d{1,19}(,\d{1,5}=\d{1,19})*", re.ASCII)
_HINT = "; or write beginning, now, last:N, a time, or seqs such as 0=4711,3=12"
_RESETS = (("partition", "right"), ("from", "right"), ("to", "right"), ("outcome", "left"), ("behind", "right"))


@app.command("list")
@uses_node
def list_groups(json: Json = False, url: Url = DEFAULT_URL, node: Node = None, token: Token = None) -> None:
    """List the groups and the consumers with a name, how far they are behind, and who reads."""

    async def work(client: Client) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = (await client.status()).details.get("consumers", [])
        return told

    consumers = target("group list", url, node, token).call(work)
    if json:
        for consumer in consumers:
            print_json(consumer)
    else:
        make_console().print(consumers_table(consumers) if consumers else "no groups, and no consumers with a name")


@app.command()
@uses_node
def show(
    feed: FeedName,
    name: GroupName,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Show who owns each partition of a group, and the positions that are stored."""

    async def work(client: Client) -> dict[str, Any]:
        return (await _found(client, feed, name))[1]

    told = target("group show", url, node, token).call(work)
    if json:
        print_json(told)
        return
    console = make_console()
    console.print(consumers_table([told]))
    peers = {member["member"]: member["peer"] or "not connected" for member in told["members"]}
    rows = (
        (
            each["partition"],
            each["state"],
            peers.get(each["owner"], each["owner"][:8]),
            each["generation"],
            each["seq"],
            f"{each['lag']:,}",
            to_text(each["committed_us"]),
        )
        for each in told["owned"]
    )
    console.print(make_table("Partitions", _PARTITIONS, rows))


@app.command()
@uses_node
def reset(
    feed: FeedName,
    name: GroupName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="beginning (or earliest), now (or latest), last:100 of each partition, a time such as "
            "2026-11-21T10:00:00Z or -15m, seqs of partitions such as 0=4711,3=12, or positions: @FILE reads a file, - "
            "reads standard input.",
            show_default=False,
        ),
    ] = "",
    forget: Annotated[bool, typer.Option("--forget", help="Forget the name and all of its positions.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would come, and change nothing.")] = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Move the positions of a group, or of a consumer, that nothing reads at present.

    Prints for each partition where it stands and where it would begin then, as explain-resume does.

    \b
    Examples:
      tailrace group reset orders mailers --to beginning --dry-run
      tailrace group reset orders mailers --to now
      tailrace group reset orders mailers --to -2h
    """
    if forget == bool(to):
        raise WrongUsage("give --to beginning, now, last:N, a time, seqs or positions; or --forget")
    to = _SAME.get(to, to)
    start = None if to in ("", "beginning", "now") else _start(to)

    async def work(client: Client) -> tuple[dict[str, Any], Positions | None, dict[int, Explanation]]:
        consumer, told = await _found(client, feed, name)
        numbers = [each["partition"] for each in told["owned"]]
        goal = given = None if start is None else await _positions_at(client, feed, start)
        if to == "beginning":
            stored = Positions.parse(told["positions"])
            goal = Positions(stored.cluster_id, stored.feed_id, dict.fromkeys(numbers, Position.at(FailoverLog(), 0)))
        explained = {} if goal is None else await client.feed(feed).explain_resume(goal)
        if given is not None:
            # Positions and seqs name partitions; a time and a number are for those that have a position.
            numbers = sorted(given) if isinstance(start, Mapping) else numbers
        if not dry_run:
            where = "forgotten" if forget else to if given is None else "given"
            for first in range(0, len(numbers), COMMIT_PARTITIONS_MAX):
                some = tuple(numbers[first : first + COMMIT_PARTITIONS_MAX])
                part = None if given is None else _only(given, some)
                await client.call(Opcode.CONSUMER_RESET, Reset(consumer, where, some, part).to_json())
        return told, goal, explained

    rows = _moves(*target("group reset", url, node, token).call(work), "forgotten" if forget else "now")
    if json:
        for row in rows:
            print_json(row)
        return
    title = f"{name} of {feed}: {'nothing is changed' if dry_run else 'is moved'}"
    make_console().print(make_table(title, _RESETS, (row.values() for row in rows)))


def _start(to: str) -> Since:
    """Reads a start, as `Feed.consume` takes it. Raises WrongUsage."""
    try:
        if to.startswith("last:"):
            require_since(to)
            return to
        if _SEQS.fullmatch(to):
            seqs = {int(number): int(seq) for number, seq in (part.split("=") for part in to.split(","))}
            require_since(seqs)
            return seqs
        if "=" in to:
            raise ValueError(f"{to!r} has to be as 0=4711,3=12, with the seqs of partitions")
        return (
            parse_time(to)
            if to != "-" and looks_like_time(to)
            else read_positions("--to", to, may_be_stdin=True, hint=_HINT)
        )
    except ValueError as error:
        raise WrongUsage(f"--to: {error}") from None


async def _positions_at(client: Client, feed: str, start: Since) -> Positions:
    """Returns the positions at which a consumer begins. A stream is opened for that, and left before any event."""
    if isinstance(start, Positions):
        return start
    stream = client.feed(feed).consume(start, keys_only=True, window_bytes=1, catch_up="stream")
    async with stream:
        positions = stream.positions
    return positions if not isinstance(start, Mapping) else _only(positions, tuple(start))


def _moves(
    told: dict[str, Any], goal: Positions | None, explained: dict[int, Explanation], where: str
) -> list[dict[str, Any]]:
    """Returns a row for each partition that moves: to its position in ``goal``, or to ``where`` without one."""
    return [
        {
            "partition": each["partition"],
            "from": each["seq"],
            "to": where if goal is None else goal[each["partition"]].seq,
            "outcome": "" if goal is None else explained[each["partition"]].outcome.value,
            "behind": 0 if goal is None else explained[each["partition"]].behind,
        }
        for each in told["owned"]
        if goal is None or each["partition"] in goal
    ]


def _only(positions: Positions, partitions: tuple[int, ...]) -> Positions:
    return Positions(positions.cluster_id, positions.feed_id, {p: positions[p] for p in partitions})


async def _found(client: Client, feed: str, name: str) -> tuple[ConsumerId, dict[str, Any]]:
    """Returns the group of this name, or else the consumer, with its partitions. Raises UnknownFeed."""
    feed_id = (await client.feed(feed).resolve()).feed_id
    known = (await client.status()).details.get("consumers", [])
    kinds = {each["kind"] for each in known if (each["feed"], each["name"]) == (feed, name)}
    consumer = ConsumerId(feed_id, "name" if kinds == {"name"} else "group", name)
    return consumer, await client.call(Opcode.CONSUMER_STATUS, consumer.to_json())
