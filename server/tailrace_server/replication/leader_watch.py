"""Notes the signs of life between a leader and its followers. Pure: times in, decisions out.

A leader asks its replicas again and again whether they follow it (LEADER_CHECK). The question is a follower's sign of
life of the leader, and the answers of a majority are the leader's proof that it still leads. A stopped process, a
machine that is cut off and a loop that hangs all end the questions.
"""

from __future__ import annotations

import math

# The times in a row, without a question in between, that a node that was held up begins the time-out anew. Otherwise a
# node that is always held up would never notice that the leader is gone, and would keep others from leading.
EXCUSES_MAX = 3
# The most by which `Patience` multiplies a time-out.
PATIENCE_MAX = 8
# The seconds without a false alarm after which a follower has half the patience.
_CALM_SECONDS = 60.0


class Patience:
    """The factor by which a follower waits longer for a silent leader. Only its own methods change its fields.

    A leader that was given up and is found to lead on was slow, not gone. To follow it anew costs both nodes work for
    each partition, and so makes it slower still. Without more patience the two would go on in turns for ever.
    """

    def __init__(self) -> None:
        """Has given up no leader."""
        self._given_up = ""
        self._factor = 1
        self._raised_at = -math.inf

    def gave_up(self, leader: str) -> None:
        """Notes that ``leader`` was silent for too long."""
        self._given_up = leader

    def found(self, leader: str, now: float) -> None:
        """Notes that ``leader`` leads. If it is the one that was given up, that was a false alarm."""
        if leader == self._given_up:
            self._factor, self._raised_at = min(2 * self.factor(now), PATIENCE_MAX), now
        self._given_up = ""

    def factor(self, now: float) -> int:
        """Returns the factor for time-outs: from 1 to PATIENCE_MAX, half as much after each calm minute."""
        calm_s = now - self._raised_at
        return 1 if calm_s >= PATIENCE_MAX * _CALM_SECONDS else max(1, self._factor >> int(calm_s // _CALM_SECONDS))


class LeaderWatch:
    """A follower's knowledge of one leader at a time. Only its own methods change its fields."""

    def __init__(self) -> None:
        """Has heard no leader."""
        self._heard_at = -math.inf
        self._is_sure = True  # a question of this leader is a sign that it leads
        self._silent_from = math.inf  # the time from which on silence counts
        self._excuses = 0  # since the last question

    def begin(self, now: float, grace_s: float, *, is_sure: bool = True) -> None:
        """Begins to listen to another leader, which has just answered.

        Its first question may take ``grace_s`` longer than others, since streams have to open before it. ``math.inf``:
        the leader need not ask at all, as one that fails over by hand. ``is_sure``: it says that a majority confirms
        it. Else it counts as heard by its second question only: it asks that once a majority has answered the first.
        """
        self._heard_at, self._is_sure = now if is_sure else -math.inf, is_sure
        self._silent_from, self._excuses = now + grace_s, 0

    def heard(self, now: float) -> None:
        """Notes a question of the leader."""
        if self._is_sure:
            self._heard_at = now
        self._is_sure, self._silent_from, self._excuses = True, now, 0

    def excuse(self, now: float) -> None:
        """Begins the time-out anew: this node itself was held up, and may have missed what came.

        Does nothing after EXCUSES_MAX times without a question.
        """
        if self._excuses >= EXCUSES_MAX:
            return
        self._excuses += 1
        self._silent_from = max(self._silent_from, now)
        if self._heard_at > -math.inf:
            self._heard_at = max(self._heard_at, now)

    def end(self) -> None:
        """Forgets the leader: its connection has broken."""
        self._heard_at, self._silent_from = -math.inf, math.inf

    def hears(self, now: float, timeout_s: float) -> bool:
        """Returns whether the leader was heard less than ``timeout_s`` ago."""
        return now - self._heard_at < timeout_s

    def silent_s(self, now: float) -> float:
        """Returns how long the leader has been silent."""
        return max(0.0, now - self._silent_from)


class MajorityWatch:
    """A leader's knowledge of its majority. Only its own methods change its fields."""

    def __init__(self) -> None:
        """Does not lead."""
        self._leads_since = -1  # `Leadership.changes` at the begin of the leadership that is watched
        self.confirmed_at = 0.0  # when the last question was asked that a majority has answered
        self.is_asking = False

    def lead(self, changes: int, now: float) -> None:
        """Begins anew if this is another leadership than before: a majority has just promised it."""
        if changes != self._leads_since:
            self._leads_since, self.confirmed_at, self.is_asking = changes, now, False

    def asked(self) -> None:
        """Notes that a question is under way. There is one at a time."""
        self.is_asking = True

    def confirmed(self, changes: int, asked_at: float) -> None:
        """Notes that a majority has answered a question of ``asked_at``."""
        if changes == self._leads_since:
            self.confirmed_at, self.is_asking = max(self.confirmed_at, asked_at), False

    def failed(self, changes: int) -> None:
        """Notes that a question has ended without an answer."""
        if changes == self._leads_since:
            self.is_asking = False

    def unconfirmed_s(self, now: float) -> float:
        """Returns how long ago the last question was asked that a majority has answered."""
        return now - self.confirmed_at
