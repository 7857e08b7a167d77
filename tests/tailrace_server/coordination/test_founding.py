"""The decisions of nodes on the keys of their cluster: founding, putting back, and waiting."""

from __future__ import annotations

import itertools
import json
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tailrace.link.address import Address
from tailrace_server.coordination.cluster_keys import (
    NO_ID,
    ClusterKeys,
    LeaderValue,
    NodeValue,
    Voter,
    Voters,
    cluster_of,
    format_to_bytes,
    known_of,
    leader_to_bytes,
    node_of,
    node_to_bytes,
    voters_of,
    voters_to_bytes,
)
from tailrace_server.coordination.coordinator import NO_ENTRY, Entry, Put, StoreDamaged
from tailrace_server.coordination.founding import (
    Copy,
    Move,
    OwnNode,
    addresses_of,
    decide,
    mirrored,
    place_of,
    replaced,
)

KEYS = ClusterKeys.of("demo")


def node(number, *, voters=3, is_new=True, port=None):
    id = bytes([number]) * 16
    return NodeValue(Address("h", port or 4700 + number), id, bytes([100 + number]) * 16, voters, is_new, "1")


def own(number, copy=None, **fields):
    return OwnNode(bytes([number]) * 16, node(number, **fields), copy)


class Keys:
    """The keys of a coordinator, with its transactions."""

    def __init__(self):
        self.entries = {}
        self.revision = 0

    def register(self, number, **fields):
        self.put(Put(KEYS.node(bytes([number]) * 16), node_to_bytes(node(number, **fields))))

    def put(self, *puts):
        self.revision += 1
        for put in puts:
            before = self.entries.pop(put.key, NO_ENTRY)
            if put.value is not None:
                self.entries[put.key] = Entry(put.value, self.revision, before.created or self.revision)

    def known(self):
        return known_of(KEYS, self.entries)

    def run(self, step):
        """Runs a step's transaction; returns whether its comparisons held."""
        holds = all(self.entries.get(key, NO_ENTRY).revision == revision for key, revision in step.comparisons)
        if holds:
            self.put(*step.puts)
        return holds


def founded(count=3):
    keys = Keys()
    for number in range(1, count + 1):
        keys.register(number)
    assert keys.run(decide(KEYS, own(1), keys.known()))
    return keys


def copy_of(keys):
    known = keys.known()
    return Copy(known.cluster_id, known.voters)


def test_the_set_is_founded_when_all_have_registered_in_their_order():
    keys = Keys()
    for number in (2, 1):
        keys.register(number)
        assert decide(KEYS, own(1), keys.known()).case == "too_few"
    keys.register(3)
    steps = [decide(KEYS, own(number), keys.known()) for number in (1, 2, 3)]
    assert [step.move for step in steps] == [Move.FOUND] * 3
    assert [keys.run(step) for step in steps] == [True, False, False]
    known = keys.known()
    assert known.voters == Voters(
        1, tuple(Voter(bytes([n]) * 16, bytes([n]) * 16, Address("h", 4700 + n)) for n in (2, 1, 3))
    )
    assert known.cluster_id == bytes([102]) * 16, "that of the first one"
    assert decide(KEYS, own(3), known).move is Move.SERVE


def test_a_set_is_not_founded_if_a_founder_has_gone_meanwhile():
    keys = Keys()
    for number in (1, 2, 3):
        keys.register(number)
    step = decide(KEYS, own(1), keys.known())
    keys.put(Put(KEYS.node(bytes([2]) * 16), None))
    assert not keys.run(step)
    assert decide(KEYS, own(1), keys.known()).case == "too_few"


@pytest.mark.parametrize(
    ("others", "case"),
    [
        ([(2, {}), (3, {"voters": 5})], "other_number"),
        ([(2, {"port": 4701}), (3, {})], "same_address"),
        ([(2, {}), (3, {}), (4, {"is_new": False})], "to_return"),
    ],
)
def test_a_set_is_not_founded_with_nodes_that_contradict(others, case):
    keys = Keys()
    keys.register(1)
    for number, fields in others:
        keys.register(number, **fields)
    step = decide(KEYS, own(1), keys.known())
    assert (step.move, step.case) == (Move.WAIT, case)
    assert step.why


