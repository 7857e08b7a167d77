"""Decides whether a consumer or a replica gets on, and says why if it does not. Pure."""

from __future__ import annotations

import enum
from typing import NamedTuple


class State(enum.StrEnum):
    """The state of one that follows a feed."""

    CURRENT = "current"
    """It has handled all that there is."""
    MOVING = "moving"
    """It is behind, and gets on."""
    WAITING = "waiting"
    """It lacks only what it may not be sent yet."""
    STUCK = "stuck"
    """It takes nothing, though something waits for it."""
    AWAY = "away"
    """It is not connected, and known from before."""


class Judgement(NamedTuple):
    """A state, the sentence that says why ("" if nothing is behind), and for how many seconds it has been seen."""

    state: State
    reason: str = ""
    seconds: float = 0.0


# The worst first: the order of lists.
ORDER = {State.STUCK: 0, State.AWAY: 1, State.WAITING: 2, State.MOVING: 3, State.CURRENT: 4}


def judge_consumer(
    *, unsent: int, unhandled: int, lag_mutations: int, level: str, idle_s: float, slow_after_s: float
) -> Judgement:
    """Returns the state of a consumer.

    Args:
        unsent: The mutations that its level shows, and that it was not sent.
        unhandled: The mutations that it was sent, and has not handled.
        lag_mutations: All mutations that it has not handled, those included that its level does not show yet.
        level: The level.
        idle_s: The seconds for which it has taken nothing, though something waits for it.
        slow_after_s: The seconds after which it counts as stuck.
    """
    if not lag_mutations:
        return Judgement(State.CURRENT)
    if not unsent and not unhandled:
        return Judgement(State.WAITING, f"the mutations that it lacks are not at level {level} yet")
    if idle_s >= slow_after_s:
        return Judgement(
            State.STUCK,
            "it takes nothing, though mutations wait for it: its program is busy, stopped or blocked by what it "
            "writes to, or the network has lost it",
        )
    return Judgement(State.MOVING, "it catches up" if unsent else "it handles what it was sent")


def judge_told(*, unseen: int, lag_mutations: int, level: str) -> Judgement:
    """Returns the state of a consumer that tells its progress after each batch, whose end the node cannot know.

    Args:
        unseen: The mutations that its level shows, and that it has not told to have handled.
        lag_mutations: Those included that its level does not show yet.
        level: The level.
    """
    if not lag_mutations:
        return Judgement(State.CURRENT)
    if not unseen:
        return Judgement(State.WAITING, f"the mutations that it lacks are not at level {level} yet")
    return Judgement(State.MOVING, "its batch is under way, or waits for its trigger: it tells its progress in between")


def judge_stopped(*, lag_mutations: int, seconds: float) -> Judgement:
    """Returns the state of a named consumer that went so many seconds ago."""
    lacks = "mutations wait for it" if lag_mutations else "it had handled all that there is"
    return Judgement(State.AWAY, f"it is not connected any more, and {lacks}", seconds)


def judge_replica(
    *, is_connected: bool, lag_mutations: int, since_ack_s: float | None, slow_after_s: float
) -> Judgement:
    """Returns the state of a replica; ``since_ack_s`` are the seconds since it has acknowledged anything."""
    if not is_connected:
        return Judgement(State.AWAY, "it has no stream open: it is down, or does not reach this node")
    if not lag_mutations:
        return Judgement(State.CURRENT)
    if since_ack_s is None or since_ack_s >= slow_after_s:
        return Judgement(State.STUCK, "it is connected, and acknowledges nothing: its disk or its network is stuck")
    return Judgement(State.MOVING, "it catches up")
