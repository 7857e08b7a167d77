"""``tailrace put``, ``get`` and ``delete``: they write and read one key."""

from __future__ import annotations

import enum
from typing import Annotated, cast

import typer

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.inputs import read_value
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, ReadState, StateOption, Token, Url, target
from tailrace.cli.output import from_argument, print_bytes, print_json, printable
from tailrace.cli.tls_options import uses_node
from tailrace.model import Item, LevelName, Version
from tailrace.model.json_rows import item_to_row
from tailrace.model.quantities import Unit, quantity
from tailrace.requests.changes import checked_ttl
from tailrace.trio.client import Client


class LevelOption(enum.StrEnum):
    """The choices of --level."""

    MEMORY = "memory"
    DISK = "disk"
    QUORUM = "quorum"


WriteLevel = Annotated[
    LevelOption | None,
    typer.Option(
        "--level",
        help="The level at which the write is answered. By default the feed's; else quorum in a set, disk elsewhere.",
        show_default=False,
    ),
]
_Ttl = Annotated[
    str | None,
    typer.Option(
        "--ttl", metavar="TIME", help="Let the key expire this time after the put, if it is not put again: 90s, 12h."
    ),
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.", show_default=False)]


@uses_node
def put(
    feed: FeedName,
    key: Key,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The value; - reads it from standard input.", show_default=False)
    ],
    level: WriteLevel = None,
    ttl: _Ttl = None,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Set a key to a value.

    Prints the version of the write, its partition and seq, once the write has its level. By default it is on the disks
    of a majority in a set. Put -- before a key or value that begins with a dash.

    \b
    Examples:
      tailrace put orders 4711 paid
      tailrace put orders 4711 - < order.json
      tailrace put sessions 81f0 anna --ttl 30m
      tailrace put orders -- -key- value
    """
    key_bytes = _key_bytes(key)
    value_bytes = read_value() if value == "-" else from_argument(value)
    ttl_s = None if ttl is None else _seconds(ttl)

    async def work(client: Client) -> Version:
        return await client.feed(feed).put(key_bytes, value_bytes, level=cast(LevelName | None, level), ttl=ttl_s)

    _print_version(target("put", url, node, token).call(work), json)


@uses_node
def get(
    feed: FeedName,
    key: Key,
    state: ReadState = StateOption.LEADER,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Print the value of a key.

    The exit code is 1 if the feed does not have the key. Bytes that a terminal cannot show are escaped. To a pipe or
    file, the value is written as it is, without a line end.

    \b
    Example:
      tailrace get orders 4711 > order.json
    """
    key_bytes = _key_bytes(key)

    async def work(client: Client) -> Item | None:
        return await client.feed(feed).get(key_bytes)

    item = target("get", url, node, token, state.value).call(work)
    if item is None:
        raise CommandFailed(f"feed {feed} has no key {printable(key_bytes)}")
    if json:
        print_json(item_to_row(item))
    else:
        print_bytes(item.value)


@uses_node
def delete(
    feed: FeedName,
    key: Key,
    level: WriteLevel = None,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Delete a key.

    Prints the version of the deletion, its partition and seq, once it has its level. It is written even if the feed
    does not have the key.
    """
    key_bytes = _key_bytes(key)

    async def work(client: Client) -> Version:
        return await client.feed(feed).delete(key_bytes, level=cast(LevelName | None, level))

    _print_version(target("delete", url, node, token).call(work), json)


def _key_bytes(key: str) -> bytes:
    if not key:
        raise WrongUsage("the key is empty; a key has at least one byte")
    return from_argument(key)


def _print_version(version: Version, json: bool) -> None:
    if json:
        print_json({"partition": version.partition, "branch": version.branch.hex(), "seq": version.seq})
    else:
        print(f"partition {version.partition}, seq {version.seq}")


def _seconds(text: str) -> int:
    """Returns the whole seconds of a ttl. Raises WrongUsage."""
    try:
        seconds = quantity(text, Unit.SECONDS)
    except ValueError as error:
        raise WrongUsage(f"--ttl {error}") from None
    try:
        return checked_ttl(seconds)  # type: ignore[arg-type]  # it refuses what is no int
    except ValueError as error:
        raise WrongUsage(f"--{error}") from None
