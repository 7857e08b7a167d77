"""The file MEMBERSHIP of a data directory: the promises of this node, and its place in its set.

It is written before anything relies on it: a promise before its answer leaves, a leadership before the first write, a
vote before it counts. Layout: docs/formats/membership.md.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import xxhash

from tailrace.model.failover import SEQ_MAX
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.directory.sealed import why_damaged
from tailrace_server.host.disk import Buffer, Disk, read_file, write_atomically
from tailrace_server.replication.debts import Debt, debts_from_json, debts_to_json
from tailrace_server.replication.lineage import (
    END_MAX,
    STARTS_MAX,
    TOKEN_BYTES,
    MemberStart,
    start_from_json,
    start_to_json,
)
from tailrace_server.replication.voters import Voters, voters_from_json, voters_to_json

log = logging.getLogger("tailrace.server")

FILE_NAME = "MEMBERSHIP"
# The start of a directory before the first start that was counted.
FIRST_START = MemberStart(0, bytes(TOKEN_BYTES), (0, 0))
# The fields that files of earlier versions lack.
_LATER_FIELDS = ("size", "number", "start", "before", "older", "voters")
FORMAT_VERSION = 3
# A file of version 1 has no record of the voters, and one of version 2 no names in it: its members are those that the
# node is started with.
_READABLE_VERSIONS = (1, 2, FORMAT_VERSION)
ID_BYTES = 16


class Membership(NamedTuple):
    """The state of a data directory in its set.

    - ``term``: the highest term that it has promised. It accepts nothing of a lower one.
    - ``leader_term``: the term of the last leader that it knows of. ``led``: that leader was this node.
    - ``forced``: it took that leadership without a majority.
    - ``voters``: the latest record of the voters that it knows (voters.py); of epoch 0 in a set of an earlier version.
    - ``votes``: its promises and acknowledgements count. From epoch 1 on the record says so.
    - ``founders``: the placement ids that the set began with. They count in epoch 0 only.
    - ``founded``: it belongs to a set, or follows a node, and so is not new.
    - ``owes``: standings that it had acknowledged and has not got back yet (debts.py).
    - ``size``: the number of members of the set; 0 if it is not known, or outside of a set.
    - ``number``: its place in the list of members, from 0; -1 if it is not known, or outside of a set.
    - ``start``: the present start, without its end (lineage.py). ``before``: earlier starts, newest first.
    - ``older``: the directory is an older copy of itself, and lacks the rows since this start; None if it is no copy.
    """

    term: int = 0
    leader_term: int = 0
    led: bool = False
    forced: bool = False
    votes: bool = False
    founded: bool = False
    founders: tuple[bytes, ...] = ()
    owes: tuple[Debt, ...] = ()
    size: int = 0
    number: int = -1
    start: MemberStart = FIRST_START
    before: tuple[MemberStart, ...] = ()
    older: MemberStart | None = None
    voters: Voters = Voters()

    @property
    def counts(self) -> bool:
        """Whether its promises and acknowledgements count."""
        return self.votes and self.older is None

    def begun(self, token: bytes, end: tuple[int, int]) -> Membership:
        """Returns the membership after a start, which found the journal's end at ``end``."""
        before = (self.start._replace(end=end), *self.before) if self.start.number else self.before
        start = MemberStart(self.start.number + 1, token, (0, 0))
        return self._replace(start=start, before=before[:STARTS_MAX])

    def found_older(self, known: MemberStart) -> Membership:
        """Returns the membership of an older copy: another member was told of the later start ``known``."""
        return self._replace(older=known, led=False)

    def caught_up(self, token: bytes) -> Membership:
        """Returns the membership of a copy that has got all rows of a leader; of another directory, the same.

        Its new number is above those of its own starts and of the start that it did not know of. It tells only its own
        starts above that one. Below, two starts may have one number: some members know one of them, and some the other.
        They believe a member that tells of neither. The highest end is told, since no row of these starts is missing.
        """
        if self.older is None:
            return self
        count = max(self.start.number - self.older.number, 0)  # own starts after the one that it did not know of
        before = tuple(each._replace(end=END_MAX) for each in (self.start, *self.before)[:count][:STARTS_MAX])
        start = MemberStart(max(self.older.number, self.start.number) + 1, token, (0, 0))
        return self._replace(start=start, before=before, older=None)

    def promised(self, term: int) -> Membership:
        """Returns the membership after the promise of ``term``: nothing of a lower term is accepted."""
        assert term >= self.term, "a promise is never taken back"
        return self._replace(term=term)

    def followed(
        self, term: int, founders: tuple[bytes, ...], placement_id: bytes, voters: Voters | None = None
    ) -> Membership:
        """Returns the membership of a follower of the leader of ``term``, whose record is ``voters``.

        In epoch 0 a founder of the set votes from then on. This takes back a promise that was made without a vote, or
        whose directory has lost its seat since (voters.py).
        """
        known = self if voters is None else self.knowing(voters)
        votes = known.voters.has(placement_id) if known.voters.epoch else self.votes or placement_id in founders
        assert term >= self.term or not (self.votes and votes), "a voter that has promised more does not follow"
        return known._replace(
            term=term, leader_term=term, led=False, forced=False, votes=votes, founded=True, founders=founders
        )

    def knowing(self, voters: Voters) -> Membership:
        """Returns the membership with the later one of its record and ``voters``."""
        return self._replace(voters=voters) if voters.is_later(self.voters) else self

    def leading(
        self, term: int, *, forced: bool, founders: tuple[bytes, ...] | None = None, voters: Voters | None = None
    ) -> Membership:
        """Returns the membership of the leader of ``term``: it owes nothing, since its rows are the set's.

        In epoch 0 it votes. ``founders`` and ``voters``: of a set that it founds.
        """
        assert term >= self.term, "a node that has promised more does not lead"
        founders = self.founders if founders is None else founders
        return self._replace(
            term=term,
            leader_term=term,
            led=True,
            forced=forced,
            votes=True,
            founded=True,
            founders=founders,
            owes=(),
            voters=self.voters.led_in(term) if voters is None else voters,
        )

    def voting(self) -> Membership:
        """Returns the membership of a member in epoch 0 that has all rows that the leader held when it came."""
        return self._replace(votes=True)

    def of_set(self, members: int, number: int) -> Membership:
        """Returns the membership of member ``number``, from 0, of a set with ``members`` members."""
        return self._replace(size=members, number=number)

    def owing(self, debts: tuple[Debt, ...]) -> Membership:
        """Returns the membership with these debts."""
        return self._replace(owes=debts)


