"""The messages about named consumers and groups: join, commit, renew, release, and what a node tells of them. Pure.

Generations are objects from the number of a partition to its generation. Positions are the text of `Positions`.
Layouts: docs/protocol/messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.errors import BadPosition, ProtocolError
from tailrace.model import FEED_ID_BYTES, Level
from tailrace.model.failover import SEQ_MAX
from tailrace.model.position import Positions
from tailrace.wire.bodies import decode_json, encode_json, field, hex_field
from tailrace.wire.opcodes import Opcode

# The id of a program that joins.
MEMBER_BYTES = 16
# A longer name is refused; it is a part of the key of a row of ``_feeds``.
CONSUMER_NAME_CHARS_MAX = 100
# The partitions of one COMMIT: with full failover logs they take 300 KiB.
COMMIT_PARTITIONS_MAX = 256
_PARTITION_DIGITS_MAX = 5
KINDS = ("name", "group")
RESETS = ("beginning", "now", "given", "forgotten")
SINCE = ("beginning", "now", "given")


class ConsumerId(NamedTuple):
    """A named consumer ("name") or a group ("group") of one feed."""

    feed_id: bytes
    kind: str
    name: str

    def to_json(self) -> dict[str, Any]:
        return {"feed_id": self.feed_id.hex(), "kind": self.kind, "name": self.name}

    @classmethod
    def of_json(cls, value: dict[str, Any], what: str) -> ConsumerId:
        """Reads the members of a message. Raises ProtocolError."""
        kind, name = field(value, "kind", str, what), field(value, "name", str, what)
        if kind not in KINDS:
            raise ProtocolError(f"{what}: field 'kind' is {kind!r:.60}, none of {', '.join(KINDS)}")
        if why := why_no_name(name):
            raise ProtocolError(f"{what}: field 'name': {why}")
        return cls(hex_field(value, "feed_id", FEED_ID_BYTES, what), kind, name)

    def __str__(self) -> str:
        return f"{'consumer' if self.kind == 'name' else 'group'} {self.name!r}"


def why_no_name(name: str) -> str:
    """Returns why a text cannot name a consumer or a group; "" if it can."""
    if not 1 <= len(name) <= CONSUMER_NAME_CHARS_MAX:
        return f"a name has {len(name)} characters, and needs 1 to {CONSUMER_NAME_CHARS_MAX}"
    if not name.isprintable() or name != name.strip():
        return f"{name!r:.120} has characters that cannot be shown, or spaces around it"
    return ""


class Join(NamedTuple):
    """CONSUMER_JOIN: a program begins to consume under a name, or as a member of a group; or comes again.

    ``since``: the beginning of partitions without a stored position: "beginning", "now" at ``level``, or "given", if
    the program commits it. ``partitions``: those that a named consumer reads; None: all. ``held``: the generations
    that a program has which comes again; empty if it begins.
    """

    consumer: ConsumerId
    member: bytes
    since: str = "beginning"
    level: Level = Level.DISK
    partitions: tuple[int, ...] | None = None
    held: Mapping[int, int] = {}

    def encode(self, id: int) -> bytes:
        value = {
            **self.consumer.to_json(),
            "member": self.member.hex(),
            "since": self.since,
            "level": self.level.name.lower(),
            "held": generations_to_json(self.held),
        }
        if self.partitions is not None:
            value["partitions"] = list(self.partitions)
        return encode_json(Opcode.CONSUMER_JOIN, value, id)

    @classmethod
    def decode(cls, body: memoryview) -> Join:
        what = "CONSUMER_JOIN"
        value = decode_json(body, what)
        since, text = field(value, "since", str, what), field(value, "level", str, what, "disk")
        if since not in SINCE:
            raise ProtocolError(f"{what}: field 'since' is {since!r:.60}, none of {', '.join(SINCE)}")
        try:
            level = Level.parse(text)
        except ValueError as error:
            raise ProtocolError(f"{what}: {error}") from None
        partitions = field(value, "partitions", list, what, None)
        if partitions is not None:
            partitions = partition_numbers(partitions, what)
        consumer, member = ConsumerId.of_json(value, what), hex_field(value, "member", MEMBER_BYTES, what)
        if partitions is not None and consumer.kind == "group":
            raise ProtocolError(f"{what}: field 'partitions' is for a name; members of a group share all partitions")
        return cls(consumer, member, since, level, partitions, generations_field(value, "held", what))


class Owned(NamedTuple):
    """The partitions that a member owns, by generation, and their positions. Those without one are to be committed.

    The RESULT of CONSUMER_JOIN. ``lease_s`` is 0 for a named consumer, which owns its partitions until another program
    takes the name.
    """

    generations: Mapping[int, int]
    positions: Positions | None
    lease_s: float = 0.0
    revoked: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "lease_s": self.lease_s,
            "generations": generations_to_json(self.generations),
            "positions": "" if self.positions is None else str(self.positions),
            "revoked": list(self.revoked),
        }

    @classmethod
    def of_json(cls, value: dict[str, Any], what: str) -> Owned:
        """Reads an answer. Raises ProtocolError."""
        lease_s = value.get("lease_s", 0)
        if isinstance(lease_s, bool) or not isinstance(lease_s, int | float) or not 0 <= lease_s <= SEQ_MAX:
            raise ProtocolError(f"{what}: field 'lease_s' is {lease_s!r:.60}, not a number of seconds")
        revoked = partition_numbers(field(value, "revoked", list, what, []), what)
        generations = generations_field(value, "generations", what)
        return cls(generations, positions_field(value, what), float(lease_s), revoked)


class Change(NamedTuple):
    """CONSUMER_CHANGE: partitions that a member gets, that it is to release, and that it has lost."""

    granted: Owned
    revoked: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()

    def encode(self, id: int) -> bytes:
        value = {**self.granted.to_json(), "revoked": list(self.revoked), "lost": list(self.lost)}
        return encode_json(Opcode.CONSUMER_CHANGE, value, id)

    @classmethod
    def decode(cls, body: memoryview) -> Change:
        what = "CONSUMER_CHANGE"
        value = decode_json(body, what)
        revoked, lost = (partition_numbers(field(value, name, list, what, []), what) for name in ("revoked", "lost"))
        return cls(Owned.of_json(value, what), revoked, lost)


class Commit(NamedTuple):
    """CONSUMER_COMMIT: stores positions of partitions, if their generations are still those of their owners."""

    consumer: ConsumerId
    member: bytes
    generations: Mapping[int, int]
    positions: Positions

    def encode(self, id: int) -> bytes:
        value = {
            **self.consumer.to_json(),
            "member": self.member.hex(),
            "generations": generations_to_json(self.generations),
            "positions": str(self.positions),
        }
        return encode_json(Opcode.CONSUMER_COMMIT, value, id)

    @classmethod
    def decode(cls, body: memoryview) -> Commit:
        """Returns the message. Raises ProtocolError, BadPosition."""
        what = "CONSUMER_COMMIT"
        value = decode_json(body, what)
        generations, positions = generations_field(value, "generations", what), positions_field(value, what)
        if positions is None or positions.keys() != generations.keys():
            raise ProtocolError(f"{what}: the positions are not those of the partitions in 'generations'")
        if len(generations) > COMMIT_PARTITIONS_MAX:
            raise ProtocolError(f"{what}: {len(generations)} partitions; {COMMIT_PARTITIONS_MAX} are accepted at most")
        member = hex_field(value, "member", MEMBER_BYTES, what)
        return cls(ConsumerId.of_json(value, what), member, generations, positions)


class Hold(NamedTuple):
    """CONSUMER_RENEW or CONSUMER_RELEASE: a member keeps its partitions, or gives some up; it may ``leave``.

    ``above``: generations that an index has of released partitions. The next ones have to be above them.
    """

    consumer: ConsumerId
    member: bytes
    generations: Mapping[int, int] = {}
    leave: bool = False
    above: Mapping[int, int] = {}

    def encode(self, opcode: Opcode, id: int) -> bytes:
        value = {**self.consumer.to_json(), "member": self.member.hex()}
        if opcode is Opcode.CONSUMER_RELEASE:
            value |= {"generations": generations_to_json(self.generations), "leave": self.leave}
            if self.above:
                value["above"] = generations_to_json(self.above)
        return encode_json(opcode, value, id)

    @classmethod
    def decode(cls, body: memoryview, what: str) -> Hold:
        value = decode_json(body, what)
        generations = generations_field(value, "generations", what)
        member = hex_field(value, "member", MEMBER_BYTES, what)
        leave, above = field(value, "leave", bool, what, False), generations_field(value, "above", what)
        return cls(ConsumerId.of_json(value, what), member, generations, leave, above)


class Reset(NamedTuple):
    """CONSUMER_RESET: an operator moves the positions of some partitions, or has them forgotten.

    ``to``: "beginning", "now", "given" by ``positions``, or "forgotten".
    """

    consumer: ConsumerId
    to: str
    partitions: tuple[int, ...]
    positions: Positions | None = None

    def encode(self, id: int) -> bytes:
        return encode_json(Opcode.CONSUMER_RESET, self.to_json(), id)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.consumer.to_json(),
            "to": self.to,
            "partitions": list(self.partitions),
            "positions": "" if self.positions is None else str(self.positions),
        }

    @classmethod
    def decode(cls, body: memoryview) -> Reset:
        what = "CONSUMER_RESET"
        value = decode_json(body, what)
        to, positions = field(value, "to", str, what), positions_field(value, what)
        if to not in RESETS:
            raise ProtocolError(f"{what}: field 'to' is {to!r:.60}, none of {', '.join(RESETS)}")
        partitions = partition_numbers(field(value, "partitions", list, what), what)
        if to == "given" and (positions is None or positions.keys() != set(partitions)):
            raise ProtocolError(f"{what}: the positions are not those of 'partitions'")
        return cls(ConsumerId.of_json(value, what), to, partitions, positions)


def generations_to_json(generations: Mapping[int, int]) -> dict[str, int]:
    """Returns the JSON of generations."""
    return {str(partition): generation for partition, generation in generations.items()}


def generations_field(value: dict[str, Any], name: str, what: str) -> dict[int, int]:
    """Returns a member with generations; none if it is missing. Raises ProtocolError."""
    generations = {}
    for text, generation in field(value, name, dict, what, {}).items():
        if not (text.isascii() and text.isdigit() and len(text) <= _PARTITION_DIGITS_MAX):
            raise ProtocolError(f"{what}: {text!r:.40} in {name!r} is not the number of a partition")
        if type(generation) is not int or not 0 < generation <= SEQ_MAX:
            raise ProtocolError(f"{what}: {generation!r:.40} of partition {text} is not a generation")
        generations[int(text)] = generation
    return generations


def partition_numbers(found: list[Any], what: str) -> tuple[int, ...]:
    """Returns the numbers of partitions in a member. Raises ProtocolError."""
    most = 10**_PARTITION_DIGITS_MAX
    if not all(type(number) is int and 0 <= number < most for number in found):
        raise ProtocolError(f"{what}: {found!r:.60} are not the numbers of partitions")
    return tuple(found)


def positions_field(value: dict[str, Any], what: str) -> Positions | None:
    """Returns the member ``positions``; None if it is empty. Raises ProtocolError."""
    text = field(value, "positions", str, what, "")
    try:
        return Positions.parse(text) if text else None
    except BadPosition as error:
        raise ProtocolError(f"{what}: field 'positions': {error}") from None
