"""The client without async, for scripts, notebooks and Spark tasks: the same names, with ``timeout=`` on each call.

    with tailrace.blocking.connect("tailrace://127.0.0.1:4700") as client:
        client.create_feed("orders").put(b"k", b"v")

It moves bytes only inside of its calls and has no thread: between calls nothing is sent or received. One thread at a
time may use a client.
"""

from __future__ import annotations

from tailrace.blocking.client import Client, connect
from tailrace.blocking.feed import Feed
from tailrace.blocking.stage import Stage
from tailrace.blocking.stream import Stream
from tailrace.blocking.writer import Writer

__all__ = ["Client", "Feed", "Stage", "Stream", "Writer", "connect"]
