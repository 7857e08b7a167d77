"""A start that takes long says how far it is."""

from __future__ import annotations

import itertools
import logging

from tests.memory_disk import MemoryDisk

from tailrace_server.journal import RecordKind, open_journal

FEED = b"F" * 16


def lines(caplog, step):
    """What opening and reading a journal logs on a clock of so many seconds a look."""
    disk = MemoryDisk()
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1 << 20)
    for _ in range(3_000):
        journal.append(RecordKind.FLUSHED, FEED, 0, bytes(1_000))
    journal.close()
    ticks = itertools.count(0, step)
    with caplog.at_level(logging.INFO, "tailrace.server"):
        caplog.clear()
        _, recovered = open_journal(disk, "/journal", clock=lambda: next(ticks))
        assert sum(len(part) for part in recovered.records.parts()) == 3_000
    return caplog.messages


def test_a_start_that_takes_long_says_how_far_it_is(caplog):
    said = lines(caplog, 1)
    assert said[0].startswith("checking the journal: 0 of 3 MiB, ")
    assert said[-1] == "replaying the journal: 3 of 3 MiB, 3,000 records"


def test_a_short_one_says_nothing(caplog):
    assert lines(caplog, 0.001) == []
