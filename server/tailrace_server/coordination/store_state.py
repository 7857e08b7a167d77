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
    WATCH_LOST = "watch lost"
    """Changes did not come, since a connection was lost on the way. The node reads all keys again, at once."""


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
    """For people: what goes on in a state, what waits for its end, and what an operator does; "nothing" for neither."""

    goes_on: str
    waits: str
    to_do: str


_ROWS_GO_ON = "writes, reads, failover, the leader and its followers"
_KNOWN = "; a node that starts again uses the members and addresses that it knew last"
_CHANGES = "the founding of the set, changed addresses of members, and who is alive by etcd"
_NOTHING = "nothing: the node goes on by itself"
EFFECTS = {
    _S.CONNECTING: Effect(_ROWS_GO_ON + _KNOWN, _CHANGES, "if it stays, check that etcd runs at the endpoints named"),
    _S.CONNECTED: Effect("everything", "nothing", "nothing"),
    _S.SLOW: Effect(
        "everything",
        "nothing, but changes take longer, and a node whose lease is not renewed in time registers again",
        "if it stays, give etcd a faster disk or less load; rows do not wait for it",
    ),
    _S.UNREACHABLE: Effect(_ROWS_GO_ON + _KNOWN, _CHANGES, "start etcd again, or mend the network to it"),
    _S.REFUSED: Effect(
        _ROWS_GO_ON + _KNOWN, _CHANGES, "mend user, password file, permission or certificate; restart for a certificate"
    ),
    _S.READ_ONLY: Effect(
        _ROWS_GO_ON + "; etcd is read", _CHANGES, "compact and defragment etcd, and disarm its alarm (etcdctl alarm)"
    ),
    _S.RESTORED: Effect(
        _ROWS_GO_ON, "changes, until this node has compared its members and registered again", _NOTHING
    ),
    _S.LEASE_LOST: Effect(
        _ROWS_GO_ON,
        "who is alive by etcd, until this node has registered again",
        "nothing: the node goes on by itself. If it stays, give etcd a faster disk or less load: a lease lasts only if "
        "answers take less than a third of it",
    ),
    _S.COMPACTED: Effect("everything", "changes, until this node has read all keys again", _NOTHING),
}


class Trouble(NamedTuple):
    """A bad state that has ended: its reason, and when it began and ended (monotonic, in seconds).

    Some last for less than a second, and status would hardly ever show them otherwise.
    """

    state: StoreState
    why: str
    began: float
    ended: float


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
        self.last_trouble: Trouble | None = None
        self.counts = dict.fromkeys(
            (_E.NO_ANSWER, _E.REFUSED, _E.WENT_BACK, _E.LEASE_ENDED, _E.COMPACTED, _E.WATCH_LOST), 0
        )

    def answered(self, endpoint: str, seconds: float) -> None:
        """Notes an answer of ``endpoint`` after so many seconds."""
        self.endpoint, self.answer_s = endpoint, seconds
        if seconds > self._slow_after_s:
            self.note(StoreEvent.ANSWERED_LATE, f"{endpoint} answered after {seconds:.1f} s")
        else:
            self.note(StoreEvent.ANSWERED, "")

    def note(self, event: StoreEvent, why: str) -> None:
        """Notes an event, and for people the reason. That of a lost lease is told with how slow etcd is."""
        if event is _E.LEASE_ENDED and self.answer_s > self._slow_after_s:
            why = f"{why}; {self.endpoint} answered after {self.answer_s:.1f} s"
        if event in self.counts:
            self.counts[event] += 1
        before, self.state = self.state, transition(self.state, event)
        if self.state is not before:
            now = self._monotonic()
            if before not in (_S.CONNECTING, _S.CONNECTED):
                self.last_trouble = Trouble(before, self.why, self.since, now)
            self.since, self.why = now, why
            self._log(f"the cluster store is {self.state.value}{f': {why}' if why else ''}")
        elif why and _ALWAYS.get(event) is self.state:
            self.why = why

    def to_json(self) -> dict[str, Any]:
        """Returns the part of the status about the state."""
        effect, now, last = EFFECTS[self.state], self._monotonic(), self.last_trouble
        return {
            "state": self.state.value,
            "why": self.why,
            "since_s": now - self.since,
            "goes_on": effect.goes_on,
            "waits": effect.waits,
            "to_do": effect.to_do,
            "last_trouble": None
            if last is None
            else {
                "state": last.state.value,
                "why": last.why,
                "lasted_s": last.ended - last.began,
                "ago_s": now - last.ended,
            },
            "endpoint": self.endpoint,
            "answer_s": self.answer_s,
            "counts": {event.value: count for event, count in self.counts.items()},
        }
