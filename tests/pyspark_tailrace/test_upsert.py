"""Under which names a micro-batch of ``foreachBatch`` is published, with a frame that only takes options."""

from __future__ import annotations

import pytest

from pyspark_tailrace import upsert_batch


class Frame:
    """Stands for a DataFrame, and for the writer that it has; ``query_id`` None: as with Spark Connect."""

    def __init__(self, query_id=None):
        self.query_id = query_id
        self.written = None

    @property
    def write(self):
        return self

    @property
    def sparkSession(self):
        return self

    @property
    def sparkContext(self):
        if self.query_id is None:
            raise NotImplementedError("JVM_ATTRIBUTE_NOT_SUPPORTED")
        return self

    def getLocalProperty(self, name):
        assert name == "sql.streaming.queryId"
        return self.query_id

    def format(self, name):
        assert name == "tailrace"
        return self

    def options(self, **options):
        self.written = options
        return self

    def mode(self, mode):
        assert mode == "append"
        return self

    def save(self):
        assert self.written


def written(frame, batch, **options):
    upsert_batch(feed="counts", **options)(frame, batch)
    return frame.written


def test_the_query_is_the_sink():
    assert written(Frame("q"), 7) == {"feed": "counts", "sink_id": "q", "batch_id": "7", "origin": "q"}


def test_a_sink_of_another_name_is_of_the_query_with_what_is_added_to_its_numbers():
    found = written(Frame("q"), 7, sink_id="s", first_batch=10)
    assert found == {"feed": "counts", "sink_id": "s", "batch_id": "17", "origin": "q+10"}


def test_without_a_query_the_sink_has_to_be_named():
    with pytest.raises(ValueError, match="sink_id="):
        upsert_batch(feed="counts")(Frame(), 0)
    assert written(Frame(), 0, sink_id="s") == {"feed": "counts", "sink_id": "s", "batch_id": "0", "origin": "s"}


def test_the_checkpoint_may_be_named():
    found = written(Frame(), 0, sink_id="s", origin="checkpoint-2")
    assert found == {"feed": "counts", "sink_id": "s", "batch_id": "0", "origin": "checkpoint-2"}


def test_values_of_python_are_written_as_options_are():
    found = written(Frame("q"), 0, create_feed=True, partitions=4)
    assert (found["create_feed"], found["partitions"]) == ("true", "4")


def test_none_is_as_if_it_was_left_out():
    assert written(Frame("q"), 7, token=None, partitions=None, sink_id=None, first_batch=None) == written(Frame("q"), 7)


def test_a_number_of_its_own_is_refused():
    with pytest.raises(ValueError, match="takes no 'batch_id'"):
        upsert_batch(feed="counts", batch_id=7)


def test_at_least_once_has_no_numbers():
    found = written(Frame("q"), 0, delivery="at_least_once")
    assert found == {"feed": "counts", "delivery": "at_least_once"}
