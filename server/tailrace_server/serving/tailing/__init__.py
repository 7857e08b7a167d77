"""The WebSocket listener: mutations as JSON for browsers, and frames for the SDK (docs/formats/websocket.md).

request    the request of a client, and the pages that may make it               pure
messages   the messages to it: events of a stream, errors, codes of a close      pure
loopback   a connection to the node without a socket
session    one WebSocket: greeting, tail, pings, end
streams    the stream of the SDK behind a tail
tail       a feed to one client, by a stream of its own or by a hub
gathering  rows that came together, as few messages                              pure
sharing    which tails share a hub
hub        one stream for all tails that share it
ticks      its ticks as frames, and the place of a tail among them               pure
tunnel     frames through a WebSocket
listener   all of them
"""

from __future__ import annotations

from tailrace_server.serving.tailing.listener import ws_listener

__all__ = ["ws_listener"]
