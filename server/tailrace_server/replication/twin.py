"""Finds another process on a copy of this node's directory, at the address where the others find this member.

    the leader ── asks the member at its address ──> the original ── acknowledges ──> the leader
                                                     a copy of it ── acknowledges ──> the leader

The record of the voters names directories, and both processes have the same one. If the copy acknowledged, its rows
would count for a majority, and the original would vote without them. So the process that the others do not find stands
back: it follows no leader, has no vote, and is not promoted.

If no answer comes from the member's address, the original may be paused or cut off. So a process stands back until the
coordinator has its address, however long that takes. The coordinator takes the address of one process only. With the
coordinator that is a matter of seconds, of its lease at most. While the coordinator is gone, a member counts at its
known address only.

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

_BESIDE = (
    "a process on a copy of this directory answers at {}, where the others find {}: this one follows no leader, and "
    "has no vote. Stop one of the two, and remove its directory"
)
_UNKNOWN = (
    "the others find {1} at {0}, and not at {2}. A process on a copy of this directory may run there, so this one "
    "follows no leader, and has no vote, until the cluster store has its address. If the cluster store is gone, start "
    "it again, or start this node with --listen {0}"
)


class Twin:
    """Another process that is this member for the others. Only its own methods change its fields."""

    def __init__(
        self,
        node: LocalNode,
        leadership: Leadership,
        name: str,
        lines: Callable[[], tuple[Lineage, bool]],
        has_seat: Callable[[], bool],
    ) -> None:
        """Has not asked yet.

        Args:
            node: this node.
            leadership: of the group, which tells the present address of a member.
            name: the name of this member.
            lines: returns the starts of this node's directory, and whether that is new.
            has_seat: returns whether this directory has a seat by the record that it has stored.
        """
        self._node = node
        self._leadership = leadership
        self._name = name
        self._lines = lines
        self._has_seat = has_seat
        self._asked = ""  # the address at which was asked last
        self._found = ""  # the sentence that this gave
        self._told = ""  # the last sentence in the log

    @property
    def why(self) -> str:
        """The sentence that there is another process, or may be, and what to do; "" if there is none."""
        address = self._address
        if self._is_own(address):
            return ""
        return self._found if self._asked == address else self._unknown(address)

    async def look(self) -> bool:
        """Asks who answers at this member's address, if that is not the node's own. Returns whether to stand back."""
        address = self._address
        if not self._is_own(address):
            self._found, self._asked = await self._find(address), address
        why = self.why
        if why != self._told:
            self._told = why
            if why:
                log.log(logging.WARNING if why == self._unknown(address) else logging.ERROR, "%s", why)
        return bool(why)

    @property
    def _address(self) -> str:
        return self._leadership.address_of(self._name)

    def _is_own(self, address: str) -> bool:
        node = self._node
        own = (node.config.listen, node.listening or node.config.listen)  # as it registers, and as the system says it
        return node.config.member_name is None or address in [str(Address(*each)) for each in own]

    def _unknown(self, address: str) -> str:
        return _UNKNOWN.format(address, self._name, Address(*self._node.config.listen))

    async def _find(self, address: str) -> str:
        """Returns the sentence that there is, or may be, another process; "" if there is none."""
        node, (line, is_new) = self._node, self._lines()
        try:
            seen = await look_at(node, parse_address(self._name), {}, node.config.replication.ask_timeout_s)
        except (TailraceError, OSError):
            return self._unknown(address)
        if seen.placement_id != node.identity.placement_id:
            # A new disk has no seat: the member that answers has, or had, its place. Else the original may be anywhere.
            return self._unknown(address) if self._has_seat() else ""
        # A new directory tells no starts, so this node may have answered itself.
        if is_new if seen.line is None else seen.line.now.token == line.now.token:
            return ""
        return _BESIDE.format(address, self._name)