def test_a_node_that_comes_too_late_or_belonged_to_a_set_founds_none():
    keys = Keys()
    for number in (1, 2, 3, 4):
        keys.register(number)
    assert decide(KEYS, own(4), keys.known()).case == "too_many"
    assert decide(KEYS, own(1, is_new=False), keys.known()).case == "no_voters"
    step = decide(KEYS, own(4), founded().known())
    assert (step.move, step.case) == (Move.SERVE, "spare")
    assert "`tailrace member add h:4704 --node h:4701`" in step.why


def test_an_etcd_that_lost_the_voters_gets_them_back_and_no_second_set():
    copy = copy_of(founded())
    keys = Keys()
    keys.register(7)
    keys.register(1, is_new=False)
    assert decide(KEYS, own(7, voters=2), keys.known()).case == "to_return"
    step = decide(KEYS, own(1, copy), keys.known())
    assert (step.move, step.case) == (Move.PUT_BACK, "lost")
    assert keys.run(step)
    assert copy_of(keys) == copy
    assert decide(KEYS, own(1, copy), keys.known()).move is Move.SERVE
    assert not keys.run(step), "a transaction that comes late changes nothing"


def test_an_earlier_record_is_replaced_a_later_one_is_learnt_and_another_of_the_same_epoch_waits():
    keys = founded()
    copy = copy_of(keys)
    newer = copy._replace(voters=copy.voters._replace(term=1))
    step = decide(KEYS, own(1, newer), keys.known())
    assert (step.move, step.case) == (Move.PUT_BACK, "older")
    assert keys.run(step)
    assert copy_of(keys) == newer
    assert decide(KEYS, own(1, copy), keys.known()).case == "voter", "it learns the later one"
    other = newer._replace(voters=newer.voters._replace(voters=newer.voters.voters[::-1]))
    assert decide(KEYS, own(1, other), keys.known()).case == "changed"
    nodeless = newer._replace(voters=newer.voters.without_nodes())
    assert decide(KEYS, own(1, nodeless), keys.known()).case == "voter"


def test_keys_of_another_cluster_change_nothing():
    keys = founded()
    other = Copy(bytes(16), copy_of(keys).voters)
    assert decide(KEYS, own(1, other), keys.known()).case == "foreign"


def test_a_directory_of_another_cluster_is_not_served():
    keys = founded()
    assert decide(KEYS, own(9, is_new=False), keys.known()).case == "foreign"
    of_this = own(9, is_new=False)
    of_this = of_this._replace(value=of_this.value._replace(cluster_id=keys.known().cluster_id))
    assert decide(KEYS, of_this, keys.known()).case == "spare"


# Directories without a seat


def on_a_new_disk(number, port):
    """A node with another directory at the address of a member."""
    return own(number, port=port)


def test_a_new_disk_is_served_as_its_member_once_the_old_node_is_gone():
    keys = founded()
    new = on_a_new_disk(8, 4703)
    keys.register(8, port=4703)
    step = decide(KEYS, new, keys.known())
    assert (step.move, step.case) == (Move.WAIT, "taken")
    assert bytes([3]).hex() * 16 in step.why
    keys.put(Put(KEYS.node(bytes([3]) * 16), None))
    step = decide(KEYS, new, keys.known())
    assert (step.move, step.case) == (Move.SERVE, "new_disk")
    assert place_of(new, keys.known().voters, {}) == (Address("h", 4703), True)


def test_a_new_disk_of_a_member_that_has_moved_has_its_name():
    keys, moved = founded(), Address("h", 9)
    assert place_of(on_a_new_disk(8, 9), keys.known().voters, {Address("h", 4703): moved}) == (Address("h", 4703), True)
    assert place_of(on_a_new_disk(8, 9), keys.known().voters, {}) == (moved, False)


def test_a_directory_without_a_seat_is_known_by_its_node_wherever_it_is():
    keys = founded()
    seats = keys.known().voters.voters
    vacated = keys.known().voters._replace(epoch=2, voters=(*seats[:2], seats[2]._replace(placement_id=NO_ID)))
    keys.put(Put(KEYS.voters(0), voters_to_bytes(vacated)))
    assert decide(KEYS, own(3, port=9), keys.known()).case == "new_disk"
    assert place_of(own(3, port=9), vacated, {}) == (Address("h", 4703), True)


