"""The levels that the node of a session offers, and its refusal of ttls. Pure."""

from __future__ import annotations

from tailrace.errors import NotDurable, TailraceError
from tailrace.model import Level
from tailrace.wire.messages import NODES_LEVEL, HelloOk


class OfferedLevels:
    """The levels by name, as the last greeting of a node has told them."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = None  # None before the first greeting
        self._levels: dict[str, Level] = {}
        self.unnamed: int = Level.DISK  # on the wire, of a write that names none

    def greeted(self, peer: HelloOk) -> None:
        """Takes over the levels of a greeting."""
        self._names = peer.levels
        self._levels = {level.name.lower(): level for level in Level if level.name.lower() in peer.levels}
        # A node that names no default is older than writes without a level, and the default was disk then.
        self.unnamed = NODES_LEVEL if peer.default_level else Level.DISK

    def know_from(self, before: OfferedLevels) -> None:
        """Takes over what another session's greetings have told."""
        self._names, self._levels, self.unnamed = before._names, before._levels, before.unnamed

    def level(self, text: str) -> Level:
        """Returns a level by name. Raises ValueError if it does not exist, NotDurable if this node cannot give it."""
        found = self._levels.get(text)
        if found is not None:
            return found
        level = Level.parse(text)
        if self._names is not None and text not in self._names:
            offered = ", ".join(self._names)
            raise NotDurable(f"level {level.name.lower()} cannot be given by this node, which offers {offered}")
        return level

    def find(self, text: str) -> Level | None:
        """Returns a level that the node offers, by name; None for anything else, also if it is no text."""
        return self._levels.get(text) if isinstance(text, str) else None

    def of_write(self, text: str | None) -> Level | None:
        """Returns the level of a write by name, as `level` does. None leaves it to the node."""
        return None if text is None else self.level(text)


def refusal_of_ttls(peer: HelloOk | None) -> TailraceError | None:
    """Returns the error of a write with ttls to a node that does not know them; None if it does, or none is known."""
    if peer is None or peer.takes_ttls:
        return None
    return TailraceError(
        f"a ttl was given, and the node ({peer.software:.60}) is too old to know ttls: update it first; until then "
        "write without ttls"
    )
