"""``tailrace member``: lists the members of a set, and follows the replacement of a disk until the new one votes.

``add`` and ``remove`` are in member_change.py.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import trio
import typer
from rich.console import RenderableType

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.member_change import add, remove
from tailrace.cli.member_progress import follow, member_name, print_plan
from tailrace.cli.member_rows import MemberRow, Phase, row_of, rows_of, seats_of
from tailrace.cli.options import DEFAULT_URL, Json, Node, Target, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json, printable
from tailrace.cli.tls_options import uses_node

app = typer.Typer(help="The members of a set, and who of them votes.", no_args_is_help=True)

app.command("add")(add)
app.command("remove")(remove)

_CHANGES = {"joins": "join", "leaves": "leave"}
_COLUMNS = (("member", "left"), ("disk", "left"), ("seat", "left"), ("votes", "left"), ("state", "left"))


def render(details: dict[str, Any]) -> RenderableType:
    """Renders the members by a node's status as a table."""
    rows = (
        (
            printable(row.address),
            row.disk[:8] or "-",
            row.seat[:8] or ("none" if row.change == "joins" else "vacant"),
            "yes" if row.votes else "no",
            printable(f"is to {_CHANGES[row.change]}; {row.state}" if row.change else row.state),
        )
        for row in rows_of(details)
    )
    return make_table(f"Members, epoch {details['replication']['voters']['epoch']}", _COLUMNS, rows)


@app.command("list")
@uses_node
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


def phase_of(details: dict[str, Any], address: str, old: str) -> Phase:
    """Returns how far the replacement has come, by the leader's status.

    Args:
        details: The status.
        address: Of the member.
        old: The placement id of the disk that is to be replaced, or how it begins; "" if the seat was vacant.

    Raises:
        CommandFailed: No member has that address, or the set is not recorded.
    """
    row = row_of(rows_of(details), address)
    if row.seat and not _is_disk(row.seat, old):
        return Phase(f"disk {row.seat[:8]} of {address} votes", is_over=True)
    if not row.disk or _is_disk(row.disk, old):
        return Phase(_waits(row))
    if row.seat and row.state.endswith("waits for its seat"):
        return Phase(f"the new disk {row.disk[:8]} has caught up; the old one, {row.seat[:8]}, still has the vote")
    if not row.seat:
        return Phase(f"the old disk has no vote any more; the new one, {row.disk[:8]}, is about to get it")
    return Phase(f"the new disk {row.disk[:8]} catches up: {row.state}")


def _is_disk(disk: str, begins: str) -> bool:
    return bool(begins) and disk.startswith(begins)


def _waits(row: MemberRow) -> str:
    what = f"waits for {row.address}: stop it, move its directory away, and start it with an empty one"
    if not row.seat:
        return what
    seat = row.seat[:8]
    return (
        f"{what}. Disk {seat} has the vote: if that is the new disk, all is done. Call this again with --disk {seat}, "
        "and it ends at once if another disk has the vote"
    )


def why_unsafe(rows: list[MemberRow], address: str) -> str:
    """Returns why the disk of the member must not be given up now; "" if a majority of the others votes."""
    others = sum(row.votes for row in rows if row.address != address)
    needed = seats_of(rows) // 2 + 1
    if others >= needed:
        return ""
    return f"{others} of the other members answer with a vote, and {needed} are needed while its seat is vacant"


def plan_of(rows: list[MemberRow], address: str) -> list[str]:
    """Returns what a replacement of the member's disk does, step by step."""
    row = row_of(rows, address)
    steps = (
        [] if row.disk and not row.votes else ["stop the node, move its directory away, and start it with an empty one"]
    )
    return [
        *steps,
        "the new disk copies all rows of the leader; it has no vote until then",
        f"once a majority has stored the last record, the leader takes the vote from disk {row.seat[:8] or '-'}",
        "a majority stores that; the new disk has all rows as of then; the leader gives it the vote",
    ]


@app.command("replace")
@uses_node
def replace(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The member whose disk is replaced.")],
    plan: Annotated[bool, typer.Option("--plan", help="Print the steps, and whether they are safe now.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Go on though too few of the other members answer with a vote.")
    ] = False,
    disk: Annotated[
        str | None,
        typer.Option("--disk", metavar="ID", help="The disk that is replaced. The command ends if it has no vote."),
    ] = None,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Follow the replacement of a member's disk until the new disk votes.

    Call it before the member is stopped, or at any time later. It prints each step, changes nothing by itself, and goes
    on with the next leader if the leader is lost. It refuses if the set would be without a majority meanwhile.

    If it is called again after its end, it waits for one more new disk. With --disk it says then that all is done.

    \b
    Examples:
      tailrace member replace 10.0.0.3:4700
      tailrace member replace 10.0.0.3:4700 --disk 3f9a01c2
    """
    name, old = member_name(address), _disk_id(disk or "")
    trio.run(_replace, target("member replace", url, node, token), name, old, plan, force)


def _disk_id(text: str) -> str:
    if text and not re.fullmatch(r"[0-9a-f]{8,32}", text.lower()):
        raise WrongUsage(
            f"--disk: {text!r} is no disk: it takes 8 to 32 hexadecimal digits, as `tailrace member list` prints them"
        )
    return text.lower()


async def _replace(node_target: Target, address: str, old: str, plan: bool, force: bool) -> None:
    async with node_target.client() as client:
        details = (await client.status()).details
        rows = rows_of(details)
        row, unsafe = row_of(rows, address), why_unsafe(rows, address)
        old = old or row.seat
        if row.seat and (phase := phase_of(details, address, old)).is_over:
            print(printable(f"{phase.text}, and {old[:8]} has no vote: nothing to do"))
            return
        if plan:
            verdict = f"Not now: {unsafe}." if unsafe else "A majority of the other members votes: it is safe now."
            print_plan(plan_of(rows, address), verdict)
            return
        if unsafe and not force:
            raise CommandFailed(f"refused: {unsafe}. --force goes on all the same")
        await follow(client, lambda details: phase_of(details, address, old))
