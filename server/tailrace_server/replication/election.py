"""Chooses the next step of a member without a leader, by the answers of the others. Pure.

The first row of the table that fits decides:

| case | when | move |
|---|---|---|
| no_member | this one is not in the list of members | WAIT |
| leads | one leads, in a term not below what this one has promised, or this one has no vote | FOLLOW |
| is_behind | one leads, in a term below that: it has to learn of the promise | WAIT |
| is_promoted | one is being promoted | WAIT |
| all_new | all have answered, all are new, and this is the first of the list | FOUND |
| to_be_founded | all have answered, all are new, and this is another one | WAIT |
| is_founded | all are new, though their set was founded before, as the coordinator says | WAIT |
| new | this one is new, and not all are | WAIT |
| was_follower | another one was the last leader that this one knows of | WAIT |
| later_leader | another one knows of a later leader, or of one in the same term | WAIT |
| not_asked | one has not been asked since this one started or stepped down | WAIT |
| no_majority | the voters that answered, this one included, are no majority | WAIT |
| promised_away | one has promised more than this one, and not all have answered | WAIT |
| led | else | LEAD_AGAIN |

So a node leads by itself only if it was the last leader, a majority says that there was no later one, and every member
that might be one was asked. The promotion that follows asks all once more (`why_not_again`), and a member refuses its
promise if it knows of a later leader. An operator decides everything else. If all have answered, a higher promise is
that of a promotion that came to nothing: otherwise one of them would know of its leader.

The promise of a member without a vote counts for nothing, so the leader does not lead anew for it. That member follows
a leader of a lower term, but none that is older than the last leader that it knows of. The terms that such members have
promised decide nothing here.

A set is founded once, by all its members. Fewer new members may be the rest of a set whose other disks were replaced.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from tailrace_server.replication.lineage import Lineage, MemberStart
from tailrace_server.replication.voters import Voters
from tailrace_server.replication.voters import counts as voters_count


class MemberState(NamedTuple):
    """The answer of a node to MEMBER. ``leads``: its role; the rest as in `Membership`.

    ``members``: the list that it was started with, empty if it is no member of a set. ``held``: the number of mutations
    on its disk, over all partitions. ``held_term``: the term of the newest branch that any of them is on.
    ``unreadable``: the number of partitions that it is known to be unable to read; a leader hands over to no such
    member. ``line``: the starts of its directory, None of an earlier version. ``known``: the last start that it was
    told of each other directory (lineage.py). ``asks``: as a leader it asks its voters all the time whether they follow
    it, because it fails over by itself. ``ready``: term and epoch of the leader's record as of which it has, or owes,
    all rows of its leader; None if it has not caught up. ``has_room``: its disk has the space that writes need.
    ``withholds``: as a leader it takes no writes, since no majority confirms it. ``software``: its name and version, ""
    of an earlier version.
    """

    placement_id: bytes = bytes(16)
    cluster_id: bytes = bytes(16)
    is_new: bool = False
    votes: bool = False
    leads: bool = False
    term: int = 0
    leader_term: int = 0
    led: bool = False
    promoting: bool = False
    leader: str = ""
    founders: tuple[bytes, ...] = ()
    held: int = 0
    held_term: int = 0
    members: tuple[str, ...] = ()
    unreadable: int = 0
    line: Lineage | None = None
    known: Mapping[bytes, MemberStart] = MappingProxyType({})
    asks: bool = False
    voters: Voters = Voters()
    ready: tuple[int, int] | None = None
    has_room: bool = True
    withholds: bool = False
    software: str = ""


class OwnState(NamedTuple):
    """The state of this node. ``number``: its place in the list of members, from 0; -1 if it is not there.

    ``may_found``: False if it is known that its set was founded, by other directories.
    """

    number: int
    is_new: bool
    votes: bool
    term: int
    leader_term: int
    led: bool
    founders: frozenset[bytes] = frozenset()
    placement_id: bytes = bytes(16)
    voters: Voters = Voters()
    may_found: bool = True


class StepKind(enum.Enum):
    """The kinds of steps of a member."""

    FOUND = "found"
    FOLLOW = "follow"
    LEAD_AGAIN = "lead_again"
    WAIT = "wait"


class NextStep(NamedTuple):
    """A step, the case of the table, the leader to follow, and for people the reason to wait."""

    kind: StepKind
    case: str
    address: str = ""
    why: str = ""


def majority_of(members: int) -> int:
    """Returns the smallest number that is more than half of ``members``."""
    return members // 2 + 1


def counts(seen: MemberState, voters: Voters, founders: Collection[bytes]) -> bool:
    """Returns whether the promise of a member counts for a majority, by the record ``voters``.

    In epoch 0 a founder counts even if it has not heard yet that it is one.
    """
    return voters_count(voters, seen.placement_id, says_so=seen.votes or seen.placement_id in founders)


def takes_back(own: OwnState, leader: MemberState) -> bool:
    """Returns whether this node may follow ``leader`` although it has promised a later term.

    It may if it has no seat by the leader's record, which must not be earlier than its own (voters.py). In epoch 0 it
    may if its promise has counted nowhere. A founder that has not heard so yet does count. A leader from before the
    last known leader is not followed anew.
    """
    if leader.voters.epoch or own.voters.epoch:
        return not leader.voters.has(own.placement_id) and not own.voters.is_later(leader.voters)
    return not own.votes and own.placement_id not in leader.founders and leader.term >= own.leader_term


def decide(own: OwnState, seen: Mapping[str, MemberState | None], asked: frozenset[str] | set[str]) -> NextStep:
    """Returns the next step of a member of a set.

    Args:
        own: The state of this node.
        seen: The last answer of each other member by address, None without an answer.
        asked: The members that were asked since this one started or stepped down, reachable or not.
    """
    answers = {address: answer for address, answer in seen.items() if answer is not None}
    silent = sorted(seen.keys() - answers.keys())
    if own.number < 0:
        return _wait("no_member", f"this node is no member of its set: {', '.join(sorted(seen))} are")
    leaders = sorted((answer.term, address) for address, answer in answers.items() if answer.leads)
    if leaders:
        term, address = leaders[-1]
        if term >= own.term or takes_back(own, answers[address]):
            return NextStep(StepKind.FOLLOW, "leads", address)
        return _wait("is_behind", f"{address} leads in term {term}, and term {own.term} was promised to another one")
    promoting = next((address for address, answer in answers.items() if answer.promoting), None)
    if promoting is not None:
        return _wait("is_promoted", f"{promoting} is being promoted")
    if own.is_new and not silent and all(answer.is_new for answer in answers.values()):
        if not own.may_found:
            return _wait(
                "is_founded",
                "this set was founded before, and the directories of all its members are new: start one that has the "
                "set's rows, or give the nodes another --cluster",
            )
        if own.number == 0:
            return NextStep(StepKind.FOUND, "all_new")
        return _wait("to_be_founded", "all members are new: the first of the list founds the set")
    if own.is_new:
        return _wait("new", f"this node is new and there is no leader; {_no_answer(silent)}")
    if not own.led:
        return _wait("was_follower", f"there is no leader, and this node was not the last leader; {_no_answer(silent)}")
    later = [address for address, answer in answers.items() if is_later(answer, own.leader_term)]
    if later:
        return _wait("later_leader", f"{later[0]} knows of a later leader than this node; {_no_answer(silent)}")
    if seen.keys() - asked:
        return _wait("not_asked", f"{min(seen.keys() - asked)} was not asked yet")
    voters = sum(counts(answer, own.voters, own.founders) for answer in answers.values()) + own.votes
    needed = own.voters.majority if own.voters.epoch else majority_of(len(seen) + 1)
    if voters < needed:
        return _wait("no_majority", f"{voters} of {needed} voters are there; {_no_answer(silent)}")
    counted = (answer for answer in answers.values() if counts(answer, own.voters, own.founders))
    promised = max((answer.term for answer in counted), default=0)
    if silent and promised > own.term:
        return _wait("promised_away", f"term {promised} was promised to another one; {_no_answer(silent)}")
    return NextStep(StepKind.LEAD_AGAIN, "led")


class Leader(Protocol):
    """A node's knowledge of the last leader: `MemberState`, and `Membership`."""

    @property
    def leader_term(self) -> int:
        """The term of that leader."""

    @property
    def led(self) -> bool:
        """Whether that leader was the node itself."""


