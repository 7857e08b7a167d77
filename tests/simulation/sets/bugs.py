"""Bugs to plant: each breaks one rule of promotion, quorum or following, and a seed of the simulator has to find it."""

from __future__ import annotations

import contextlib
from unittest import mock

from tailrace_server.catalog import begin_branch
from tailrace_server.intake import taking as intake_taking
from tailrace_server.partition import Partition
from tailrace_server.replication import promises, requests
from tailrace_server.replication.confirming import Confirmations
from tailrace_server.replication.member import Member
from tailrace_server.replication.membership import MembershipFile
from tailrace_server.replication.quorum import Acknowledgements
from tailrace_server.replication.taking import Taker

_take = Taker._take


async def _promise_and_go_on(member, promise):
    """Whoever promises a term follows or leads on, and takes what comes of a lower one."""
    if promise.term <= member.file.now.term:
        return promises._answer(member, promised=False, standings={})
    await member.node.all_durable()
    return promises._answer(member, promised=True, standings=promises.standings_of(member.node))


def _standing_by_seq(partition):
    """Who has more rows is ahead, of whatever term they are."""
    return 1, partition.durable_seq


def _count_all(acknowledgements, voter, branch, seq, log):
    """What a voter holds of another branch counts too."""
    acknowledgements._begin(log)
    acknowledgements._seqs[voter] = max(seq, acknowledgements._seqs.get(voter, 0))
    return True


def _acknowledge_all(taker, partition):
    """Told as it comes, on whatever branch it is."""
    if taker._stream is None or taker._until is not None or not partition.log:
        return
    seq = partition.durable_seq
    if taker.acknowledged.get(partition.id) != seq:
        taker.acknowledged[partition.id] = seq
        taker._stream.acknowledge(partition.id, partition.log.branch, seq)


def _whole_log(log, seq):
    """A follower takes the leader's log as soon as it hears of it, whatever it holds of it."""
    return log


def _standing_by_log(partition):
    """A branch counts from when it is heard of."""
    return partition.log.term, partition.durable_seq


def _check_nothing(partition):
    """The invariant that this bug breaks would find it first."""


async def _lead_at_once(member):
    """Who has led leads again, and asks nobody."""
    node = member.node
    term = member.file.now.term + 1
    member.file.store(member.file.now.leading(term, forced=False))
    for partition in node.feeds.partitions():
        begin_branch(partition, node.host.randomness.token(16), node.journal, term)
    await node.all_durable()
    if member.file.now.term == term:
        node.lead(term)


def _majority_without_the_leader(acknowledgements, durable_seq, log):
    """What followers hold counts though the leader's own disk does not have it; two of them are a majority."""
    acknowledgements._begin(log)
    if len(acknowledgements._seqs) < acknowledgements._needed:
        return 0
    return sorted([durable_seq, *acknowledgements._seqs.values()], reverse=True)[acknowledgements._needed]


def _forget_a_promise(file, membership):
    """A promise is not written."""
    file.now = membership


async def _stand_inside_of_a_run(taker, event):
    """What has come of a run is installed as it comes, and shown."""
    partition = taker.feed.partitions[event.partition]
    filling = taker._fillings.get(partition.id)
    await _take(taker, event)
    if filling is None or event.block.header.last_seq >= filling.last_seq:
        return
    last_seq, purge_seq = filling.last_seq, filling._purge_seq
    filling.last_seq = event.block.header.last_seq
    await filling.finish(taker._logs[partition.id])
    taker._fillings[partition.id] = taker._node.begin_filling(partition, filling.last_seq, last_seq, purge_seq)


def _confirm_at_once(confirmations, callback):
    """A leader believes that it leads."""
    callback(None)


def _show_all(partition, level):
    """What a follower has is shown at once at every level."""
    return partition.durable_seq


BUGS = {
    "no fencing": [(requests, "answer_promise", _promise_and_go_on)],
    "the term left out of the comparison": [(Partition, "standing", _standing_by_seq)],
    "acknowledgements of other branches counted": [
        (Acknowledgements, "acknowledged", _count_all),
        (Taker, "_acknowledge", _acknowledge_all),
    ],
    "an entry that counts from below its base": [
        (intake_taking, "entries_through", _whole_log),
        (Partition, "standing", _standing_by_log),
        (Partition, "check", _check_nothing),
    ],
    "a leader that leads again by itself": [(Member, "_lead_again", _lead_at_once)],
    "a majority without the leader, which leads again by itself": [
        (Acknowledgements, "quorum_seq", _majority_without_the_leader),
        (Member, "_lead_again", _lead_at_once),
    ],
    "standing inside of a run": [(Taker, "_take", _stand_inside_of_a_run)],
    "a promise that is not durable": [(MembershipFile, "store", _forget_a_promise)],
    "a leader that asks nobody whether it leads": [(Confirmations, "confirm", _confirm_at_once)],
    "a follower that shows what its leader may lose": [(Partition, "visible_seq", _show_all)],
}


@contextlib.contextmanager
def planted(bug):
    """The program has this bug in the body."""
    with contextlib.ExitStack() as stack:
        for owner, name, wrong in BUGS[bug]:
            stack.enter_context(mock.patch.object(owner, name, wrong))
        yield



