"""The voters of a group, its members, and how they change one at a time. Pure.

    epoch 1  A B C      founded; the disk of the third member is lost, and its new disk D has caught up
    epoch 2  A B -      the seat of the lost disk is vacant
    epoch 3  A B D      C, should it come back, is in no seat: its promises and acknowledgements count for nothing

A record is a list of seats, one for each member in the order of the list. A seat has the placement id of a directory,
or is vacant. A majority is one of the seats, the vacant ones included, so two records that follow each other have no
two majorities without a common voter.

A set may also get another size:

    epoch 4  A B D +x      the member x is to join: it follows without a vote, and counts for no majority
    epoch 5  A B D E       its disk E has caught up, and gets a seat of its own
    epoch 6  A! B D E      the first member is to leave
    epoch 7  B D E         its seat is gone, whether it was taken or vacant

A record without names is of a set whose members are those of ``--members``. The first change of the members names them:
from then on the record says who they are. A member that is to join or to leave stands in the record, so the next leader
goes on with it.

Ground rules. Rules 2 to 6 have planted bugs in the tests.

1. Only the leader makes records. The leader of a later term writes its term into the record that it goes on with. The
   later record is the one of the higher term, then of the higher epoch. A member stores each later record that it is
   told, and counts by the latest one.
2. A member promises nothing to a candidate whose record is earlier than its own, and tells its own. A directory without
   a seat promises nothing at all.
3. A step gives, vacates, adds or drops one seat (`why_no_step`).
4. The leader makes a step only if a majority has stored its record in its term (`why_not_yet`). Otherwise two steps in
   a row could be unknown to a majority that elects by the first record.
5. A seat is given only to a directory that has, or owes, all rows that the leader had when it made the present record
   (`next_step`).
6. A seat is dropped only if a majority holds all rows that the leader had when it made the present record.

Of n seats, v of them vacant, at least n / 2 - v, rounded up, hold each row at quorum, by rules 5 and 6. So every
majority has one of them. Without rule 6: a row at quorum on two of three seats is on two of four after a seat is
added, and on one of three after one of these two is dropped.

A directory without a seat may take back an earlier promise, and follow a leader of a lower term whose record is not
earlier than its own. The promise counts for nothing any more: if a leader of the higher term came by it, fewer than a
majority can have stored this record, so rule 4 keeps the directory from a seat.

The rules are those of MongoDB's reconfiguration without a log. What is rejected: to exchange a disk in one step. The
majorities {B, C} and {A, D} have no common voter.

Epoch 0 is a set of an earlier version, which has recorded only the directories that founded it. There a member has a
vote if it says so. Its leader records epoch 1 (`first_record`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.link.address import parse_address
from tailrace.model.failover import SEQ_MAX

ID_BYTES = 16
VACANT = bytes(ID_BYTES)
# More members than a set has.
SEATS_MAX = 101
_LISTS = ("names", "joining", "leaving")
# A term that is further above the own one is promised only if another member has as good as promised it, as every
# candidate has. A promise is for ever, and no node leads beyond the highest number there is. A record of such a term is
# not believed either.
TERMS_AHEAD_MAX = 1 << 20


class Voters(NamedTuple):
    """A record: the term of the leader that wrote it, the epoch, and a placement id or VACANT for each seat.

    - ``names``: of the members with a seat, in the order of the seats; empty until members are added or removed.
    - ``joining``: the names of the members that are to get a seat. ``leaving``: of those whose seat is to be dropped.
    """

    term: int = 0
    epoch: int = 0
    seats: tuple[bytes, ...] = ()
    names: tuple[str, ...] = ()
    joining: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()

    @property
    def ids(self) -> frozenset[bytes]:
        """The placement ids of the voters."""
        return frozenset(self.seats) - {VACANT}

    @property
    def majority(self) -> int:
        """The number of voters that decide."""
        return len(self.seats) // 2 + 1

    def has(self, placement_id: bytes) -> bool:
        """Returns whether the directory is a voter."""
        return placement_id != VACANT and placement_id in self.seats

    def is_later(self, than: Voters) -> bool:
        """Returns whether this record takes the place of the other one."""
        return (self.term, self.epoch) > (than.term, than.epoch)

    def led_in(self, term: int) -> Voters:
        """Returns the record that the leader of ``term`` goes on with. Epoch 0 has no term."""
        assert term >= self.term, "a leader has promised no lower term than that of its record"
        return self._replace(term=term) if self.epoch else self

    @property
    def is_named(self) -> bool:
        """Whether the record says who the members are."""
        return bool(self.names)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of all members, those with a seat first; empty if the record names none."""
        return self.names + self.joining

    def with_seat(self, seat: int, placement_id: bytes) -> Voters:
        """Returns the record of the next epoch, in which ``placement_id``, or VACANT, has this seat.

        ``seat``: its number; above the last one it is a place in ``members``, whose member gets a seat of its own.
        """
        if seat < len(self.seats):
            seats = (*self.seats[:seat], placement_id, *self.seats[seat + 1 :])
            return self._replace(epoch=self.epoch + 1, seats=seats)
        name = self.members[seat]
        return self._replace(
            epoch=self.epoch + 1,
            seats=(*self.seats, placement_id),
            names=(*self.names, name),
            joining=tuple(each for each in self.joining if each != name),
        )

    def naming(self, members: tuple[str, ...]) -> Voters:
        """Returns this record with the names of ``members``, if it names none; they are in the order of the seats."""
        assert self.is_named or len(members) == len(self.seats), "each seat has a name"
        return self if self.is_named else self._replace(names=members)

    def with_joining(self, name: str) -> Voters:
        """Returns the record of the next epoch, by which the member ``name`` is to join."""
        return self._replace(epoch=self.epoch + 1, joining=(*self.joining, name))

    def with_leaving(self, name: str) -> Voters:
        """Returns the record of the next epoch, by which the member ``name`` is to leave.

        A member that has no seat yet is gone at once.
        """
        if name in self.joining:
            return self._replace(epoch=self.epoch + 1, joining=tuple(each for each in self.joining if each != name))
        return self._replace(epoch=self.epoch + 1, leaving=(*self.leaving, name))

    def without(self, name: str) -> Voters:
        """Returns the record of the next epoch, without the seat of the member ``name``."""
        kept = [number for number, each in enumerate(self.names) if each != name]
        return self._replace(
            epoch=self.epoch + 1,
            seats=tuple(self.seats[number] for number in kept),
            names=tuple(self.names[number] for number in kept),
            leaving=tuple(each for each in self.leaving if each != name),
        )

    def __str__(self) -> str:
        told = ", ".join("-" if each == VACANT else each.hex()[:8] for each in self.seats)
        changes = [f"{name} is to join" for name in self.joining] + [f"{name} is to leave" for name in self.leaving]
        return "; ".join([f"epoch {self.epoch} ({told})", *changes])


