"""The members of a group's set, as this node knows them now: the one list that all parts read.

    a later record of the voters ──> become ──> listeners: answers, replicas' streams, the following, the next look

The list is in the order of the seats. It says who is asked, and who is told. It never says who counts: majorities are
those of the record (voters.py), which changes together with the list.

What is under way at a change goes on, because the record decides what comes of it:

| under way | then |
|---|---|
| promises are gathered | of the members that it began with; it fails if the record has changed by its end |
| pre-votes are asked for | they bind no member, and the promotion after them asks the members of its own time |
| a look at the others | a member that has left is dropped from it, and a new one counts as not asked yet |
| a round that confirms the leader | by the voters of the record, anew if that changes |
| a forecast for status | by the last answers of the present members |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tailrace.link.address import Address


class ListChange(NamedTuple):
    """The members that have left the list, and those that have come to it."""

    left: tuple[Address, ...]
    joined: tuple[Address, ...]


class MemberList:
    """The members of one group's set. Only its own methods change its fields."""

    def __init__(self, members: Iterable[Address], own: Address) -> None:
        """Begins with the list that the node was started with.

        Args:
            members: The members in the order of their seats; none outside of a set, which then never has any.
            own: The address of this node in the list.
        """
        self.own = own
        self._listeners: list[Callable[[ListChange], None]] = []
        self._set(tuple(Address(*member) for member in members))

    def _set(self, members: tuple[Address, ...]) -> None:
        self.now = members
        self.others = tuple(member for member in members if member != self.own)
        self.other_names = frozenset(map(str, self.others))

    @property
    def names(self) -> tuple[str, ...]:
        """The addresses of the members, as messages have them."""
        return tuple(map(str, self.now))

    @property
    def number(self) -> int:
        """The place of this node in the list, from 0; -1 if it is no member."""
        return self.now.index(self.own) if self.own in self.now else -1

    def on_change(self, listener: Callable[[ListChange], None]) -> None:
        """Calls ``listener`` at each change from now on, after ``now`` has changed, in the order of these calls."""
        self._listeners.append(listener)

    def become(self, members: Iterable[Address]) -> None:
        """Takes another list, in the order of its seats. Without a change this does nothing.

        The record that has this list is stored already: a listener may end the leading or the following.
        """
        before, after = self.now, tuple(Address(*member) for member in members)
        if after == before:
            return
        assert before, "a node outside of a set has no list"
        assert after, "a set has members"
        assert len(set(after)) == len(after), "each member is in the list once"
        self._set(after)
        left = tuple(member for member in before if member not in after)
        joined = tuple(member for member in after if member not in before)
        for listener in self._listeners:
            listener(ListChange(left, joined))
