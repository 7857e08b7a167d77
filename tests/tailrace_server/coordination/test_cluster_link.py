"""Nodes at a coordinator in memory: the leader's record is written there, and the others learn it, whatever is lost."""

from __future__ import annotations

import contextlib

import pytest
import trio
from tests.memory_disk import MemoryDisk

from tailrace.link.address import Address
from tailrace_server.coordination.cluster_file import copy_in
from tailrace_server.coordination.cluster_keys import (
    NO_ID,
    ClusterKeys,
    NodeValue,
    Voters,
    known_of,
    leader_of,
    node_of,
    node_to_bytes,
    voters_of,
    voters_to_bytes,
)
from tailrace_server.coordination.cluster_link import ClusterLink, Leading
from tailrace_server.coordination.coordinator import Put, StoreOutcomeUnknown, StoreUnreachable
from tailrace_server.coordination.founding import OwnNode
from tailrace_server.coordination.static_store import StaticStore
from tailrace_server.coordination.store_state import StoreHealth

KEYS = ClusterKeys.of("demo")
VOTERS = KEYS.voters(0)


class DoubtfulStore:
    """A coordinator in memory. The next transactions of the voters end as ``faults`` says, the first one first.

    "lost": it is carried out, and its answer is lost. "gone": it is not, and its answer is lost. "refused": it fails.
    Those of the node ``faulty_node`` end as ``node_faults`` says.
    """

    def __init__(self):
        disk = MemoryDisk()
        disk.make_directory("/etcd")
        self.store = StaticStore(disk, "/etcd/keys")
        self.faults = []
        self.faulty_node, self.node_faults = b"", []
        self.leases = 0  # that were asked for
        self.written = []
        self.asked = 0  # the transactions of the voters
        self.leases_wait = None  # no lease is given until this event is set

    async def get(self, key):
        await trio.lowlevel.checkpoint()
        return await self.store.get(key)

    async def txn(self, comparisons, puts):
        await trio.lowlevel.checkpoint()
        is_of_voters = any(put.key == VOTERS for put in puts)
        self.asked += is_of_voters
        faults = self.faults if is_of_voters else []
        if any(put.key == KEYS.node(self.faulty_node) for put in puts):
            faults = self.node_faults
        fault = faults.pop(0) if faults else ""
        if fault == "refused":
            raise StoreUnreachable("no endpoint answers")
        done = fault != "gone" and self.store.write(comparisons, puts)
        if done and is_of_voters:
            self.written.append(self.voters.order)
        if fault:
            raise StoreOutcomeUnknown("the answer is lost")
        return done

    async def lease(self, ttl_s):
        if self.leases_wait is not None:
            await self.leases_wait.wait()
        self.leases += 1
        return await self.store.lease(ttl_s)

    def watch(self, prefix):
        return self.store.watch(prefix)

    @property
    def voters(self):
        return voters_of(self.store.read(VOTERS).value)

    @property
    def leader(self):
        value = self.store.read(KEYS.leader(0)).value
        return None if value is None else leader_of(value)

    def restore(self, entries):
        """Goes back to earlier keys, with their revisions, as a restored etcd does."""
        self.store._become(dict(entries), {}, max(entry.revision for entry in entries.values()))

    @property
    def durable(self):
        return {key: entry for key, entry in self.store._entries.items() if key not in self.store._lease_of}


class MadeLink:
    """A node's link, without a node."""

    def __init__(self, store, number, *, port=None, disk=None, is_new=True):
        self.node_id, self.placement_id = bytes([number]) * 16, bytes([number]) * 16
        self.disk = disk or MemoryDisk()
        if disk is None:
            self.disk.make_directory("/data")
        file = StaticStore(self.disk, "/data/CLUSTER")
        address, cluster_id = Address("h", port or 4700 + number), bytes([100 + number]) * 16
        self.value = NodeValue(address, self.placement_id, cluster_id, 3, is_new, "1")
        own = OwnNode(self.node_id, self.value, copy_in(file, self.placement_id))
        health = StoreHealth(trio.current_time, lambda text: None, 1.0)
        self.link = ClusterLink(store, health, KEYS, own, file, "memory")
        self.leading = None
        self.confirms = False
        self.has_seat = False
        self.link.led_by(lambda: self.leading, self.is_confirmed, lambda: self.has_seat)
        self.scope = trio.CancelScope()

    async def run(self):
        with self.scope:
            await self.link.run()

    async def is_confirmed(self):
        await trio.lowlevel.checkpoint()
        return self.confirms

    def leads(self, record):
        self.leading = None if record is None else Leading(record.term, record)


