"""``tailrace put``, ``get`` and ``delete``: one key at a time."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.inputs import read_value
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, ReadState, State, Token, Url, target
from tailrace.cli.output import from_argument, print_bytes, print_json, printable
from tailrace.model import Item, Version
from tailrace.model.json_rows import item_to_row
from tailrace.trio.client import Client

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.", show_default=False)]


def put(
    feed: FeedName,
    key: Key,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The value; - reads it from the standard input.", show_default=False)
    ],
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Set KEY to VALUE, durably, and say which version it got. After `--` nothing is taken for an option."""
    key_bytes = _key_bytes(key)
    value_bytes = read_value() if value == "-" else from_argument(value)

    async def work(client: Client) -> Version:
        return await client.feed(feed).put(key_bytes, value_bytes)

    _print_version(target("put", url, node, token).call(work), json)


def get(
    feed: FeedName,
    key: Key,
    state: ReadState = State.LEADER,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Print the value of KEY; exit code 1 where there is none.

    The bytes are printed as they are where the output is no terminal, with nothing added.
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


def delete(
    feed: FeedName, key: Key, json: Json = False, url: Url = DEFAULT_URL, node: Node = None, token: Token = None
) -> None:
    """Delete KEY, durably, whether it is there or not, and say which version that got."""
    key_bytes = _key_bytes(key)

    async def work(client: Client) -> Version:
        return await client.feed(feed).delete(key_bytes)

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