def test_a_node_that_is_to_join_is_served():
    keys = founded()
    record = keys.known().voters._replace(epoch=2, learners=(Address("h", 4704),))
    keys.put(Put(KEYS.voters(0), voters_to_bytes(record)))
    assert decide(KEYS, own(4), keys.known()).case == "joining"
    assert decide(KEYS, own(5), keys.known()).case == "spare"
    assert record.names[-1] == Address("h", 4704)


def test_addresses_are_those_of_the_present_members():
    keys = founded()
    keys.register(3, port=9)
    name, gone = Address("h", 4703), Address("h", 1)
    assert addresses_of(keys.known(), {gone: gone})[name] == Address("h", 9)
    assert gone not in addresses_of(keys.known(), {gone: gone})
    keys.put(Put(KEYS.node(bytes([3]) * 16), None))
    before = {name: Address("h", 9)}
    assert addresses_of(keys.known(), before)[name] == Address("h", 9), "the last that is known"
    keys.register(8, port=4703)
    assert addresses_of(keys.known(), before)[name] == name, "a new disk where the member was first"


# The leader's record


def later(record, **changes):
    return record.without_nodes()._replace(**changes)


def test_the_leader_writes_its_record_over_an_earlier_one_and_never_over_a_later_one():
    keys = founded()
    record = later(keys.known().voters, term=1, epoch=2)
    step = mirrored(KEYS, record, keys.known())
    assert step.move is Move.MIRROR
    assert keys.run(step)
    assert keys.known().voters == record.with_nodes(keys.known().nodes, None)
    assert mirrored(KEYS, record, keys.known()) is None, "there is nothing to write"
    assert mirrored(KEYS, later(record, epoch=1), keys.known()) is None
    assert mirrored(KEYS, later(record, voters=record.voters[::-1]), keys.known()) is None
    assert not keys.run(step), "a transaction that comes twice, or late, changes nothing"


def test_a_leader_that_is_deposed_and_late_changes_nothing():
    keys = founded()
    seen = keys.known()
    first, second = later(seen.voters, term=1, epoch=2), later(seen.voters, term=2, epoch=1)
    stale, fresh = mirrored(KEYS, first, seen), mirrored(KEYS, second, seen)
    assert keys.run(fresh)
    assert not keys.run(stale)
    assert mirrored(KEYS, first, keys.known()) is None
    assert keys.known().voters.order == (2, 1)


def test_the_leader_writes_the_node_of_a_directory_once_it_is_known_and_keeps_it():
    keys = founded()
    seats, disk = keys.known().voters.voters, bytes([8]) * 16
    record = later(keys.known().voters, epoch=3, voters=(*seats[:2], seats[2]._replace(placement_id=disk)))
    record = record.without_nodes()
    assert keys.run(mirrored(KEYS, record, keys.known()))
    assert keys.known().voters.voters[2].node_id == NO_ID
    keys.register(8, port=4703)
    placed = keys.known().nodes[bytes([8]) * 16]._replace(placement_id=disk)
    keys.put(Put(KEYS.node(bytes([8]) * 16), node_to_bytes(placed)))
    assert keys.run(mirrored(KEYS, record, keys.known()))
    assert keys.known().voters.voters[2].node_id == bytes([8]) * 16
    keys.put(Put(KEYS.node(bytes([8]) * 16), None))
    assert mirrored(KEYS, record, keys.known()) is None


def test_a_vacant_seat_keeps_the_node_that_it_had():
    keys = founded()
    seats = keys.known().voters.voters
    record = later(keys.known().voters, epoch=2, voters=(*seats[:2], seats[2]._replace(placement_id=NO_ID)))
    assert keys.run(mirrored(KEYS, record.without_nodes(), keys.known()))
    assert keys.known().voters.voters[2] == (NO_ID, bytes([3]) * 16, Address("h", 4703))


def test_nothing_is_written_before_a_set_is_founded():
    assert mirrored(KEYS, later(founded().known().voters, epoch=2), Keys().known()) is None


