"""Reads the files of a journal before anything is changed, and finds the case of each (file_case.py)."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.journal.errors import JournalDamaged
from tailrace_server.journal.file_case import STOPS, FileCase, FileFacts, decide
from tailrace_server.journal.format import (
    FILE_HEADER_BYTES,
    JournalFormatError,
    JournalHeader,
    RecordKind,
    file_name,
    file_number,
)
from tailrace_server.journal.progress import Progress
from tailrace_server.journal.reader import (
    WINDOW_BYTES,
    BadRecord,
    Window,
    bytes_before_zeros,
    read_file_header,
    read_head,
    read_record,
)
from tailrace_server.journal.replay_cost import surplus_ns, surplus_ns_of
from tailrace_server.journal.stretch import read_stretch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.host.disk import Disk


class InspectedFile(NamedTuple):
    """A file of the journal whose case lets the start continue."""

    path: str
    header: JournalHeader
    facts: FileFacts
    case: FileCase


def survey(disk: Disk, directory: str, clock: Callable[[], float] = time.monotonic) -> list[InspectedFile]:
    """Reads all files of the journal, and changes nothing. JournalDamaged for the first file that stops the start."""
    numbers = sorted(number for name in disk.names(directory) if (number := file_number(name)) is not None)
    if not numbers:
        return []
    paths = [os.path.join(directory, file_name(number)) for number in range(numbers[0], numbers[-1] + 1)]
    headers = [_header(disk, path, number) for number, path in enumerate(paths, numbers[0])]
    progress = Progress("checking", sum(_size(disk, path) for path in paths), clock)
    found = []
    for path, header, successor in zip(paths, headers, [*headers[1:], None], strict=True):
        successor_says = None if successor is None else successor.previous_end
        facts = inspect(disk, path, header, successor_says, progress)
        found.append(InspectedFile(path, header, facts, _go_on(path, facts, successor_says)))
    return found


def _go_on(path: str, facts: FileFacts | None, successor_says: int | None) -> FileCase:
    """Returns the file's case if the start can continue with it. JournalDamaged."""
    case = decide(facts, successor_says)
    if case not in STOPS:
        return case
    if facts is None:
        raise JournalDamaged(path, 0, "the file is missing")
    why = facts.bad or "the file ends here"
    if case == FileCase.SHORT:
        why = f"the file has {facts.size} bytes, and {successor_says} according to the one after it; {why}"
    if case == FileCase.LOST:
        why = f"this was durable, up to offset {max(facts.synced, facts.witness)}; now: {why}"
    raise JournalDamaged(path, facts.end, why)


def _header(disk: Disk, path: str, number: int) -> JournalHeader:
    """Reads the header of the file of this number. JournalDamaged if there is no such file or no valid header."""
    if not disk.exists(path):
        _go_on(path, None, 0)
    with contextlib.closing(disk.open(path)) as file:
        window = Window(file, path)
        try:
            header = read_file_header(window)
            if header.number != number:
                raise JournalFormatError(f"the file says that it is number {header.number} of the journal")
        except JournalFormatError as error:
            _go_on(path, FileFacts(window.size, bad=str(error)), 0)
            raise AssertionError("a bad header stops the start") from error
    return header


def _size(disk: Disk, path: str) -> int:
    with contextlib.closing(disk.open(path)) as file:
        return file.size()


def inspect(
    disk: Disk, path: str, header: JournalHeader, successor_says: int | None, progress: Progress | None = None
) -> FileFacts:
    """Reads a file's records up to the end that its successor tells, or all of the newest file."""
    with contextlib.closing(disk.open(path)) as file:
        window = Window(file, path)
        limit = window.size if successor_says is None else min(window.size, successor_says)
        end, synced = FILE_HEADER_BYTES, header.synced
        bad, newer, rolled_back, records, surplus = "", False, False, 0, 0
        try:
            while end < limit:
                stretch = read_stretch(window, header, end, limit)
                if stretch is not None:
                    if progress is not None:
                        progress.add(stretch.end - end, len(stretch))
                    end, synced = stretch.end, max(synced, stretch.synced)
                    records, surplus = records + len(stretch), surplus + surplus_ns_of(stretch.heads)
                    rolled_back |= stretch.has(RecordKind.ROLLED_BACK)
                    continue
                record = read_record(window, header, end, limit).header
                end, synced, records = record.end, max(synced, record.synced), records + 1
                surplus += surplus_ns(record.kind, record.length, record.covered)
                rolled_back |= record.kind == RecordKind.ROLLED_BACK
        except BadRecord as error:
            bad, newer = str(error), error.newer
        if successor_says is not None:
            return FileFacts(window.size, end, bad, newer, 0, synced, 0, rolled_back, records, surplus)
        tail_bytes, witness = _inspect_tail(window, header, end)
        return FileFacts(window.size, end, bad, newer, tail_bytes, synced, witness, rolled_back, records, surplus)


def _inspect_tail(window: Window, header: JournalHeader, end: int) -> tuple[int, int]:
    """Returns ``tail_bytes`` and ``witness`` of the newest file, whose last good record ends at ``end``."""
    last, witness = end, 0
    for offset in range(end, window.size, WINDOW_BYTES):
        data = window.take(offset, WINDOW_BYTES)
        if used := bytes_before_zeros(data):
            last = offset + used
            for candidate in _candidates(data, header.key):
                witness = max(witness, _synced_at(window, header, offset + candidate))
    return last - end, witness


def _candidates(data: bytes, key: int) -> list[int]:
    """Returns the offsets in ``data`` of possible records: multiples of 8 with the file's key."""
    needle = key.to_bytes(8, "little")
    places = []
    place = data.find(needle)
    while place >= 0:
        if place % 8 == 0:
            places.append(place)
        place = data.find(needle, place + 1)
    return places


def _synced_at(window: Window, header: JournalHeader, offset: int) -> int:
    """Returns ``synced`` of a valid record at ``offset``, whatever its body is; 0 without a valid record."""
    try:
        record, _ = read_head(window, header, offset)
    except JournalFormatError:
        return 0
    return record.synced
