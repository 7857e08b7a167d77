"""The decisions of nodes on the keys of their cluster: founding, putting back, and waiting."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tailrace.link.address import Address
from tailrace_server.coordination.cluster_keys import (
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
from tailrace_server.coordination.founding import Copy, Move, OwnNode, decide

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
    assert decide(KEYS, own(4), founded().known()).case == "spare"


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


def test_an_older_epoch_is_replaced_and_a_newer_one_waits():
    keys = founded()
    copy = copy_of(keys)
    newer = copy._replace(voters=copy.voters._replace(epoch=2))
    step = decide(KEYS, own(1, newer), keys.known())
    assert (step.move, step.case) == (Move.PUT_BACK, "older")
    assert keys.run(step)
    assert copy_of(keys) == newer
    assert decide(KEYS, own(1, copy), keys.known()).case == "changed"


def test_keys_of_another_cluster_change_nothing():
    keys = founded()
    other = Copy(bytes(16), copy_of(keys).voters)
    assert decide(KEYS, own(1, other), keys.known()).case == "foreign"


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
    assert voters_of(voters_to_bytes(keys.known().voters)) == keys.known().voters
