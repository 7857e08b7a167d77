"""The client for programs without async: scripts, notebooks and Spark tasks.

The names are those of ``tailrace``, and each call has a ``timeout`` in seconds::

    with tailrace.blocking.connect("tailrace://127.0.0.1:4700") as client:
        client.create_feed("orders").put(b"k", b"v")

The client has no thread, except for each index that it follows. It sends and receives only inside its calls.

    =================================  ===========================================================================
    object                             threads may
    =================================  ===========================================================================
    `Client`, `Feed`                   share it; each call has a time-out of its own
    `Writer`, `Stage`                  share it; the rows of one thread keep their order
    `Stream`                           read it one at a time; any thread may close it, and ask for state or barrier
    `Follower`                         share it
    an iterator of items               use it one at a time
    =================================  ===========================================================================

In a forked process `Client` and `Feed` connect anew, at their next call. The others belong to the process that has made
them: each of their calls raises `tailrace.WrongProcess` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.blocking.client import Client, connect
from tailrace.blocking.feed import Feed
from tailrace.blocking.stage import Stage
from tailrace.blocking.stream import Stream
from tailrace.blocking.writer import Writer

if TYPE_CHECKING:
    from tailrace.blocking.follower import Follower

__all__ = ["Client", "Feed", "Follower", "Stage", "Stream", "Writer", "connect"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Loads the follower when it is first used: few programs keep an index."""
        if name != "Follower":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tailrace.blocking.follower import Follower

        return Follower