@pytest.mark.parametrize("seed", range(60))
def test_records_only_go_forward_whatever_transactions_are_lost_late_or_doubled_and_etcd_forgets(seed):
    """Leaders of later terms write their records; followers learn them, and put them back into a restored etcd."""
    chance, keys = random.Random(seed), founded()
    first, backup = keys.known().voters, dict(keys.entries)
    copies = {number: copy_of(keys) for number in (1, 2, 3)}
    records, waiting = [first._replace(term=0, epoch=1)], []
    for _ in range(80):
        match chance.randrange(6):
            case 0:  # the next record of a leader, perhaps of a later term
                last = records[-1]
                records.append(later(last, term=last.term + chance.randrange(2), epoch=last.epoch + 1))
            case 1:  # a leader, the present one or one that was deposed
                step = mirrored(KEYS, chance.choice(records[-3:]), keys.known())
                waiting += [] if step is None else [step] * chance.choice((1, 1, 2))
            case 2:  # a follower looks
                number = chance.choice((1, 2, 3))
                step = decide(KEYS, own(number, copies[number]), keys.known())
                if step.move is Move.SERVE:
                    assert keys.known().voters.order >= copies[number].voters.order
                    copies[number] = copy_of(keys)
                else:
                    assert step.case in ("older", "lost")
                    waiting.append(step)
            case 3 if waiting:  # a transaction arrives, or is lost
                step, before = waiting.pop(chance.randrange(len(waiting))), keys.known().voters
                if chance.random() < 0.7 and keys.run(step) and before is not None:
                    assert keys.known().voters.order >= before.order
            case 4 if chance.random() < 0.2:  # an old backup, in which a revision may come again
                keys.entries = dict(backup)
            case 5 if chance.random() < 0.1:
                backup = dict(keys.entries)
    waiting.clear()
    for _, number in itertools.product(range(3), (1, 2, 3)):
        step = mirrored(KEYS, records[-1], keys.known())
        assert step is None or keys.run(step)
        step = decide(KEYS, own(number, copies[number]), keys.known())
        if step.move is Move.SERVE:
            copies[number] = copy_of(keys)
        else:
            assert keys.run(step)
    assert keys.known().voters.is_same(records[-1])
    assert all(copy.voters.is_same(records[-1]) for copy in copies.values())


NODES = st.dictionaries(
    st.integers(1, 6),
    st.fixed_dictionaries(
        {"voters": st.sampled_from([2, 3]), "is_new": st.booleans(), "port": st.sampled_from([None, None, None, 9])}
    ),
)


@given(NODES, st.integers(1, 6), st.lists(st.integers(0, 9), max_size=12))
def test_a_set_is_founded_once_whatever_the_order(nodes, first, order):
    """Nodes read the keys, and write later: their transactions meet in any order."""
    keys, waiting = Keys(), []
    for number, fields in nodes.items():
        keys.register(number, **fields)
    for choice in [first, *order]:
        known = keys.known()
        if nodes:
            number = sorted(nodes)[choice % len(nodes)]
            waiting.append(decide(KEYS, own(number, **nodes[number]), known))
        if waiting and choice % 2:
            step = waiting.pop(choice % len(waiting))
            if step.move is Move.FOUND and keys.run(step):
                assert known.voters is None or keys.known().voters == known.voters
    written = keys.known().voters
    if written is not None:
        assert written.epoch == 1
        assert len(written.voters) in (2, 3)
        assert all(nodes[voter.node_id[0]]["is_new"] for voter in written.voters)
        assert keys.entries[KEYS.voters(0)].created == keys.entries[KEYS.voters(0)].revision


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"epoch": 0, "voters": []}',
        b'{"epoch": 1, "voters": [1, 2]}',
        json.dumps(
            {"epoch": 1, "voters": [{"placement_id": "00" * 16, "node_id": "00" * 16, "name": "a:1"}] * 2}
        ).encode(),
        json.dumps({"epoch": "1", "voters": []}).encode(),
        json.dumps(
            {
                "epoch": 1,
                "voters": [{"placement_id": "", "node_id": "", "name": f"a:{port}"} for port in (1, 2)],
                "learners": ["a:2"],
            }
        ).encode(),
        json.dumps(
            {"epoch": 1, "voters": [{"placement_id": "", "node_id": "", "name": "a:1"}] * 2, "learners": []}
        ).encode(),
        json.dumps(
            {
                "epoch": 1,
                "voters": [{"placement_id": "", "node_id": "", "name": f"a:{port}"} for port in range(1, 103)],
            }
        ).encode(),
    ],
)
def test_voters_that_cannot_be_read_are_not_believed(data):
    with pytest.raises(StoreDamaged):
        voters_of(data)
    with pytest.raises(StoreDamaged):
        known_of(KEYS, {KEYS.voters(0): Entry(data, 1, 1)})


