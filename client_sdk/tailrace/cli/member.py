"""``tailrace member``: lists the members of a set, and follows the replacement of a disk until the new one votes."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import trio
import typer
from rich.console import RenderableType

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.options import DEFAULT_URL, Json, Node, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json, printable
from tailrace.errors import Retryable
from tailrace.link.address import parse_address

app = typer.Typer(help="The members of a set, and who of them votes.", no_args_is_help=True)

POLL_SECONDS = 0.5
_COLUMNS = (("member", "left"), ("disk", "left"), ("seat", "left"), ("votes", "left"), ("state", "left"))


class MemberRow(NamedTuple):
    """A member as a node's status tells of it.

    ``disk``: the placement id of its directory, "" without an answer. ``seat``: that of the directory which has its
    vote, "" if the seat is vacant. ``state`` is a sentence.
    """

    address: str
    disk: str
    seat: str
    state: str

    @property
    def votes(self) -> bool:
        """Whether its present directory has the vote."""
        return bool(self.disk) and self.disk == self.seat


def rows_of(details: dict[str, Any]) -> list[MemberRow]:
    """Returns the members by a node's status, in the order of their list. Raises CommandFailed outside of a set."""
    replication = details.get("replication", {})
    members, voters = replication.get("members"), replication.get("voters")
    if not members:
        raise CommandFailed("this node is no member of a set (--members, --cluster-store)")
    if not voters or not voters["epoch"]:
        raise CommandFailed(
            "the voters of this set are not recorded yet: its leader records them once a majority of the members runs "
            "this version"
        )
    others = {other["address"]: other for other in replication["others"]}
    replicas = {replica["placement_id"]: replica for replica in replication["replicas"]}
    rows = []
    for address, seat in zip(members, voters["seats"], strict=True):
        seen = others.get(address, {"answers": True} | _own(details, replication))
        disk = seen["placement_id"] if seen["answers"] else ""
        rows.append(MemberRow(address, disk, seat, _state(seen, seat, replicas.get(disk))))
    return rows


def _own(details: dict[str, Any], replication: dict[str, Any]) -> dict[str, Any]:
    """Returns what a node would tell of itself."""
    return {name: replication[name] for name in ("role", "term", "leader")} | {"placement_id": details["placement_id"]}


def _state(seen: dict[str, Any], seat: str, replica: dict[str, Any] | None) -> str:
    if not seen["answers"]:
        return "does not answer, or its answers do not count (`tailrace status`)"
    if seen["role"] == "leader":
        return f"leads in term {seen['term']}"
    behind = "" if replica is None or not replica["lag"] else f", {replica['lag']:,} mutations behind"
    follows = f"follows {seen['leader']}{behind}" if seen["leader"] else "follows no leader"
    if seen["placement_id"] == seat:
        return follows
    if seen.get("ready"):
        return f"{follows}; has caught up, and waits for its seat"
    return f"{follows}; has no vote until it has caught up"


def render(details: dict[str, Any]) -> RenderableType:
    """Renders the members by a node's status as a table."""
    rows = (
        (
            printable(row.address),
            row.disk[:8] or "-",
            row.seat[:8] or "vacant",
            "yes" if row.votes else "no",
            printable(row.state),
        )
        for row in rows_of(details)
    )
    return make_table(f"Members, epoch {details['replication']['voters']['epoch']}", _COLUMNS, rows)


@app.command("list")
def list_members(json: Json = False, url: Url = DEFAULT_URL, node: Node = None, token: Token = None) -> None:
    """List the members of a set, their disks, and which disk has the vote of each.

    \b
    Example:
      tailrace member list --node 10.0.0.1:4700
    """
    node_target = target("member list", url, node, token, "any")

    details: dict[str, Any] = {}

    async def run() -> None:
        async with node_target.client() as client:
            details.update((await client.status()).details)

    trio.run(run)
    if json:
        for row in rows_of(details):
            print_json({**row._asdict(), "votes": row.votes})
    else:
        make_console().print(render(details))


