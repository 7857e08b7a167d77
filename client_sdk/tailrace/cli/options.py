"""The options of every command that talks to a node, and the client that they make."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple, TypeVar

import trio
import typer

from tailrace.cli.errors import WrongUsage
from tailrace.link.address import parse_address, parse_url
from tailrace.trio.client import Client, connect

T = TypeVar("T")

DEFAULT_URL = "tailrace://127.0.0.1:4700"
# Long enough for a node that is being restarted under a supervisor; short enough for a person who mistyped a port.
CONNECT_SECONDS_MAX = 5.0
RETRY_SECONDS_MAX = 10.0

Url = Annotated[
    str,
    typer.Option("--url", envvar="TAILRACE_URL", metavar="URL", help="The nodes: tailrace://HOST:PORT[,HOST:PORT...]."),
]
Node = Annotated[
    str | None, typer.Option("--node", metavar="HOST:PORT", help="One node; short for --url tailrace://HOST:PORT.")
]
Token = Annotated[
    str | None, typer.Option("--token", envvar="TAILRACE_TOKEN", metavar="TOKEN", help="What permits this.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
FeedName = Annotated[str, typer.Argument(metavar="FEED", help="The name of a feed.", show_default=False)]


class State(enum.StrEnum):
    """Which node of a set is read from."""

    LEADER = "leader"
    FOLLOWER = "follower"


ReadState = Annotated[
    State, typer.Option("--state", help="Which node of a set to read from: the one that leads, or one that follows.")
]


class Target(NamedTuple):
    """Where a command goes, and as whom.

    ``name`` is shown in the node's status; ``state`` is that of `tailrace.connect`.
    """

    url: str
    token: str | None
    name: str
    state: str = "leader"

    def client(self) -> Client:
        """A client, not connected yet; to be made inside of a trio run."""
        return connect(
            self.url,
            token=self.token,
            name=self.name,
            connect_timeout=CONNECT_SECONDS_MAX,
            retry_for=RETRY_SECONDS_MAX,
            state=self.state,
        )

    def call(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Connects, does ``work``, and gives its result. Raises what the SDK raises."""

        async def connected() -> list[T]:
            results = []
            async with self.client() as client:
                results.append(await work(client))
            return results

        [result] = trio.run(connected)
        return result


def target(command: str, url: str, node: str | None, token: str | None, state: str = "leader") -> Target:
    """What the options say. Raises WrongUsage for a bad address."""
    option = "--url"
    try:
        cluster = parse_url(url).cluster
        if node is not None:
            option = "--node"
            url = f"tailrace://{parse_address(node)}/{cluster}"
    except ValueError as error:
        raise WrongUsage(f"{option}: {error}") from None
    return Target(url, token, f"tailrace {command}", state)
