"""Opens a journal: inspects its files (inspection.py), and continues in a new file.

Records beyond `synced` may be in the page cache only, because of an fsync that failed or never came. So they are copied
to a new file, which is fsynced before anything is shown. The new file's header has the end of the old one. So giving
the new file its name is the one step that counts: a crash before it changes nothing, and after it the rest of the old
file does not count any more (LEFTOVER). A newest file that is small is copied whole and replaced, so that frequent
restarts don't leave thousands of tiny files. Nothing is ever appended to a file of an earlier process.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.directory.identity import Incomplete
from tailrace_server.host.disk import TEMPORARY, raise_if_no_space
from tailrace_server.journal.errors import JournalDamaged, JournalFailed
from tailrace_server.journal.file_case import FileCase
from tailrace_server.journal.format import FILE_HEADER_BYTES, JournalHeader, file_name, pack_record, padded
from tailrace_server.journal.held import HELD_NAME
from tailrace_server.journal.inspection import InspectedFile, survey
from tailrace_server.journal.next_file import create_file
from tailrace_server.journal.older_files import OlderFile
from tailrace_server.journal.reader import BadRecord, RawRecord, Window, read_record
from tailrace_server.journal.records import FileExtent, Records
from tailrace_server.journal.replay_cost import surplus_ns, surplus_ns_of
from tailrace_server.journal.rotation import publish_file
from tailrace_server.journal.stretch import moved, read_stretch
from tailrace_server.journal.writer import FILE_BYTES_DEFAULT, Journal, file_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.host.disk import Disk, File

# A newest file that is durable up to here at most is copied whole: as much as one fsync takes in a few milliseconds.
REPLACE_BYTES_MAX = 1 << 20


class Recovered(NamedTuple):
    """The result of ``open_journal``.

    ``records`` may be iterated over any number of times, best before the journal is written to; each record is read
    from its file then. ``end`` is the number of the newest file and the end of its last whole record, before recovery
    changed anything: (0, 0) if the journal is new. ``torn_bytes`` were cut from the newest file. ``copied_bytes`` of
    records were copied, because they were not known to be durable. ``cases`` has each file's path and case.
    ``rolled_back``: there is a record of a rollback, so ``records`` have to be read once more before they are applied.
    """

    records: Records
    end: tuple[int, int]
    torn_bytes: int
    copied_bytes: int
    cases: tuple[tuple[str, FileCase], ...]
    rolled_back: bool = False


def open_journal(
    disk: Disk,
    directory: str,
    *,
    file_bytes_max: int = FILE_BYTES_DEFAULT,
    token: Callable[[int], bytes] = os.urandom,
    clock: Callable[[], float] = time.monotonic,
    reached: tuple[int, int] = (0, 0),
) -> tuple[Journal, Recovered]:
    """Recovers the journal in ``directory``, which is made if it is missing. All records found are durable then.

    The caller holds the data directory's lock.

    Args:
        disk: The file system.
        directory: The path of the journal's directory.
        file_bytes_max: The size in bytes above which a file takes no more records.
        token: Returns random bytes, for the keys of new files.
        clock: Returns seconds.
        reached: The number and offset up to which the journal was durable (HELD).

    Raises:
        JournalDamaged: A durable part is gone or changed; nothing has been touched.
        Incomplete: The journal ends before ``reached``; nothing has been touched.
        NoSpace: The copy of the newest records did not fit.
        JournalFailed: The copy could not be made.
    """
    disk.make_directory(directory)
    files = survey(disk, directory, clock)
    check_reached(directory, (files[-1].header.number, files[-1].facts.end) if files else (0, 0), reached)
    try:
        extent, file, copied = _continue(disk, directory, files[-1] if files else None, file_key(token))
        _cut_leftovers(disk, files, extent)
        _remove_temporaries(disk, directory)
        opened = disk.open_directory(directory)
    except OSError as error:
        raise_if_no_space(error, f"to recover the journal in {directory}")
        raise JournalFailed(f"the journal in {directory} can't be recovered: {error}") from error
    older = [found for found in files if found.path != extent.path]
    extents = [FileExtent(found.path, found.header, _counts(found, extent)) for found in older]
    counts = [(found.facts.records, found.facts.surplus_ns) for found in older]
    if older and older[-1] is files[-1]:
        facts = older[-1].facts
        counts[-1] = facts.records - copied.records, facts.surplus_ns - copied.surplus_ns
    journal = Journal(
        disk,
        directory,
        opened,
        file,
        extent.header,
        extent.end,
        older=[OlderFile(each.header.number, each.end, *held) for each, held in zip(extents, counts, strict=True)],
        records=copied.records,
        surplus_ns=copied.surplus_ns,
        file_bytes_max=file_bytes_max,
        token=token,
        clock=clock,
    )
    recovered = Recovered(
        records=Records(disk, (*extents, extent), clock),
        end=(files[-1].header.number, files[-1].facts.end) if files else (0, 0),
        torn_bytes=files[-1].facts.tail_bytes if files else 0,
        copied_bytes=copied.nbytes,
        cases=tuple((found.path, found.case) for found in files),
        rolled_back=any(found.facts.rolled_back for found in files),
    )
    return journal, recovered


def check_reached(directory: str, end: tuple[int, int], reached: tuple[int, int]) -> None:
    """Raises Incomplete if the journal ends at ``end``, number and offset, and was durable up to ``reached``."""
    if end < reached:
        number, offset = reached
        what = f"{os.path.join(directory, file_name(number))}"
        why = f"{HELD_NAME} says that the journal was durable up to offset {offset} of it"
        raise Incomplete(what if end[0] < number else f"the end of {what}", why)


def copy_from(synced: int) -> int:
    """Returns the offset from which the newest file, known to be durable up to ``synced``, is copied to a new one."""
    return FILE_HEADER_BYTES if synced <= REPLACE_BYTES_MAX else synced


class Copied(NamedTuple):
    """The copied part of the newest file: its bytes, its count of records, and their ``surplus_ns``."""

    nbytes: int = 0
    records: int = 0
    surplus_ns: int = 0


def _continue(disk: Disk, directory: str, newest: InspectedFile | None, key: int) -> tuple[FileExtent, File, Copied]:
    """Makes the file in which the journal continues. Returns its extent, the file, and the copied part."""
    if newest is None:
        header, begin, end = JournalHeader(1, key, 0, FILE_HEADER_BYTES), 0, 0
    else:
        number, previous_end = newest.header.number, newest.header.previous_end
        begin, end = copy_from(newest.facts.synced), newest.facts.end
        if begin > FILE_HEADER_BYTES:
            number, previous_end = number + 1, begin
        synced = FILE_HEADER_BYTES + end - begin
        header = JournalHeader(number, key, previous_end, synced, newest.header.version)
    path = os.path.join(directory, file_name(header.number))
    file = create_file(disk, path, header)
    copied = Copied()
    try:
        if newest is not None:
            copied = _copy(disk, newest, begin, file, header)
        publish_file(disk, path, file)
    except BaseException:
        file.close()
        raise
    return FileExtent(path, header, header.synced), file, copied


def _copy(disk: Disk, source: InspectedFile, begin: int, target: File, header: JournalHeader) -> Copied:
    """Writes the records of ``source`` from ``begin`` on to ``target``, behind its header."""
    offset, place, records, surplus = FILE_HEADER_BYTES, begin, 0, 0
    end = source.facts.end
    with contextlib.closing(disk.open(source.path)) as file:
        window = Window(file, source.path)
        try:
            while place < end:
                stretch = read_stretch(window, source.header, place, end)
                if stretch is not None:
                    data = moved(stretch, header, offset)
                    target.write_at(offset, (data,), len(data))
                    offset, place, records = offset + len(data), stretch.end, records + len(stretch)
                    surplus += surplus_ns_of(stretch.heads)
                    continue
                record = read_record(window, source.header, place, end)
                offset += _write_copy(target, header, offset, record)
                place, records = record.header.end, records + 1
                surplus += surplus_ns(record.header.kind, record.header.length, record.header.covered)
        except BadRecord as error:
            raise JournalDamaged(source.path, error.offset, str(error)) from None
    assert offset == header.synced
    return Copied(end - begin, records, surplus)


def _write_copy(target: File, file: JournalHeader, offset: int, record: RawRecord) -> int:
    """Writes a record to its new place. Returns its size, which does not change."""
    payload, old = record.payload, record.header
    header = pack_record(
        file.key,
        file.number,
        offset,
        FILE_HEADER_BYTES,
        old.length,
        old.kind,
        old.partition,
        old.feed_id,
        old.branch,
        (old.snapshot_first, old.snapshot_last),
        payload[: old.covered],
    )
    size = old.end - old.offset
    target.write_at(offset, (header, payload, bytes(padded(old.length) - old.length)), size)
    return size


def _counts(found: InspectedFile, newest: FileExtent) -> int:
    """Returns the end of an older file: the one that its successor tells."""
    return newest.header.previous_end if found.header.number + 1 == newest.header.number else found.facts.end


def _cut_leftovers(disk: Disk, files: list[InspectedFile], newest: FileExtent) -> None:
    """Cuts every older file at its end. This only frees space: bytes behind the end do not count any more."""
    for found in files:
        end = _counts(found, newest)
        if found.path != newest.path and found.facts.size > end:
            with contextlib.closing(disk.open(found.path, writable=True)) as file:
                file.truncate(end)
                file.sync()


def _remove_temporaries(disk: Disk, directory: str) -> None:
    """Removes files of an interrupted start or rotation, and one that was created ahead."""
    for name in disk.names(directory):
        if name.endswith(TEMPORARY):
            disk.remove(os.path.join(directory, name))
