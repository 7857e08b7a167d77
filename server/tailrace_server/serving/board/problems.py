"""Gathers what is wrong with a node, one problem each, with what is the matter and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.replication.promotion_forecast import set_problem
from tailrace_server.serving.status import failing_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.replication.member import Member
    from tailrace_server.serving.services import Services

ERROR, WARNING = "error", "warning"
# The subjects that get on by themselves, if they are well: a problem of theirs means that they are stuck.
_MOVING = frozenset(("consumer", "replica", "member"))
# The partitions and files of one kind that are told one by one.
NAMED_MAX = 50


class Problem(NamedTuple):
    """Something that an operator should know.

    ``severity`` is "error" or "warning". ``subject`` is the part of the node, and ``name`` which of them; "" for the
    only one. ``feed`` is the feed that it is about, for tokens that may not see all feeds.
    """

    severity: str
    subject: str
    name: str
    text: str
    feed: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What stays the same while the problem does."""
        return self.subject, self.name

    @property
    def state(self) -> str:
        """What it makes of the node: failed, stuck or waiting."""
        if self.severity == ERROR:
            return "failed"
        return "stuck" if self.subject in _MOVING else "waiting"


def node_problems(node: Services) -> list[Problem]:
    """Returns the problems of the node, errors first. It looks at no partition that is well."""
    found = [*_storage(node), *_partitions(node)]
    for member in node.members.values():
        found += _members(member)
    return sorted(found, key=lambda problem: problem.severity != ERROR)


def _storage(node: Services) -> Iterator[Problem]:
    storage = node.storage
    failure = storage.committer.failure or storage.journal.failed
    if failure is not None:
        yield Problem(ERROR, "journal", "", str(failure))
    if storage.journal.refusal and not storage.space.low:
        yield Problem(ERROR, "journal", "", f"writes are refused: {storage.journal.refusal}")
    if storage.why_no_flush:
        yield Problem(ERROR, "flush", "", storage.why_no_flush)
    if storage.flusher.failure:
        yield Problem(ERROR, "flush", "", f"flushing fails: {storage.flusher.failure}")
    if storage.compactor.failure:
        yield Problem(WARNING, "compaction", "", f"compacting fails: {storage.compactor.failure}")
    if storage.space.low:
        yield Problem(ERROR, "disk", "", storage.space.low)
    if storage.compactor.uptime.suspended:
        yield Problem(WARNING, "node", "clock", storage.compactor.uptime.suspended)
    for path, why in list(storage.damages.items())[:NAMED_MAX]:
        yield Problem(ERROR, "damage", path.rpartition("/")[2], why)


def _partitions(node: Services) -> Iterator[Problem]:
    for leadership in node.leaderships:
        for failing in failing_of(node, leadership)[:NAMED_MAX]:
            name = f"{failing['feed']}/{failing['partition']}"
            yield Problem(ERROR, "partition", name, f"it cannot follow: {failing['why']}", failing["feed"])


def _members(member: Member) -> Iterator[Problem]:
    problem = set_problem(member)
    if problem:
        yield Problem(ERROR, "set", "", problem)
    peers = member.peers
    for name, seen in sorted(peers.states.items()):
        if name in peers.misfits:
            yield Problem(WARNING, "member", name, peers.misfits[name])
        elif seen is None and name in peers.asked:
            yield Problem(WARNING, "member", name, "it does not answer: it is down, or the network to it is")
