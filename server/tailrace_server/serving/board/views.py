"""The answers of the board by name, for HTTP and for the live channel: authority first, then a look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from tailrace_server.serving.board.consumers import consumer_detail, consumers_page
from tailrace_server.serving.board.feeds import feed_detail, feeds_page, partition_detail, partition_of
from tailrace_server.serving.board.overview import overview
from tailrace_server.serving.board.pages import Page, number_of, text_of

if TYPE_CHECKING:
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.serving.access import Access
    from tailrace_server.serving.board.board import Board

# Returns an answer for one who has the access, by the parameters of a request.
View: TypeAlias = "Callable[[Board, Access, Mapping[str, Any]], Awaitable[dict[str, Any]]]"


def feed_of(board: Board, access: Access, values: Mapping[str, Any]) -> Feed:
    """Returns the feed that is asked for. Forbidden, UnknownFeed."""
    name = text_of(values, "feed")
    access.require_feed_named(name)
    return board.node.feeds.named(name)


async def _overview(board: Board, access: Access, values: Mapping[str, Any]) -> dict[str, Any]:
    return overview(board, await board.fresh(), access)


async def _feeds(board: Board, access: Access, values: Mapping[str, Any]) -> dict[str, Any]:
    page = Page.of_feeds(values)
    return feeds_page(board, await board.fresh(), access, page)


async def _feed(board: Board, access: Access, values: Mapping[str, Any]) -> dict[str, Any]:
    page = Page.of_partitions(values)
    feed_of(board, access, values)
    sample = await board.fresh()
    return feed_detail(board, sample, access, feed_of(board, access, values), page)


async def _partition(board: Board, access: Access, values: Mapping[str, Any]) -> dict[str, Any]:
    feed = feed_of(board, access, values)
    partition = partition_of(feed, number_of(values, "partition", 0, 0, 1_000_000))
    return partition_detail(board, feed, partition)


async def _consumers(board: Board, access: Access, values: Mapping[str, Any]) -> dict[str, Any]:
    page = Page.of_consumers(values)
    return consumers_page(board, await board.fresh(), access, page)


async def _consumer(board: Board, access: Access, values: Mapping[str, Any]) -> dict[str, Any]:
    page, id = Page.of_partitions(values), text_of(values, "id")
    return consumer_detail(board, await board.fresh(), access, id, page)


VIEWS: dict[str, View] = {
    "overview": _overview,
    "feeds": _feeds,
    "feed": _feed,
    "partition": _partition,
    "consumers": _consumers,
    "consumer": _consumer,
}
