"""Bugs to plant: each breaks one rule of promotion, quorum or following, and a seed of the simulator has to find it."""

from __future__ import annotations

import contextlib
from unittest import mock

from tailrace.model import Level
from tailrace_server.node import start
from tailrace_server.partition import replica_apply as intake_taking
from tailrace_server.partition.branching import begin_branch
from tailrace_server.partition.partition import Partition
from tailrace_server.replication import member, promises, waiting
from tailrace_server.replication.election import NextStep, StepKind
from tailrace_server.replication.member import Member
from tailrace_server.replication.membership import MembershipFile
from tailrace_server.replication.quorum import Acknowledgements
from tailrace_server.replication.read_index import Confirmations
from tailrace_server.serving import member_requests

from . import failing_partitions as bugs_of_failing_partitions
from . import majorities as bugs_of_holding
from . import promotion as bugs_of_promotion
from . import runs as bugs_of_runs

_decide = member.decide
_store = MembershipFile.store
_visible_seq = Partition.visible_seq


async def _promise_and_go_on(member, promise):
    """Whoever promises a term follows or leads on, and takes what comes of a lower one."""
    if promise.term <= member.local.file.now.term:
        return promises._answer(member, promised=False, standings={})
    await member.node.storage.all_durable()
    return promises._answer(member, promised=True, standings=promises.standings_of(member.leadership.group))


def _standing_by_seq(partition):
    """Who has more rows is ahead, of whatever term they are."""
    return 1, partition.durable_seq


def _whole_log(log, seq):
    """A follower takes the leader's log as soon as it hears of it, whatever it holds of it."""
    return log


def _standing_by_log(partition):
    """A branch counts from when it is heard of."""
    return partition.log.term, partition.durable_seq


def _check_nothing(partition):
    """The invariant that this bug breaks would find it first."""


def _leads_again(own, seen, asked):
    """Who led last asks nobody."""
    step = _decide(own, seen, asked)
    return NextStep(StepKind.LEAD_AGAIN, "led") if own.led and step.kind is not StepKind.FOLLOW else step


async def _lead_at_once(member):
    """Who has led leads again, and asks nobody."""
    node = member.node
    term = member.local.file.now.term + 1
    member.local.file.store(member.local.file.now.leading(term, forced=False))
    for partition in node.feeds.partitions():
        begin_branch(partition, node.host.randomness.token(16), node.storage.journal, term)
    await node.storage.all_durable()
    if member.local.file.now.term == term:
        node.leaderships.system.become_leader(term)


def _majority_without_the_leader(acknowledgements, durable_seq, log):
    """What followers hold counts though the leader's own disk does not have it; two of them are a majority."""
    acknowledgements._begin(log)
    if len(acknowledgements._seqs) < acknowledgements._needed:
        return 0
    return sorted([durable_seq, *acknowledgements._seqs.values()], reverse=True)[acknowledgements._needed]


def _reached_by_followers(partition, level):
    """An answer at quorum does not wait for the leader's own disk."""
    return partition.quorum_seq if level == Level.QUORUM else partition.visible_seq(level)


def _forget_a_promise(file, membership):
    """A promise is not written; what else changes is."""
    if membership.term > file.now.term and membership.leader_term == file.now.leader_term:
        file.now = membership
    else:
        _store(file, membership)


def _confirm_at_once(confirmations, callback):
    """A leader believes that it leads."""
    callback(None)


def _show_all(partition, level):
    """What is durable here is shown at quorum."""
    return _visible_seq(partition, Level.DISK if level == Level.QUORUM else level)


BUGS = {
    "no fencing": [(member_requests, "answer_promise", _promise_and_go_on)],
    "the term left out of the comparison": [(Partition, "standing", _standing_by_seq)],
    "an entry that counts from below its base": [
        (intake_taking, "entries_through", _whole_log),
        (start, "entries_through", _whole_log),
        (Partition, "standing", _standing_by_log),
        (Partition, "check", _check_nothing),
    ],
    "a leader that leads again by itself": [(Member, "_lead_again", _lead_at_once), (member, "decide", _leads_again)],
    "a majority without the leader, which leads again by itself": [
        (Acknowledgements, "quorum_seq", _majority_without_the_leader),
        (waiting, "_reached", _reached_by_followers),
        (Member, "_lead_again", _lead_at_once),
        (member, "decide", _leads_again),
    ],
    "a promise that is not durable": [(MembershipFile, "store", _forget_a_promise)],
    "a leader that asks nobody whether it leads": [(Confirmations, "confirm", _confirm_at_once)],
    "level quorum that shows what a majority has not": [(Partition, "visible_seq", _show_all)],
    **bugs_of_promotion.BUGS,
    **bugs_of_failing_partitions.BUGS,
    **bugs_of_holding.BUGS,
    **bugs_of_runs.BUGS,
}


@contextlib.contextmanager
def planted(bug, bugs=BUGS):
    """The program has this bug in the body."""
    with contextlib.ExitStack() as stack:
        for owner, name, wrong in bugs[bug]:
            stack.enter_context(mock.patch.object(owner, name, wrong))
        yield
