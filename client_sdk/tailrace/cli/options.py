"""The options of all commands that use a node, and the client for them."""

from __future__ import annotations

import enum
import ssl
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple, TypeVar

import trio
import typer

from tailrace.cli.errors import WrongUsage
from tailrace.cli.tls_options import files
from tailrace.link.address import parse_address, parse_url
from tailrace.model import NodeState
from tailrace.tls.context import client_context
from tailrace.trio.client import Client, connect

T = TypeVar("T")

DEFAULT_URL = "tailrace://127.0.0.1:4700"
# Long enough for a node that a supervisor restarts, and short enough for a user who mistyped a port.
CONNECT_SECONDS_MAX = 5.0
RETRY_SECONDS_MAX = 10.0

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="TAILRACE_URL",
        metavar="URL",
        help="The nodes of the set: tailrace://HOST:PORT[,HOST:PORT...], or tailraces:// for TLS; "
        "ws:// or wss:// through WebSocket.",
    ),
]
Node = Annotated[str | None, typer.Option("--node", metavar="HOST:PORT", help="A single node, in place of --url.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="TAILRACE_TOKEN", metavar="TOKEN", help="The access token, if the node requires one."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object on each line.")]
FeedName = Annotated[str, typer.Argument(metavar="FEED", help="The name of a feed.", show_default=False)]


class StateOption(enum.StrEnum):
    """The choices of --state: the node of a set to read from."""

    LEADER = "leader"
    FOLLOWER = "follower"


ReadState = Annotated[StateOption, typer.Option("--state", help="Read from the leader of the set, or from a follower.")]


class Target(NamedTuple):
    """The nodes that a command uses, and its name and rights there.

    Attributes:
        url: The URL of the nodes.
        token: The access token, if any.
        name: The name of the connection in the node's status.
        state: The state of the node, as in `tailrace.connect`.
        tls: The context of a URL that asks for TLS; else None.
    """

    url: str
    token: str | None
    name: str
    state: NodeState = "leader"
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        """Leaves the token out."""
        return f"Target(url={self.url!r}, name={self.name!r}, state={self.state!r})"

    def client(self) -> Client:
        """Makes a client that is not connected yet. Call it inside a trio run."""
        return connect(
            self.url,
            token=self.token,
            name=self.name,
            tls=self.tls,
            connect_timeout=CONNECT_SECONDS_MAX,
            retry_for=RETRY_SECONDS_MAX,
            state=self.state,
        )

    def call(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Connects, and returns the result of ``work``. Raises the errors of the SDK."""

        async def connected() -> list[T]:
            results = []
            async with self.client() as client:
                results.append(await work(client))
            return results

        [result] = trio.run(connected)
        return result


def target(command: str, url: str, node: str | None, token: str | None, state: NodeState = "leader") -> Target:
    """Returns the target that the options name. Raises WrongUsage for a bad address, or bad files of TLS.

    Without a URL, files of TLS say that the node speaks TLS.
    """
    option, tls_files = "--url", files()
    try:
        nodes = parse_url(url)
        if url == DEFAULT_URL and any(tls_files):
            nodes = nodes._replace(secure=True)
            url = str(nodes)
        if node is not None:
            option = "--node"
            nodes = nodes._replace(addresses=(parse_address(node, nodes.default_port),))
            url = str(nodes)
        option = "TLS"
        tls = client_context(tls_files) if nodes.secure else None
    except ValueError as error:
        raise WrongUsage(f"{option}: {error}") from None
    return Target(url, token, f"tailrace {command}", state, tls)
