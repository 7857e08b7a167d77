"""Bugs of leadership: fencing, the order of standings, promises on disk, and reads at quorum."""

from __future__ import annotations

from tailrace.model import Level
from tailrace_server.node import start
from tailrace_server.partition import replica_apply
from tailrace_server.partition.branching import begin_branch
from tailrace_server.partition.partition import Partition
from tailrace_server.replication import member, promises, waiting
from tailrace_server.replication.election import NextStep, StepKind
from tailrace_server.replication.member import Member
from tailrace_server.replication.membership import MembershipFile
from tailrace_server.replication.quorum import Acknowledgements
from tailrace_server.replication.read_index import Confirmations
from tailrace_server.serving import member_requests

from .bug import Bug

_decide = member.decide
_store = MembershipFile.store
_visible_seq = Partition.visible_seq


async def _promise_and_go_on(member, promise):
    """Promises a term, and goes on leading or following in the lower term."""
    if promise.term <= member.local.file.now.term:
        return promises._answer(member, promised=False, standings={})
    await member.node.storage.all_durable()
    return promises._answer(member, promised=True, standings=promises.standings_of(member.leadership.group))


def _standing_by_seq(partition):
    """Compares by the number of rows, and leaves the term out."""
    return 1, partition.durable_seq


def _whole_log(log, seq):
    """Takes the leader's whole log at once, also entries above the rows that the follower has."""
    return log


def _standing_by_log(partition):
    """Counts an entry as soon as the log has it."""
    return partition.log.term, partition.durable_seq


def _check_nothing(partition):
    """Checks nothing: the partition's invariant would find this bug first."""


def _leads_again(own, seen, asked):
    """Decides that the last leader leads again, without an answer from any member."""
    step = _decide(own, seen, asked)
    return NextStep(StepKind.LEAD_AGAIN, "led") if own.led and step.kind is not StepKind.FOLLOW else step


async def _lead_at_once(member):
    """Leads again at once, without asking any member."""
    node = member.node
    term = member.local.file.now.term + 1
    member.local.file.store(member.local.file.now.leading(term, forced=False))
    for partition in node.feeds.partitions():
        begin_branch(partition, node.host.randomness.token(16), node.storage.journal, term)
    await node.storage.all_durable()
    if member.local.file.now.term == term:
        node.leaderships.system.become_leader(term)


def _majority_without_the_leader(acknowledgements, durable_seq, log):
    """Counts two followers as a majority, though the leader's own disk lacks their rows."""
    acknowledgements._begin(log)
    if len(acknowledgements._seqs) < acknowledgements._needed:
        return 0
    return sorted([durable_seq, *acknowledgements._seqs.values()], reverse=True)[acknowledgements._needed]


def _reached_by_followers(partition, level):
    """Answers at quorum before the rows are on the leader's own disk."""
    return partition.quorum_seq if level == Level.QUORUM else partition.visible_seq(level)


def _forget_a_promise(file, membership):
    """Keeps a promise in memory, and stores all other changes."""
    if membership.term > file.now.term and membership.leader_term == file.now.leader_term:
        file.now = membership
    else:
        _store(file, membership)


def _confirm_at_once(confirmations, callback):
    """Confirms that the node leads, without asking a majority."""
    callback(None)


def _show_all(partition, level):
    """Shows at quorum every row that is durable on this node."""
    return _visible_seq(partition, Level.DISK if level == Level.QUORUM else level)


BUGS = {
    "no fencing": Bug([(member_requests, "answer_promise", _promise_and_go_on)], {"two_masters": 0}),
    "the term left out of the comparison": Bug([(Partition, "standing", _standing_by_seq)], {"dead_tail": 0}),
    "an entry that counts from below its base": Bug(
        [
            (replica_apply, "entries_through", _whole_log),
            (start, "entries_through", _whole_log),
            (Partition, "standing", _standing_by_log),
            (Partition, "check", _check_nothing),
        ],
        {"early_entry": 0},
    ),
    "a leader that leads again by itself": Bug(
        [(Member, "_lead_again", _lead_at_once), (member, "decide", _leads_again)], {"lone_restart": 0}
    ),
    "a majority without the leader, which leads again by itself": Bug(
        [
            (Acknowledgements, "quorum_seq", _majority_without_the_leader),
            (waiting, "_reached", _reached_by_followers),
            (Member, "_lead_again", _lead_at_once),
            (member, "decide", _leads_again),
        ],
        {"slow_leader": 0},
    ),
    "a promise that is not durable": Bug([(MembershipFile, "store", _forget_a_promise)], {"forgotten_promise": 0}),
    "a leader that asks nobody whether it leads": Bug(
        [(Confirmations, "confirm", _confirm_at_once)], {"stale_leader": 0}
    ),
    "level quorum that shows what a majority has not": Bug([(Partition, "visible_seq", _show_all)], {"dead_tail": 0}),
}
