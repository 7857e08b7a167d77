"""Whether a node still leads, asked of a majority of its set. Pure: callbacks and answers in, questions out.

    confirm ──> [ next round ]        answered, by a majority ──> callbacks of the present round
                      │                                      └──> the next round begins, if anybody waits
                the round under way: LEADER_CHECK of its number to every replica

Only a round that began after a question came can answer it, so those who come while one is under way share the next.
A replica answers as long as it has promised no higher term: where a majority has not, nobody else leads.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.errors import TailraceError

Confirmed = Callable[[TailraceError | None], None]


class Confirmations:
    """The questions of a leader that nobody has answered yet. A peer cannot make them grow: connections bound them."""

    def __init__(self, majority: int, ask: Callable[[int], None]) -> None:
        """``majority`` counts the node itself. ``ask(number)`` sends LEADER_CHECK to every replica that has a vote."""
        self._needed = majority - 1
        self._ask = ask
        self._round: list[Confirmed] = []
        self._next: list[Confirmed] = []
        self._voters: set[bytes] = set()
        self.number = 0  # of the last round

    @property
    def under_way(self) -> bool:
        """A round waits for answers: a replica that connects now has to be asked too."""
        return bool(self._round)

    def confirm(self, callback: Confirmed) -> None:
        """Calls ``callback(None)`` once a majority has said, to a question asked from now on, that this node leads.

        With an error where it stops leading first. It may be called before this returns.
        """
        if self._needed <= 0:
            callback(None)
            return
        self._next.append(callback)
        if not self._round:
            self._begin()

    def answered(self, voter: bytes, number: int) -> None:
        """LEADER_CONFIRM: ``voter`` has promised no higher term when it was asked for this number."""
        if number != self.number or not self._round:
            return
        self._voters.add(voter)
        if len(self._voters) < self._needed:
            return
        callbacks, self._round = self._round, []
        if self._next:
            self._begin()
        for callback in callbacks:
            callback(None)

    def fail(self, error: TailraceError) -> None:
        """The node does not lead any more: so do all who wait hear."""
        callbacks, self._round, self._next = self._round + self._next, [], []
        for callback in callbacks:
            callback(error)

    def _begin(self) -> None:
        self._round, self._next = self._next, []
        self._voters = set()
        self.number += 1
        self._ask(self.number)
