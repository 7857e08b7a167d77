"""The states of the other members, as they have told them last, and whose answers count."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import Forbidden, TailraceError
from tailrace.link.address import Address, parse_address
from tailrace.link.rules import SetUpRefused
from tailrace_server.replication.election import MemberState
from tailrace_server.replication.eligibility import why_copy, why_other_cluster, why_other_list
from tailrace_server.replication.lineage import Lineage, MemberStart, why_older
from tailrace_server.replication.member_list import ListChange
from tailrace_server.replication.outsider import leader_outside, why_needless, why_not_added
from tailrace_server.replication.peers import ask_all, look_at, never_enough
from tailrace_server.replication.voters import Voters

if TYPE_CHECKING:
    from tailrace_server.replication.local_member import LocalMember

log = logging.getLogger("tailrace.server")


class PeerStates:
    """The last answer of each other member. Only its own methods change its fields."""

    def __init__(
        self,
        local: LocalMember,
        on_older: Callable[[], None],
        learn: Callable[[Voters], None],
    ) -> None:
        """Knows no answers yet.

        Args:
            local: this node as a member.
            on_older: called if another member knows that this directory is an older copy of itself.
            learn: takes the record of the voters that another member has told. OSError.
        """
        self._local = local
        self._node = local.node
        self._on_older = on_older
        self._learn_voters = learn
        self.states: dict[str, MemberState | None] = {str(address): None for address in local.others}
        self.asked: set[str] = set()  # the addresses that were asked since the start, or since this node led last
        # the sentence why an answer does not count, or why there can be none as both nodes are set up, by address
        self.misfits: dict[str, str] = {}
        # the last answers of this cluster that do not count only because of another list of members
        self._unlisted: dict[str, MemberState] = {}
        self._disks: dict[str, bytes] = {}  # the placement id that each other member has told last, if that counts
        local.leadership.members.on_change(self._list_changed)

    def _list_changed(self, change: ListChange) -> None:
        """Forgets the members that have left, and knows no answers of those that have come, which were not asked."""
        for name in map(str, change.left):
            self.misfits.pop(name, None)
            self._disks.pop(name, None)
            self._unlisted.pop(name, None)
        self.states = {str(address): self.states.get(str(address)) for address in self._local.others}
        self.asked.difference_update(map(str, change.left), map(str, change.joined))

    def forget_asked(self) -> None:
        """Begins to count anew who was asked: this node leads no more."""
        self.asked = set()

    async def look(self, is_enough: Callable[[Mapping[str, MemberState | None]], bool] | None = None) -> None:
        """Asks all others for their states: sets ``states`` and adds to ``asked``.

        Once the answers are enough for ``is_enough``, the others have little time left, and then count as unreachable.
        """
        asked = self.asked
        found: dict[str, MemberState | None] = {}
        addresses = [*self._local.others, *self._hints()]
        questions = [partial(self._look_at, address, found) for address in addresses]
        await ask_all(questions, never_enough if is_enough is None else partial(is_enough, found))
        # All at once: another look may run at the same time, and each decides by its own answers. The list of members
        # may have changed meanwhile.
        addresses = [*self._local.others, *self._hints()]
        self.states = {str(address): found.get(str(address)) for address in addresses}
        asked.update(found.keys() & self.states.keys())

    def _hints(self) -> list[Address]:
        """Returns leaders to ask that are no others of this node's list, as others have named them.

        A plain replica's source names the leader. So do members that a new node was added to: the leader may have come
        to the set after the list was written with which the new node was started.
        """
        local = self._local
        if local.is_in_set:
            if not local.is_new:
                return []
            named = {seen.leader for seen in self.states.values() if seen is not None and local.name in seen.members}
        else:
            seen = self.states.get(str(local.others[0]))
            named = set() if seen is None or seen.leads else {seen.leader}
        found = []
        for name in sorted(named - {"", local.name}):
            with contextlib.suppress(ValueError):
                found.append(parse_address(name))
        return [hint for hint in found if hint not in local.others]

    async def _look_at(self, address: Address, found: dict[str, MemberState | None]) -> None:
        name = str(address)
        try:
            timeout_s = self._node.config.replication.ask_timeout_s
            seen = await look_at(self._node, address, self._local.question(), timeout_s)
        except (TailraceError, OSError) as error:
            log.debug("%s does not answer: %s", name, error)
            found[name] = None
            self._unlisted.pop(name, None)
            if isinstance(error, Forbidden | SetUpRefused):
                self._note_misfit(name, str(error), "it cannot be asked")
            return
        if self._local.is_in_set and address not in (*self._local.others, *self._hints()):
            return  # it has left the set since it was asked
        found[name] = None if self._is_misfit(name, seen) else seen
        if found[name] is None and self._is_unlisted(name, seen):
            self._unlisted[name] = seen
        else:
            self._unlisted.pop(name, None)

    def _is_misfit(self, name: str, seen: MemberState) -> bool:
        """Returns whether an answer does not count. Status and log say why."""
        why = self.why_misfit(name, seen)
        self._note_misfit(name, why, "its answers count for nothing")
        if not why:
            self.knows_disk(name, seen.placement_id)
            if seen.line is not None:
                self._learn(seen.placement_id, seen.line.now)
            for placement_id, start in seen.known.items():
                self._learn(placement_id, start)
            self.learn_voters(seen.cluster_id, seen.voters)
        return bool(why)

    def _note_misfit(self, name: str, why: str, so: str) -> None:
        """Notes why another node cannot be a member here, and logs it with what follows if it is news; "" if it can."""
        if why != self.misfits.get(name, ""):
            if why:
                log.warning("%s: %s", why, so)
                self.misfits[name] = why
            else:
                del self.misfits[name]

    def learn_voters(self, cluster_id: bytes, voters: Voters) -> None:
        """Takes the record of the voters that a member of this set has told, unless it is of another cluster."""
        if cluster_id != self._node.identity.cluster_id:  # this node is new, or the other one
            return
        with contextlib.suppress(OSError):  # the file has logged it, and the next look tells it again
            self._learn_voters(voters)

    def _learn(self, placement_id: bytes, start: MemberStart) -> None:
        """Notes a start that a directory has had, which may be this node's own."""
        if not self._local.is_in_set:
            return
        if placement_id != self._node.identity.placement_id:
            self._local.learn_start(placement_id, start)
            return
        try:
            is_older = self._local.found_older(start)
        except OSError:  # the file has logged it, the next look tells it again, and the others know by themselves
            return
        if is_older:
            self._on_older()

    def outside(self) -> tuple[str, str]:
        """Returns why this node is no member of its set, or not yet, and the leader of the set. "" for both if it is.

        "" for the leader also if none is known.
        """
        local = self._local
        if not local.is_in_set:
            return "", ""
        why = local.why_no_member() or (why_not_added(local.name, self.states) if local.is_new else "")
        return why, leader_outside(local.name, self.states) if why else ""

    def why_needless(self) -> str:
        """Returns why this node must not be promoted by force: the voters of its set answer, by another list; else "".

        A majority of them chooses its leader by itself. If this node led as well, its cluster would have two leaders.
        """
        return why_needless(self._local.members, self._node.identity.placement_id, self._unlisted)

    def _is_unlisted(self, name: str, seen: MemberState) -> bool:
        """Returns whether an answer that does not count would count, if the lists of members agreed."""
        is_ours = seen.cluster_id == self._node.identity.cluster_id and not seen.is_new
        return is_ours and not self.why_no_disk(name, seen.placement_id, seen.line)

    def why_misfit(self, name: str, seen: MemberState) -> str:
        """Returns the sentence why the answers of the node ``name`` do not count in this set; "" if they do.

        A new directory is of no cluster yet: it may found a set with others, or join one. It does so in the group that
        has ``_feeds``; the other groups wait for that.
        """
        if not self._local.is_in_set:
            return ""
        joins = self._local.leadership.group.lists_feeds and (seen.is_new or self._local.is_new)
        other = "" if joins else why_other_cluster(self._node.identity.cluster_id, name, seen.cluster_id)
        disk = self.why_no_disk(name, seen.placement_id, seen.line)
        return self._why_other_list(name, seen) or other or disk

    def _why_other_list(self, name: str, seen: MemberState) -> str:
        """Returns the sentence on a member with another list; "" if the lists agree, or do not decide.

        They do not for a new node that is to be added to the list of a set.
        """
        local = self._local
        is_named = local.file.now.voters.is_named or seen.voters.is_named
        is_to_be_added = local.is_new and not seen.is_new and local.name not in seen.members
        return why_other_list(local.members, name, seen.members, is_named=is_named or is_to_be_added)

    def why_no_disk(self, name: str, placement_id: bytes, line: Lineage | None) -> str:
        """Returns the sentence why the answers of a member on this disk do not count; "" if they do.

        The disk is another member's, a copy of one, or an older copy of its own.
        """
        copy = self.why_copy(name, placement_id)
        known = self._local.known_start(placement_id)
        return copy or (why_older(name, known, line) if self._local.is_in_set else "")

    def why_copy(self, name: str, placement_id: bytes) -> str:
        """Returns the sentence why a member with this placement id does not count, if another one has it; else ""."""
        if not self._local.is_in_set:
            return ""
        return why_copy(self._node.identity.placement_id, name, placement_id, self._disks)

    def knows_disk(self, name: str, placement_id: bytes) -> None:
        """Notes that the member ``name`` is on the disk ``placement_id``, which ``why_copy`` accepts."""
        self._disks[name] = placement_id
