"""The keys of a cluster in its coordinator, and the JSON of their values. Pure.

    /tailrace/<name>/format              {"format": 1, "cluster_id"}: the cluster that the keys belong to
    /tailrace/<name>/nodes/<node id>     a node, on its lease
    /tailrace/<name>/groups/0/voters     a copy of the leader's record of the voters, changed by compare-and-swap only
    /tailrace/<name>/groups/0/leader     the leader, on its lease: for routing, never authority

Values come from outside: each is checked, and nothing is believed that is not of its form.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.link.address import Address, parse_address
from tailrace.wire.bodies import field, hex_field, seq_field
from tailrace_server.coordination.coordinator import Entry, StoreDamaged

FORMAT = 1
DEFAULT_NAME = "default"
VOTERS_MAX = 101
_ID_BYTES = 16
# The placement id of a vacant seat, and the id of a node that is not known.
NO_ID = bytes(_ID_BYTES)
_TEXT_MAX = 300


class ClusterKeys(NamedTuple):
    """The names of the keys of one cluster."""

    prefix: str

    @classmethod
    def of(cls, name: str) -> ClusterKeys:
        """Returns the keys of the cluster ``name``; of one without a name, of "default"."""
        return cls(f"/tailrace/{name or DEFAULT_NAME}/")

    @property
    def format(self) -> str:
        """The key of the format."""
        return f"{self.prefix}format"

    @property
    def nodes(self) -> str:
        """The prefix of the keys of nodes."""
        return f"{self.prefix}nodes/"

    def node(self, node_id: bytes) -> str:
        """Returns the key of a node."""
        return f"{self.nodes}{node_id.hex()}"

    def voters(self, group: int) -> str:
        """Returns the key of the voters of a group."""
        return f"{self.prefix}groups/{group}/voters"

    def leader(self, group: int) -> str:
        """Returns the key of the leader of a group."""
        return f"{self.prefix}groups/{group}/leader"


class NodeValue(NamedTuple):
    """A node. ``voters``: the number of founders that it was started with. ``is_new``: it never was in a set."""

    address: Address
    placement_id: bytes
    cluster_id: bytes
    voters: int
    is_new: bool
    version: str


class Voter(NamedTuple):
    """A seat: the directory that has it, the node of that, and the name of the member, an address that never changes.

    ``placement_id``: NO_ID if the seat is vacant. ``node_id``: NO_ID if the node of the directory is not known.
    """

    placement_id: bytes
    node_id: bytes
    name: Address


class Voters(NamedTuple):
    """The voters of a group in an epoch, in the order of their seats.

    ``term``: of the leader that wrote the record; 0 as the set was founded. ``learners``: the names of the members that
    are to get a seat. ``replaces``: the order of a record that no leader of the set has written, in whose place the
    leader has written this one; (0, 0) if there was none.
    """

    epoch: int
    voters: tuple[Voter, ...]
    term: int = 0
    learners: tuple[Address, ...] = ()
    replaces: tuple[int, int] = (0, 0)

    @property
    def order(self) -> tuple[int, int]:
        """The term and the epoch. Of two records of leaders the later one has the higher order."""
        return self.term, self.epoch

    @property
    def rank(self) -> tuple[tuple[int, int], bool, tuple[int, int]]:
        """The one with the higher rank takes the place of the other: of two records of leaders, the later one.

        A record that replaces another one is above that one, and below all that are later than that one.
        """
        return max(self.order, self.replaces), self.replaces >= self.order, self.order

    def replacing(self, other: Voters) -> Voters:
        """Returns this record, which takes the place of ``other`` though that one seems to be later."""
        found = self._replace(replaces=max(other.order, other.replaces))
        if found.rank > other.rank:
            return found
        term, epoch = found.replaces
        return found._replace(replaces=(term, epoch + 1))

    @property
    def ids(self) -> frozenset[bytes]:
        """The placement ids of the directories that have a seat."""
        return frozenset(each.placement_id for each in self.voters) - {NO_ID}

    @property
    def names(self) -> tuple[Address, ...]:
        """The names of all members, those with a seat first."""
        return (*(voter.name for voter in self.voters), *self.learners)

    def seat_of(self, placement_id: bytes) -> Voter | None:
        """Returns the seat of a directory; None if it has none."""
        return next((each for each in self.voters if each.placement_id == placement_id != NO_ID), None)

    def is_same(self, other: Voters) -> bool:
        """Returns whether both are the same record, whatever is known of the nodes."""
        return self.without_nodes() == other.without_nodes()

    def without_nodes(self) -> Voters:
        """Returns this record with no node known."""
        return self._replace(voters=tuple(each._replace(node_id=NO_ID) for each in self.voters))

    def with_nodes(self, nodes: Mapping[bytes, NodeValue], before: Voters | None) -> Voters:
        """Returns this record with the nodes of its directories, as far as they are known.

        Args:
            nodes: The registered nodes by id.
            before: An earlier record, which may know nodes that are not registered now. The node that had a vacant seat
                last stays there.
        """
        node_ids = {node.placement_id: node_id for node_id, node in nodes.items()}
        former = {} if before is None else {each.placement_id: each.node_id for each in before.voters}
        left = {} if before is None else {each.name: each.node_id for each in before.voters}

        def node_of(voter: Voter) -> bytes:
            if voter.placement_id == NO_ID:
                return left.get(voter.name, NO_ID)
            return node_ids.get(voter.placement_id) or former.get(voter.placement_id, NO_ID)

        return self._replace(voters=tuple(each._replace(node_id=node_of(each)) for each in self.voters))


class LeaderValue(NamedTuple):
    """The leader of a group."""

    node_id: bytes
    placement_id: bytes
    address: Address
    term: int
    epoch: int


class Known(NamedTuple):
    """The values of a cluster, as far as they are there; ``revisions`` are those of all keys."""

    cluster_id: bytes | None
    voters: Voters | None
    nodes: Mapping[bytes, NodeValue]
    leader: LeaderValue | None
    created: Mapping[bytes, int]  # the revision at which each node has registered
    revisions: Mapping[str, int]


NOTHING_KNOWN = Known(None, None, {}, None, {}, {})


def known_of(keys: ClusterKeys, entries: Mapping[str, Entry]) -> Known:
    """Returns the values of a cluster's keys.

    A node or leader that cannot be read is left out. Raises StoreDamaged if the format or the voters cannot be read.
    """
    nodes, created = {}, {}
    for key, entry in entries.items():
        if key.startswith(keys.nodes):
            with contextlib.suppress(ValueError, StoreDamaged):
                node_id = bytes.fromhex(key.removeprefix(keys.nodes))
                nodes[node_id], created[node_id] = node_of(entry.value), entry.created
    format, voters, leader = (entries.get(key) for key in (keys.format, keys.voters(0), keys.leader(0)))
    try:
        leads = None if leader is None else leader_of(leader.value)
    except StoreDamaged:
        leads = None
    return Known(
        None if format is None else cluster_of(format.value),
        None if voters is None else voters_of(voters.value),
        nodes,
        leads,
        created,
        {key: entry.revision for key, entry in entries.items()},
    )


def id_text(id: bytes) -> str:
    """Returns an id in hex, as values have it; "" for NO_ID."""
    return "" if id == NO_ID else id.hex()


def format_to_bytes(cluster_id: bytes) -> bytes:
    """Returns the value of the key of the format."""
    return _to_bytes({"format": FORMAT, "cluster_id": cluster_id.hex()})


def cluster_of(data: bytes | None) -> bytes:
    """Returns the cluster id in the value of the format. Raises StoreDamaged, also if it is of a later format."""
    what = "the key of the format"
    value = _parse(data, what)
    with _damaged():
        if value.get("format") != FORMAT:
            raise StoreDamaged(f"{what} has format {value.get('format')!r:.50}; this program knows format {FORMAT}")
        return hex_field(value, "cluster_id", _ID_BYTES, what)


def node_to_bytes(node: NodeValue) -> bytes:
    """Returns the value of a node's key."""
    return _to_bytes(
        {
            "address": str(node.address),
            "placement_id": node.placement_id.hex(),
            "cluster_id": node.cluster_id.hex(),
            "voters": node.voters,
            "is_new": node.is_new,
            "version": node.version,
        }
    )


