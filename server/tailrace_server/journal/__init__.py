"""The journal: the node's write-ahead log, shared by its partitions (docs/formats/journal.md).

format.py     the bytes of files and records, pure
writer.py     append, sync, and errors of the disk
space.py      space of the newest file, with zeros ahead of small records
rotation.py   the change to the next file
next_file.py  the next file, created ahead
older_files.py  finished files, and their removal
reader.py     reads a file record by record, the reference
stretch.py    reads many records by columns, pure
records.py    all records of a recovered journal
progress.py   log lines about a long start
file_case.py  the case of a file found by a start, pure
inspection.py  reads all files before anything is changed
recovery.py   opens a journal after any kind of stop
replay.py     the cases of a block record, pure
replay_cost.py  estimates the time that a start takes to read a journal, pure
controls.py   the payloads of a partition's control records, pure
published_record.py  the record of a publish, pure
clean.py      CLEAN, the mark of a clean stop
held.py       HELD, the data that a running node has on its disk
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
from tailrace_server.journal.replay import BlockCase, JournalRollback, decide_block
from tailrace_server.journal.reserve import Reserve
from tailrace_server.journal.statistics import JournalStatistics
from tailrace_server.journal.stretch import Stretch
from tailrace_server.journal.writer import Journal

__all__ = [
    "BlockCase",
    "CleanMark",
    "CleanPartition",
    "DirectoryInUse",
    "Journal",
    "JournalDamaged",
    "JournalFailed",
    "JournalRollback",
    "JournalStatistics",
    "Record",
    "RecordKind",
    "Records",
    "Recovered",
    "Reserve",
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