class MembershipFile:
    """The membership of a directory in one group, in memory as it is on the disk.

    ``failure`` is why the last try to write it failed; "" if it did not.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        placement_id: bytes,
        members: int = 0,
        number: int = -1,
        *,
        own: str = "",
        name: str = FILE_NAME,
        write: Callable[[str, Buffer], None] | None = None,
    ) -> None:
        """Reads it; a directory without one begins as ``Membership()``.

        Args:
            disk: Of the host.
            directory: The data directory.
            placement_id: Of the directory.
            members: How many members the set has by the list that the node was started with, 0 outside of a set.
            number: The node's place in that list, from 0. A record that names the members decides instead of both.
            own: The address by which the members call this node.
            name: Of the group's file in the directory.
            write: Replaces a file, durably; by default `write_atomically`. OSError.

        Raises:
            BadDirectory: It is damaged, or belongs to a set of another size, or to another member of the set.
            OSError: It cannot be read.
        """
        self._write = partial(write_atomically, disk) if write is None else write
        self._path = f"{directory}/{name}"
        self._placement_id = placement_id
        self._members = members
        self._number = number
        self.now = Membership()
        self.failure = ""
        if disk.exists(self._path):
            self.now = _parse(read_file(disk, self._path), self._path, placement_id)
        voters = self.now.voters
        if members and voters.is_named:
            if voters.has(placement_id) and (seated := voters.names[voters.seats.index(placement_id)]) != own:
                raise BadDirectory(
                    f"{directory} is the directory of the member {seated}, and this node is {own}. Start it there; or "
                    f"start {own} with an empty directory, and `tailrace member add` it"
                )
            return
        if members and self.now.size not in (0, members):
            size = self.now.size
            raise BadDirectory(
                f"{directory} belongs to a set of {size} members, and --members names {members}: a majority of "
                f"{members} may lack writes that a majority of {size} has acknowledged. Start it with all {size}, also "
                "if others were added since: it learns that from them. To replace a lost member at its address, "
                "start that one with an empty directory. To change the number of members, run `tailrace member add` or "
                "`tailrace member remove` while the set serves"
            )
        if members and self.now.number not in (-1, number):
            raise BadDirectory(
                f"{directory} is the directory, or a copy, of another member: of number {self.now.number + 1} in the "
                f"list, and this node is number {number + 1} of --members. Two disks would count as one, and what one "
                "of them has acknowledged the other one may lack. Start it on its own directory, or on an empty one, "
                "and keep the order of --members"
            )

    def become(self, members: int, number: int) -> None:
        """Takes the size of another list of members, and the node's place in it; the next `store` writes them."""
        self._members, self._number = members, number

    def store(self, membership: Membership) -> None:
        """Stores ``membership``, durably when this returns.

        The set's size and the node's place are stored as soon as the directory belongs to a set. From epoch 1 on the
        record says whether the directory votes. Raises OSError if it cannot be written: then nothing has changed.
        """
        if membership.founded and self._members:
            membership = membership.of_set(self._members, self._number)
        if membership.voters.epoch:
            membership = membership._replace(votes=membership.voters.has(self._placement_id))
        if membership != self.now:
            self._replace(membership)

    def try_again(self) -> None:
        """Writes it as it is if the last try failed, to see whether that has ended."""
        if self.failure:
            with contextlib.suppress(OSError):
                self._replace(self.now)

    def _replace(self, membership: Membership) -> None:
        before = self.failure
        try:
            self._write(self._path, _to_bytes(membership, self._placement_id))
        except OSError as error:
            self.failure = f"{self._path} cannot be written: {error.strerror or error}"
            if not before:
                log.error("%s: this node promises nothing, and follows no other leader, until it can", self.failure)
            raise
        self.failure, self.now = "", membership
        if before:
            log.warning("%s can be written again", self._path)


