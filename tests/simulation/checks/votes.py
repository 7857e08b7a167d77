"""Checks of votes: who leads has the promises of a majority of its record's seats, and no mere promise deposes it."""

from __future__ import annotations

from tests.processes.violation import Violation

from tailrace_server.replication.role import Role
from tailrace_server.replication.voters import Voters


class Votes:
    """Knows the promises and the record of each directory, also while its node is down."""

    def __init__(self):
        self._files = {}  # placement id -> the MEMBERSHIP of each node that has run on this directory
        self._is_founded = False

    def founded(self):
        """Notes that the set has its first leader, which needs no promise."""
        self._is_founded = True

    def attach(self, machine, node):
        """Judges from now on each leadership of a node, and each end of one."""
        if 0 not in node.members:
            return
        member, leadership = node.members[0], node.leaderships.system
        local, lead, step_down = member.local, leadership.become_leader, leadership.step_down
        self._files.setdefault(node.identity.placement_id, []).append(local.file)

        def leads(term):
            lead(term)
            if self._is_founded and not local.file.now.forced:
                self._judge(machine, local, term)

        def steps_down(term):
            if self._is_founded and leadership.role is Role.LEADER:
                self._judge_end(machine, member, leadership.term)
            step_down(term)

        leadership.become_leader, leadership.step_down = leads, steps_down

    def latest(self):
        """Returns the latest record that any directory has stored."""
        records = (file.now.voters for files in self._files.values() for file in files)
        return max(records, key=lambda voters: (voters.term, voters.epoch), default=Voters())

    def _judge(self, machine, local, term):
        voters = local.file.now.voters
        promised = [id for id, files in self._files.items() if any(file.now.term >= term for file in files)]
        found = len(voters.ids.intersection(promised))
        if local.number < 0:
            raise Violation(f"{machine} leads in term {term}, and is no member: {voters}")
        if found < voters.majority:
            raise Violation(
                f"{machine} leads in term {term} by {found} promises of voters, and {voters.majority} are a majority "
                f"of {voters}"
            )

    def _judge_end(self, machine, member, term):
        """Checks that a leader steps down for its own promise, or for another leader."""
        now, own_id = member.local.file.now, member.node.identity.placement_id
        known = [(id, file.now) for id, files in self._files.items() for file in files]
        has_led = any(it.leader_term > term or (it.led and id != own_id and it.leader_term == term) for id, it in known)
        if now.term > term or member.local.number < 0 or member.successor.why_unfit() or has_led:
            return
        raise Violation(f"{machine} steps down in term {term}: it has promised no later one, and no other node has led")
