"""Goes through the partitions or feeds of a node a few in each turn of the loop.

With ten thousand feeds, one turn for all of them would hold up the signs of life of a leader. Between two turns
anything may change: the term, the feeds, the partitions themselves.
"""

from __future__ import annotations

import trio

# The partitions that one turn looks at: about a millisecond, or ten if something is written for each.
LOOKS_AT_ONCE = 256


class InTurns:
    """One way through many partitions or feeds."""

    def __init__(self) -> None:
        self._looks = 0

    async def look(self, cost: int = 1) -> None:
        """Lets other tasks run after LOOKS_AT_ONCE looks. Call it before each look; ``cost``: as many as it takes."""
        if self._looks >= LOOKS_AT_ONCE:
            await trio.lowlevel.checkpoint()
            self._looks = 0
        self._looks += cost
