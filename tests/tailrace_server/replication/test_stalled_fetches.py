"""A promotion that fetches rows from a member whose reads hang: it ends, and may be tried again."""

import threading

import pytest
from tests.tailrace_server.replication.made_set import numbered, put, until

from tailrace.errors import NotLeader
from tailrace_server.replication import missing_rows
from tailrace_server.stream.segment_cursor import SegmentCursor


@pytest.fixture
def hung_reads(monkeypatch):
    """A function: reads of segments below a directory hang until the event that it returns is set."""
    load, released = SegmentCursor.load, threading.Event()

    def hang(directory):
        def wait(cursor, *args):
            if cursor.segment.path.startswith(directory):
                released.wait()
            return load(cursor, *args)

        monkeypatch.setattr(SegmentCursor, "load_cached", lambda cursor, bytes_max: None)
        monkeypatch.setattr(SegmentCursor, "load", wait)
        return released

    yield hang
    released.set()


async def test_a_fetch_from_a_member_whose_reads_hang_ends(members, monkeypatch, hung_reads):
    monkeypatch.setattr(missing_rows, "STALLED_SECONDS", 1.0)
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 5))
        await members[2].stop()
        await put(feed, numbered(10, 20))
        await until(lambda: members[1].seqs("orders") == members[0].seqs("orders"))
        await members[1].flush()
        await members[0].kill()
        released = hung_reads(members[1].config.data)
        await members[2].start()
        with pytest.raises(NotLeader, match="nothing has come from it"):
            await members[2].promote()
        assert not members[2].leads
        released.set()
        await members[2].promote()
        assert members[2].rows("orders") == numbered(0, 5) | numbered(10, 20)
