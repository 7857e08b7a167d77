"""The keys of a cluster in its coordinator, and the JSON of their values. Pure.

    /tailrace/<name>/format              {"format": 1, "cluster_id"}: the cluster that the keys belong to
    /tailrace/<name>/nodes/<node id>     a node, on its lease
    /tailrace/<name>/groups/0/voters     the voters, changed by compare-and-swap only
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
    """A voter: its directory, its node, and its name in the set, which is the address that it was founded with."""

    placement_id: bytes
    node_id: bytes
    name: Address


class Voters(NamedTuple):
    """The voters of a group in an epoch, in their order."""

    epoch: int
    voters: tuple[Voter, ...]


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
        {"placement_id": each.placement_id.hex(), "node_id": each.node_id.hex(), "name": str(each.name)}
        for each in voters.voters
    ]
    return _to_bytes({"epoch": voters.epoch, "voters": told, "learners": []})


def voters_of(data: bytes | None) -> Voters:
    """Returns the value of the voters' key. Raises StoreDamaged."""
    what = "the key of the voters"
    value = _parse(data, what)
    with _damaged():
        found = tuple(
            Voter(
                hex_field(each, "placement_id", _ID_BYTES, what),
                hex_field(each, "node_id", _ID_BYTES, what),
                _address(each, "name", what),
            )
            for each in field(value, "voters", list, what)
            if isinstance(each, dict)
        )
        epoch = seq_field(value, "epoch", what)
    for name in Voter._fields:
        if len({getattr(each, name) for each in found}) != len(value["voters"]):
            raise StoreDamaged(f"{what}: two voters have the same {name}, or a voter cannot be read")
    if epoch < 1 or not 2 <= len(found) <= VOTERS_MAX:
        raise StoreDamaged(f"{what}: epoch {epoch} with {len(found)} voters cannot be")
    return Voters(epoch, found)


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
