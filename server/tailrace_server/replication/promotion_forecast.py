"""Forecasts for status the result of ``tailrace promote`` on a node: a case, and a sentence. Pure.

It goes by the last answers of the others and by sums over all partitions. The promotion itself asks again, and chooses
partition by partition. The first case that fits counts:

| case | when |
|---|---|
| alone | this node is in no set and is no replica: it leads by itself, for ever |
| leads | this node leads already; without a majority it leads anew if it is forced |
| replica | a plain replica: there is no majority to ask |
| new | nothing was ever in this directory, and no member whose directory is not new has answered |
| refused | too few voters answer, this one included; or it is no member, or has no vote and a later history |
| promoting | another member is about to lead: the second candidate is refused, or deposes it |
| unreadable | this node is known to be unable to read a partition |
| granted | else |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.replication.election import MemberState, counts, majority_of
from tailrace_server.replication.follower_sums import FollowerSums
from tailrace_server.replication.peers import name_of
from tailrace_server.replication.readable_copies import PUT_BACK, instead, partitions_of, why_no_writes, why_none_leads
from tailrace_server.replication.unreadable import told, unreadable_of

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode
    from tailrace_server.replication.member import Member


# What to do about a copy if there is no better one.
_MEND_FIRST = f"start a member with a good copy, or stop this node, and {PUT_BACK}"


class Forecast(NamedTuple):
    """The forecast of a promotion: the case of the table, whether it would succeed, and the sentence."""

    case: str
    succeeds: bool
    text: str


class KnownReplica(NamedTuple):
    """A replica of this leader, or a member that should be one.

    ``missing``: the number of mutations at quorum that it has not acknowledged; None if it has not connected since this
    node leads.
    """

    address: str
    votes: bool
    missing: int | None
    connected: bool = True
    unreadable: int = 0  # the number of partitions that it is known to be unable to read
    has_room: bool = True  # its disk has the space that writes need


def forecast_of_follower(
    own: MemberState,
    seen: Mapping[str, MemberState | None],
    *,
    is_in_set: bool,
    unreadable: str = "",
    no_member: str = "",
) -> Forecast:
    """Returns the forecast for a node that does not lead.

    Args:
        own: This node's answer to MEMBER.
        seen: The last answer of each other member by address, None without an answer. For a plain replica: those of
            its source and of the leader.
        is_in_set: Whether the node is a member of a set.
        unreadable: The sentence on the partitions that this node cannot read.
        no_member: The sentence that this node is no member, or not by the list of the others; "" if it is one.
    """
    if no_member:
        return _refused("refused", no_member)
    answers = {address: answer for address, answer in seen.items() if answer is not None}
    silent = sorted(seen.keys() - answers.keys())
    if not is_in_set:
        return _of_replica(own, answers, silent)
    voters = sorted(address for address, answer in answers.items() if counts(answer, own.voters, own.founders))
    of_voters = {address: answers[address] for address in voters}
    found, needed = len(voters) + own.votes, _needed(own, len(seen) + 1)
    here = [*(["this node"] if own.votes else []), *voters]
    tally = f"{found} of {len(seen) + 1} members answer with a vote ({_listed(here)}), and {needed} are needed"
    if own.is_new and all(answer.is_new for answer in answers.values()):
        return _refused("new", "this node is new, and no node that holds anything answers; --force changes nothing")
    if found < needed:
        why = tally + ("" if own.votes else "; this node has no vote yet")
        others = sorted(silent + [address for address in answers if address not in voters])
        return _refused("refused", f"{why}; without {_listed(others)}. {_forced(silent)}; {_fetch(own, of_voters)}")
    known = max((answers[address].term for address in voters), default=0)
    if not own.votes and own.held_term > known:
        history = f"a history of term {own.held_term}, later than term {known}, the last that the voters know of"
        return _refused("refused", f"this node has no vote, and holds {history}: give it an empty directory")
    promoting = next((address for address, answer in sorted(answers.items()) if answer.promoting), None)
    if promoting is not None:
        return _refused("promoting", f"{promoting} is about to lead; wait for that")
    if unreadable:
        return _refused("unreadable", f"{unreadable}; {instead(of_voters)}. With --force it leads")
    leader = next((address for address, answer in sorted(answers.items()) if answer.leads), None)
    text = f"would succeed: {tally}; {_fetch(own, of_voters)}"
    if leader is not None:
        text += f"; {leader} leads, and would step down"
    if not own.has_room:
        text += f"; {why_no_writes('', of_voters)}"
    if silent:
        text += f". What {_listed(silent)} alone may have at levels disk and memory would be lost; nothing at quorum"
    return Forecast("granted", True, text)


def forecast_of_leader(own: MemberState, followers: Iterable[KnownReplica], members: int) -> Forecast:
    """Returns the forecast for a leader, and who would keep its rows if it were gone; ``members``: of the set."""
    followers = list(followers)
    gone = f"Should this node be gone: {_kept(followers, in_set=members > 0)}"
    lost = lost_majority(own, followers, members) if members else None
    if lost is None:
        return Forecast("leads", False, f"leads already: it would change nothing. {gone}")
    forced = _forced(_voters_away(followers))
    lost = lost[0].upper() + lost[1:]
    return Forecast("leads", False, f"leads already, and would be refused without a majority. {forced}. {gone}. {lost}")


def lost_majority(own: MemberState, followers: Iterable[KnownReplica], members: int) -> str | None:
    """Returns the sentence for the leader of a set that has no majority, or None if it has one."""
    followers = list(followers)
    voting = sum(f.votes for f in followers if f.connected) + own.votes
    needed = _needed(own, members)
    if voting >= needed:
        return None
    away = _voters_away(followers)
    missing = f" (not connected: {_listed(away)})" if away else ""
    # A leader that fails over by itself takes no writes at all by then, as its health says (`Leadership.withheld`).
    effect = "" if own.asks else "; writes at level quorum and changes of feeds wait"
    return f"no majority: {voting} of {members} members are here with a vote, and {needed} are needed{missing}{effect}"


def _voters_away(followers: Iterable[KnownReplica]) -> list[str]:
    """Returns the members that are not connected.

    A plain replica is none of them: it has no vote, and the number of its missing mutations is known.
    """
    return sorted(f.address for f in followers if not f.connected and (f.votes or f.missing is None))


def forecast_of_lone_node(followers: Iterable[KnownReplica]) -> Forecast:
    """Returns the forecast for a node that is in no set and is no replica; it may have plain replicas."""
    kept = _kept(list(followers), in_set=False)
    text = f"nothing to promote: this node leads by itself, in no set (--members). Should this node be gone: {kept}"
    return Forecast("alone", False, text)


def _needed(own: MemberState, members: int) -> int:
    return own.voters.majority if own.voters.epoch else majority_of(members)


def _kept(followers: list[KnownReplica], *, in_set: bool) -> str:
    """Says who keeps the rows of a leader that is gone. Only connected replicas count."""
    level = "quorum" if in_set else "disk"
    here = [f for f in followers if f.connected]
    have = sorted(f.address for f in here if not f.missing and not f.unreadable and (f.votes or not in_set))
    if have:
        texts = [f"{_listed(have)} {_hold(have)} all that is at {level}"]
    elif here:
        texts = [f"no node that could lead holds all that is at {level}"]
    elif in_set:
        texts = ["no node that could lead is connected"]
    else:
        texts = ["no node follows it, so none can be promoted"]
    behind = sorted((f.missing or 0, f.address) for f in here if f.missing or (in_set and not f.votes))
    if behind:
        texts.append(", ".join(f"{address} {_lacks(missing) or 'has no vote'}" for missing, address in behind))
    texts += sorted(f"{f.address} cannot read {partitions_of(f.unreadable)}" for f in here if f.unreadable)
    texts += sorted(f"the disk of {f.address} is nearly full or fails" for f in here if not f.has_room)
    texts += sorted(_away(f, level) for f in followers if not f.connected)
    return "; ".join(texts)


def _away(follower: KnownReplica, level: str) -> str:
    text = f"{follower.address} is not connected"
    if follower.missing is None:
        return text
    return f"{text}, and {_lacks(follower.missing) or f'had all that is at {level}'}"


def _lacks(missing: int) -> str:
    return f"lacks about {missing} mutations" if missing else ""


def _of_replica(own: MemberState, answers: Mapping[str, MemberState], silent: list[str]) -> Forecast:
    if own.is_new and all(answer.is_new for answer in answers.values()):
        return _refused("new", "this replica is new, and no node that holds anything answers")
    leaders = [(answer.term, answer.held, address) for address, answer in answers.items() if answer.leads]
    if not leaders:
        gone = _listed(silent) if silent else "the leader"
        lost = f"writes that {gone} has acknowledged and this node does not have"
    else:
        _, held, address = max(leaders)
        count = max(0, held - own.held)
        lost = f"rows that {address}, which leads now, has and this node does not: about {count} mutations"
    return _refused("replica", f"a plain replica has no majority to ask. With --force it leads, and loses {lost}")


def _forced(silent: list[str]) -> str:
    if not silent:
        return "With --force it leads; all have answered, and their rows would be fetched"
    lost = f"writes of every level, quorum among them, that only {_listed(silent)} had"
    return f"With --force it leads, and could lose {lost}"


def _fetch(own: MemberState, answers: Mapping[str, MemberState]) -> str:
    """Says whose history goes on: the newest branch decides, then the number of held mutations."""
    best = max(answers.items(), key=lambda item: (_rank(item[1]), item[0]), default=None)
    if best is None or _rank(best[1]) <= _rank(own):
        return "no node that answers has more, so it would fetch nothing"
    address, answer = best
    more = max(0, answer.held - own.held)
    newer = " of a newer history" if answer.held_term > own.held_term else ""
    return f"it would fetch about {more} mutations{newer} from {address}"


def _rank(seen: MemberState) -> tuple[int, int]:
    return seen.held_term, seen.held


def _refused(case: str, why: str) -> Forecast:
    return Forecast(case, False, f"would be refused: {why}")


def _hold(addresses: list[str]) -> str:
    return "holds" if len(addresses) == 1 else "hold"


def _listed(addresses: list[str]) -> str:
    return ", ".join(addresses) or "none"


def forecast_of(
    node: LocalNode, leadership: Leadership, member: Member | None, sums: FollowerSums | None = None
) -> Forecast:
    """Returns what ``promote`` would do on this node in one group; ``member`` decides who leads the group.

    ``sums``: what the replicas lack; they are counted now if it is not given.
    """
    sums = FollowerSums(leadership).count_now() if sums is None else sums
    if member is None:
        return forecast_of_lone_node(_followers(node, leadership, member, sums))
    own, members = member.local.state(), leadership.members.now
    if not own.leads:
        unreadable = told(unreadable_of(node, leadership.group))
        return forecast_of_follower(
            own,
            member.peers.states,
            is_in_set=bool(members),
            unreadable=unreadable,
            no_member=member.peers.outside()[0] or member.peers.why_needless(),
        )
    return forecast_of_leader(own, _followers(node, leadership, member, sums), len(members))


def set_problem(member: Member) -> str | None:
    """Returns why the member's set takes no writes at level quorum now, or None. None outside of a set."""
    leadership = member.leadership
    if not leadership.in_set:
        return None
    own = member.local.state()
    if own.leads:
        # Who is there is enough, so that a probe of a node's health looks at no partition.
        followers = _followers(member.node, leadership, member, FollowerSums(leadership))
        lost = lost_majority(own, followers, len(leadership.members.now))
        return (
            "; ".join(
                filter(None, [leadership.withheld, lost, _damaged_leader(own, followers), _full_leader(own, followers)])
            )
            or None
        )
    if leadership.leader:
        return None
    outside, _ = member.peers.outside()
    if outside:
        return outside
    if not member.successor.is_on:
        return "no leader: this member follows no one; a leader that comes back, or `tailrace promote`, mends it"
    unfit = member.successor.why_unfit()
    if unfit:
        storage = member.node.storage
        failed = storage.committer.failure or storage.journal.failed  # which is told elsewhere
        return f"this member neither leads nor votes, {'until it is restarted' if failed else f'since {unfit}'}"
    seen = member.peers.states
    voters = {name: state for name, state in seen.items() if state is not None and member.local.counts_seen(state)}
    if own.votes:
        voters[member.local.name] = own
    silent = sorted(name for name, state in seen.items() if state is None)
    none = why_none_leads(member.local.name, voters, silent) if len(voters) >= _needed(own, len(seen) + 1) else ""
    return none or "no leader: the members choose one when a majority of them is there"


