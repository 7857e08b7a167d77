"""What ``tailrace promote`` would do now on a member or a replica, in a sentence for status. Pure.

It goes by what the others answered last and by sums over all partitions, so it is a forecast: the promotion itself asks
again, and chooses partition by partition. The cases, first fit first:

| case | when |
|---|---|
| leads | this node leads already |
| replica | a plain replica: there is no majority to ask |
| new | nothing was ever in this directory, and nobody whose directory is not new has answered |
| refused | the voters that answered, this one included, are no majority |
| promoting | another member is about to lead: who comes second is refused, or deposes it |
| granted | else |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tailrace.model import Level
from tailrace_server.replication.situation import Seen, counts, majority_of

if TYPE_CHECKING:
    from tailrace_server.node import Node


class Outlook(NamedTuple):
    """What a promotion would come to: the case of the table, whether it would succeed, and the sentence."""

    case: str
    succeeds: bool
    text: str


class Follower(NamedTuple):
    """One that follows this leader: whether it votes, and what it lacks of all that is at quorum, in mutations."""

    address: str
    votes: bool
    missing: int


def outlook(own: Seen, seen: Mapping[str, Seen | None], *, is_in_set: bool) -> Outlook:
    """What ``promote`` would do on a node that does not lead.

    ``own``: what this node answers to MEMBER. ``seen``: the last answer of each other member by address (of a plain
    replica: of the node that it is one of, and of the leader), None where there was none.
    """
    answers = {address: answer for address, answer in seen.items() if answer is not None}
    silent = sorted(seen.keys() - answers.keys())
    if not is_in_set:
        return _of_replica(own, answers, silent)
    voters = sorted(address for address, answer in answers.items() if counts(answer, frozenset(own.founders)))
    found, needed = len(voters) + own.votes, majority_of(len(seen) + 1)
    here = [*(["this node"] if own.votes else []), *voters]
    tally = f"{found} of the {needed} voters that it takes answer ({_listed(here)})"
    if own.is_new and all(answer.is_new for answer in answers.values()):
        return _refused("new", "this node is new, and nobody who holds anything answers; --force changes nothing")
    if found < needed:
        why = tally + ("" if own.votes else "; this node has no vote yet")
        others = sorted(silent + [address for address in answers if address not in voters])
        return _refused("refused", f"{why}; without {_listed(others)}. {_forced(silent)}; {_fetch(own, answers)}")
    promoting = next((address for address, answer in sorted(answers.items()) if answer.promoting), None)
    if promoting is not None:
        return _refused("promoting", f"{promoting} is about to lead; wait for that")
    leader = next((address for address, answer in sorted(answers.items()) if answer.leads), None)
    text = f"would succeed: {tally}; {_fetch(own, answers)}"
    if leader is not None:
        text += f"; {leader} leads, and would step down"
    if silent:
        text += f". What {_listed(silent)} alone may have at levels disk and memory would be lost; nothing at quorum"
    return Outlook("granted", True, text)


def outlook_of_leader(own: Seen, followers: Iterable[Follower], members: int) -> Outlook:
    """What ``promote`` would do on the node that leads, and what is kept where it is gone; ``members``: of the set."""
    text = "leads already: it would change nothing"
    followers = list(followers)
    level = "quorum" if members else "disk"
    have = sorted(f.address for f in followers if not f.missing and (f.votes or not members))
    behind = sorted((f.missing, f.address) for f in followers if f.missing or (members and not f.votes))
    if have:
        text += f". Should this node be gone: {_listed(have)} {_hold(have)} all that is at {level}"
    elif followers or members:
        text += f". Should this node be gone: nobody who could lead holds all that is at {level}"
    if behind:
        text += "; " + ", ".join(
            f"{address} lacks about {missing} mutations" if missing else f"{address} has no vote"
            for missing, address in behind
        )
    needed = majority_of(members) if members else 0
    voting = sum(f.votes for f in followers) + own.votes
    if members and voting < needed:
        text += f". Only {voting} of the {needed} voters that a promotion takes are here"
    return Outlook("leads", False, text)


def _of_replica(own: Seen, answers: Mapping[str, Seen], silent: list[str]) -> Outlook:
    if own.is_new and all(answer.is_new for answer in answers.values()):
        return _refused("new", "this replica is new, and nobody who holds anything answers")
    leaders = [(answer.term, answer.held, address) for address, answer in answers.items() if answer.leads]
    if not leaders:
        gone = f"what {_listed(silent)} has acknowledged" if silent else "what the leader has acknowledged"
        lost = f"{gone} and this node does not have"
    else:
        _, held, address = max(leaders)
        lost = f"what {address}, which leads now, has and this node does not: about {max(0, held - own.held)} mutations"
    return _refused("replica", f"a plain replica has no majority to ask. With --force it leads, and loses {lost}")


def _forced(silent: list[str]) -> str:
    if not silent:
        return "With --force it leads; all have answered, and what they hold would be fetched"
    lost = f"writes of every level, quorum among them, that only {_listed(silent)} had"
    return f"With --force it leads, and could lose {lost}"


def _fetch(own: Seen, answers: Mapping[str, Seen]) -> str:
    """Whose history goes on: the newest branch decides, then how much of it is held."""
    best = max(answers.items(), key=lambda item: (_rank(item[1]), item[0]), default=None)
    if best is None or _rank(best[1]) <= _rank(own):
        return "it has as much as anybody who answers, and would fetch nothing"
    address, answer = best
    more = max(0, answer.held - own.held)
    newer = " of a newer history" if answer.held_term > own.held_term else ""
    return f"it would fetch about {more} mutations{newer} from {address}"


def _rank(seen: Seen) -> tuple[int, int]:
    return seen.held_term, seen.held


def _refused(case: str, why: str) -> Outlook:
    return Outlook(case, False, f"would be refused: {why}")


def _hold(addresses: list[str]) -> str:
    return "holds" if len(addresses) == 1 else "hold"


def _listed(addresses: list[str]) -> str:
    return ", ".join(addresses) or "nobody"


def outlook_of(node: Node) -> Outlook | None:
    """The outlook of a node as it is; None of one that is alone, which nobody promotes."""
    member = node.member
    if member is None:
        return None
    own, members = member.own(), len(node.config.members)
    if not own.leads:
        return outlook(own, member.seen, is_in_set=bool(members))
    level, partitions = (Level.QUORUM if members else Level.DISK), list(node.feeds.partitions())
    peers = node.replicas.peers.values()
    followers = [Follower(peer.address, peer.votes, peer.missing(partitions, level)) for peer in peers]
    return outlook_of_leader(own, followers, members)
