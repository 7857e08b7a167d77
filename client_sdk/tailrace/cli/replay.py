"""``tailrace feed replay``: gives parked rows to the indexes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, Token, Url, target
from tailrace.cli.output import print_json
from tailrace.cli.tls_options import uses_node

if TYPE_CHECKING:
    from tailrace.indexes.replaying import Replayed
    from tailrace.trio.client import Client


@uses_node
def replay(feed: FeedName, json: Json = False, url: Url = DEFAULT_URL, node: Node = None, token: Token = None) -> None:
    """Give the rows of FEED.parked to the indexes of FEED again.

    Each parked row that is still the newest of its key is written to FEED once more, with the same value, and is taken
    out of FEED.parked. One that a later write has replaced is only taken out. Mend the index first.
    """

    async def work(client: Client) -> Replayed:
        return await client.feed(feed).replay_parked()

    replayed, replaced = target("feed replay", url, node, token).call(work)
    if json:
        print_json({"feed": feed, "replayed": replayed, "replaced": replaced})
    else:
        print(f"{replayed:,} rows were written again, {replaced:,} had been replaced by later writes")
