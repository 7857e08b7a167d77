"""``tailrace promote`` and ``tailrace handover``: they change the leader of a set."""

from __future__ import annotations

import math
from typing import Annotated, Any

import trio
import typer

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.options import CONNECT_SECONDS_MAX, DEFAULT_URL, Json, Node, Token, Url, target
from tailrace.cli.output import print_json, printable
from tailrace.cli.tls_options import connect_to, uses_node
from tailrace.errors import ProtocolError, TailraceError
from tailrace.link.address import Address, NodeUrl, parse_address, parse_url
from tailrace.trio.request import ask
from tailrace.wire.bodies import field, seq_field
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode


@uses_node
def promote(
    force: Annotated[
        bool, typer.Option("--force", help="Lead even without a majority. Prints which writes may be lost.")
    ] = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Make a node the leader of its set.

    The node asks a majority of the set, takes over the acknowledged writes that they have, and leads. It refuses if no
    majority answers, and prints the members that are missing. A replica, which is not a member of a set, needs --force.

    \b
    Example:
      tailrace promote --node 10.0.0.2:4700
    """
    nodes = _nodes("promote", url, node, token)
    address, *more = nodes.addresses
    if more:
        raise WrongUsage(f"the URL names {1 + len(more)} nodes: name the new leader with --node HOST:PORT")
    answer = trio.run(ask_node, address, Opcode.PROMOTE, {"force": force}, math.inf, token, nodes)
    term, steps, may_be_lost = _outcome(answer)
    if json:
        print_json({"node": str(address), "term": term, "steps": steps, "may_be_lost": may_be_lost})
        return
    for step in steps:
        print(f"  {printable(step)}")
    print(f"{address} leads in term {term}.")
    print(printable(may_be_lost) if may_be_lost else "Nothing is lost.")


@uses_node
def handover(
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="The member that becomes the leader.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Hand over even if the member's disk is nearly full. It refuses writes then."),
    ] = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Hand the leadership over to another member.

    Writers wait meanwhile, and nothing is lost. The nodes of the URL name the present leader.

    \b
    Example:
      tailrace handover --to 10.0.0.2:4700
    """
    try:
        target_address = parse_address(to)
    except ValueError as error:
        raise WrongUsage(f"--to: {error}") from None
    nodes = _nodes("handover", url, node, token)
    leader, answer = trio.run(_hand_over, nodes, target_address, force, token)
    term = seq_field(answer, "term", "the answer to HANDOVER")
    if json:
        print_json({"from": str(leader), "leader": str(target_address), "term": term})
    else:
        print(f"{leader} has handed over to {target_address}, which leads in term {term}. Nothing is lost.")


def _nodes(command: str, url: str, node: str | None, token: str | None) -> NodeUrl:
    return parse_url(target(command, url, node, token).url)


async def _hand_over(nodes: NodeUrl, to: Address, force: bool, token: str | None) -> tuple[Address, dict[str, Any]]:
    leader = await find_leader(nodes, token)
    value = {"to": str(to), "force": force}
    return leader, await ask_node(leader, Opcode.HANDOVER, value, math.inf, token, nodes)


async def find_leader(nodes: NodeUrl, token: str | None) -> Address:
    """Returns the leader of the highest term that these nodes know. Raises CommandFailed, or the last node's error."""
    found: list[tuple[int, Address]] = []
    unreached: TailraceError | None = None
    for address in nodes.addresses:
        try:
            answer = await ask_node(address, Opcode.MEMBER, {}, CONNECT_SECONDS_MAX, token, nodes)
        except TailraceError as error:
            unreached = error
            continue
        term, hint = seq_field(answer, "term", "the answer to MEMBER"), field(answer, "leader", str, "MEMBER", "")
        if answer.get("role") == "leader":
            found.append((term, address))
        elif hint:
            found.append((term, parse_address(hint)))
    if not found and unreached is not None:
        raise unreached
    if not found:
        raise CommandFailed("the set has no leader: `tailrace promote --node HOST:PORT` makes a node the leader")
    return max(found)[1]


async def ask_node(
    address: Address, opcode: Opcode, value: dict[str, Any], timeout_s: float, token: str | None, nodes: NodeUrl
) -> dict[str, Any]:
    """Returns a node's answer to an operator's request. Raises as `tailrace.trio.request.ask`.

    ``nodes``: the URL, for the name of the cluster and for TLS.
    """
    hello = Hello(name=f"tailrace {opcode.name.lower()}", token=token)
    connect = connect_to(nodes)
    return await ask(address, opcode, value, timeout_s=timeout_s, connect=connect, hello=hello, cluster=nodes.cluster)


def _outcome(answer: dict[str, Any]) -> tuple[int, list[str], str]:
    what = "the answer to PROMOTE"
    steps = field(answer, "steps", list, what)
    if not all(isinstance(step, str) for step in steps):
        raise ProtocolError(f"{what}: field 'steps' is not a list of strings")
    return seq_field(answer, "term", what), steps, field(answer, "may_be_lost", str, what)
