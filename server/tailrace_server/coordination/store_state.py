"""The states of a node's coordinator, as status names them. Pure but for `StoreHealth`, which holds the present one.

    CONNECTING ─ answered ─> CONNECTED <── answered ──> SLOW
    any state ── no answer ──> UNREACHABLE ── answered ──> CONNECTED
    any state ── refused ────> REFUSED ────── answered ──> CONNECTED
    any state ── read only ──> READ_ONLY ──── wrote ─────> CONNECTED
    any state ── went back ──> RESTORED ───── registered ─> CONNECTED
    CONNECTED, SLOW ── lease ended ──> LEASE_LOST ── registered ──> CONNECTED
    CONNECTED, SLOW ── compacted ────> COMPACTED ─── read ────────> CONNECTED

In no state does the set lose a row, or get a second leader: the coordinator is not on the path of writes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple


class StoreState(enum.Enum):
    """The states of a coordinator."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    SLOW = "slow"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    READ_ONLY = "read_only"
    RESTORED = "restored"
    LEASE_LOST = "lease_lost"
    COMPACTED = "compacted"


class StoreEvent(enum.Enum):
    """The events that change the state."""

    ANSWERED = "answered"
    ANSWERED_LATE = "answered late"
    NO_ANSWER = "no answer"
    REFUSED = "refused"
    READ_ONLY = "read only"
    WROTE = "wrote"
    WENT_BACK = "went back"
    LEASE_ENDED = "lease ended"
    REGISTERED = "registered"
    COMPACTED = "compacted"
    READ = "read"


_S, _E = StoreState, StoreEvent
# These lead to their state from every other one.
_ALWAYS = {
    _E.NO_ANSWER: _S.UNREACHABLE,
    _E.REFUSED: _S.REFUSED,
    _E.READ_ONLY: _S.READ_ONLY,
    _E.WENT_BACK: _S.RESTORED,
}
_TABLE = {
    (_S.CONNECTING, _E.ANSWERED): _S.CONNECTED,
    (_S.SLOW, _E.ANSWERED): _S.CONNECTED,
    (_S.UNREACHABLE, _E.ANSWERED): _S.CONNECTED,
    (_S.REFUSED, _E.ANSWERED): _S.CONNECTED,
    (_S.CONNECTING, _E.ANSWERED_LATE): _S.SLOW,
    (_S.CONNECTED, _E.ANSWERED_LATE): _S.SLOW,
    (_S.UNREACHABLE, _E.ANSWERED_LATE): _S.SLOW,
    (_S.REFUSED, _E.ANSWERED_LATE): _S.SLOW,
    (_S.READ_ONLY, _E.WROTE): _S.CONNECTED,
    (_S.CONNECTED, _E.LEASE_ENDED): _S.LEASE_LOST,
    (_S.SLOW, _E.LEASE_ENDED): _S.LEASE_LOST,
    (_S.LEASE_LOST, _E.REGISTERED): _S.CONNECTED,
    (_S.RESTORED, _E.REGISTERED): _S.CONNECTED,
    (_S.CONNECTED, _E.COMPACTED): _S.COMPACTED,
    (_S.SLOW, _E.COMPACTED): _S.COMPACTED,
    (_S.COMPACTED, _E.READ): _S.CONNECTED,
}


def transition(state: StoreState, event: StoreEvent) -> StoreState:
    """Returns the state after ``event``; an event that a state has no row for changes nothing."""
    return _ALWAYS.get(event) or _TABLE.get((state, event), state)


class Effect(NamedTuple):
    """For people: what goes on in a state, and what waits for its end."""

    goes_on: str
    waits: str


_ROWS_GO_ON = "writes, reads, the leader and its followers"
_KNOWN = "; a node that starts again uses the members and addresses that it knew last"
_CHANGES = "the founding of the set, changed addresses of members, and who is alive by etcd"
EFFECTS = {
    _S.CONNECTING: Effect(_ROWS_GO_ON + _KNOWN, _CHANGES),
    _S.CONNECTED: Effect("everything", "nothing"),
    _S.SLOW: Effect("everything", "nothing, but changes take longer; below a third of the lease a node may lose it"),
    _S.UNREACHABLE: Effect(_ROWS_GO_ON + _KNOWN, _CHANGES),
    _S.REFUSED: Effect(_ROWS_GO_ON + _KNOWN, _CHANGES),
    _S.READ_ONLY: Effect(_ROWS_GO_ON + "; etcd is read", _CHANGES),
    _S.RESTORED: Effect(_ROWS_GO_ON, "changes, until this node has compared its members and registered again"),
    _S.LEASE_LOST: Effect(_ROWS_GO_ON, "who is alive by etcd, until this node has registered again"),
    _S.COMPACTED: Effect("everything", "changes, until this node has read all keys again"),
}


class StoreHealth:
    """The state of a coordinator since this node's start. Only its own methods change its fields."""

    def __init__(self, monotonic: Callable[[], float], log: Callable[[str], None], slow_after_s: float) -> None:
        """Begins as CONNECTING.

        Args:
            monotonic: the clock, in seconds.
            log: logs a sentence; called at each change of state.
            slow_after_s: an answer that takes longer counts as slow.
        """
        self._monotonic = monotonic
        self._log = log
        self._slow_after_s = slow_after_s
        self.state = StoreState.CONNECTING
        self.why = ""
        self.endpoint = ""
        self.answer_s = 0.0
        self.since = monotonic()
        self.counts = dict.fromkeys((_E.NO_ANSWER, _E.REFUSED, _E.WENT_BACK, _E.LEASE_ENDED, _E.COMPACTED), 0)

    def answered(self, endpoint: str, seconds: float) -> None:
        """Notes an answer of ``endpoint`` after so many seconds."""
        self.endpoint, self.answer_s = endpoint, seconds
        if seconds > self._slow_after_s:
            self.note(StoreEvent.ANSWERED_LATE, f"{endpoint} answered after {seconds:.1f} s")
        else:
            self.note(StoreEvent.ANSWERED, "")

    def note(self, event: StoreEvent, why: str) -> None:
        """Notes an event, and for people the reason."""
        if event in self.counts:
            self.counts[event] += 1
        before, self.state = self.state, transition(self.state, event)
        if self.state is not before:
            self.since, self.why = self._monotonic(), why
            self._log(f"the cluster store is {self.state.value}{f': {why}' if why else ''}")
        elif why and _ALWAYS.get(event) is self.state:
            self.why = why

    def to_json(self) -> dict[str, Any]:
        """Returns the part of the status about the state."""
        effect = EFFECTS[self.state]
        return {
            "state": self.state.value,
            "why": self.why,
            "since_s": self._monotonic() - self.since,
            "goes_on": effect.goes_on,
            "waits": effect.waits,
            "endpoint": self.endpoint,
            "answer_s": self.answer_s,
            "counts": {event.value: count for event, count in self.counts.items()},
        }