def is_later(known: Leader, term: int) -> bool:
    """Returns whether another node knows of a leader after ``term``, or of another leader in ``term``."""
    return known.leader_term > term or (known.led and known.leader_term == term)


def why_not_again(leader_term: int, answers: Mapping[str, MemberState]) -> str:
    """Returns why the leader of ``leader_term`` must not lead again by itself, by these answers; "" if it may.

    They are asked anew for a promotion: a member that was unreachable a moment ago may lead.
    """
    for address, answer in sorted(answers.items()):
        if answer.promoting:
            return f"{address} is being promoted"
        if is_later(answer, leader_term):
            return f"{address} knows of a later leader than this node"
    return ""


def why_no_vacancy(term: int, answers: Mapping[str, MemberState]) -> str:
    """Returns why a member that has promised ``term`` must not stand by itself, by these answers; "" if it may."""
    for address, answer in sorted(answers.items()):
        if answer.leads and answer.term >= term:
            return f"{address} leads in term {answer.term}"
        if answer.promoting:
            return f"{address} is being promoted"
    return ""


class StepDown(NamedTuple):
    """The reason to step down, and the term that the leader has to promise so that it can follow the later leader."""

    why: str
    term: int


def later_leader(
    term: int, placement_id: bytes, answers: Mapping[str, MemberState], is_voter: Callable[[MemberState], bool]
) -> StepDown | None:
    """Returns why the leader of ``term`` on the disk ``placement_id`` has to step down; None if it leads on.

    The later leader need not be reachable: a voter that has followed it is enough. Without that rule two members that
    cannot reach each other depose each other for ever, by promises of the voters that both of them reach. Only the
    answers of voters count: those for which ``is_voter`` is true.
    """
    voters = [(name, seen) for name, seen in sorted(answers.items()) if is_voter(seen)]
    for name, seen in voters:
        if seen.leads and (seen.term, seen.placement_id) > (term, placement_id):
            return StepDown(f"{name} leads in term {seen.term}", seen.term)
    for name, seen in voters:
        if seen.leader_term > term:
            return StepDown(f"{name} knows of the leader of term {seen.leader_term}", term)
    return None


def decide_replica(own: OwnState, seen: Mapping[str, MemberState | None]) -> NextStep:
    """Returns the next step of a plain replica: it follows the leader, and leads again once it was told to lead.

    ``seen``: the answer of the node that it is a replica of, and of the leader that this one has named.
    """
    leaders = sorted((answer.term, address) for address, answer in seen.items() if answer is not None and answer.leads)
    if leaders and not (own.led and leaders[-1][0] <= own.leader_term):
        return NextStep(StepKind.FOLLOW, "leads", leaders[-1][1])
    if own.led:
        return NextStep(StepKind.LEAD_AGAIN, "led")
    silent = sorted(address for address, answer in seen.items() if answer is None)
    if not silent:
        asked = ", ".join(sorted(seen))
        return _wait("no_leader", f"none of {asked} leads: --replica-of has to name a node that leads")
    return _wait("no_leader", f"the leader is not to be reached; {_no_answer(silent)}")


def _wait(case: str, why: str) -> NextStep:
    return NextStep(StepKind.WAIT, case, "", why)


def _no_answer(silent: list[str]) -> str:
    return f"no answer from {', '.join(silent)}" if silent else "all have answered"
