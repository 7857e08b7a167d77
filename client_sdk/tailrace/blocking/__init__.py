"""The client for programs without async: scripts, notebooks and Spark tasks.

The names are those of ``tailrace``, and each call has a ``timeout`` in seconds::

    with tailrace.blocking.connect("tailrace://127.0.0.1:4700") as client:
        client.create_feed("orders").put(b"k", b"v")

The client has no thread. It sends and receives only inside its calls.
Threads of one process may share a client, its feeds, writers and stages.
"""

from __future__ import annotations

from tailrace.blocking.client import Client, connect
from tailrace.blocking.feed import Feed
from tailrace.blocking.stage import Stage
from tailrace.blocking.stream import Stream
from tailrace.blocking.writer import Writer

__all__ = ["Client", "Feed", "Stage", "Stream", "Writer", "connect"]
