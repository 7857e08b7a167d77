"""Bugs of partitions that a leader cannot stream, or that a node cannot read."""

from __future__ import annotations

from tailrace.consuming import replica
from tailrace.errors import StreamEnded
from tailrace.model import EndReason
from tailrace_server.replication import following, local_member, promotion, succession
from tailrace_server.replication.giving_way import GivingWay
from tailrace_server.replication.promotion import Promotion
from tailrace_server.stream import resume

from .bug import Bug

_answer_request = resume.answer_request


def _answer_as_a_consumer(request, **options):
    """Tells a replica below the trim seq that data is gone, as a consumer is told."""
    return _answer_request(request._replace(replica=None), **options)


def _owe_nothing(debts, debt):
    """Owes no data that the leader cannot read."""
    return tuple(debts)


def _ends(message):
    """Ends the connection by the end of any stream."""
    return StreamEnded(message, reason=EndReason.ERROR)


async def _require_nothing(promoting, answers):
    """Promotes a node that cannot read a partition."""
    promoting._unreadable = ""


def _none_unreadable(node, group):
    """Knows of no damage."""
    return []


BUGS = {
    "a partition that fails and ends all that is followed": Bug(
        [(replica, "_OF_ALL", dict.fromkeys(EndReason, _ends))], {"damaged_leader": 0}
    ),
    "a replica that is told that a history was trimmed": Bug(
        [(resume, "answer_request", _answer_as_a_consumer)], {"trimmed_log": 0}
    ),
    "a vote without owing what the leader cannot read": Bug(
        [(following, "with_debt", _owe_nothing)], {"damaged_leader": 2}
    ),
    "a promotion of who cannot read a partition": Bug(
        [(Promotion, "_require_readable", _require_nothing)], {"damaged_candidate": 0}
    ),
    "a leader that leads on with a partition that it cannot read": Bug(
        [(GivingWay, "consider", lambda giving_way, now: None)], {"damage_on_the_leader": 0}
    ),
    "a member that stands for the lead and cannot read a partition": Bug(
        [(module, "unreadable_of", _none_unreadable) for module in (local_member, promotion, succession)],
        {"damage_in_front_of_a_lost_leader": 1},
    ),
}
