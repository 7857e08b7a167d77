"""The producer, while Spark is not there."""

from __future__ import annotations

import pytest
import trio

from pyspark_tailrace.demo.changes import Change
from pyspark_tailrace.demo.plan import FilePlan
from pyspark_tailrace.demo.producer import Produced, Producer

pytestmark = pytest.mark.slow


class ListedHistory:
    """A history of so many changes; ``closed`` is set when nobody reads it any more."""

    def __init__(self, count):
        self.changed = [Change(b"%03d" % n, None if n % 4 == 3 else b"value", n) for n in range(1, count + 1)]
        self.closed = False

    def changes(self):
        try:
            yield from self.changed
        finally:
            self.closed = True


async def test_all_is_written_and_counted(tmp_path):
    producer = Producer(ListedHistory(8), tmp_path / "changes", FilePlan(3, 1 << 20, 1))
    assert producer.produced == Produced()
    await producer.run()
    assert producer.finished.is_set()
    assert producer.ends == {3, 6, 8}
    files = list((tmp_path / "changes").iterdir())
    assert producer.produced == Produced(
        files=3,
        changes=8,
        deletions=2,
        file_bytes=sum(file.stat().st_size for file in files),
        data_bytes=8 * 3 + 6 * 5,
    )


async def test_cancelled_producer_leaves_the_history(tmp_path):
    history = ListedHistory(1_000)
    producer = Producer(history, tmp_path / "changes", FilePlan(1, 1 << 20, 1))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.run)
            while not producer.produced.files:  # noqa: ASYNC110 - it tells nobody
                await trio.sleep(0.001)
            scope.cancel()
    assert history.closed
    assert not producer.finished.is_set()
    assert producer.produced.changes < 1_000