def node_of(data: bytes | None) -> NodeValue:
    """Returns the value of a node's key. Raises StoreDamaged."""
    what = "the key of a node"
    value = _parse(data, what)
    with _damaged():
        return NodeValue(
            _address(value, "address", what),
            hex_field(value, "placement_id", _ID_BYTES, what),
            hex_field(value, "cluster_id", _ID_BYTES, what),
            seq_field(value, "voters", what),
            field(value, "is_new", bool, what),
            field(value, "version", str, what)[:_TEXT_MAX],
        )


def voters_to_bytes(voters: Voters) -> bytes:
    """Returns the value of the voters' key."""
    told = [
        {"placement_id": id_text(each.placement_id), "node_id": id_text(each.node_id), "name": str(each.name)}
        for each in voters.voters
    ]
    learners = [str(name) for name in voters.learners]
    value = {"term": voters.term, "epoch": voters.epoch, "voters": told, "learners": learners}
    return _to_bytes(value | ({"replaces": list(voters.replaces)} if any(voters.replaces) else {}))


def voters_of(data: bytes | None) -> Voters:
    """Returns the value of the voters' key. Raises StoreDamaged."""
    what = "the key of the voters"
    value = _parse(data, what)
    with _damaged():
        found = tuple(
            Voter(
                _id_or_none(each, "placement_id", what),
                _id_or_none(each, "node_id", what),
                _address(each, "name", what),
            )
            for each in field(value, "voters", list, what)
            if isinstance(each, dict)
        )
        # A set that was founded by an earlier version has no term here until its leader has one written.
        epoch, term = seq_field(value, "epoch", what), seq_field(value, "term", what, 0)
        learners = field(value, "learners", list, what, [])
        joining = tuple(_address({"learners": text}, "learners", what) for text in learners)
        replaces = _order(value, what)
    for name in Voter._fields:
        told = [getattr(each, name) for each in found if getattr(each, name) != NO_ID]
        if len(set(told)) != len(told) or len(found) != len(value["voters"]):
            raise StoreDamaged(f"{what}: two voters have the same {name}, or a voter cannot be read")
    voters = Voters(epoch, found, term, joining, replaces)
    if epoch < 1 or len(found) < 2 or len(voters.names) > VOTERS_MAX:
        raise StoreDamaged(f"{what}: epoch {epoch} with {len(voters.names)} members cannot be")
    if len(set(voters.names)) != len(voters.names):
        raise StoreDamaged(f"{what}: two members have the same name")
    return voters