def counts(voters: Voters, placement_id: bytes, *, says_so: bool) -> bool:
    """Returns whether promises and acknowledgements of a directory count by this record.

    Args:
        voters: The latest record that is known.
        placement_id: Of the directory.
        says_so: Whether the directory says of itself that it votes. It decides in epoch 0 only.
    """
    return voters.has(placement_id) or (not voters.epoch and says_so)


def why_no_step(before: Voters, after: Voters) -> str:
    """Returns why ``after`` must not follow ``before``; "" if any two majorities of them have a common voter."""
    if after.epoch != before.epoch + 1 or after.term != before.term:
        return f"{after} of term {after.term} does not follow {before} of term {before.term}"
    taken = [each for each in after.seats if each != VACANT]
    if len(taken) != len(set(taken)):
        return f"{after}: a directory has two seats"
    if before.majority + after.majority <= len(before.ids | after.ids):
        return f"{before} and {after} have majorities without a common voter: change one voter at a time"
    return ""


class Waiting(NamedTuple):
    """A directory without a seat that wants its member's: it has, or owes, all rows of the leader.

    ``term``, ``epoch``: of the record by which the leader counted when it told how far it had come.
    """

    placement_id: bytes
    term: int
    epoch: int


def next_step(voters: Voters, waiting: Mapping[int, Waiting]) -> Voters | None:
    """Returns the next record that seats one of those that wait; None if there is no step, or none yet.

    Args:
        voters: The present record.
        waiting: The directories that wait, by their member's number in the list. The directory that had the seat
            before leaves first. A member that is to leave gets no other one.
    """
    leaving = {number for number, name in enumerate(voters.names) if name in voters.leaving}
    found = [
        (seat, each) for seat, each in sorted(waiting.items()) if not voters.has(each.placement_id) | (seat in leaving)
    ]
    for seat, each in found:
        is_free = seat >= len(voters.seats) or voters.seats[seat] == VACANT
        if is_free and (each.term, each.epoch) == (voters.term, voters.epoch):
            return voters.with_seat(seat, each.placement_id)
    for seat, each in found:
        if seat < len(voters.seats) and voters.seats[seat] != VACANT and each.term == voters.term:
            return voters.with_seat(seat, VACANT)
    return None