class Phase(NamedTuple):
    """How far the replacement of a member's disk has come: a sentence, and whether the new disk votes."""

    text: str
    is_over: bool = False


def phase_of(details: dict[str, Any], address: str, old: str) -> Phase:
    """Returns how far the replacement has come, by the leader's status.

    Args:
        details: The status.
        address: Of the member.
        old: The placement id of the disk that is to be replaced; "" if another disk has come already.

    Raises:
        CommandFailed: No member has that address, or the set is not recorded.
    """
    row = _row(rows_of(details), address)
    if row.votes and row.disk != old:
        return Phase(f"disk {row.disk[:8]} of {address} votes", is_over=True)
    if not row.disk or row.disk == old:
        return Phase(f"waits for {address}: stop it, move its directory away, and start it with an empty one")
    if row.seat and row.state.endswith("waits for its seat"):
        return Phase(f"the new disk {row.disk[:8]} has caught up; the old one, {row.seat[:8]}, still has the vote")
    if not row.seat:
        return Phase(f"the old disk has no vote any more; the new one, {row.disk[:8]}, is about to get it")
    return Phase(f"the new disk {row.disk[:8]} catches up: {row.state}")


def why_unsafe(rows: list[MemberRow], address: str) -> str:
    """Returns why the disk of the member must not be given up now; "" if a majority of the others votes."""
    others = sum(row.votes for row in rows if row.address != address)
    needed = len(rows) // 2 + 1
    if others >= needed:
        return ""
    return f"{others} of the other members answer with a vote, and {needed} are needed while its seat is vacant"


def plan_of(rows: list[MemberRow], address: str) -> list[str]:
    """Returns what a replacement of the member's disk does, step by step."""
    row = _row(rows, address)
    steps = (
        [] if row.disk and not row.votes else ["stop the node, move its directory away, and start it with an empty one"]
    )
    return [
        *steps,
        "the new disk copies all rows of the leader; it has no vote until then",
        f"once a majority has stored the last record, the leader takes the vote from disk {row.seat[:8] or '-'}",
        "a majority stores that; the new disk has all rows as of then; the leader gives it the vote",
    ]


def _row(rows: list[MemberRow], address: str) -> MemberRow:
    found = next((row for row in rows if row.address == address), None)
    if found is None:
        raise CommandFailed(f"{address} is no member: {', '.join(row.address for row in rows)} are")
    return found


@app.command("replace")
def replace(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The member whose disk is replaced.")],
    plan: Annotated[bool, typer.Option("--plan", help="Print the steps, and whether they are safe now.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Go on though too few of the other members answer with a vote.")
    ] = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Follow the replacement of a member's disk until the new disk votes.

    Call it before the member is stopped, or at any time later. It prints each step, changes nothing by itself, and goes
    on with the next leader if the leader is lost. It refuses if the set would be without a majority meanwhile.

    \b
    Example:
      tailrace member replace 10.0.0.3:4700
    """
    try:
        name = str(parse_address(address))
    except ValueError as error:
        raise WrongUsage(f"HOST:PORT: {error}") from None
    trio.run(_replace, target("member replace", url, node, token), name, plan, force)


async def _replace(node_target: Any, address: str, plan: bool, force: bool) -> None:
    async with node_target.client() as client:
        rows = rows_of((await client.status()).details)
        row, unsafe = _row(rows, address), why_unsafe(rows, address)
        if plan:
            for number, step in enumerate(plan_of(rows, address), 1):
                print(f"{number}. {printable(step)}")
            print(f"Not now: {unsafe}." if unsafe else "A majority of the other members votes: it is safe now.")
            return
        if unsafe and not force:
            raise CommandFailed(f"refused: {unsafe}. --force goes on all the same")
        old, before = (row.disk if row.votes else ""), ""
        while True:
            try:
                phase = phase_of((await client.status()).details, address, old)
            except Retryable as error:
                phase = Phase(f"no leader answers: {error}")
            if phase.text != before:
                print(printable(phase.text), flush=True)
                before = phase.text
            if phase.is_over:
                return
            await trio.sleep(POLL_SECONDS)
