"""The board of a node: what an operator sees of feeds, consumers, replicas and problems, for the console.

    partitions, connections ──> Sample, at most every 2 s, in slices of the loop's time ──> views ──> HTTP, WebSocket

Nothing is counted for each mutation. One sample serves all who look, and nothing is read while none does.
"""

from __future__ import annotations
