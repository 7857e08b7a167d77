"""The journal: the node's write-ahead log, shared by its partitions (docs/formats/journal.md).

format.py     the bytes of files and records, pure
writer.py     append, sync, rotation, and what happens when the disk fails
reader.py     files read a record at a time, the reference
stretch.py    many records read by columns, pure
records.py    all records of a recovered journal
progress.py   how far a start is with it, for the log
file_case.py  what a file is found to be, pure
inspection.py  all files read before anything is changed
recovery.py   a journal opened after any kind of stop
replay.py     the cases of a block record, pure
replay_cost.py  how long a start takes to read a journal, pure
controls.py   what control records of a partition say, pure
published_record.py  the record of a publish, pure
clean.py      CLEAN, the mark of a clean stop
held.py       HELD, what a running node has on its disk
lock.py       LOCK, one process per data directory
reserve.py    RESERVE, space to empty a full disk with
"""

from __future__ import annotations

from tailrace_server.journal.clean import (
    CleanMark,
    CleanPartition,
    TakenMark,
    find_clean,
    remove_clean,
    why_unclean,
    write_clean,
)
from tailrace_server.journal.errors import DirectoryInUse, JournalDamaged, JournalFailed
from tailrace_server.journal.format import RecordKind
from tailrace_server.journal.lock import lock_directory
from tailrace_server.journal.reader import Record
from tailrace_server.journal.records import Records
from tailrace_server.journal.recovery import Recovered, open_journal
from tailrace_server.journal.replay import BlockCase, Rollback, decide_block
from tailrace_server.journal.reserve import Reserve
from tailrace_server.journal.stretch import Stretch
from tailrace_server.journal.writer import Journal, JournalStatistics

__all__ = [
    "BlockCase",
    "CleanMark",
    "CleanPartition",
    "DirectoryInUse",
    "Journal",
    "JournalDamaged",
    "JournalFailed",
    "JournalStatistics",
    "Record",
    "RecordKind",
    "Records",
    "Recovered",
    "Reserve",
    "Rollback",
    "Stretch",
    "TakenMark",
    "decide_block",
    "find_clean",
    "lock_directory",
    "open_journal",
    "remove_clean",
    "why_unclean",
    "write_clean",
]
