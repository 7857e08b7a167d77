"""A node's tasks at its coordinator: it registers, founds the set with others, and learns where each voter is.

    register   puts nodes/<node id> on a lease, and the leader's key while this node leads; again if the lease ends
    follow     watches all keys of the cluster, decides by founding.py, and keeps the file CLUSTER as they are
    mirror     writes this node's record of the voters while this node leads, if etcd has an earlier one, or one that no
               leader has written

The file CLUSTER is written before anything relies on it, so that a node starts again without the coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import trio

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace_server.coordination.cluster_file import addresses_in, addresses_put, copy_puts, prefix_in
from tailrace_server.coordination.cluster_keys import (
    NOTHING_KNOWN,
    ClusterKeys,
    Known,
    LeaderValue,
    Voters,
    id_text,
    known_of,
    leader_of,
    leader_to_bytes,
    node_of,
    node_to_bytes,
)
from tailrace_server.coordination.coordinator import (
    Coordinator,
    Lease,
    LeaseGone,
    Put,
    StoreDamaged,
    StoreError,
    Unchanged,
    View,
)
from tailrace_server.coordination.founding import (
    GROUP,
    Copy,
    Move,
    OwnNode,
    Place,
    Step,
    addresses_of,
    decide,
    mirrored,
    place_of,
    replaced,
)
from tailrace_server.coordination.static_store import StaticStore
from tailrace_server.coordination.store_state import StoreEvent, StoreHealth

log = logging.getLogger("tailrace.server")

# The seconds after which a node that does not renew its lease is gone: several tries of one second each.
LEASE_S = 4
# The seconds between two looks at whether this node leads, which bound how late the leader's key is.
_LOOK_S = 0.2
_PAUSE_S = 1.0
_STOP_S = 1.0
# The case of a node that cannot read the keys. It overwrites nothing that it has not understood.
DAMAGED = "damaged"


class Leading(NamedTuple):
    """This node leads, in ``term``, by a record of the voters without nodes; None in a set that has recorded none."""

    term: int
    record: Voters | None = None


class ClusterLink:
    """A node's part in a cluster's coordinator. Only its own methods change its fields."""

    def __init__(
        self, store: Coordinator, health: StoreHealth, keys: ClusterKeys, own: OwnNode, file: StaticStore, name: str
    ) -> None:
        """Reads the voters and addresses of ``file``. Raises StoreDamaged.

        Args:
            store: the coordinator.
            health: its state, which status tells.
            keys: the names of the keys of the cluster.
            own: this node; its ``copy`` is that of ``file``.
            file: the file CLUSTER.
            name: the coordinator for people, without secrets.
        """
        self._store = store
        self.health = health
        self._keys = keys
        self._own = own
        self._file = file
        self._name = name
        self.step = Step(Move.WAIT, "begins", "this node has not registered yet")
        self.known = NOTHING_KNOWN
        self._addresses = addresses_in(file)
        self._founded = trio.Event()
        if own.copy is not None:
            self._founded.set()
        self.leads: Callable[[], Leading | None] = _does_not_lead
        self._is_confirmed: Callable[[], Awaitable[bool]] = _is_not_confirmed
        self._has_seat: Callable[[], bool] = _has_no_seat
        self._published: Leading | None = None
        self._registered = b""  # the value of this node's key
        self._lease_id = 0  # the lease of that key
        self._is_seen = False  # whether that key was among those that were told since it was written
        self._is_gone = False  # whether it was, and is not any more
        self._registered_at: Address | None = None  # the address at which another process is registered as this node

    @property
    def voters(self) -> Voters:
        """The voters of the set, in their order. Call it after `founded`."""
        assert self._own.copy is not None, "the set is founded"
        return self._own.copy.voters

    @property
    def own_name(self) -> Address:
        """The name of this node in the set. Call it after `founded`."""
        return self._place.name

    @property
    def is_voter(self) -> bool:
        """Whether this directory has a seat. Call it after `founded`."""
        return self.voters.seat_of(self._own.value.placement_id) is not None

    @property
    def members(self) -> tuple[Address, ...]:
        """The names of the members, with this node at the end if it is none. Call it after `founded`."""
        place = self._place
        return self.voters.names if place.is_member else (*self.voters.names, place.name)

    @property
    def _place(self) -> Place:
        return place_of(self._own, self.voters, self._addresses)

    def led_by(
        self,
        leads: Callable[[], Leading | None],
        is_confirmed: Callable[[], Awaitable[bool]],
        has_seat: Callable[[], bool],
    ) -> None:
        """Connects the functions that tell about this node.

        Args:
            leads: whether it leads.
            is_confirmed: whether a majority confirms that now.
            has_seat: whether it has a seat by the record that it has stored, which may be later than the one here.
        """
        self.leads, self._is_confirmed, self._has_seat = leads, is_confirmed, has_seat

    def address_of(self, name: Address) -> Address:
        """Returns the present address of the voter ``name``, as far as it is known; of another name, ``name``."""
        return self._addresses.get(name, name)

    async def founded(self) -> None:
        """Returns once the set is founded, and this node may serve; at once if that is known from an earlier start."""
        await self._founded.wait()

    async def run(self) -> None:
        """Runs until cancelled. A failure of these tasks never ends the node."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._again, self._register)
            nursery.start_soon(self._again, self._follow)

    async def _again(self, task: Callable[[], Any]) -> None:
        while True:
            try:
                await task()
            except (TailraceError, OSError) as error:
                log.debug("the cluster store: %s", error)
            except Exception:  # a bug: the node goes on serving its rows
                log.exception("a task of the cluster store ended by an internal error")
            await trio.sleep(_PAUSE_S)

    # Registering

    async def _register(self) -> None:
        """Registers on one lease, until that has ended."""
        lease = await self._store.lease(LEASE_S)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep, lease, nursery.cancel_scope)
                await self._hold(lease)
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(_STOP_S, shield=True):
                try:
                    await lease.revoke()
                except StoreError as error:
                    log.debug("the lease ends by itself: %s", error)

    async def _hold(self, lease: Lease) -> None:
        """Keeps this node's keys as they have to be, while the lease lasts and no other process is registered.

        The lease stays if etcd does not answer or refuses a key: giving it back would take this node's key away.
        """
        while True:
            try:
                while await self._put_node(lease):
                    self.health.note(StoreEvent.REGISTERED, "")
                    self._published = None
                    await self._publish(lease)
                return
            except LeaseGone:
                await trio.sleep_forever()  # `_keep` hears of it by its next renewal, tells it, and ends this
            except StoreError as error:
                log.debug("this node is not registered: %s", error)
            await trio.sleep(_PAUSE_S)

    async def _keep(self, lease: Lease, scope: trio.CancelScope) -> None:
        log.warning("this node is registered no more: %s", await lease.keep())
        self._is_seen = self._is_gone = False  # the key ends with the lease, which is told
        scope.cancel()

    async def _put_node(self, lease: Lease) -> bool:
        """Registers this node. Returns False if another process is registered as this node."""
        key, value = self._keys.node(self._own.node_id), self._own_value()
        before = await self._store.get(key)
        address = _address_in(before.value)
        # Without a lease, or on this one, no process has written it.
        if address not in (None, self._own.value.address) and before.lease not in (0, lease.id):
            # If this node has moved, the entry ends with its lease.
            if address != self._registered_at:
                log.warning(
                    "this node is registered at %s still: if that lasts longer than %s s, a process on a copy of its "
                    "directory runs there",
                    *(address, LEASE_S),
                )
            self._registered_at = address
            return False
        self._registered_at, self._registered, self._lease_id, self._is_seen = None, value, lease.id, False
        done = await self._store.txn([Unchanged(key, before.revision)], [Put(key, value, lease.id)])
        if done and self._is_gone:  # the lease has not ended, so that another program has removed it
            log.warning("this node's key was gone from %s: it is written again", self._keys.prefix)
            self._is_gone = False
        return done

    def _own_value(self) -> bytes:
        is_new = self._own.value.is_new and self._own.copy is None
        return node_to_bytes(self._own.value._replace(is_new=is_new))

    async def _publish(self, lease: Lease) -> None:
        """Writes the leader's key when this node begins to lead, and removes it when it ceases to.

        Registers again when the node belongs to a set, so that no other set is founded beside it.
        """
        while self._own_value() == self._registered:
            leads = None if self._is_foreign else self.leads()
            if leads != self._published:
                try:
                    if await self._put_leader(leads, lease):
                        self._published = leads
                except StoreError as error:
                    log.debug("the leader's key is not written: %s", error)
            await self._mirror(leads)
            await trio.sleep(_LOOK_S)

    @property
    def _is_foreign(self) -> bool:
        """Whether the keys are, or may be, of another cluster than this node's set, to which its leader is no news."""
        if self.known is NOTHING_KNOWN or self._own.copy is None:
            return True
        return self.known.cluster_id not in (None, self._own.copy.cluster_id)

    async def _mirror(self, leads: Leading | None) -> None:
        """Writes the record by which this node leads, if etcd has an earlier one, or knows less of its nodes.

        Writes it too if etcd has one that no leader has written, once a majority has confirmed this leader.
        The keys are those that the watch has told last. If they have changed since, the transaction changes nothing,
        and the next look tries again. So it does if the answer is lost.
        """
        record = None if leads is None else leads.record
        if record is None or self._own.copy is None or self.known.cluster_id != self._own.copy.cluster_id:
            return
        if self.step.case == DAMAGED:
            return
        known = self.known
        step = mirrored(self._keys, record, known)
        if step is None:
            step = replaced(self._keys, record, known)
            if step is None or not await self._is_confirmed() or self.leads() != leads:
                return
        try:
            if await self._store.txn(step.comparisons, step.puts):
                self._tell_written(record, step, known)
        except StoreError as error:
            log.debug("the voters are not written: %s", error)

    def _tell_written(self, record: Voters, step: Step, known: Known) -> None:
        prefix = self._keys.prefix
        log.info("the voters of %s are written to %s", record.order, prefix)
        if step.case == "replaced" and known.voters is not None:
            log.warning(
                "%s had voters that no leader of this set has written, of term %s, epoch %s. This leader has written "
                "its own in their place. Find out who has written to etcd",
                *(prefix, *known.voters.order),
            )

    async def _put_leader(self, leads: Leading | None, lease: Lease) -> bool:
        key = self._keys.leader(GROUP)
        before = await self._store.get(key)
        told = _leader_in(before.value)
        if leads is None:
            if told is None or told.node_id != self._own.node_id:
                return True
            return await self._store.txn([Unchanged(key, before.revision)], [Put(key, None)])
        if told is not None and told.term > leads.term:
            return False  # of a later leader, or of an etcd that was restored: it goes with its lease
        epoch = self.voters.epoch if leads.record is None else leads.record.epoch
        value = LeaderValue(self._own.node_id, self._own.value.placement_id, self._own.value.address, leads.term, epoch)
        return await self._store.txn([Unchanged(key, before.revision)], [Put(key, leader_to_bytes(value), lease.id)])

    # Following

    async def _follow(self) -> None:
        async with self._store.watch(self._keys.prefix) as watch:
            while True:
                await self._take(await watch.next())

    async def _take(self, view: View) -> None:
        """Takes the present keys of the cluster."""
        try:
            known = known_of(self._keys, view.entries)
        except StoreDamaged as error:
            self._is_at(Step(Move.WAIT, DAMAGED, f"{error}: this node keeps what it knows"))
            return
        self._tell_leader(known)
        self.known = known
        self._find_gone(known, view)
        step = decide(self._keys, self._own, known)
        self._is_at(step)
        if step.move is Move.SERVE:
            self._learn(known)
        # If the answer is lost, the step may not have been carried out, and no key changes then: `_again` reads the
        # keys anew and repeats it. The transaction compares revisions, so that it happens once.
        elif step.move in (Move.FOUND, Move.PUT_BACK) and await self._store.txn(step.comparisons, step.puts):
            log.warning("the voters of the set are written to %s: %s", self._keys.prefix, step.case)

    def _find_gone(self, known: Known, view: View) -> None:
        """Has the keys of this node written again that another program has removed or changed while the lease lasts."""
        told, own = known.nodes.get(self._own.node_id), self._own.value
        if self._is_seen and told is None:
            self._is_gone, self._registered = True, b""
        elif self._is_seen and told is not None and told[:2] != own[:2]:
            log.warning(
                "another program has changed this node's key in %s: it has the address %s, and this node is at %s. It "
                "is written again",
                *(self._keys.prefix, told.address, own.address),
            )
            self._registered = b""
        # The key of a former process ends with a lease of its own, which is no loss.
        entry = view.entries.get(self._keys.node(self._own.node_id))
        is_same = told is not None and told[:2] == own[:2]
        self._is_seen = is_same and entry is not None and entry.lease in (0, self._lease_id)
        if known.leader is None:
            self._published = None

    def _is_at(self, step: Step) -> None:
        if step[:3] != self.step[:3]:
            is_well = step.move is Move.SERVE and step.case != "spare"
            log.log(logging.INFO if is_well else logging.WARNING, "%s: %s", step.case, step.why or "ok")
        self.step = step

    def _tell_leader(self, known: Known) -> None:
        before, now = self.known.leader, known.leader
        if before != now:
            told = "no leader is registered" if now is None else f"{now.address} leads in term {now.term}"
            log.info("the cluster store: %s", told)

    def _learn(self, known: Known) -> None:
        """Stores voters and addresses, then uses them. OSError: nothing has changed."""
        assert known.voters is not None, "the step is SERVE"
        assert known.cluster_id is not None, "the step is SERVE"
        addresses = addresses_of(known, self._addresses)
        copy = Copy(known.cluster_id, known.voters)
        prefix = self._keys.prefix
        if copy != self._own.copy or addresses != self._addresses or prefix_in(self._file) != prefix:
            puts = copy_puts(copy, self._own, prefix)
            self._file.write([], [*puts, addresses_put(addresses)])
        for name, address in addresses.items():
            if address != self.address_of(name):
                log.warning("the member %s is at %s now", name, address)
        self._addresses = addresses
        self._own = self._own._replace(copy=copy)
        self._founded.set()

    # Status

    def to_json(self) -> dict[str, Any]:
        """Returns the part of the status about the coordinator."""
        leader = self.known.leader
        case, why = self._told_step
        return {
            "store": self._name,
            "prefix": self._keys.prefix,
            **self.health.to_json(),
            "case": case,
            "step": why,
            "term": 0 if self._own.copy is None else self.voters.term,
            "epoch": 0 if self._own.copy is None else self.voters.epoch,
            "learners": [] if self._own.copy is None else [str(name) for name in self.voters.learners],
            "voters": [] if self._own.copy is None else [self._voter_to_json(each) for each in self.voters.voters],
            "leader": None if leader is None else {"address": str(leader.address), "term": leader.term},
        }

    @property
    def _told_step(self) -> tuple[str, str]:
        """The case and the sentence for status. The coordinator lacks a new seat while it takes no changes."""
        if self.step.move is Move.SERVE and self.step.case != "voter" and self._has_seat():
            return "voter", f"{self._keys.prefix} does not have its seat yet: the leader writes it as soon as it can"
        return self.step.case, self.step.why

    def _voter_to_json(self, voter: Any) -> dict[str, Any]:
        return {
            "name": str(voter.name),
            "address": str(self.address_of(voter.name)),
            "placement_id": id_text(voter.placement_id),
            "node_id": id_text(voter.node_id),
            "registered": voter.node_id in self.known.nodes,
        }


def _leader_in(data: bytes | None) -> LeaderValue | None:
    try:
        return None if data is None else leader_of(data)
    except StoreDamaged:
        return None


def _address_in(data: bytes | None) -> Address | None:
    try:
        return None if data is None else node_of(data).address
    except StoreDamaged:
        return None


async def _is_not_confirmed() -> bool:
    """Returns False: the node is not started yet."""
    return False


def _has_no_seat() -> bool:
    """Returns False: the node is not started yet."""
    return False


def _does_not_lead() -> Leading | None:
    """Returns None: the node is not started yet."""
    return None
