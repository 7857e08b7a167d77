"""Who decides, by the requests of ``tailrace promote`` and ``tailrace handover``, which node is to lead."""

from __future__ import annotations

import trio

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.trio.request import ask
from tailrace.wire.opcodes import Opcode

from ..machine import PORT

# Whoever gets no answer asks again, or another node; the request may go on.
ANSWER_SECONDS_MAX = 5.0


class Operator:
    """Somebody at a machine of his own. All answers are what a node says: None where it says that it cannot."""

    def __init__(self, world, name="operator"):
        self._world = world
        self._name = name
        self.random = world.random_of(name)

    async def ask(self, machine, opcode, **value):
        """A node's answer; None where there is none, or an error."""
        connect = self._world.network.of(self._name).connect
        try:
            return await ask(Address(machine, PORT), opcode, value, timeout_s=ANSWER_SECONDS_MAX, connect=connect)
        except (TailraceError, OSError) as error:
            self._world.report.note(f"{opcode.name} of {machine}: {error}")
            return None

    async def leader(self):
        """The machine of the leader of the highest term, as the nodes say; None where nobody says that he leads."""
        found = []
        for machine in self._world.names:
            seen = await self.ask(machine, Opcode.MEMBER)
            if seen is not None and seen["role"] == "leader":
                found.append((seen["term"], machine))
        return max(found)[1] if found else None

    async def promote(self, machine, *, force=False):
        """Whether it leads."""
        if force:
            self._world.checks.promises.force_tried()
        report = self._world.report
        report.operation("promote asked for" if not force else "forced promotion asked for", machine)
        answer = await self.ask(machine, Opcode.PROMOTE, force=force)
        if answer is None:
            return False
        report.operation("forced promotion" if force else "promotion", f"{machine} {answer['term']}")
        return True

    async def hand_over(self, machine, to):
        report = self._world.report
        report.operation("handover asked for", f"{machine} to {to}")
        answer = await self.ask(machine, Opcode.HANDOVER, to=f"{to}:{PORT}")
        if answer is not None:
            report.operation("handover", f"{machine} to {to} {answer['term']}")
        return answer is not None

    async def run(self):
        """Looks now and then, and promotes a node where nobody leads."""
        while True:
            await trio.sleep(0.3 + self.random.random())
            if await self.leader() is None:
                await self.promote(self.random.choice(self._world.names))
