"""A story: a few events in a fixed order, which show that one rule of a set matters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tailrace_server.config import Failover

from ..plan import ENTRIES_MAX


@dataclass(frozen=True)
class Story:
    """The events, and the set that they need.

    Attributes:
        tell: Makes the events happen in a world, one after the other.
        has_sink: A program publishes batches.
        in_parts: These batches come in parts.
        seals_at_quorum: Their stages are sealed at level quorum.
        has_elder_feed: A feed is made before the one that all programs use, and is in a segment of the list of feeds.
        entries_max: How many entries a failover log keeps; few, so that a few restarts are more than that.
        failover: Whether the members choose another leader by themselves.
        way: How segments pass between the nodes, one of `WAYS`; "": members stream.
        has_copies: Programs fetch copies, in place of most others.
    """

    tell: Callable[..., Awaitable[None]]
    nodes: int = 3
    has_sink: bool = False
    in_parts: bool = False
    seals_at_quorum: bool = False
    has_elder_feed: bool = False
    entries_max: int = ENTRIES_MAX
    failover: Failover = Failover.MANUAL
    way: str = ""
    has_copies: bool = False

    @property
    def name(self):
        return self.tell.__name__
