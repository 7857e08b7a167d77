"""Creates a new journal in a staging directory, and moves its files to the place of the old ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tailrace_server.directory.lost import Lost
from tailrace_server.journal import Journal
from tailrace_server.journal.format import FILE_HEADER_BYTES, JournalHeader, file_name, file_number
from tailrace_server.journal.next_file import create_file
from tailrace_server.journal.rotation import publish_file
from tailrace_server.journal.writer import FILE_BYTES_DEFAULT, file_key
from tailrace_server.offline.data_directory import JOURNAL_NAME
from tailrace_server.offline.journal_walk import (
    numbers_in,
)

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk
    from tailrace_server.host.randomness import Randomness

STAGING_NAME = "journal.new"


def begin_journal(disk: Disk, data: str, randomness: Randomness, clock: Callable[[], float]) -> tuple[Journal, int]:
    """Returns an empty journal in the staging directory, and the number of its first file, above all existing ones."""
    staging = os.path.join(data, STAGING_NAME)
    disk.make_directory(staging)
    for name in disk.names(staging):  # left when this repair was interrupted
        disk.remove(os.path.join(staging, name))
    first = max([1, *numbers_in(disk, os.path.join(data, JOURNAL_NAME))]) + 1
    header = JournalHeader(first, file_key(randomness.token), FILE_HEADER_BYTES, FILE_HEADER_BYTES)
    path = os.path.join(staging, file_name(first))
    file = create_file(disk, path, header)
    publish_file(disk, path, file)
    journal = Journal(
        disk,
        staging,
        disk.open_directory(staging),
        file,
        header,
        FILE_HEADER_BYTES,
        older=(),
        file_bytes_max=FILE_BYTES_DEFAULT,
        token=randomness.token,
        clock=clock,
    )
    return journal, first


def take_journal(disk: Disk, data: str, lost: Lost, fresh: Sequence[int] = (0, 0)) -> None:
    """Moves the journal's files to ``lost``, except for the new ones, first to last number."""
    directory = os.path.join(data, JOURNAL_NAME)
    for name in disk.names(directory) if disk.exists(directory) else []:
        number = file_number(name)
        if number is None or not fresh[0] <= number <= fresh[1]:
            lost.take(os.path.join(directory, name))


def swap_journal(disk: Disk, data: str, lost: Lost, fresh: Sequence[int]) -> None:
    """Moves the old files to ``lost``, and the new ones, first to last number, to their place. May be repeated."""
    directory, staging = os.path.join(data, JOURNAL_NAME), os.path.join(data, STAGING_NAME)
    disk.make_directory(directory)
    take_journal(disk, data, lost, fresh)
    if not disk.exists(staging):
        return
    for number in numbers_in(disk, staging):
        disk.rename(os.path.join(staging, file_name(number)), os.path.join(directory, file_name(number)))
    disk.sync_directory(directory)
    disk.sync_directory(staging)
    for name in disk.names(staging):
        disk.remove(os.path.join(staging, name))
    disk.remove_directory(staging)
    disk.sync_directory(data)
