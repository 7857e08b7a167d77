"""Jobs and queries over a damaged segment: they end with an error that names it."""

from __future__ import annotations

import pytest
from tests.tailrace.trio.test_damaged_segments import DAMAGES, fill, segment_of

from tailrace import BadSegment


@pytest.fixture
async def path(running, client):
    """The segment of partition 1."""
    feed = await client.create_feed("orders", partitions=4, retention="history")
    await fill(feed, running.node)
    return segment_of(running.node)


@DAMAGES
@pytest.mark.parametrize("read", ["state", "mutations"])
async def test_a_job_ends(job, path, read, harm):
    harm(path)
    with pytest.raises(BadSegment, match="partition 1 of feed orders cannot be read") as told:
        await job("orders", read=read).rows()
    assert path in str(told.value)


@DAMAGES
async def test_a_query_ends(query, path, harm):
    harm(path)
    with pytest.raises(BadSegment, match="partition 1 of feed orders cannot be read"):
        await query("orders").batches()