def _damaged_leader(own: MemberState, followers: Iterable[KnownReplica]) -> str | None:
    """Returns what to do if this leader cannot read its copy; its health names the partitions. None without damage."""
    if not own.unreadable:
        return None
    good = sorted(f.address for f in followers if f.connected and f.votes and not f.unreadable)
    what = f"this leader cannot read {partitions_of(own.unreadable)}"
    if good:
        return f"{what}: it is to hand over to {_listed(good)}, which can (`tailrace handover --to {good[0]}`)"
    return f"{what}, and no other voter that can read its own copy is connected: {_MEND_FIRST}"


def _full_leader(own: MemberState, followers: Iterable[KnownReplica]) -> str | None:
    """Returns what to do if this leader's disk is nearly full or fails; its health tells why. None with room."""
    if own.has_room:
        return None
    roomy = sorted(f.address for f in followers if f.connected and f.votes and f.has_room and not f.unreadable)
    if roomy:
        return (
            f"the disk of this leader is nearly full or fails: it is to hand over to {_listed(roomy)}, which can take "
            f"writes (`tailrace handover --to {roomy[0]}`)"
        )
    return "the disk of this leader is nearly full or fails, and no voter with room on its disk is connected: see to it"


def _followers(
    node: LocalNode, leadership: Leadership, member: Member | None, sums: FollowerSums
) -> list[KnownReplica]:
    """Returns the replicas of this node, and the members of its set that have not come since it leads."""
    found = [
        KnownReplica(
            peer.address,
            peer.votes,
            sums.of(peer).missing,
            peer.is_connected,
            *_disk_at(member, peer.address),
        )
        for peer in sums.peers
    ]
    own = name_of(node) if member is None else member.local.name
    known = {own, *(follower.address for follower in found)}
    absent = [name for name in leadership.members.names if name not in known]
    return found + [KnownReplica(name, False, None, connected=False) for name in absent]


def _disk_at(member: Member | None, address: str) -> tuple[int, bool]:
    """Returns the number of partitions that the member at ``address`` cannot read, and whether it has room.

    Without an answer it can read all, and has room.
    """
    seen = None if member is None else member.peers.states.get(address)
    return (0, True) if seen is None else (seen.unreadable, seen.has_room)
