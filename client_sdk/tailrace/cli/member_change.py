"""``tailrace member add`` and ``remove``: they change the members of a set, and follow the change to its end."""

from __future__ import annotations

from typing import Annotated, Any

import trio
import typer

from tailrace.cli.errors import CommandFailed
from tailrace.cli.leading import ask_node, find_leader
from tailrace.cli.member_progress import follow, member_name, print_plan
from tailrace.cli.member_rows import POLL_SECONDS, MemberRow, Phase, row_of, rows_of, seats_of
from tailrace.cli.options import DEFAULT_URL, Node, Target, Token, Url, target
from tailrace.cli.output import printable
from tailrace.cli.tls_options import uses_node
from tailrace.errors import Retryable, TailraceError
from tailrace.link.address import Address, NodeUrl, parse_address, parse_url
from tailrace.wire.opcodes import Opcode

# A set of fewer members does not stand the loss of one.
MEMBERS_MIN = 3
# The seconds that a leader has to answer: it asks a majority twice.
_ANSWER_SECONDS = 30.0


def phase_of_change(details: dict[str, Any], action: str, address: str) -> Phase:
    """Returns how far a change has come, by the leader's status. Raises CommandFailed outside of a set.

    Args:
        details: The status.
        action: "add" or "remove".
        address: Of the member.
    """
    rows = rows_of(details)
    row = next((row for row in rows if row.address == address), None)
    if action == "remove":
        if row is None:
            return Phase(f"{address} is no member any more: stop it", is_over=True)
        doing = details["replication"]["doing"]
        return Phase(f"{address} is to leave" + (f"; the leader: {doing}" if doing else ""))
    if row is None:
        return Phase(f"{address} is no member yet")
    if row.votes and not row.change:
        return Phase(f"disk {row.disk[:8]} of {address} votes", is_over=True)
    return Phase(f"{address} catches up: {row.state}")


def plan_of_change(rows: list[MemberRow], action: str, address: str) -> list[str]:
    """Returns what a change does, step by step. Raises CommandFailed if a member is to be removed that is none."""
    seats = seats_of(rows)
    if action == "add":
        return [
            f"start {address} with an empty directory, and --members that names it and the others, or in etcd with "
            "--cluster-store; it waits",
            "a majority stores that it is to join",
            "it copies all rows of the leader, without a vote",
            f"it gets a vote; a majority is {_majority(seats + 1)} of {seats + 1} members then",
        ]
    row = row_of(rows, address)
    hands_over = ["it leads, and hands over"] if row.state.startswith("leads") else []
    return [
        "a majority stores that it is to leave",
        *hands_over,
        f"its seat is dropped once a majority holds all rows; a majority is {_majority(seats - 1)} of {seats - 1} then",
        "it learns that, takes no writes and never leads; stop it",
    ]


def why_not_now(rows: list[MemberRow], action: str, address: str) -> str:
    """Returns why the change must not begin now; "" if it may. The leader decides by the same, and by more."""
    seats, voting = seats_of(rows), sum(row.votes for row in rows)
    if voting < _majority(seats):
        return (
            f"{voting} of {seats} members answer with a vote, and {_majority(seats)} have to store each change: start "
            "the others, or, if their disks are lost, see `tailrace promote --force`"
        )
    return _why_not_removed(rows, address) if action == "remove" else ""


def _why_not_removed(rows: list[MemberRow], address: str) -> str:
    left = seats_of(rows) - 1
    votes = sum(row.votes for row in rows if row.address != address)
    if left < MEMBERS_MIN:
        return f"{left} members are left, which do not stand the loss of one"
    if votes < _majority(left):
        return f"{votes} of the others answer with a vote, and {_majority(left)} are a majority without it"
    return ""


def _majority(members: int) -> int:
    return members // 2 + 1


