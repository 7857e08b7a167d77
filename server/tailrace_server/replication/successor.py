"""The part of a member that fails over by itself, as the other parts of the member see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tailrace_server.replication.election import MemberState, NextStep
from tailrace_server.replication.pre_votes import Completeness


class Successor(Protocol):
    """Stands for the leadership if the leader is gone; does nothing with ``--failover manual``."""

    @property
    def is_on(self) -> bool:
        """Whether this member fails over by itself."""

    async def run(self) -> None:
        """Watches the leader, or the majority, until cancelled."""

    async def succeed(self, step: NextStep) -> bool:
        """Tries to lead if ``step`` waits for a leader that is gone. Returns False if it does not try."""

    def found(self, name: str, *, asks: bool, is_sure: bool) -> None:
        """Notes that the leader ``name`` is followed from now on.

        ``asks``: it will ask this member all the time. ``is_sure``: a majority confirms it, as it says.
        """

    def lost(self) -> None:
        """Notes that the following has ended."""

    def knows_all(self, found: Mapping[str, MemberState | None]) -> bool:
        """Returns whether all have answered but the leader that was lost."""

    def why_unfit(self) -> str:
        """Returns why this member's disk cannot be counted on; "" if it can."""

    def why_refused(self, candidate: Completeness) -> str:
        """Returns why this member would not let the candidate lead now; "" if it would."""

    def why_no_promise(self) -> str:
        """Returns why no node that stands by itself gets a promise now; "" if it may."""

    def won(self) -> None:
        """Notes that this member leads from now on, by the word of a majority. Call it before anything is written."""

    def depart(self) -> None:
        """Hands over if this node leads and is to leave the set; with ``--failover manual`` too."""

    def to_json(self) -> dict[str, Any]:
        """Returns the part of the status."""
