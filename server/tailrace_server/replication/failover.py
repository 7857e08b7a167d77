"""The states of a member that fails over by itself, and the table of the events that lead from one to the next. Pure.

              LEADER_LOST              DUE              GRANTED               WON
    FOLLOWS ─────────────> WAITS ─────────────> ASKS ─────────────> STANDS ─────────> LEADS
       ^                    ^ ^ ^                │                    │                │ │ ^
       │    LEADER_FOUND    │ │ └─── REFUSED ────┘                    │   MAJORITY_GONE│ │ │MAJORITY_BACK
       └────────────────────┘ └────────────── FAILED ─────────────────┘                v │ │
                            ^                                                      WITHHOLDS
                            └────────────────── DEPOSED ──────────────── LEADS, WITHHOLDS

LEADER_FOUND leads from WAITS, ASKS and STANDS to FOLLOWS. WON leads to LEADS from every state, since an operator or a
handover may make any member the leader. DISK_STUCK leads from every state to UNFIT, and DISK_WELL from there to WAITS.

No state grants anything. Only the promises of a majority make a leader, so an event that comes late or twice can delay
a failover, and cannot harm a row.
"""

from __future__ import annotations

import enum


class FailoverState(enum.Enum):
    """The part of a member in a failover."""

    FOLLOWS = "follows"
    """It hears the leader."""
    WAITS = "waits"
    """There is no leader. The member pauses before it asks, the less complete the longer."""
    ASKS = "asks"
    """It asks whether a majority would let it lead. No term has moved."""
    STANDS = "stands"
    """A majority would, and its promotion is under way."""
    LEADS = "leads"
    """It leads, and a majority has confirmed that lately."""
    WITHHOLDS = "withholds"
    """It leads, and no majority has confirmed that for a while: it takes no writes."""
    UNFIT = "unfit"
    """Its disk fails or hangs, or takes no promise: it neither leads nor lets others count on it."""


class FailoverEvent(enum.Enum):
    """What happens to a member."""

    LEADER_FOUND = "leader found"
    LEADER_LOST = "leader lost"
    """The connection to the leader has broken, or the leader has been silent for too long."""
    DUE = "due"
    """The pause is over, and there is no leader still."""
    GRANTED = "granted"
    REFUSED = "refused"
    """Fewer than a majority would let it lead."""
    WON = "won"
    """It has become the leader, in whatever way."""
    FAILED = "failed"
    """Its promotion has failed."""
    MAJORITY_GONE = "majority gone"
    MAJORITY_BACK = "majority back"
    DEPOSED = "deposed"
    """It leads no more."""
    DISK_STUCK = "disk stuck"
    DISK_WELL = "disk well"


_S, _E = FailoverState, FailoverEvent

_TABLE: dict[FailoverState, dict[FailoverEvent, FailoverState]] = {
    _S.FOLLOWS: {_E.LEADER_LOST: _S.WAITS, _E.WON: _S.LEADS, _E.DISK_STUCK: _S.UNFIT},
    _S.WAITS: {_E.LEADER_FOUND: _S.FOLLOWS, _E.DUE: _S.ASKS, _E.WON: _S.LEADS, _E.DISK_STUCK: _S.UNFIT},
    _S.ASKS: {
        _E.GRANTED: _S.STANDS,
        _E.REFUSED: _S.WAITS,
        _E.LEADER_FOUND: _S.FOLLOWS,
        _E.WON: _S.LEADS,
        _E.DISK_STUCK: _S.UNFIT,
    },
    _S.STANDS: {
        _E.FAILED: _S.WAITS,
        _E.LEADER_FOUND: _S.FOLLOWS,
        _E.WON: _S.LEADS,
        _E.DISK_STUCK: _S.UNFIT,
    },
    _S.LEADS: {_E.MAJORITY_GONE: _S.WITHHOLDS, _E.DEPOSED: _S.WAITS, _E.DISK_STUCK: _S.UNFIT},
    _S.WITHHOLDS: {_E.MAJORITY_BACK: _S.LEADS, _E.WON: _S.LEADS, _E.DEPOSED: _S.WAITS, _E.DISK_STUCK: _S.UNFIT},
    _S.UNFIT: {_E.DISK_WELL: _S.WAITS, _E.WON: _S.LEADS},
}


def transition(state: FailoverState, event: FailoverEvent) -> FailoverState:
    """Returns the state that ``event`` leads to from ``state``. RuntimeError if the table has no such event."""
    try:
        return _TABLE[state][event]
    except KeyError:
        raise RuntimeError(f"failover state {state.name}: event {event.name} is not possible") from None


def noticed(state: FailoverState, *, leads: bool, withholds: bool, has_leader: bool) -> FailoverEvent | None:
    """Returns the event that a member learns of by its present role; None if ``state`` fits the role.

    Operators, handovers and other members change the role, too.

    Args:
        state: The state so far.
        leads: Whether the member leads.
        withholds: Whether it leads, and takes no writes. A leader that leads anew takes them.
        has_leader: Whether it follows a leader.
    """
    if leads:
        return None if state is _S.LEADS or (state is _S.WITHHOLDS and withholds) else _E.WON
    if state in (_S.LEADS, _S.WITHHOLDS):
        return _E.DEPOSED
    if has_leader and state in (_S.WAITS, _S.ASKS, _S.STANDS):
        return _E.LEADER_FOUND
    if not has_leader and state is _S.FOLLOWS:
        return _E.LEADER_LOST
    return None