def leader_to_bytes(leader: LeaderValue) -> bytes:
    """Returns the value of the leader's key."""
    return _to_bytes(
        {
            "node_id": leader.node_id.hex(),
            "placement_id": leader.placement_id.hex(),
            "address": str(leader.address),
            "term": leader.term,
            "epoch": leader.epoch,
        }
    )


def leader_of(data: bytes | None) -> LeaderValue:
    """Returns the value of the leader's key. Raises StoreDamaged."""
    what = "the key of the leader"
    value = _parse(data, what)
    with _damaged():
        return LeaderValue(
            hex_field(value, "node_id", _ID_BYTES, what),
            hex_field(value, "placement_id", _ID_BYTES, what),
            _address(value, "address", what),
            seq_field(value, "term", what),
            seq_field(value, "epoch", what),
        )


def _order(value: dict[str, Any], what: str) -> tuple[int, int]:
    told = field(value, "replaces", list, what, [0, 0])
    if len(told) != 2:
        raise StoreDamaged(f"{what}: field 'replaces' is {told!r:.60}, not a term and an epoch")
    term, epoch = told
    return seq_field({"replaces": term}, "replaces", what), seq_field({"replaces": epoch}, "replaces", what)


def _id_or_none(value: dict[str, Any], name: str, what: str) -> bytes:
    return NO_ID if value.get(name) == "" else hex_field(value, name, _ID_BYTES, what)


def _to_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _parse(data: bytes | None, what: str) -> dict[str, Any]:
    try:
        value = json.loads(data or b"")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise StoreDamaged(f"{what} holds {(data or b'')[:_TEXT_MAX]!r}, which is no object of JSON")
    return value


@contextlib.contextmanager
def _damaged() -> Iterator[None]:
    """Makes a StoreDamaged of a ProtocolError in the body."""
    try:
        yield
    except ProtocolError as error:
        raise StoreDamaged(str(error)) from None


def _address(value: dict[str, Any], name: str, what: str) -> Address:
    try:
        return parse_address(field(value, name, str, what))
    except ValueError as error:
        raise StoreDamaged(f"{what}: {error}") from None
