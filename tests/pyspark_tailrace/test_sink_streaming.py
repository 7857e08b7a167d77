"""Streaming queries from files to a feed."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from tests.pyspark_tailrace.jobs import Job
from tests.tiers import first_in_test

from pyspark_tailrace import partition_of

PARTITIONS = 4


@pytest.fixture
def job(spark, tmp_path, node_process):
    return Job(spark, tmp_path, node_process.url, PARTITIONS)


def test_columns_of_each_kind(job, node_process, contents):
    job.add_file(key=[b"\xff\0", b"b", b"c"], value=["ü", None, "x"], deleted=[False, False, True])
    job.run(job.frame("key BINARY, value STRING, deleted BOOLEAN"))
    assert contents(node_process.url).history() == {b"\xff\0": ["ü".encode()], b"b": [None], b"c": [None]}


def test_many_micro_batches_share_connections_and_producers(job, node_process, contents):
    for number in range(12):
        job.add_file(key=[b"%d" % n for n in range(50)], value=[b"%d" % number] * 50)
    query = job.run(job.frame())
    assert len(query.recentProgress) >= 12
    found = contents(node_process.url)
    assert found.history() == {b"%d" % n: [b"%d" % number for number in range(12)] for n in range(50)}
    producers = Counter((block.header.partition, block.header.producer_id) for block in found.blocks)
    # Spark has a Python process for each of its two cores, and starts another one now and then.
    assert len(producers) <= 3 * PARTITIONS
    assert max(producers.values()) >= 3


def test_empty_partitions_and_empty_files(job, node_process, contents):
    job.add_file(key=pa.array([], pa.binary()), value=pa.array([], pa.binary()))
    job.add_file(key=[b"a", b"b"], value=[b"1", b"2"])
    job.add_file(key=pa.array([None], pa.binary()), value=[b"filtered out"])
    job.run(job.frame().where("key IS NOT NULL").repartition(8))
    assert contents(node_process.url).state() == {b"a": b"1", b"b": b"2"}


def shuffled_history(job, keys, versions, files):
    """Rows of a history whose rows lie in any file and in any order; ``at`` says the order. Gives it by key."""
    rows = [(b"key-%d" % key, version) for version in range(versions) for key in range(keys)]
    places = list(enumerate(rows))
    random.Random(4700).shuffle(places)
    for start in range(files):
        part = places[start::files]
        values = [None if (at % 7 == 0) else b"%d" % version for at, (_, version) in part]
        job.add_file(key=[key for _, (key, _) in part], value=values, at=[at for at, _ in part])
    found = {}
    for at, (key, version) in enumerate(rows):
        found.setdefault(key, []).append(None if at % 7 == 0 else b"%d" % version)
    return found


@pytest.mark.parametrize("tasks", first_in_test([3, PARTITIONS, 9], 1))
def test_rows_of_a_key_in_one_micro_batch_end_with_the_later_one(job, node_process, contents, tasks):
    wanted = shuffled_history(job, keys=100, versions=20, files=5)
    job.files = 5
    frame = job.frame("key BINARY, value BINARY, at BIGINT")
    query = job.run(frame.repartition(tasks, partition_of("key", PARTITIONS)), order_by="at")
    assert len([progress for progress in query.recentProgress if progress.numInputRows]) == 1
    assert contents(node_process.url).history() == wanted


def test_partition_column(job, node_process, contents):
    wanted = shuffled_history(job, keys=50, versions=5, files=2)
    job.files = 2
    frame = job.frame("key BINARY, value BINARY, at BIGINT").withColumn("p", partition_of("key", PARTITIONS))
    job.run(frame.repartition(PARTITIONS, "p"), order_by="at", partition_column="p")
    assert contents(node_process.url).history() == wanted


def test_values_of_very_different_sizes(job, node_process, contents):
    rnd = random.Random(4700)
    values = [rnd.randbytes(size) for size in (5 * 1024 * 1024, 10, 0, 900_000, 2_000_000, 5 * 1024 * 1024)]
    job.add_file(key=[b"%d" % n for n in range(6)], value=values)
    job.run(job.frame())
    assert contents(node_process.url).state() == {b"%d" % n: value for n, value in enumerate(values)}


def test_many_rows(job, node_process, contents):
    rnd = random.Random(4700)
    wanted = {b"%016d" % n: rnd.randbytes(100) for n in range(100_000)}
    job.add_file(key=list(wanted), value=list(wanted.values()))
    job.run(job.frame().repartition(PARTITIONS, partition_of("key", PARTITIONS)))
    found = contents(node_process.url)
    assert found.history() == {key: [value] for key, value in wanted.items()}
    assert len(found.blocks) <= 16  # of 11.6 MB, with four partitions' last ones


def test_query_that_has_ended_goes_on_from_its_checkpoint(job, node_process, contents):
    for number in range(3):
        job.add_file(key=[b"%d" % n for n in range(100)], value=[b"%d" % number] * 100)
    job.run(job.frame())
    job.add_file(key=[b"%d" % n for n in range(100)], value=[b"after"] * 100)
    port = node_process.port
    node_process.kill()
    with pytest.raises(StreamingQueryException, match=rf"(?s)no node at 127\.0\.0\.1:{port} could be used within 1 s"):
        job.run(job.frame(), retry_for="1")
    node_process.start()
    job.run(job.frame())
    assert contents(node_process.url).history() == {b"%d" % n: [b"0", b"1", b"2", b"after"] for n in range(100)}


def held(folder):
    """A step of a query that hands on its first batch, and goes on once the file ``open`` is there."""
    came, is_open = str(folder / "came"), str(folder / "open")

    def hold(batches):
        for batch in batches:
            yield batch
            Path(came).touch()
            while not Path(is_open).exists():
                time.sleep(0.01)

    return hold


def test_restart_of_the_node_is_ridden_out(job, node_process, contents):
    """In local[N] Spark does not try a task again: the sink itself has to last."""
    rnd = random.Random(4700)
    rows = Counter()
    for _ in range(8):
        keys, values = [b"%d" % rnd.randrange(5000) for _ in range(5000)], [rnd.randbytes(500) for _ in range(5000)]
        job.add_file(key=keys, value=values)
        rows.update(zip(keys, values, strict=True))
    query = job.start(job.frame().mapInArrow(held(job.folder), "key BINARY, value BINARY"))
    while not (job.folder / "came").exists():
        assert query.exception() is None
        query.awaitTermination(0.05)
    # In the midst of a micro-batch: the rest of them goes on at once and runs into it.
    node_process.kill()
    (job.folder / "open").touch()
    time.sleep(2.0)
    assert query.isActive
    node_process.start()
    query.awaitTermination()
    query.stop()
    found = Counter((row.key, row.value) for row in contents(node_process.url).rows)
    assert found == rows


@pytest.mark.soak
def test_restarts_in_the_midst_of_a_task(job, node_process, contents):
    rnd = random.Random(4700)
    rows = [(b"%d" % n, rnd.randbytes(20_000)) for n in range(3000)]
    job.add_file(key=[key for key, _ in rows], value=[value for _, value in rows])
    job.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    try:
        query = job.start(job.frame().repartition(3))
        ended = threading.Event()

        def kill_and_start():
            for _ in range(3):
                if not ended.wait(1.5):
                    node_process.kill()
                    node_process.start()

        thread = threading.Thread(target=kill_and_start)
        thread.start()
        query.awaitTermination()
        ended.set()
        thread.join()
        query.stop()
    finally:
        job.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Counter((row.key, row.value) for row in contents(node_process.url).rows) == Counter(rows)


@pytest.mark.soak
def test_bad_network(job, node_process, bad_network, contents):
    rnd = random.Random(4700)
    rows = [(b"%d" % n, rnd.randbytes(rnd.randrange(3000))) for n in range(12_000)]
    for start in range(0, 12_000, 3000):
        part = rows[start : start + 3000]
        job.add_file(key=[key for key, _ in part], value=[value for _, value in part])
    network = bad_network(node_process.port, seed=1)
    job.run(job.frame(), url=network.url)
    assert network.cuts > 3
    assert Counter((row.key, row.value) for row in contents(node_process.url).rows) == Counter(rows)


def test_program_of_the_guide(spark, tmp_path, node_process, contents):
    text = (Path(__file__).parents[2] / "docs" / "guides" / "spark.md").read_text()
    program, _ = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    folder = tmp_path / "in"
    folder.mkdir()
    order = '{"id": "o-%d", "customer": "ada", "city": "%s", "at": "2026-01-01T00:00:%02d", "gone": %s}\n'
    lines = [order % (1, "Oslo", 2, "false"), order % (1, "Paris", 1, "false"), order % (2, "Rome", 1, "true")]
    (folder / "a.json").write_text("".join(lines))
    program = program.replace('"sales-in"', repr(str(folder))).replace(
        '"sales-checkpoint"', repr(str(tmp_path / "checkpoint"))
    )
    program = program.replace("tailrace://127.0.0.1:4700", node_process.url)
    exec(compile(program, "spark.md", "exec"), {})
    found = contents(node_process.url, "sales").history()
    assert found == {
        b"o-1": [b'{"customer":"ada","city":"Paris"}', b'{"customer":"ada","city":"Oslo"}'],
        b"o-2": [None],
    }