@contextlib.asynccontextmanager
async def running(*links):
    async with trio.open_nursery() as nursery:
        for link in links:
            nursery.start_soon(link.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def until(condition):
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - the clock of the test jumps
            await trio.sleep(0.05)


@pytest.fixture
def store():
    return DoubtfulStore()


@pytest.fixture
async def links(store):
    return [MadeLink(store, number) for number in (1, 2, 3)]


async def founded(links):
    for link in links:
        await link.link.founded()
    return links[0].link.voters


def with_seat(voters, seat, placement_id):
    """Returns the record as a leader has it: of the next epoch, without nodes."""
    seats = list(voters.without_nodes().voters)
    seats[seat] = seats[seat]._replace(placement_id=placement_id)
    return voters._replace(epoch=voters.epoch + 1, voters=tuple(seats))


def know(links, record):
    return all(link.link.voters.is_same(record) for link in links)


# Each of three nodes tries once, and none of the transactions is carried out.
@pytest.mark.parametrize("faults", [["lost"], ["gone"] * 3, ["gone"] * 6, ["refused"] * 3])
async def test_a_set_is_founded_whatever_is_lost(store, links, faults, autojump_clock):
    store.faults += faults
    async with running(*links):
        with trio.fail_after(60):
            await founded(links)
    assert store.written == [(0, 1)]


@pytest.mark.parametrize("faults", [["lost"], ["gone"] * 3, ["gone"] * 6, ["refused"] * 3])
async def test_an_etcd_that_has_lost_all_keys_gets_the_record_back_whatever_is_lost(
    store, links, faults, autojump_clock
):
    async with running(*links):
        record = await founded(links)
        store.faults += faults
        store.restore(other_keys(store))
        await until(lambda: store.store.read(VOTERS).value is not None)
        assert store.voters.is_same(record)


@pytest.mark.parametrize("faults", [[], ["lost"], ["gone"], ["refused", "lost"], ["gone", "gone", "lost"]])
async def test_the_record_of_the_leader_is_written_once_and_all_learn_it(store, links, faults, autojump_clock):
    async with running(*links):
        first = await founded(links)
        store.faults += faults
        record = with_seat(first._replace(term=1), 2, NO_ID)
        links[0].leads(record)
        await until(lambda: know(links, record))
        assert store.written == [(0, 1), (1, 2)]
    assert all(copy_in(link.link._file, link.placement_id).voters.is_same(record) for link in links)


async def test_a_leader_of_an_earlier_term_that_goes_on_writes_nothing(store, links, autojump_clock):
    async with running(*links):
        first = await founded(links)
        late, record = with_seat(first._replace(term=1), 2, NO_ID), first._replace(term=2, epoch=1)
        links[0].leads(record.without_nodes())
        await until(lambda: know(links, record))
        links[1].leads(late)
        await trio.sleep(5)
        assert know(links, record)
        assert store.written == [(0, 1), (2, 1)]


async def test_an_etcd_that_is_restored_gets_the_later_record_back_without_a_leader(store, links, autojump_clock):
    async with running(*links):
        first = await founded(links)
        backup = store.durable
        record = with_seat(first._replace(term=1), 2, NO_ID)
        links[0].leads(record)
        await until(lambda: know(links, record))
        links[0].leads(None)
        store.faults.append("lost")
        store.restore(backup)
        assert store.voters.order == (0, 1)
        await until(lambda: store.voters.is_same(record))
        await trio.sleep(5)
        assert know(links, record)


async def test_an_etcd_that_has_lost_all_keys_gets_the_record_back_from_a_node_without_a_vote_too(
    store, links, autojump_clock
):
    new = MadeLink(store, 8, port=4703)
    async with running(*links) as nursery:
        first = await founded(links)
        links[2].scope.cancel()
        nursery.start_soon(new.run)
        await new.link.founded()
        record = with_seat(first._replace(term=1), 2, NO_ID)
        links[0].leads(record)
        await until(lambda: know([*links[:2], new], record))
        for link in links:
            link.scope.cancel()
        store.restore(other_keys(store))
        await until(lambda: store.store.read(VOTERS).value is not None)
        assert store.voters.is_same(record)


def other_keys(store):
    """The keys of an etcd that has none of the cluster."""
    store.store.write([], [Put("/other", b"1")])
    return {"/other": store.store.read("/other")}


async def test_a_new_disk_waits_until_the_old_node_is_gone_and_then_is_its_member(store, links, autojump_clock):
    new = MadeLink(store, 8, port=4703)
    async with running(*links) as nursery:
        await founded(links)
        nursery.start_soon(new.run)
        await until(lambda: new.link.step.case == "taken")
        links[2].scope.cancel()
        await new.link.founded()
        assert new.link.step.case == "new_disk"
        assert (new.link.own_name, new.link.is_voter) == (Address("h", 4703), False)
        assert new.link.members == new.link.voters.names
        record = with_seat(links[0].link.voters._replace(term=1), 2, new.placement_id)
        links[0].leads(record)
        await until(lambda: know([links[0], links[1], new], record))
        await until(lambda: store.voters.seat_of(new.placement_id).node_id == new.node_id)
        await until(lambda: new.link.step.case == "voter")
        assert new.link.is_voter


async def test_two_new_disks_at_one_address_both_wait(store, links, autojump_clock):
    new = [MadeLink(store, number, port=4703) for number in (8, 9)]
    async with running(*links) as nursery:
        await founded(links)
        links[2].scope.cancel()
        await until(lambda: KEYS.node(links[2].node_id) not in store.store._entries)
        store.store.write([], [Put(KEYS.node(bytes([9]) * 16), node_to_bytes(new[1].value))])  # without a lease
        nursery.start_soon(new[0].run)
        await until(lambda: new[0].link.step.case == "taken")
        await trio.sleep(30)
        assert not new[0].link._founded.is_set()
        store.store.write([], [Put(KEYS.node(bytes([9]) * 16), None)])
        await new[0].link.founded()


async def test_voters_that_cannot_be_read_are_not_overwritten_and_cost_no_transactions(store, links, autojump_clock):
    async with running(*links):
        first = await founded(links)
        record = with_seat(first._replace(term=1), 2, NO_ID)
        store.store.write([], [Put(VOTERS, b"{")])
        await until(lambda: all(link.link.step.case == "damaged" for link in links))
        links[0].leads(record)
        asked = store.asked
        await trio.sleep(30)
        assert store.asked == asked
        store.store.write([], [Put(VOTERS, voters_to_bytes(first))])
        await until(lambda: know(links, record))


async def test_the_key_of_the_leader_has_the_epoch_of_its_record(store, links, autojump_clock):
    async with running(*links):
        first = await founded(links)
        for record in (first._replace(term=1).without_nodes(), with_seat(first._replace(term=1), 2, NO_ID)):
            links[0].leads(record)
            await until(lambda epoch=record.epoch: store.leader is not None and store.leader.epoch == epoch)


async def test_a_spare_serves_as_no_member_and_later_as_one(store, links, autojump_clock):
    spare = MadeLink(store, 9)
    async with running(*links) as nursery:
        first = await founded(links)
        nursery.start_soon(spare.run)
        await spare.link.founded()
        assert spare.link.step.case == "spare"
        assert spare.link.members == (*first.names, Address("h", 4709))
        assert spare.link.to_json()["case"] == "spare"
        spare.has_seat = True  # the coordinator takes no changes, and the members have given it a seat
        told = spare.link.to_json()
        assert (told["case"], told["step"].partition(":")[0]) == ("voter", f"{KEYS.prefix} does not have its seat yet")
        record = first._replace(term=1, epoch=2, learners=(Address("h", 4709),))
        links[0].leads(record.without_nodes())
        await until(lambda: spare.link.step.case == "joining")
        assert spare.link.members == record.names
        seat = first.voters[0]._replace(placement_id=spare.placement_id, name=Address("h", 4709))
        record = Voters(3, (*first.voters, seat), 1).without_nodes()
        links[0].leads(record)
        await until(lambda: spare.link.step.case == "voter")
        assert len(spare.link.to_json()["voters"]) == 4
    again = MadeLink(store, 9, port=9999, disk=spare.disk, is_new=False)
    async with running(again):
        await again.link.founded()
        assert again.link.own_name == Address("h", 4709)
        await until(lambda: again.link.address_of(Address("h", 4709)) == Address("h", 9999))


async def test_members_that_have_left_are_forgotten(store, links, autojump_clock):
    async with running(*links):
        first = await founded(links)
        seats = tuple(each for each in first.voters if each.placement_id != links[2].placement_id)
        gone = Address("h", 4703)
        assert gone in links[0].link._addresses
        links[0].leads(Voters(2, seats, 1).without_nodes())
        await until(lambda: know(links, Voters(2, seats, 1)))
        assert gone not in links[0].link._addresses
        assert links[2].link.step.case == "spare"


async def test_a_copied_file_is_no_knowledge_of_another_directory(store, links, autojump_clock):
    async with running(*links):
        await founded(links)
    file = links[0].link._file
    assert copy_in(file, links[0].placement_id) is not None
    assert copy_in(file, links[1].placement_id) is None
    file.write([], [Put("placement_id", None)])  # as an earlier version wrote it
    assert copy_in(file, links[1].placement_id) is not None
    assert copy_in(file, bytes([9]) * 16) is None


async def test_a_key_that_another_program_has_written_is_not_overwritten_by_an_earlier_one(
    store, links, autojump_clock
):
    """The same term and epoch with other seats: each node keeps what it knows, and says so."""
    async with running(*links):
        first = await founded(links)
        record = with_seat(first._replace(term=1), 2, NO_ID)
        links[0].leads(record)
        await until(lambda: know(links, record))
        other = with_seat(first._replace(term=1), 1, NO_ID)
        store.store.write([], [Put(VOTERS, voters_to_bytes(other))])
        await until(lambda: all(link.link.step.case == "changed" for link in links))
        assert know(links, record)
        later = with_seat(record, 2, bytes([8]) * 16)
        links[0].leads(later)
        await until(lambda: know(links, later))
        assert known_of(KEYS, store.store.view(KEYS.prefix).entries).voters.is_same(later)


def forged(record, seats, **order):
    """A record that no leader has written, with other directories in these seats."""
    voters = list(record.voters)
    for seat in seats:
        voters[seat] = voters[seat]._replace(placement_id=bytes([90 + seat]) * 16)
    return record._replace(voters=tuple(voters), **order)


@pytest.mark.parametrize("seats", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("order", [{"term": 6}, {"term": 1, "epoch": 1}])
async def test_the_leader_replaces_a_record_that_no_leader_has_written(store, links, seats, order, autojump_clock):
    async with running(*links):
        record = (await founded(links))._replace(term=1)
        links[0].leads(record.without_nodes())
        await until(lambda: know(links, record))
        false = forged(record, seats, **order)
        store.store.write([], [Put(VOTERS, voters_to_bytes(false))])
        await until(lambda: len({link.link.step.case for link in links} - {"voter"}) > 0)
        if len(seats) == 3 and "epoch" not in order:
            await until(lambda: {link.link.step.case for link in links} == {"unknown"})
            assert "voters that this set never had, of term 6, epoch 1" in links[1].link.to_json()["step"]
        await trio.sleep(5)
        assert store.voters == false, "a leader that is not confirmed writes nothing over it"
        links[0].confirms = True
        for now in (record, with_seat(record, 2, NO_ID)):
            links[0].leads(now.without_nodes())
            now = now if now.order > false.order else now.replacing(false)
            await until(lambda now=now: store.voters.is_same(now) and know(links, now))
            await until(lambda: {link.link.step.case for link in links} <= {"voter", "new_disk"})
            written = len(store.written)
            await trio.sleep(30)
            assert len(store.written) == written, "nobody writes it again and again"


async def test_a_leader_writes_nothing_over_the_record_of_a_registered_leader_of_a_later_term(
    store, links, autojump_clock
):
    """An operator has forced one."""
    async with running(*links):
        record = (await founded(links))._replace(term=1)
        links[0].leads(record.without_nodes())
        await until(lambda: know(links, record))
        later = with_seat(record._replace(term=1025), 0, NO_ID)
        links[1].leads(later)
        await until(lambda: store.voters.is_same(later) and store.leader.term == 1025)
        links[0].confirms = True
        await trio.sleep(5)
        assert store.voters.is_same(later)


async def test_the_leader_of_another_set_writes_nothing_below_the_name_of_this_one(store, links, autojump_clock):
    """It was started with the --cluster of this set. The keys of this set and of its leader stay as they are."""
    other_store = DoubtfulStore()
    others = [MadeLink(other_store, number) for number in (11, 12, 13)]
    async with running(*others):
        record = (await founded(others))._replace(term=9)
        others[0].leads(record.without_nodes())
        await until(lambda: know(others, record))
    strays = [MadeLink(store, n, disk=link.disk, is_new=False) for n, link in zip((11, 12, 13), others, strict=True)]
    async with running(*links) as nursery:
        own = (await founded(links))._replace(term=1)
        links[0].leads(own.without_nodes())
        await until(lambda: store.leader is not None and store.voters.is_same(own))
        for stray in strays:
            stray.confirms = True
            stray.leads(record.without_nodes())
            nursery.start_soon(stray.run)
        await until(lambda: all(stray.link.step.case == "foreign" for stray in strays))
        await trio.sleep(30)
        assert store.voters.is_same(own)
        assert know(links, own)
        assert store.leader.term == 1
        assert know(strays, record), "they go on by what they know"


async def edited(store, link, lease=0):
    """An operator writes another address into the key of a node."""
    key = KEYS.node(link.node_id)
    assert store.store.write([], [Put(key, node_to_bytes(link.value._replace(address=Address("h", 9))), lease)])
    return key


@pytest.mark.parametrize("keeps_lease", [False, True])
async def test_the_address_of_a_node_that_an_operator_changes_is_written_again(
    store, links, keeps_lease, caplog, autojump_clock
):
    async with running(*links):
        await founded(links)
        key = KEYS.node(links[0].node_id)
        await until(lambda: links[0].node_id in links[0].link.known.nodes)
        await until(lambda: node_of(store.store.read(key).value).is_new is False)
        before = store.store.read(key)
        await edited(store, links[0], before.lease if keeps_lease else 0)
        await until(lambda: store.store.read(key)[::3] == before[::3])
        name = links[0].value.address
        await until(lambda: all(link.link.address_of(name) == name for link in links))
    assert "another program has changed this node's key" in caplog.text
    assert "it has the address h:9, and this node is at h:4701" in caplog.text


async def test_a_node_that_starts_writes_over_a_key_that_no_process_holds(store, links, autojump_clock):
    key = await edited(store, links[0])
    async with running(*links):
        await founded(links)
        assert node_of(store.store.read(key).value).address == links[0].value.address


async def test_a_node_that_starts_waits_for_another_process_that_is_registered_as_itself(store, links, autojump_clock):
    lease = await store.lease(60)
    key = await edited(store, links[0], lease.id)
    async with running(*links):
        await until(lambda: links[0].link._registered_at == Address("h", 9))
        assert node_of(store.store.read(key).value).address == Address("h", 9)
        await lease.revoke()
        await until(lambda: store.store.read(key).value is not None)
        assert node_of(store.store.read(key).value).address == links[0].value.address


async def test_keys_of_nodes_and_of_the_leader_that_an_operator_removes_are_written_again(store, links, autojump_clock):
    async with running(*links):
        first = await founded(links)
        links[0].leads(first._replace(term=1))
        await until(lambda: store.leader is not None)
        await until(lambda: all(link.link.known.leader is not None for link in links))
        keys = [*(KEYS.node(link.node_id) for link in links), KEYS.leader(0)]
        before = {key: store.store.read(key).value for key in keys}
        assert store.store.write([], [Put(key, None) for key in keys])
        await until(lambda: {key: store.store.read(key).value for key in keys} == before)


async def test_the_end_of_a_former_process_is_no_loss_of_the_key(store, links, caplog, autojump_clock):
    """The former process was killed, and its lease ends before this one has registered."""
    key = KEYS.node(links[0].node_id)
    former = await store.lease(60)
    assert store.store.write([], [Put(key, node_to_bytes(links[0].value), former.id)])
    store.leases_wait = trio.Event()
    async with running(*links):
        await until(lambda: links[0].node_id in links[0].link.known.nodes)
        await former.revoke()
        await until(lambda: links[0].node_id not in links[0].link.known.nodes)
        store.leases_wait.set()
        await founded(links)
        assert "key was gone" not in caplog.text
        assert store.store.write([], [Put(key, None)])
        await until(lambda: "key was gone" in caplog.text)
        assert store.store.read(key).value is not None
    assert caplog.text.count("key was gone") == 1


async def test_a_key_that_ends_with_its_lease_is_told_once(store, links, caplog, autojump_clock):
    """Such as after a pause of the node, or if an operator revokes the lease."""
    async with running(*links):
        await founded(links)
        key = KEYS.node(links[0].node_id)
        await until(lambda: links[0].link._is_seen)
        before = store.store.read(key)
        store.store.end({before.lease})
        await until(lambda: store.store.read(key).lease not in (0, before.lease))
        await until(lambda: links[0].link._is_seen)
    assert "this node is registered no more" in caplog.text
    assert "key was gone" not in caplog.text


@pytest.mark.parametrize("fault", ["lost", "gone", "refused"])
async def test_a_node_keeps_its_lease_while_etcd_does_not_take_its_key(store, links, fault, autojump_clock):
    """Else the end of that lease is told to none, and the others miss a node that is alive."""
    store.faulty_node = links[0].node_id
    async with running(*links):
        await founded(links)
        key = KEYS.node(links[0].node_id)
        await until(lambda: node_of(store.store.read(key).value).is_new is False)
        await until(lambda: links[0].link._is_seen)
        before = store.store.read(key)
        store.node_faults += [fault] * 5
        assert store.store.write([], [Put(key, None)])
        await until(lambda: not store.node_faults and store.store.read(key).value == before.value)
        assert store.store.read(key).lease == before.lease
    assert store.leases == 3
