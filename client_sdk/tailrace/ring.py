"""The rings of recent keys, for indexes that store them: the documented name of `tailrace.consuming.ring`."""

from __future__ import annotations

from tailrace.consuming.ring import Ring, RingChange, RingChunk, unbounded_ring

__all__ = ["Ring", "RingChange", "RingChunk", "unbounded_ring"]