def test_a_later_format_is_refused_and_nodes_that_cannot_be_read_are_left_out():
    with pytest.raises(StoreDamaged, match="format 2"):
        cluster_of(b'{"format": 2}')
    keys = founded()
    keys.put(Put(KEYS.nodes + "zz", b"{}"), Put(KEYS.node(bytes([9]) * 16), b"{"), Put(KEYS.leader(0), b"x"))
    assert set(keys.known().nodes) == {bytes([n]) * 16 for n in (1, 2, 3)}
    assert keys.known().leader is None


def test_values_come_back():
    leader = LeaderValue(bytes(16), bytes(16), Address("::1", 9), 7, 1)
    keys = founded()
    keys.put(Put(KEYS.leader(0), leader_to_bytes(leader)))
    assert keys.known().leader == leader
    assert node_of(node_to_bytes(node(1))) == node(1)
    assert cluster_of(format_to_bytes(bytes(16))) == bytes(16)
    voters = keys.known().voters
    vacant = voters.voters[0]._replace(placement_id=NO_ID, node_id=NO_ID)
    changed = voters._replace(term=7, voters=(vacant, *voters.voters[1:]), learners=(Address("::1", 9),))
    for each in (voters, changed):
        assert voters_of(voters_to_bytes(each)) == each
    assert voters_of(json.dumps(json.loads(voters_to_bytes(voters)) | {"term": 0}).encode()).order == (0, 1)
    value = json.loads(voters_to_bytes(voters))
    del value["term"], value["learners"]
    assert voters_of(json.dumps(value).encode()) == voters, "as an earlier version wrote them"


@pytest.mark.parametrize("seed", range(60))
def test_the_record_of_the_leader_wins_whatever_another_program_writes(seed):
    """Programs write later records, or others of the same term and epoch; nodes learn some, and etcd forgets."""
    chance, keys = random.Random(seed), founded()
    record, backups = later(keys.known().voters, term=1), []
    copies = {number: copy_of(keys) for number in (1, 2, 3)}

    def look(number):
        step = decide(KEYS, own(number, copies[number]), keys.known())
        if step.move is Move.SERVE:
            copies[number] = copy_of(keys)
        elif step.move is Move.PUT_BACK:
            assert keys.run(step)

    def lead():
        step = mirrored(KEYS, record, keys.known()) or replaced(KEYS, record, keys.known())
        assert step is None or keys.run(step)

    for _ in range(40):
        match chance.randrange(6):
            case 0:  # another program
                seats = [each._replace(placement_id=bytes([chance.randrange(90, 99)]) * 16) for each in record.voters]
                kept = chance.sample(range(3), chance.randrange(3))
                mixed = tuple(record.voters[n] if n in kept else each for n, each in enumerate(seats))
                false = record._replace(term=record.term + chance.randrange(3), voters=mixed)
                false = chance.choice([false, false.replacing(keys.known().voters)])
                if len({each.placement_id for each in mixed}) == 3:
                    keys.put(Put(KEYS.voters(0), voters_to_bytes(false)))
            case 1:
                lead()
            case 2:
                look(chance.choice((1, 2, 3)))
            case 3:  # the next record of a leader, perhaps of a later one
                record = later(record, term=record.term + chance.randrange(2), epoch=record.epoch + 1)
            case 4:
                backups.append(dict(keys.entries))
            case 5 if backups and chance.random() < 0.3:
                keys.entries = dict(chance.choice(backups))
    for _ in range(4):
        lead()
        for number in (1, 2, 3):
            look(number)
    assert mirrored(KEYS, record, keys.known()) is None
    assert replaced(KEYS, record, keys.known()) is None
    ours = record._replace(replaces=keys.known().voters.replaces)
    assert keys.known().voters.is_same(ours)
    assert all(copy.voters.is_same(ours) for copy in copies.values())


def test_a_record_that_replaces_another_one_comes_back():
    record = founded().known().voters
    assert voters_of(voters_to_bytes(record.replacing(record._replace(term=6)))).replaces == (6, 1)
    value = json.loads(voters_to_bytes(record)) | {"replaces": [1]}
    with pytest.raises(StoreDamaged, match="not a term and an epoch"):
        voters_of(json.dumps(value).encode())
