"""Questions to other nodes, the JSON of their answers, and the host of the SDK's streams."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import ProtocolError
from tailrace.link.address import Address
from tailrace.model import FEED_ID_BYTES
from tailrace.trio import request
from tailrace.trio.host import Host
from tailrace.wire.bodies import address_field, field, hex_field, seq_field
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication.election import MemberState
from tailrace_server.replication.lineage import known_from_json, known_to_json, line_from_json, line_to_json
from tailrace_server.replication.standings import PartitionId, Standing, Standings
from tailrace_server.replication.voters import Voters, voters_field, voters_to_json

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.local_node import LocalNode

_ID_BYTES = 16
# Of the name and version that another node tells, for people.
SOFTWARE_CHARS_MAX = 60
# The seconds that a handover or a failover waits for answers that it can do without: writers wait meanwhile.
_MORE_SECONDS = 0.25
# The feeds with waiting writes that one question tells, about 9 KiB. Followers ask for as many at a time.
AWAITED_MAX = 256


async def ask(
    node: LocalNode, address: Address, opcode: Opcode, value: dict[str, Any], timeout_s: float
) -> dict[str, Any]:
    """Returns another node's answer. Raises as ``tailrace.trio.request.ask``."""
    return await request.ask(
        address,
        opcode,
        value,
        timeout_s=timeout_s,
        connect=node.host.network.connect,
        hello=Hello(name=f"member {name_of(node)}", token=node.config.peer_token, of_node=True),
    )


async def look_at(node: LocalNode, address: Address, question: dict[str, Any], timeout_s: float) -> MemberState:
    """Returns the state of the node at ``address``. Raises as ``ask``.

    ``question``: the body of MEMBER, which tells the asker's record of the voters.
    """
    return seen_from_json(await ask(node, address, Opcode.MEMBER, question, timeout_s))


def never_enough() -> bool:
    """Returns False: every answer is waited for."""
    return False


async def ask_all(
    questions: Iterable[Callable[[], Awaitable[None]]], is_enough: Callable[[], bool], more_s: float = _MORE_SECONDS
) -> None:
    """Runs all questions at once. ``more_s`` after ``is_enough()`` has become true the others are cancelled."""
    async with trio.open_nursery() as nursery:
        scope = nursery.cancel_scope

        def look() -> None:
            if is_enough():
                scope.deadline = min(scope.deadline, trio.current_time() + more_s)

        async def run(question: Callable[[], Awaitable[None]]) -> None:
            await question()
            look()

        look()
        for question in questions:
            nursery.start_soon(run, question)


def name_of(node: LocalNode) -> str:
    """Returns the address by which others call the node: that in the list of members, else that of its listener."""
    named = node.config.named if node.config.members else node.listening or node.config.listen
    return str(Address(*named))


def host_of(node: LocalNode) -> Host:
    """Returns the host that the SDK's streams of this node run on."""
    chance = random.Random(node.host.randomness.token(16))
    return Host(connect=node.host.network.connect, random=chance)


def standings_of(partitions: Iterable[Partition]) -> Standings:
    """Returns how far this node has each of these partitions, durably."""
    return {PartitionId(partition.feed_id, partition.id): Standing(*partition.standing()) for partition in partitions}


def held_of(partitions: Iterable[Partition]) -> tuple[int, int]:
    """Returns how many mutations of these partitions are on the disk, and the term of their newest branch."""
    held = newest = 0
    for partition in partitions:  # of ten thousand feeds, twice a second
        term, seq = partition.standing()
        held += seq
        newest = max(newest, term)
    return held, newest


