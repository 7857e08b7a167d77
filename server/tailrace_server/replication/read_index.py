"""Confirms that a node still leads, by asking a majority of its set. Pure: callbacks and answers in, questions out.

    confirm ──> [ next round ]        answered, by a majority ──> callbacks of the present round
                      │                                      └──> the next round begins, if a callback waits for it
                the round under way: LEADER_CHECK of its number to every replica

Only a round that began after a question came can answer it. So the questions that come during a round share the next
one. A replica answers as long as it has promised no higher term. If a majority has not, no other node leads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tailrace.errors import TailraceError
from tailrace_server.host.answers import Answer, Cancel


class Confirmations:
    """The open questions of a leader. Those of a connection end with the connection, by ``Cancel``."""

    def __init__(self, needed: int, ask: Callable[[int], None]) -> None:
        """``needed``: the number of other voters that make a majority, with this node if it is a voter.

        ``ask(number)`` sends LEADER_CHECK to every replica that has a vote.
        """
        self._needed = needed
        self._ask = ask
        self._round: dict[int, Answer] = {}
        self._next: dict[int, Answer] = {}
        self._numbers = itertools.count()
        self._voters: set[bytes] = set()
        self.number = 0  # of the last round

    @property
    def under_way(self) -> bool:
        """Whether a round waits for answers. A replica that connects meanwhile has to be asked too."""
        return bool(self._round)

    def confirm(self, callback: Answer) -> Cancel | None:
        """Calls ``callback(None)`` once a majority has confirmed, after this call, that this node leads.

        If the node stops leading first, ``callback`` gets the error. Returns None if the callback was called already,
        else a function that cancels the question.
        """
        if self._needed <= 0:
            callback(None)
            return None
        number = next(self._numbers)
        self._next[number] = callback
        if not self._round:
            self._begin()

        def cancel() -> None:
            if self._next.pop(number, None) is None and number in self._round:
                self._round[number] = _nothing  # a round goes on: what comes meanwhile needs the next one

        return cancel

    def answered(self, voter: bytes, number: int) -> None:
        """Notes LEADER_CONFIRM: ``voter`` had promised no higher term when it was asked for this number."""
        if number != self.number or not self._round:
            return
        self._voters.add(voter)
        if len(self._voters) < self._needed:
            return
        callbacks, self._round = self._round, {}
        if self._next:
            self._begin()
        for callback in callbacks.values():
            callback(None)

    def recount(self, needed: int) -> None:
        """Counts by another record of the voters from now on. A round under way, counted by the former, begins anew."""
        self._needed = needed
        if self._round:
            self._next = {**self._round, **self._next}
            self._begin()

    def fail(self, error: TailraceError) -> None:
        """Fails all questions: the node does not lead any more."""
        callbacks = [*self._round.values(), *self._next.values()]
        self._round, self._next = {}, {}
        for callback in callbacks:
            callback(error)

    def _begin(self) -> None:
        self._round, self._next = self._next, {}
        self._voters = set()
        self.number += 1
        self._ask(self.number)


def _nothing(error: TailraceError | None) -> None:
    """Takes the place of a callback that was cancelled."""
