"""The operator of a set: sends the requests of ``tailrace promote`` and ``tailrace handover``."""

from __future__ import annotations

import trio

from tailrace.errors import TailraceError
from tailrace.link.address import Address, parse_address
from tailrace.trio.request import ask
from tailrace.wire.opcodes import Opcode

from ..machine import PORT

# The operator gives a request up after this time. The node may go on with the request.
ANSWER_SECONDS_MAX = 5.0


class Operator:
    """An operator at a machine of his own, who knows only the answers of nodes."""

    def __init__(self, world, name="operator"):
        self._world = world
        self._name = name
        self.random = world.random_of(name)
        self.forcing = []  # the machines that are being promoted by force

    async def ask(self, machine, opcode, **value):
        """Returns a node's answer; None: there is none, or an error."""
        connect = self._world.network.of(self._name).connect
        try:
            return await ask(Address(machine, PORT), opcode, value, timeout_s=ANSWER_SECONDS_MAX, connect=connect)
        except (TailraceError, OSError) as error:
            self._world.report.note(f"{opcode.name} of {machine}: {error}")
            return None

    async def leader(self):
        """Returns the machine of the leader of the highest term, by the nodes' own answers; None: no node leads."""
        return (await self.leader_and_members())[0]

    async def leader_and_members(self):
        """Returns that machine, and those of the members by its list; None, and no members: no node leads."""
        found = []
        for machine in self._world.names:
            seen = await self.ask(machine, Opcode.MEMBER)
            if seen is not None and seen["role"] == "leader":
                found.append((seen["term"], machine, [parse_address(name).host for name in seen["members"]]))
        return max(found)[1:] if found else (None, [])

    async def promote(self, machine, *, force=False):
        """Promotes a node, and returns whether it leads."""
        if force:
            self._world.checks.promises.force_tried()
            self.forcing.append(machine)
        report = self._world.report
        report.operation("promote asked for" if not force else "forced promotion asked for", machine)
        try:
            answer = await self.ask(machine, Opcode.PROMOTE, force=force)
        finally:
            if force:
                self.forcing.remove(machine)
        if answer is None:
            return False
        report.operation("forced promotion" if force else "promotion", f"{machine} {answer['term']}")
        return True

    async def hand_over(self, machine, to):
        report = self._world.report
        report.operation("handover asked for", f"{machine} to {to}")
        answer = await self.ask(machine, Opcode.HANDOVER, to=f"{to}:{PORT}")
        if answer is not None:
            self._world.checks.promises.handed_over(answer["term"])
            report.operation("handover", f"{machine} to {to} {answer['term']}")
        return answer is not None

    async def change_members(self, leader, action, name):
        """Adds a member to the set, or removes one, and returns the leader's answer; None: it has not taken that on."""
        self._world.report.operation(f"member: {action}", name)
        return await self.ask(leader, Opcode.MEMBER_CHANGE, action=action, name=f"{name}:{PORT}")

    async def run(self):
        """Looks for a leader now and then, and promotes a node if there is none."""
        while True:
            await trio.sleep(0.3 + self.random.random())
            if await self.leader() is None:
                await self.promote(self.random.choice(self._world.names))
