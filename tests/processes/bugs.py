"""Bugs that are planted in a node's process, to show that the tests find them."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.model import Level
from tailrace_server.journal import Record, RecordKind, Recovered
from tailrace_server.journal.records import Records
from tailrace_server.node import start
from tailrace_server.partition import writing
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.watchers import Watchers
from tailrace_server.replication.quorum import Acknowledgements
from tailrace_server.replication.read_index import Confirmations
from tailrace_server.serving.connections import Connections
from tailrace_server.state.producers import ProducerTable, ResendDecision, ResendVerdict
from tailrace_server.stream.barriers import WaitingBarriers
from tailrace_server.upkeep.committer import Committer


def resends_not_recognised() -> None:
    ProducerTable.decide = lambda self, producer_id, number, *, resend, now: ResendDecision(ResendVerdict.ACCEPT)


def barrier_at_once() -> None:
    add = WaitingBarriers.add
    WaitingBarriers.add = lambda self, cookie, streams, **held: add(self, cookie, (), **held)


def send_before_fsync() -> None:
    turn_ended = Connections.turn_ended

    def hurried(self, asker=None):
        self.flush()
        turn_ended(self, asker)

    Connections.turn_ended = hurried
    Committer._is_cheap = lambda self: False  # an fsync on the loop would delay the answers that are to come before it


def acknowledged_before_fsync() -> None:
    send_before_fsync()
    Committer.when_durable = lambda self, callback: (self.hurry(), callback(None))


def shown_before_fsync() -> None:
    send_before_fsync()
    watch, unwatch = Watchers.watch, Watchers.unwatch
    Partition.visible_seq = lambda self, level: self.high_seq
    Watchers.watch = lambda self, level, notify: watch(self, Level.MEMORY, notify)
    Watchers.unwatch = lambda self, level, notify: unwatch(self, Level.MEMORY, notify)


def no_new_branch() -> None:
    start.why_unclean = lambda taken, journal_end, partitions: None


class _OneAtATime(list[Record]):
    """Records that are not read by columns."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.begin = records.begin

    def parts(self) -> Iterator[Record]:
        return iter(self)

    def of_kind(self, kind: RecordKind) -> Iterator[Record]:
        return (record for record in self if record.kind is kind)


def last_block_forgotten() -> None:
    open_journal = start.open_journal

    def forgetful(*args, **kwargs):
        journal, recovered = open_journal(*args, **kwargs)
        records = _OneAtATime(recovered.records)
        blocks = [index for index, record in enumerate(records) if record.kind is RecordKind.BLOCK]
        if blocks:
            del records[blocks[-1]]
        return journal, Recovered(**{**recovered._asdict(), "records": records})

    start.open_journal = forgetful


def conditions_not_checked() -> None:
    assert hasattr(writing, "holds")
    writing.holds = lambda *args: True


def quorum_at_once():
    Acknowledgements.quorum_seq = lambda self, durable_seq, log: durable_seq


def leads_unasked():
    Confirmations.confirm = lambda self, callback: callback(None)


BUGS = {
    bug.__name__: bug
    for bug in (
        resends_not_recognised,
        barrier_at_once,
        acknowledged_before_fsync,
        shown_before_fsync,
        no_new_branch,
        last_block_forgotten,
        conditions_not_checked,
        quorum_at_once,
        leads_unasked,
    )
}