def next_departure(voters: Voters, own_id: bytes, storing: Collection[bytes], *, is_held: bool) -> Voters | None:
    """Returns the next record, without the seat of a member that is to leave; None if there is none, or none yet.

    Args:
        voters: The present record.
        own_id: The leader's placement id. It hands over before it leaves.
        storing: The directories that answer, and have stored the record. Those that are left have to be a majority.
        is_held: Whether a majority holds all rows that the leader had when it made the record.
    """
    for name in voters.leaving if is_held else ():
        seat, after = voters.seats[voters.names.index(name)], voters.without(name)
        if seat != own_id and len(after.ids.intersection(storing)) >= after.majority:
            return after
    return None


class Stored(NamedTuple):
    """The term that a voter has promised, and the record that it has stored."""

    term: int
    voters: Voters


def storing_of(own_id: bytes, own: Stored, others: Mapping[bytes, Stored]) -> frozenset[bytes]:
    """Returns the voters that are known to have stored the leader's record, and to have promised no other term."""
    return own.voters.ids & {own_id, *(id for id, told in others.items() if told == own)}


def why_not_yet(own_id: bytes, term: int, own: Stored, others: Mapping[bytes, Stored], *, is_forced: bool) -> str:
    """Returns why the leader of ``term`` must not make another record yet; "" if it may.

    Args:
        own_id: The leader's placement id.
        term: In which it leads.
        own: What it has stored itself.
        others: What the other members have answered, by placement id.
        is_forced: Whether an operator made it lead without a majority, and has given up the voters that are missing.
    """
    if own.term != term or own.voters.term != term:
        return f"{own.voters} is of term {own.voters.term}, and this node leads in term {term}"
    storing = storing_of(own_id, own, others)
    if is_forced or len(storing) >= own.voters.majority:
        return ""
    return f"{len(storing)} of {own.voters.majority} voters are known to have stored {own.voters}"


class Claim(NamedTuple):
    """The answer of a member of a set in epoch 0: its directory, and whether that says that it votes."""

    placement_id: bytes
    votes: bool


def first_record(
    term: int, founders: Iterable[bytes], members: Sequence[Claim | None], *, is_forced: bool = False
) -> Voters | None:
    """Returns the first record of a set of an earlier version; None if too few voters answer.

    Args:
        term: In which this node leads, by a majority of those that said that they vote.
        founders: The directories that the set began with.
        members: The answers of all members in the order of the list, None without an answer. A silent one gets its
            seat when it comes back and has caught up.
        is_forced: Whether an operator made this node lead without a majority.
    """
    known = set(founders)
    seats = [each.placement_id if each and (each.votes or each.placement_id in known) else VACANT for each in members]
    found = Voters(term, 1, tuple(seats))
    return found if is_forced or len(found.ids) >= found.majority else None


def voters_to_json(voters: Voters) -> dict[str, Any]:
    """Returns a record as it stands in messages and files."""
    seats = ["" if each == VACANT else each.hex() for each in voters.seats]
    lists = {name: list(getattr(voters, name)) for name in _LISTS if voters.is_named}
    return {"term": voters.term, "epoch": voters.epoch, "seats": seats, **lists}


def voters_from_json(value: Any) -> Voters:
    """Returns the reverse of ``voters_to_json``. Raises ValueError."""
    try:
        term, epoch = value["term"], value["epoch"]
        seats = tuple(bytes.fromhex(text) if text else VACANT for text in value["seats"])
        names, joining, leaving = (tuple(str(parse_address(text)) for text in value.get(each, ())) for each in _LISTS)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{value!r:.100} are no voters: {error!r}") from None
    if not all(type(number) is int and 0 <= number <= SEQ_MAX for number in (term, epoch)):
        raise ValueError(f"{term!r:.100}, {epoch!r:.100} are no term and epoch")
    found = Voters(term, epoch, seats, names, joining, leaving)
    if any(len(each) != ID_BYTES for each in seats) or len(seats) + len(joining) > SEATS_MAX:
        raise ValueError(f"the seats {value['seats']!r:.100} cannot be read")
    if len(found.ids) != len([each for each in seats if each != VACANT]):
        raise ValueError(f"{found}: a directory has two seats")
    if len(names) not in (0, len(seats)) or (joining + leaving and not found.is_named):
        raise ValueError(f"the names {names!r:.100} are not those of {len(seats)} seats")
    if len(set(found.members)) != len(found.members) or set(leaving) - set(names) or len(set(leaving)) != len(leaving):
        raise ValueError(f"{names!r:.100}, {joining!r:.100} and {leaving!r:.100} are no members of one set")
    return found


def voters_field(value: Mapping[str, Any], what: str) -> Voters | None:
    """Returns the member ``voters`` of a message; None if an earlier version has sent it. Raises ProtocolError."""
    if value.get("voters") is None:
        return None
    try:
        return voters_from_json(value["voters"])
    except ValueError as error:
        raise ProtocolError(f"{what}: {error}") from None
