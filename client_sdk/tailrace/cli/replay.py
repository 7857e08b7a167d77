"""``tailrace feed replay``: gives parked rows to the indexes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, Token, Url, target
from tailrace.cli.output import print_json
from tailrace.cli.tls_options import uses_node
from tailrace.errors import VersionConflict
from tailrace.indexes.parking import ParkedRow
from tailrace.requests.feed_core import PARKED

if TYPE_CHECKING:
    from tailrace.model import Item
    from tailrace.trio.client import Client
    from tailrace.trio.feed import Feed


@uses_node
def replay(feed: FeedName, json: Json = False, url: Url = DEFAULT_URL, node: Node = None, token: Token = None) -> None:
    """Give the rows of FEED.parked to the indexes of FEED again.

    Each parked row that is still the newest of its key is written to FEED once more, with the same value, and is taken
    out of FEED.parked. One that a later write has replaced is only taken out. Mend the index first.
    """

    async def work(client: Client) -> tuple[int, int]:
        source, parked = client.feed(feed), client.feed(f"{feed}{PARKED}")
        replayed = replaced = 0
        async for item in parked.items():
            if await _replay_one(source, ParkedRow.parse(item.key, item.value)):
                replayed += 1
            else:
                replaced += 1
            await _take_out(parked, item)
        return replayed, replaced

    replayed, replaced = target("feed replay", url, node, token).call(work)
    if json:
        print_json({"feed": feed, "replayed": replayed, "replaced": replaced})
    else:
        print(f"{replayed:,} rows were written again, {replaced:,} had been replaced by later writes")


async def _replay_one(feed: Feed, row: ParkedRow) -> bool:
    """Writes the row's present value again. Returns False if a later write has replaced the row."""
    current = await feed.get(row.key)
    try:
        if current is None:
            if row.value is not None:
                return False
            await feed.delete_absent(row.key)  # a later deletion of the key, which it may be, is the same
        elif current.version != row.version:
            return False
        else:
            await feed.put(row.key, current.value, if_version=row.version)
    except VersionConflict:
        return False
    return True


async def _take_out(parked: Feed, item: Item) -> None:
    try:
        await parked.delete(item.key, if_version=item.version)
    except VersionConflict:
        return  # it was parked again meanwhile, and stays