def why_nothing_to_do(rows: list[MemberRow], action: str, address: str) -> str:
    """Returns the sentence that the change is over, or was never needed; "" if there is something to do.

    A command that is called again ends with it.
    """
    row = next((row for row in rows if row.address == address), None)
    if action == "add":
        return f"{address} is a member already: nothing to do" if row is not None and not row.change else ""
    names = ", ".join(row.address for row in rows)
    return f"{address} is no member: nothing to do; the members are {names}" if row is None else ""


_Plan = Annotated[bool, typer.Option("--plan", help="Print the steps, and whether they are safe now; change nothing.")]


@uses_node
def add(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The node that becomes a member.")],
    plan: _Plan = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Add a member to a set, and wait until it votes.

    The node runs already, with an empty directory and --members that names it and the others, or in a set in etcd with
    --cluster-store. The command may be ended and called again: the leader goes on, and after its loss the next one.

    \b
    Example:
      tailrace member add 10.0.0.4:4700
    """
    _run("add", address, url, node, token, plan=plan, force=False)


@uses_node
def remove(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The member that leaves the set.")],
    plan: _Plan = False,
    force: Annotated[
        bool, typer.Option("--force", help="Leave fewer than three members, or too few that answer now.")
    ] = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Remove a member from a set, and wait until its vote is gone. A leader hands over first.

    The command may be ended and called again: the leader goes on, and after its loss the next one.

    \b
    Example:
      tailrace member remove 10.0.0.4:4700
    """
    _run("remove", address, url, node, token, plan=plan, force=force)


def _run(action: str, address: str, url: str, node: str | None, token: str | None, *, plan: bool, force: bool) -> None:
    name = member_name(address)
    trio.run(_change, target(f"member {action}", url, node, token), action, name, plan, force)


async def _change(node_target: Target, action: str, name: str, plan: bool, force: bool) -> None:
    async with node_target.client() as client:
        rows = rows_of((await client.status()).details)
        over = why_nothing_to_do(rows, action, name)
        if over:
            print(printable(over))
            return
    nodes = parse_url(node_target.url)
    nodes = nodes._replace(addresses=tuple(dict.fromkeys([*nodes.addresses, *map(_address, rows)])))
    steps = plan_of_change(rows, action, name)
    if plan:
        asked = {"action": f"plan_{action}", "name": name, "force": force}
        unsafe = "" if force else why_not_now(rows, action, name)
        unsafe = unsafe or await _why_refused(nodes, asked, node_target.token)
        print_plan(steps, f"Not now: {unsafe}." if unsafe else "It is safe now.")
        return
    await _begin(nodes, {"action": action, "name": name, "force": force}, node_target.token)
    # All of them, since the leader may be another one soon.
    async with node_target._replace(url=str(nodes)).client() as client:
        await follow(client, lambda details: phase_of_change(details, action, name))


def _address(row: MemberRow) -> Address:
    return parse_address(row.address)


async def _why_refused(nodes: NodeUrl, value: dict[str, Any], token: str | None) -> str:
    """Returns why the leader would not begin a change now, such as a newcomer that does not answer; "" if it would."""
    try:
        return await _why_not_begun(nodes, value, token)
    except TailraceError as error:
        return str(error).removeprefix("refused: ")


async def _begin(nodes: NodeUrl, value: dict[str, Any], token: str | None) -> None:
    """Asks the leader for the change, whichever node that is, until one has answered. To ask again changes nothing."""
    before = ""
    while text := await _why_not_begun(nodes, value, token):
        if text != before:
            print(printable(text), flush=True)
            before = text
        await trio.sleep(POLL_SECONDS)


async def _why_not_begun(nodes: NodeUrl, value: dict[str, Any], token: str | None) -> str:
    """Asks the leader for the change once. Returns why it has not begun yet; "" if it has. Raises its refusal."""
    try:
        leader = await find_leader(nodes, token)
    except (Retryable, CommandFailed) as error:
        return f"no leader has answered: {error}"
    try:
        await ask_node(leader, Opcode.MEMBER_CHANGE, value, _ANSWER_SECONDS, token, nodes)
    except Retryable as error:
        return f"{leader}, which leads, was asked: {error}"
    return ""
