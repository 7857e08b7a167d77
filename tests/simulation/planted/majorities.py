"""Bugs of majorities: acknowledgements, how they are counted, and the rows that are shown because of them."""

from __future__ import annotations

from tests.tailrace_server.replication.slow_path import never_now

from tailrace.model import Level
from tailrace_server.partition.partition import Partition
from tailrace_server.replication import election, member, promises, seats, waiting
from tailrace_server.replication.following import Following
from tailrace_server.replication.gathered_promises import GatheredPromises
from tailrace_server.replication.local_member import LocalMember
from tailrace_server.replication.quorum import Acknowledgements
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.replication.replicas import Replicas
from tailrace_server.replication.seats import Seats
from tailrace_server.replication.voters import Voters
from tailrace_server.upkeep import rollback

from .bug import Bug

_later_leader = election.later_leader
_learns = LocalMember.learns
_next_departure = seats.next_departure
_acknowledged = rollback.acknowledged
_agreed, _take = ReplicaPuller._agreed, ReplicaPuller._take
_visible_seq = Partition.visible_seq


async def _acknowledge_at_once(puller, event, partition):
    """Acknowledges all durable rows as soon as a leader is found, of any branch."""
    branch, seq = partition.log.branch, partition.durable_seq
    await _agreed(puller, event, partition)
    if branch and puller._stream is not None and puller._until is None:
        puller._stream.acknowledge(partition.id, branch, min(seq, event.high_seq))


def _count_any_branch(acknowledgements, voter, branch, seq, log):
    """Counts the rows of a voter of any branch."""
    acknowledgements._begin(log)
    acknowledgements._seqs[voter] = max(seq, acknowledgements._seqs.get(voter, 0))
    return True


async def _acknowledge_before_fsync(puller, event):
    """Acknowledges rows before they are on the follower's disk."""
    await _take(puller, event)
    number, partition = event.partition, puller.feed.partitions[event.partition]
    wanted = puller._acknowledgements.log_of(partition)
    if puller._stream is None or puller._until is not None or number in puller._snapshots.runs:
        return
    if partition.log.branch == wanted.branch and partition.high_seq >= wanted[0].base:
        puller._stream.acknowledge(number, wanted.branch, partition.high_seq)


def _shown_by_own_disk(partition, level):
    """Shows at level disk the rows on the follower's own disk."""
    return partition.durable_seq if level == Level.DISK else _visible_seq(partition, level)


def _reached_by_leader(partition, level):
    """Answers at quorum as soon as the rows are on the leader's disk."""
    return partition.durable_seq if level == Level.QUORUM else partition.visible_seq(level)


def _knows_any_feeds(following, wanted):
    """Takes an unknown feed for a dropped one after any snapshot of the list of feeds."""
    return following._knows_feeds


def _owe_what_is_known(partition, seq, log_left):
    """Forgets the debt if the logs share no branch."""
    return _acknowledged(partition, seq, log_left) if log_left and seq else (0, 0)


def _has_all(following, wanted):
    """Counts as caught up, whatever is missing."""
    return []


def _exchange(voters, waiting):
    """Gives a seat to a new disk in the step that takes it from the one before."""
    found = [(seat, each) for seat, each in sorted(waiting.items()) if not voters.has(each.placement_id)]
    return voters.with_seat(found[0][0], found[0][1].placement_id) if found else None


def _drop_at_once(voters, own_id, storing, *, is_held):
    """Drops a seat whatever rows the others hold."""
    return _next_departure(voters, own_id, storing, is_held=True)


def _learns_unless_it_loses(member, voters):
    """Learns no record by which this directory loses its seat."""
    own_id = member.node.identity.placement_id
    return _learns(member, voters) and (voters.has(own_id) or not member.file.now.voters.has(own_id))


def _steps_down_for_a_promise(term, placement_id, answers, is_voter):
    """Steps down as soon as a voter has promised a later term."""
    found = [name for name, seen in sorted(answers.items()) if is_voter(seen) and seen.term > term]
    if found:
        return election.StepDown(f"{found[0]} has promised a later term", term)
    return _later_leader(term, placement_id, answers, is_voter)


BUGS = {
    "acknowledgements of another branch": Bug(
        [
            (ReplicaPuller, "_agreed", _acknowledge_at_once),
            (Acknowledgements, "acknowledged", _count_any_branch),
        ],
        {"returned_tail": 1},
    ),
    "an acknowledgement before the fsync": Bug(
        [(ReplicaPuller, "_take", _acknowledge_before_fsync), (ReplicaPuller, "_take_now", never_now)],
        {"slow_follower": 0},
    ),
    "an answer at quorum that waits for nobody": Bug([(waiting, "_reached", _reached_by_leader)], {"dead_tail": 0}),
    "a follower that shows at disk what its leader has not": Bug(
        [(Partition, "visible_seq", _shown_by_own_disk)], {"eager_follower": 0}
    ),
    "a feed that is not made yet and counts as dropped": Bug(
        [(Following, "_lists_through", _knows_any_feeds)], {"late_list": 0}
    ),
    "a debt that is forgotten where nothing is in common": Bug(
        [(rollback, "acknowledged", _owe_what_is_known)], {"forgotten_branches": 0}
    ),
    "a directory without a seat that votes": Bug(
        [
            (LocalMember, "counts_seen", lambda member, seen: True),
            (LocalMember, "votes", property(lambda member: True)),
            (Replicas, "_counts", lambda replicas, peer: True),
            (Seats, "why_no_seat", lambda seats: ""),
        ],
        {"replaced_disk": 0, "returned_disk": 0},
    ),
    "a seat that is given to a disk without the rows": Bug([(Following, "_lacks", _has_all)], {"early_seat": 0}),
    "a disk that is exchanged in one step": Bug(
        [(seats, "next_step", _exchange), (seats, "why_no_step", lambda before, after: "")], {"two_records": 0}
    ),
    "a candidate by an earlier record that gets promises": Bug(
        [
            (LocalMember, "learns", _learns_unless_it_loses),
            (promises, "_why_not_by_voters", lambda member, promise: ""),
        ],
        {"returned_disk": 0},
    ),
    "a leader without a seat that does not lead again": Bug(
        [(GatheredPromises, "leads_again", property(lambda promises: False))], {"leader_without_a_seat": 0}
    ),
    "a leader that goes on with the record of another term": Bug(
        [(Voters, "led_in", lambda voters, term: voters)], {"replaced_disk": 0}
    ),
    "a leader that steps down for a mere promise": Bug(
        [(member, "later_leader", _steps_down_for_a_promise)], {"mere_promise": 0}
    ),
    "a seat that is dropped before a majority has the rows": Bug(
        [(seats, "next_departure", _drop_at_once)], {"two_leave": 0}
    ),
}
