"""The streams behind tails: consumers of the SDK, whose connection is one to this node."""

from __future__ import annotations

from tailrace.consuming.ring import RING_ROWS
from tailrace.consuming.subscription import checked_subscription
from tailrace.trio.client import Client
from tailrace.trio.host import Host
from tailrace.trio.stream import Stream
from tailrace.trio.transport import Connect
from tailrace.wire.filters import StreamFilter
from tailrace_server.serving.tailing.request import TailRequest
from tailrace_server.serving.tailing.ticks import Start

# The bytes in flight to one page, besides one block more. The next block is sent when most of them are handled.
WINDOW_BYTES = 256 * 1024


def open_stream(connect: Connect, request: TailRequest, start: Start, name: str, token: str | None) -> Stream:
    """Makes the stream that a tail asks for, not connected yet.

    Args:
        connect: Gives a transport to the node, which checks the token.
        request: The feed and the filter of the tail.
        start: The beginning of the stream.
        name: The name of the consumer in the node's status.
        token: The token of the client.
    """
    # A stream has a connection of its own, so the client itself needs none and is never entered.
    client = Client("tailrace://loopback", token=token, name=name, state="any", host=Host(connect=connect))
    feed = client.feed(request.feed)
    subscription = checked_subscription(
        request.feed,
        start.since,
        "now" if request.ends else None,
        partitions=request.partitions,
        level=feed.level("disk"),
        filter=StreamFilter(request.key_prefix, request.keys_only),
        on_rollback="follow",
        ring=RING_ROWS,
        # Segments would take memory beside the window, and they spare a node nothing that reads its own ones.
        catch_up="stream",
    )
    return feed.stream(subscription._replace(rings=start.rings), WINDOW_BYTES)
