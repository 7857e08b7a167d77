"""The error for a partition of which no node that may be asked can read the rows. Pure."""

from __future__ import annotations

from tailrace.errors import BadSegment


def unreadable(feed: str, partition: int, why: str) -> BadSegment:
    """Returns the error for a damaged segment of a partition, with what to do. ``why`` names the file."""
    return BadSegment(
        f"partition {partition} of feed {feed} cannot be read: {why}. `tailrace verify` finds all damage of a stopped "
        "node, and `tailrace repair` mends it; in a set another member may have a good copy: hand over to it, or read "
        "from followers (--state follower)"
    )
