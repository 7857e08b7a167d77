"""The file AHEAD of a follower in the offline tools: it is no problem, it stays, and no backup has it."""

from __future__ import annotations

import pytest
from tests.tailrace_server.made_directory import DATA
from tests.tailrace_server.offline.damage import files_of, repaired, segments_of

from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.manifest.store import AHEAD_NAME
from tailrace_server.offline.backup import backup
from tailrace_server.offline.restore import restore
from tailrace_server.offline.verify import verify
from tailrace_server.upkeep.ahead_file import AheadFile

TARGET = "/backup"
AGAIN = "/again"
LOG = FailoverLog([FailoverEntry(b"x" * 16, 7, 0)])


@pytest.fixture
def disk(stopped):
    """The stopped node's disk, with a file AHEAD, and a received segment beside it that no manifest names."""
    made = stopped.disk.fork()
    segment = segments_of(made)[0]
    directory = segment.rpartition("/")[0]
    feed_id, partition = directory.split("/")[-2:]
    AheadFile.create(made, f"{directory}/{AHEAD_NAME}", bytes.fromhex(feed_id), int(partition), 1 << 40, LOG, bytes(16))
    return made


def aheads(disk):
    return [path for path in disk.names_now if path.endswith(f"/{AHEAD_NAME}")]


def test_verify_says_what_it_is(disk):
    report = verify(disk, DATA)
    assert report.problems == []
    [(_, note)] = report.notes
    assert note.what == "rows that came ahead of others below them"


def test_a_backup_does_not_have_it(disk, stopped):
    backup(disk, DATA, TARGET, 0)
    restore(disk, TARGET, AGAIN, stopped.host.randomness)
    assert [path.split("/")[1] for path in aheads(disk)] == [DATA[1:]]


def test_a_repair_leaves_it_alone(disk, stopped):
    before = aheads(disk)
    repaired(stopped, disk)
    assert aheads(disk) == before
    assert set(before) <= set(files_of(disk))
