from __future__ import annotations

import gc
import os
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_tailrace import worker_memory
from pyspark_tailrace.reading.options import batch_options
from pyspark_tailrace.source import TailraceSource
from pyspark_tailrace.worker_memory import spare_modules
from tailrace import blocking


@pytest.fixture
def calls(monkeypatch):
    """The calls of the collector, in their order, which do nothing; as if no task had ended in this process."""
    called = []
    collector = SimpleNamespace(
        collect=lambda: called.append("collect"),
        freeze=lambda: called.append("freeze"),
    )
    monkeypatch.setattr(worker_memory, "gc", collector)
    monkeypatch.setattr(worker_memory, "_spared", (0, 0))
    return called


@pytest.fixture
def in_task(monkeypatch):
    monkeypatch.setattr(worker_memory, "TaskContext", SimpleNamespace(get=object))


def test_a_program_that_is_no_worker_keeps_its_collector(calls):
    spare_modules()
    assert calls == []


def test_the_first_task_of_a_worker_spares_what_lives_after_a_collection(calls, in_task):
    spare_modules()
    assert calls == ["collect", "freeze"]


def test_a_worker_that_plans_spares_them_too(calls, monkeypatch):
    daemon = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    spare_modules()
    assert calls == ["collect", "freeze"]


@pytest.mark.parametrize("spec", [None, SimpleNamespace(name="jobs.daemon")])
def test_a_program_with_another_main_module_is_no_worker(calls, monkeypatch, spec):
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    spare_modules()
    assert calls == []


def test_later_tasks_of_a_worker_spare_nothing_more(calls, in_task):
    for _ in range(3):
        spare_modules()
    assert calls == ["collect", "freeze"]


def test_a_worker_spares_modules_that_it_has_imported_since(calls, in_task, monkeypatch):
    spare_modules()
    monkeypatch.setitem(sys.modules, "imported_since", SimpleNamespace())
    spare_modules()
    spare_modules()
    assert calls == ["collect", "freeze"] * 2


def test_a_process_that_was_forked_from_a_worker_spares_its_own(calls, in_task, monkeypatch):
    spare_modules()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    spare_modules()
    assert calls == ["collect", "freeze"] * 2


class FrozenCounter(TailraceSource):
    """Reads a feed as usual, and gives a row for each task: how many objects its worker leaves out then."""

    @classmethod
    def name(cls):
        return "frozen"

    def reader(self, schema):
        batches = super().reader(schema)

        class Reader(type(batches)):
            def read(self, partition):
                for _ in super().read(partition):
                    pass
                yield pa.RecordBatch.from_pydict({"seq": [gc.get_freeze_count()]})

        return Reader(batch_options(self.options), schema)


def test_a_worker_of_spark_leaves_out_its_modules_from_its_first_task_on(spark, shared_node, feed_name):
    with blocking.connect(shared_node.url) as client, client.create_feed(feed_name, partitions=1).writer() as writer:
        writer.put(b"key", b"value")
    spark.dataSource.register(FrozenCounter)
    source = (
        spark.read.format("frozen").options(url=shared_node.url, feed=feed_name, read="mutations").schema("seq LONG")
    )
    counts = [source.load().collect()[0].seq for _ in range(3)]
    assert min(counts) > 10_000


class PlanCounter(TailraceSource):
    """Plans as usual. Its columns are named by how many objects the workers that plan leave out then."""

    @classmethod
    def name(cls):
        return "frozen_plans"

    def schema(self):
        super().schema()
        return f"made_{gc.get_freeze_count()} LONG"

    def reader(self, schema):
        batches = super().reader(StructType().add("seq", "long"))

        class Reader(type(batches)):
            def partitions(self):
                super().partitions()
                return [InputPartition(gc.get_freeze_count())]

            def read(self, partition):
                yield pa.RecordBatch.from_pydict({schema.names[0]: [partition.value]})

        return Reader(batch_options(self.options), schema)


def test_the_workers_of_spark_that_plan_leave_out_their_modules(spark, shared_node, feed_name):
    with blocking.connect(shared_node.url) as client:
        client.create_feed(feed_name, partitions=1)
    spark.dataSource.register(PlanCounter)
    found = spark.read.format("frozen_plans").options(url=shared_node.url, feed=feed_name).load()
    made = int(found.columns[0].removeprefix("made_"))
    [[planned]] = found.collect()
    assert min(made, planned) > 10_000
