from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from tests.tailrace.trio.test_write_arrow import items_of, table_of

from tailrace.errors import UnknownFeed


def state_of(feed):
    return {item.key: item.value for item in feed.items()}


def test_a_table_is_written(feed):
    written = feed.write_arrow(table_of(1_000), timeout=30)
    assert sum(versions.last_seq for versions in written.values()) == 1_000
    assert state_of(feed) == items_of(1_000)


def test_deletions(feed):
    feed.write_arrow(table_of(3))
    feed.write_arrow(pa.table({"id": ["k1"], "row": [None], "gone": [True]}), key="id", value="row", deleted="gone")
    assert sorted(state_of(feed)) == [b"k0", b"k2"]


def test_bad_rows(feed):
    with pytest.raises(ValueError, match="row 1 ") as caught:
        feed.write_arrow(pa.table({"key": ["a", None], "value": ["v", "v"]}))
    assert caught.value.__notes__[-1].endswith("acknowledged rows: none")
    batches = iter([table_of(10), pa.table({"key": ["a"], "value": [1]})])
    with pytest.raises(TypeError, match="'value' is of Arrow type int64") as caught:
        feed.write_arrow(batches)
    assert caught.value.__notes__[0] == "the 10 rows before these were added"
    assert "(seqs 1 to " in caught.value.__notes__[-1]
    assert state_of(feed) == items_of(10)


def test_a_writer_that_threads_share(feed):
    def write(number):
        writer.write_arrow(table_of(500, first=500 * number))

    with feed.writer() as writer:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        written = writer.flush()
        assert writer.acknowledged == {}
    assert sum(versions.last_seq for versions in written.values()) == 2_000
    assert state_of(feed) == items_of(2_000)


def test_the_error_of_an_earlier_row_is_raised(feed, client):
    writer = feed.writer()
    writer.put(b"k", b"v")
    client.drop_feed(feed.name)
    with pytest.raises(UnknownFeed):
        writer.flush()
    with pytest.raises(UnknownFeed):
        writer.write_arrow(table_of(10))