def seen_to_json(seen: MemberState) -> dict[str, Any]:
    """Returns the answer to MEMBER."""
    return {
        "placement_id": seen.placement_id.hex(),
        "cluster_id": seen.cluster_id.hex(),
        "is_new": seen.is_new,
        "votes": seen.votes,
        "role": "leader" if seen.leads else "follower",
        "term": seen.term,
        "leader_term": seen.leader_term,
        "led": seen.led,
        "promoting": seen.promoting,
        "leader": seen.leader,
        "founders": [id.hex() for id in seen.founders],
        "held": seen.held,
        "held_term": seen.held_term,
        "members": list(seen.members),
        "unreadable": seen.unreadable,
        **({} if seen.line is None else {"line": line_to_json(seen.line)}),
        "known": known_to_json(seen.known),
        "asks": seen.asks,
        "voters": voters_to_json(seen.voters),
        "ready": None if seen.ready is None else list(seen.ready),
        "has_room": seen.has_room,
        "withholds": seen.withholds,
        "software": seen.software,
    }


def seen_from_json(value: dict[str, Any]) -> MemberState:
    """Returns the reverse of ``seen_to_json``; unknown fields are ignored. Raises ProtocolError."""
    what = "the answer to MEMBER"
    return MemberState(
        hex_field(value, "placement_id", _ID_BYTES, what),
        hex_field(value, "cluster_id", _ID_BYTES, what),
        field(value, "is_new", bool, what),
        field(value, "votes", bool, what),
        field(value, "role", str, what) == "leader",
        seq_field(value, "term", what),
        seq_field(value, "leader_term", what),
        field(value, "led", bool, what),
        field(value, "promoting", bool, what),
        field(value, "leader", str, what),
        _ids(field(value, "founders", list, what), what),
        seq_field(value, "held", what, 0),
        seq_field(value, "held_term", what, 0),
        members_field(value, what),
        seq_field(value, "unreadable", what, 0),
        line_from_json(value, what),
        known_from_json(value, what),
        field(value, "asks", bool, what, False),
        voters_field(value, what) or Voters(),
        _ready(value, what),
        field(value, "has_room", bool, what, True),
        field(value, "withholds", bool, what, False),
        field(value, "software", str, what, "")[:SOFTWARE_CHARS_MAX],
    )


def members_field(value: dict[str, Any], what: str) -> tuple[str, ...]:
    """Returns the list of members that a node was started with; empty if it is not told. Raises ProtocolError."""
    texts = field(value, "members", list, what, [])
    return tuple(address_field({"members": text}, "members", what) for text in texts)


def awaited_to_json(feed_ids: Iterable[bytes]) -> dict[str, Any]:
    """Returns the field of MEMBER that tells a follower the feeds to ask for first; none without such feeds."""
    told = [feed_id.hex() for feed_id in feed_ids]
    return {"awaited": told} if told else {}


def awaited_field(value: dict[str, Any], what: str) -> tuple[bytes, ...]:
    """Returns the reverse of ``awaited_to_json``, AWAITED_MAX ids at most. Raises ProtocolError."""
    told = field(value, "awaited", list, what, [])[:AWAITED_MAX]
    return tuple(hex_field({"awaited": text}, "awaited", FEED_ID_BYTES, what) for text in told)


def _ready(value: dict[str, Any], what: str) -> tuple[int, int] | None:
    told = value.get("ready")
    if told is None:
        return None
    if not isinstance(told, list) or len(told) != 2:
        raise ProtocolError(f"{what}: field 'ready' is {told!r:.60}, not a term and an epoch")
    term, epoch = told
    return seq_field({"ready": term}, "ready", what), seq_field({"ready": epoch}, "ready", what)


def _ids(texts: list[Any], what: str) -> tuple[bytes, ...]:
    return tuple(hex_field({"founders": text}, "founders", _ID_BYTES, what) for text in texts)


def seqs_from_json(value: Any, what: str) -> dict[bytes, list[int]]:
    """Returns the high seq of each partition, by feed id. Raises ProtocolError."""
    try:
        seqs = {bytes.fromhex(text): [int(seq) for seq in found] for text, found in value.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ProtocolError(f"{what}: the seqs cannot be read: {error}") from None
    if any(len(feed_id) != FEED_ID_BYTES for feed_id in seqs):
        raise ProtocolError(f"{what}: an id of a feed is not {FEED_ID_BYTES} bytes")
    return seqs
