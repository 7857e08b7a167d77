"""Finds another process on a copy of this node's directory, at the address where the others find this member.

    the leader ── asks the member at its address ──> the original ── acknowledges ──> the leader
                                                     a copy of it ── acknowledges ──> the leader

The record of the voters names directories, and both processes have the same one. If the copy acknowledged, its rows
would count for a majority, and the original would vote without them. So the process that the others do not find stands
back: it follows no leader, has no vote, and is not promoted.

Without a coordinator a member has one address, at which only one process can listen. There nothing is asked.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.link.address import Address, parse_address
from tailrace_server.replication.peers import look_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.lineage import Lineage
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")

# The looks without an answer after which a node that has just started counts as alone. Each takes up to ask_timeout_s.
_LOOKS_AT_START = 5
_NO_ANSWER = "{} has not answered, where the others find {}: a process on a copy of this directory may run there"


class Twin:
    """Another process that is this member for the others. Only its own methods change its fields.

    Attributes:
        why: The sentence that there is one, or may be, and what to do; "" if none is known.
    """

    def __init__(
        self, node: LocalNode, leadership: Leadership, name: str, lines: Callable[[], tuple[Lineage, bool]]
    ) -> None:
        """Knows of none yet.

        Args:
            node: this node.
            leadership: of the group, which tells the present address of a member.
            name: the name of this member.
            lines: returns the starts of this node's directory, and whether that is new.
        """
        self._node = node
        self._leadership = leadership
        self._name = name
        self._lines = lines
        self.why = ""
        self._looks_left = _LOOKS_AT_START

    async def look(self) -> bool:
        """Asks who answers at this member's address, if that is not the node's own. Returns whether a twin does.

        A twin that answers no more counts on until the coordinator has this node's address. It may be cut off. At the
        start a few answers are waited for, since a busy machine is late with them.
        """
        found = await self._find()
        if found is not None:
            if found and found != self.why:
                log.error("%s", found)
            self.why, self._looks_left = found, 0
        elif self._looks_left:
            self._looks_left -= 1
            self.why = _NO_ANSWER.format(self._address, self._name) if self._looks_left else ""
        return bool(self.why)

    @property
    def _address(self) -> str:
        return self._leadership.address_of(self._name)

    async def _find(self) -> str | None:
        """Returns the sentence that there is a twin, "" if there is none, None if nobody answers."""
        node, (line, is_new) = self._node, self._lines()
        own = str(Address(*(node.listening or node.config.listen)))
        address = self._address
        if node.config.member_name is None or address == own:
            return ""
        try:
            seen = await look_at(node, parse_address(self._name), {}, node.config.replication.ask_timeout_s)
        except (TailraceError, OSError):
            return None
        if seen.placement_id != node.identity.placement_id:
            return ""
        # A new directory tells no starts, so this node may have answered itself.
        if is_new if seen.line is None else seen.line.now.token == line.now.token:
            return ""
        return (
            f"a process on a copy of this directory answers at {address}, where the others find {self._name}: this one "
            "follows no leader, and has no vote. Stop one of the two, and remove its directory"
        )
