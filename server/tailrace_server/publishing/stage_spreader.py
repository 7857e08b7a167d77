"""Keeps sealed stages on a majority of a set, so that the next leader can publish them.

    STAGE_SEAL at quorum ──> leader ──STAGE_COPIES take──> members ──STAGE_FETCH──> leader      a copy on each of them
    PUBLISH at the next leader, which lacks a stage ──find──> members, then STAGE_FETCH          it gets its own copy
    the publish is done ──drop──> members

Other stages are on their leader alone. A publish needs a majority anyway, and one of its members has each stage that is
at quorum. So if a majority answers that it lacks a stage, the stage was not at quorum, or it was dropped. Only members
with a vote count: one on a new disk has lost what it held.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.errors import NotDurable, TailraceError, UnknownStage
from tailrace.link.address import Address
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_copy_messages import CopyAction, StageCopies, StageCopiesResult
from tailrace_server.publishing.stage_source import copy_stage
from tailrace_server.replication.peers import ask, ask_all, name_of, never_enough

if TYPE_CHECKING:
    from tailrace_server.publishing.stages import Stages
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")

# Copies that come to a node at a time: those that others ask for, and as many that a leader fetches for its publishes.
# Each holds a part of 1 MiB in memory. A new leader must not wait for copies of a former one that has stopped.
TAKEN_AT_ONCE_MAX = 4
# A member that has not taken a stage after these seconds may hang: the next one is asked, too.
SLOW_S = 5.0


class StageSpreader:
    """The copies of stages, of this node's and of other nodes', for one node."""

    def __init__(self, node: LocalNode, stages: Stages) -> None:
        self._node = node
        self._stages = stages
        self._takes = trio.Semaphore(TAKEN_AT_ONCE_MAX)
        self._fetches = trio.Semaphore(TAKEN_AT_ONCE_MAX)

    # The leader

    async def spread(self, leaderships: Iterable[Leadership], feed_id: bytes, id: bytes) -> None:
        """Returns once a majority of each set has the stage, which is sealed here, on disk.

        Raises NotLeader, and NotDurable if too few members have taken it: the seal may be tried again.
        """
        self._stages.note_copied(id)
        for leadership in leaderships:
            if leadership.in_set:
                await self._spread(leadership, feed_id, id)

    async def _spread(self, leadership: Leadership, feed_id: bytes, id: bytes) -> None:
        replicas = leadership.replicas
        needed, others = replicas.needed, _in_order(leadership, id)
        have = 0
        errors: list[TailraceError] = []
        changed = trio.Event()

        async def ask_one(address: Address) -> None:
            nonlocal have
            try:
                taken = await self._ask(address, CopyAction.TAKE, feed_id, (id,), math.inf)
                if not replicas.is_voter(taken.placement_id):
                    raise NotDurable(f"{address} has no vote yet")
                have += 1
            except TailraceError as error:
                errors.append(error)
            changed.set()

        async with trio.open_nursery() as nursery:
            for begun, address in enumerate(others, 1):
                nursery.start_soon(ask_one, address)
                is_slow = False
                while have < needed <= begun - len(errors) and not (is_slow and begun < len(others)):
                    changed = trio.Event()
                    with trio.move_on_after(SLOW_S) as patience:
                        await changed.wait()
                    is_slow = patience.cancelled_caught
                if have >= needed:
                    break
            nursery.cancel_scope.cancel()
        leadership.require_leader()
        if have < needed:
            raise NotDurable(
                f"stage {id.hex()} is on {have} other members with a vote, and has to be on {needed}: "
                f"{errors[0] if errors else 'none answers'}"
            )

    async def fetch(
        self, leaderships: Sequence[Leadership], feed_id: bytes, ids: Sequence[bytes], is_over: Callable[[], bool]
    ) -> bool:
        """Copies the stages that this leader lacks from members that have them; False if ``is_over`` came first.

        Copies one stage at least, so that the next call finds fewer missing.

        Raises UnknownStage if a stage is on no majority, and NotDurable if too few members answer to know that.
        """
        holders = await self._holders(leaderships, feed_id, ids)
        for number, id in enumerate(ids):
            if number and is_over():
                return False
            await self._fetch(feed_id, id, holders[id])
        return True

    async def _holders(
        self, leaderships: Sequence[Leadership], feed_id: bytes, ids: Sequence[bytes]
    ) -> dict[bytes, list[Address]]:
        """Returns the members that have each stage. Raises as ``fetch``."""
        found: dict[bytes, list[Address]] = {id: [] for id in ids}
        for leadership in leaderships:
            await self._find(leadership, feed_id, found)
        return found

    async def _find(self, leadership: Leadership, feed_id: bytes, found: dict[bytes, list[Address]]) -> None:
        """Adds to ``found`` the members of one set that have these stages. Raises as ``fetch``."""
        answered = 0  # other members with a vote; this node lacks the stages
        errors: list[TailraceError] = []

        async def ask_one(address: Address) -> None:
            nonlocal answered
            try:
                told = await self._ask(address, CopyAction.FIND, feed_id, tuple(found), self._timeout_s)
            except TailraceError as error:
                errors.append(error)
                return
            answered += leadership.replicas.is_voter(told.placement_id)
            for id in found.keys() & set(told.stages):
                found[id].append(address)

        await ask_all([partial(ask_one, address) for address in leadership.members.others], lambda: all(found.values()))
        missing = [id for id, holders in found.items() if not holders]
        needed = leadership.replicas.needed
        if missing and answered >= needed:
            raise UnknownStage(
                f"{len(missing)} stages are not here, and on no other member that answers (stage {missing[0].hex()}): "
                "the batch has to be staged anew"
            )
        if missing:
            why = f": {errors[0]}" if errors else ""
            raise NotDurable(
                f"{answered} other members with a vote say which stages they have, and {needed} have to{why}"
            )

    async def _fetch(self, feed_id: bytes, id: bytes, holders: Sequence[Address]) -> None:
        """Copies a stage from the first of ``holders`` that gives it. Raises the last one's error."""
        for address in holders:
            try:
                await self._copy(self._fetches, feed_id, id, address)
            except TailraceError as error:
                if address == holders[-1]:
                    raise
                log.warning("stage %s cannot be taken from %s: %s", id.hex(), address, error)
            else:
                self._stages.note_copied(id)
                return

    async def drop(self, leadership: Leadership, feed_id: bytes, ids: Sequence[bytes]) -> None:
        """Has the other members drop their copies of published stages. A member that does not answer keeps them.

        Those expire as other stages that were not published.
        """

        async def ask_one(address: Address) -> None:
            try:
                await self._ask(address, CopyAction.DROP, feed_id, ids, self._timeout_s)
            except TailraceError as error:
                log.debug("%s keeps copies of %d stages: %s", address, len(ids), error)

        await ask_all([partial(ask_one, address) for address in leadership.members.others], never_enough)

    @property
    def _timeout_s(self) -> float:
        return self._node.config.replication.step_timeout_s

    async def _ask(
        self, address: Address, action: CopyAction, feed_id: bytes, ids: Sequence[bytes], timeout_s: float
    ) -> StageCopiesResult:
        node = self._node
        request = StageCopies(action, node.identity.cluster_id, feed_id, tuple(ids), name_of(node))
        return StageCopiesResult.from_json(await ask(node, address, Opcode.STAGE_COPIES, request.to_json(), timeout_s))

    # Any member

    def find(self, feed_id: bytes, ids: Sequence[bytes]) -> list[bytes]:
        """Returns those of ``ids`` that are sealed stages here."""
        return self._stages.held(feed_id, ids)

    async def take(self, feed_id: bytes, id: bytes, address: Address) -> None:
        """Copies a sealed stage from the node at ``address``, unless it is here. Raises as ``copy_stage``."""
        await self._copy(self._takes, feed_id, id, address)

    async def _copy(self, turns: trio.Semaphore, feed_id: bytes, id: bytes, address: Address) -> None:
        async with turns:
            if not self._stages.held(feed_id, (id,)):
                await copy_stage(self._node, self._stages, feed_id, id, address)

    async def forget(self, feed_id: bytes, ids: Sequence[bytes]) -> None:
        """Removes the copies of these stages, which are published."""
        files = self._stages.forget(self._stages.held(feed_id, ids))
        if files:
            with trio.CancelScope(shield=True):
                await self._node.host.workers.in_thread(partial(self._stages.directory.remove, files))


def _in_order(leadership: Leadership, id: bytes) -> list[Address]:
    """Returns the other members in the order in which they are asked: voters that are connected, and each in turn."""
    others = leadership.members.others
    first = id[0] % max(len(others), 1)
    connected = {peer.address for peer in leadership.replicas.voters() if peer.is_connected}
    return sorted(others[first:] + others[:first], key=lambda address: str(address) not in connected)
