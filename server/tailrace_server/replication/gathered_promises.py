"""Asks the other members for the promise of a term, and holds their answers, for one try to lead.

A member that has promised accepts no lower term any more. Its answer tells the standings of its partitions, and what it
owes. ``missing_rows.py`` chooses by them what is fetched.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import Forbidden, NotLeader, TailraceError
from tailrace.link.address import Address
from tailrace.wire.bodies import field, hex_field, seq_field
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication.eligibility import why_other_cluster
from tailrace_server.replication.lineage import line_from_json, line_to_json
from tailrace_server.replication.peers import ask, ask_all, never_enough
from tailrace_server.replication.promises import Promised, why_refused
from tailrace_server.replication.voters import Voters, voters_field, voters_to_json

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member


# The seconds that a member without an operator waits for promises beyond a majority: a disk that hangs must not hold up
# a failover, and a slow one may have rows that the majority lacks, at level disk.
_MORE_SECONDS = 1.0


class GatheredPromises:
    """The promises of one term to one candidate. A later ``gather`` begins anew, with a higher term."""

    def __init__(self, member: Member, leader: str, last_led: int | None, *, by_itself: bool = False) -> None:
        """``leader``: hands over, and has to promise before all others; "" without a handover.

        ``last_led``: the term in which this node led, if it leads again by itself. ``by_itself``: the leader is gone,
        and a member that hears it promises nothing.
        """
        self.term = 0
        self.voters = Voters()  # the record by which the promises count
        self._members: tuple[str, ...] = ()  # the list of members that goes with it
        self.promised: dict[str, Promised] = {}
        self.silent: dict[str, str] = {}  # why a member has not promised, by address
        self.later = ""  # the refusal of a member that knows of a later leader
        self.leader = leader
        self._member = member
        self._last_led = last_led
        self._by_itself = by_itself

    async def gather(self, term: int) -> None:
        """Asks all others for ``term``. Raises NotLeader if the leader of a handover neither promises nor steps down.

        If the list of members changes meanwhile, the record does too. Those are asked that were members at the begin,
        and `require_term` fails: promises of one record never count by another one.

        A member that did not answer the look is asked too, since a leader that hears of the term takes no more writes.
        It has had its time, so it is waited for only if the others are no majority. A handover waits for no member for
        long once its leader has promised, in a majority: the leader has all rows, and the others learn of the term from
        the new leader.
        """
        local = self._member.local
        self.term, self.voters, self._members = term, local.file.now.voters, local.members
        self.promised.clear()
        config = self._member.node.config.replication
        # A member has to end its tasks, and to write all its rows, before it promises.
        timeout_s = 2 * config.step_timeout_s
        others = {str(address): address for address in local.others}
        silent = {name: others.pop(name) for name in list(others) if name in self.silent}
        self.silent = {name: self.silent[name] for name in silent} | dict.fromkeys(others, "no answer")
        if self.leader:
            if self.leader in silent:
                raise NotLeader(f"{self.leader} does not answer, and has not given the leadership away")
            await self._ask(self.leader, others.pop(self.leader), timeout_s)
            if self.leader not in self.promised:
                raise NotLeader(f"{self.leader} has not given the leadership away: {self.silent[self.leader]}")
        async with trio.open_nursery() as late:
            for name, address in silent.items():
                late.start_soon(self._ask, name, address, config.step_timeout_s)
            questions = [partial(self._ask, name, address, timeout_s) for name, address in others.items()]
            if self._by_itself:
                await ask_all(questions, self.has_majority, _MORE_SECONDS)
            else:
                await ask_all(questions, self.has_majority if self.leader else never_enough)
            if self.has_majority():
                late.cancel_scope.cancel()

    @property
    def leads_again(self) -> bool:
        """Whether this node was the last leader, by a majority, and leads again by itself.

        No member that promises knows of a later leader then.
        """
        return self._last_led is not None and not self._member.local.file.now.forced

    def has_majority(self) -> bool:
        """Returns whether a majority of the set has promised, this node included."""
        local = self._member.local
        found = sum(promised.votes for promised in self.promised.values()) + local.votes
        return local.is_in_set and found >= local.majority

    def require_term(self) -> None:
        """Raises NotLeader if this node has promised a higher term, or heard of a later record, meanwhile."""
        now = self._member.local.file.now
        if now.term != self.term:
            raise NotLeader(f"term {now.term} was promised to another node meanwhile")
        if now.voters != self.voters:
            raise NotLeader(
                f"the record of the voters has changed meanwhile: it was {self.voters} of term {self.voters.term}, and "
                f"is {now.voters} of term {now.voters.term}"
            )

    def __str__(self) -> str:
        said = ", ".join(sorted(self.promised.keys() - self.silent.keys())) or "no other member"
        return f"{said} promised it too" + "".join(f"; {name} did not ({why})" for name, why in self.silent.items())

    async def _ask(self, name: str, address: Address, timeout_s: float) -> None:
        node = self._member.node
        value = {
            "term": self.term,
            "address": self._member.local.name,
            "placement_id": node.identity.placement_id.hex(),
            "cluster_id": node.identity.cluster_id.hex(),
            "handover": bool(self.leader),
            "last_led": self._last_led,
            "by_itself": self._by_itself,
            "members": self._members,
            "line": line_to_json(self._member.local.line),
            "voters": voters_to_json(self.voters),
        }
        try:
            if not self._member.local.is_in_set:
                raise TailraceError("it is no member of a set, and promises nothing")
            answer = await ask(node, address, Opcode.PROMISE, value, timeout_s)
            what = "the answer to PROMISE"
            self._require_cluster(name, answer, what)
            placement_id = hex_field(answer, "placement_id", 16, what)
            why = self._member.peers.why_no_disk(name, placement_id, line_from_json(answer, what))
            if why:
                raise Forbidden(why)
            cluster_id = hex_field(answer, "cluster_id", 16, what)
            self._member.peers.learn_voters(cluster_id, voters_field(answer, what) or Voters())
            if not field(answer, "promised", bool, what):
                if self._last_led is not None and "later" in answer:
                    self.later = f"{name} knows of the leader of term {seq_field(answer, 'later', what)}"
                refused = field(answer, "refused", str, what, "")
                self.silent[name] = refused or f"it has promised term {seq_field(answer, 'term', what)}"
                if name == self.leader and field(answer, "stepped_down", bool, what, False):
                    self.promised[name] = self._told(answer, placement_id, what)._replace(votes=False)
                return
            self.silent.pop(name, None)
            self.promised[name] = self._told(answer, placement_id, what)
        except (TailraceError, OSError) as error:
            self.silent[name] = why_refused(error)

    def _told(self, answer: dict[str, Any], placement_id: bytes, what: str) -> Promised:
        """Returns the part of a promise that counts: it tells of other groups' partitions as empty.

        A member without a vote may hold a history of its own, and no node relies on its acknowledgements: neither
        counts.
        """
        promised = Promised.from_json(answer, what)
        if not self._member.local.counts(promised.votes, placement_id):
            return Promised(False, {})
        includes = self._member.leadership.group.includes
        standings = {id: standing for id, standing in promised.standings.items() if includes(*id)}
        return promised._replace(votes=True, standings=standings)

    def _require_cluster(self, name: str, answer: dict[str, Any], what: str) -> None:
        """Raises Forbidden if another cluster's node has answered."""
        told = hex_field(answer, "cluster_id", 16, what)
        why = why_other_cluster(self._member.node.identity.cluster_id, name, told)
        is_new = field(answer, "is_new", bool, what)
        if why and not (is_new and self._member.leadership.group.lists_feeds):
            raise Forbidden(why)