def check_content(data: bytes) -> None:
    """Raises BadDirectory unless ``data`` is the content of a MEMBERSHIP, of whichever directory."""
    _parse(data, FILE_NAME, bytes(ID_BYTES))


def check_no_member(disk: Disk, directory: str, placement_id: bytes, name: str = FILE_NAME) -> None:
    """Raises BadDirectory if the directory is a set's member's: the node is started outside of a set. OSError.

    ``name``: of the group's file in the directory.

    Alone it would begin branches of later terms, or as a plain replica give up acknowledged rows, and come back with
    its vote: the set would lose the rows that it lacks. A start as a member refuses a damaged file.
    """
    path = f"{directory}/{name}"
    if not disk.exists(path):
        return
    data = read_file(disk, path)
    try:
        size = _parse(data, path, placement_id).size
    except BadDirectory:
        return
    if size:
        raise BadDirectory(
            f"{directory} belongs to a member of a set of {size}, and --members is missing: by its vote the set would "
            "go back to this directory's rows. Start it with --members. To look at its rows, start a copy of it with "
            "--restored, which makes another node of it, at an address that is no member's"
        )


def was_of_set(disk: Disk, directory: str, name: str = FILE_NAME) -> bool:
    """Returns whether the directory, or the one that it was copied from, belonged to a set's member. OSError.

    A damaged file does not tell. ``name``: of the group's file in the directory.
    """
    path = f"{directory}/{name}"
    if not disk.exists(path):
        return False
    try:
        return bool(json.loads(read_file(disk, path))["size"])
    except (ValueError, KeyError, TypeError):
        return False


