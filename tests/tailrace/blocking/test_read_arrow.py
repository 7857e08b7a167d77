from __future__ import annotations

import pyarrow as pa
from tests.tailrace.trio.test_read_arrow import pairs_of
from tests.tailrace.trio.test_write_arrow import items_of, table_of


def test_items_as_a_table(feed):
    feed.write_arrow(table_of(1_000))
    feed.delete(b"k7")
    items = feed.items()
    next(items)
    table = items.to_arrow()
    expected = items_of(1_000)
    del expected[b"k7"]
    assert pairs_of(table) == expected
    assert {item.key for item in items} < expected.keys(), "the iterator goes on"


def test_a_stream_as_batches(feed):
    feed.write_arrow(table_of(100))
    with feed.consume(until="now") as stream:
        table = pa.Table.from_batches(stream.batches())
        assert stream.finished
    assert pairs_of(table) == items_of(100)
