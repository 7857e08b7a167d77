"""The leader's side: which segment a target is offered next, and the effect of its answer. Pure.

             OFFERED               ACCEPT
    IDLE ─────────────> WAITING ─────────────> SENDING
     ^ ^                 │   │                  │   │
     │ ├── EXISTS ───────┘   │                  │   │      EXISTS and ACK acknowledge the segment.
     │ ├── EXISTS, ACK ──────┼──────────────────┘   │      OUT_OF_ORDER forgets all acknowledgements of the target,
     │ └── OUT_OF_ORDER ─────┴──────────────────────┤      so the next segment is the most recent major one.
     │                                              │
     └─ RETRY ── PAUSED <── OVERLOADED, INVALID, INFLIGHT, FAILED

A target gets one segment after the other, the oldest first, beginning with the most recent major one. FAILED stands for
a lost connection, an error, and a passed deadline. From PAUSED the caller retries when its pause has passed.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tailrace.segment.identity import NO_BASE
from tailrace_server.chain.link import ChainLink
from tailrace_server.chain.linked_chain import LinkedChain


class OfferState(enum.Enum):
    """The state of a target, as its leader sees it."""

    IDLE = "idle"
    """The next segment may be offered, if there is one."""
    WAITING = "waiting"
    """An offer waits for its answer."""
    SENDING = "sending"
    """The target has accepted; the file is sent, and its installation was not acknowledged yet."""
    PAUSED = "paused"
    """The target has declined, or cannot be reached."""


class OfferEvent(enum.Enum):
    """An event at a target: its answer to an offer, or an event at the leader."""

    OFFERED = "offered"
    ACCEPT = "accept"
    ACK = "ack"
    """The target has the whole file, durably, in its chain."""
    EXISTS = "exists"
    OVERLOADED = "overloaded"
    INVALID = "invalid"
    INFLIGHT = "inflight"
    OUT_OF_ORDER = "out_of_order"
    FAILED = "failed"
    RETRY = "retry"


class _Effect(enum.Enum):
    """The effect of an event on the acknowledgements in the leader's chain."""

    NONE = enum.auto()
    ACKNOWLEDGE = enum.auto()
    FORGET = enum.auto()


_PAUSE = (OfferState.PAUSED, _Effect.NONE)
_NEXT = (OfferState.IDLE, _Effect.ACKNOWLEDGE)
_RESTART = (OfferState.IDLE, _Effect.FORGET)
# A chain may change during a transfer, so a target answers once more at its end.
_ANSWERS = {
    OfferEvent.EXISTS: _NEXT,
    OfferEvent.OVERLOADED: _PAUSE,
    OfferEvent.INVALID: _PAUSE,
    OfferEvent.INFLIGHT: _PAUSE,
    OfferEvent.OUT_OF_ORDER: _RESTART,
    OfferEvent.FAILED: _PAUSE,
}
_TABLE: dict[OfferState, dict[OfferEvent, tuple[OfferState, _Effect]]] = {
    OfferState.IDLE: {
        OfferEvent.OFFERED: (OfferState.WAITING, _Effect.NONE),
        OfferEvent.FAILED: _PAUSE,
    },
    OfferState.WAITING: {**_ANSWERS, OfferEvent.ACCEPT: (OfferState.SENDING, _Effect.NONE)},
    OfferState.SENDING: {**_ANSWERS, OfferEvent.ACK: _NEXT},
    OfferState.PAUSED: {
        OfferEvent.RETRY: (OfferState.IDLE, _Effect.NONE),
        OfferEvent.FAILED: _PAUSE,
    },
}


def transition(state: OfferState, event: OfferEvent) -> tuple[OfferState, _Effect]:
    """Returns the state that ``event`` leads to, and its effect. RuntimeError if the table has no such event."""
    try:
        return _TABLE[state][event]
    except KeyError:
        raise RuntimeError(f"offer state {state.name}: event {event.name} is not possible") from None


class Target(NamedTuple):
    """A follower as its leader sees it: its placement id (16 bytes), and the last offer to it.

    ``number`` counts the offers to it; an answer repeats the number. ``segment_id`` is the offered segment.
    """

    placement: bytes
    state: OfferState = OfferState.IDLE
    number: int = 0
    segment_id: bytes = NO_BASE


def next_link(chain: LinkedChain, target: Target, broken: ChainLink | None = None) -> ChainLink | None:
    """Returns the segment that ``target`` is offered next; None if it has acknowledged all, or is not idle.

    ``broken`` is the segment whose transfer to the target broke, if its file is still here. It comes first, also if a
    compaction has replaced it since. Otherwise a target whose connections are shorter than a transfer would begin anew
    with each of them. It is not offered if the target has its rows in another segment, or if they were trimmed.
    """
    if target.state is not OfferState.IDLE:
        return None
    if broken is not None and _is_owed(chain, target.placement, broken):
        return broken
    return next((link for link in chain.recent if target.placement not in link.placements), None)


def _is_owed(chain: LinkedChain, placement: bytes, broken: ChainLink) -> bool:
    is_covered = any(link.covers(broken) for link in chain.links)
    return is_covered and placement not in chain.acknowledgements(broken)


def offered(target: Target, link: ChainLink) -> Target:
    """Returns ``target`` after ``link`` was offered to it, under the number of the result."""
    state, _ = transition(target.state, OfferEvent.OFFERED)
    return target._replace(state=state, number=target.number + 1, segment_id=link.id)


def advance(chain: LinkedChain, target: Target, number: int, event: OfferEvent) -> tuple[LinkedChain, Target]:
    """Returns chain and target after an answer to the offer ``number``.

    An answer to another offer than the last one, or one that is repeated, changes nothing: since that offer, the target
    may have lost the segment.
    """
    if number != target.number or event not in _TABLE[target.state]:
        return chain, target
    state, effect = transition(target.state, event)
    if effect is _Effect.ACKNOWLEDGE:
        chain = chain.acknowledged(target.segment_id, target.placement)
    if effect is _Effect.FORGET:
        chain = chain.forgotten(target.placement)
    return chain, target._replace(state=state)


def reconnected(chain: LinkedChain, target: Target, last_seq: int) -> tuple[LinkedChain, Target]:
    """Returns chain and target after the target has connected again, and told its ``last_seq``.

    Answers to older offers cannot come any more. Acknowledgements above ``last_seq`` are forgotten: the target has
    rolled back, or lost the end of its chain. Without this it would stay behind until the next flush.
    """
    state, _ = transition(transition(target.state, OfferEvent.FAILED)[0], OfferEvent.RETRY)
    return chain.forgotten(target.placement, above=last_seq), target._replace(state=state)