def has_followed(disk: Disk, directory: str, placement_id: bytes, name: str = FILE_NAME) -> bool:
    """Returns whether the directory belongs to a node that followed another one, and has not led since. OSError.

    A damaged file counts as that; one with another placement id does not, because the copy has begun branches already.
    ``name``: of the group's file in the directory.
    """
    path = f"{directory}/{name}"
    if not disk.exists(path):
        return False
    data = read_file(disk, path)
    try:
        found = _parse(data, path, placement_id)
    except BadDirectory:
        return True
    return found.founded and not found.led and json.loads(data)["placement_id"] == placement_id.hex()


def forget_following(disk: Disk, directory: str, placement_id: bytes, name: str = FILE_NAME) -> None:
    """Removes the file, durably, of a node that followed and leads by itself now. OSError.

    A damaged file stays, because a member must not start without its promises.
    """
    path = f"{directory}/{name}"
    with contextlib.suppress(BadDirectory):
        _parse(read_file(disk, path), path, placement_id)
        disk.remove(path)
        disk.sync_directory(directory)


def _to_bytes(membership: Membership, placement_id: bytes) -> bytes:
    value = {
        "version": FORMAT_VERSION,
        "placement_id": placement_id.hex(),
        **membership._asdict(),
        "founders": [id.hex() for id in membership.founders],
        "owes": debts_to_json(membership.owes),
        "start": start_to_json(membership.start),
        "before": [start_to_json(start) for start in membership.before],
        "older": None if membership.older is None else start_to_json(membership.older),
        "voters": voters_to_json(membership.voters),
    }
    return json.dumps({**value, "checksum": _checksum(value)}, indent=1).encode() + b"\n"


def _checksum(value: dict[str, Any]) -> str:
    """XXH3-64 of all other members, as JSON in their order."""
    return f"{xxhash.xxh3_64_intdigest(json.dumps(value).encode()):016x}"


def _parse(data: bytes, path: str, placement_id: bytes) -> Membership:
    try:
        value = json.loads(data)
        if value["version"] not in _READABLE_VERSIONS:
            raise BadDirectory(
                f"{path} has version {value['version']}; this program reads versions 1 to {FORMAT_VERSION}"
            )
        if value.pop("checksum") != _checksum(value):
            raise ValueError("its checksum is wrong")
        size, number = value.get("size", 0), value.get("number", -1)  # earlier versions did not store them
        others = {name: value[name] for name in Membership._fields if name not in _LATER_FIELDS}
        found = Membership(**others, size=size, number=number)
        if "start" in value:
            older = None if value["older"] is None else start_from_json(value["older"])
            before = tuple(map(start_from_json, value["before"]))
            found = found._replace(start=start_from_json(value["start"]), before=before, older=older)
        if "voters" in value:
            found = found._replace(voters=voters_from_json(value["voters"]))
        founders = tuple(bytes.fromhex(id) for id in value["founders"])
        found = found._replace(founders=founders, owes=debts_from_json(value["owes"]))
        if not all(type(term) is int and 0 <= term <= SEQ_MAX for term in (found.term, found.leader_term)):
            raise ValueError("a term is out of its range")
        if type(size) is not int or size < 0:
            raise ValueError(f"{size!r:.100} is no number of members")
        if type(number) is not int or number < -1:
            raise ValueError(f"{number!r:.100} is no place in a list")
        if any(len(id) != ID_BYTES for id in founders):
            raise ValueError("an id is not 16 bytes")
        is_own = bytes.fromhex(value["placement_id"]) == placement_id
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDirectory(
            f"{path} is damaged ({why_damaged(error)}): what this node has promised its set is not known. Give the "
            "node an empty directory and let it be filled again: an older copy of the file would take back promises "
            "made since"
        ) from None
    if not is_own:
        # The directory was copied: votes and leaderships are of the original.
        found = found._replace(votes=False, led=False, forced=False, size=0, number=-1)
        return found._replace(start=FIRST_START, before=(), older=None)
    return found
