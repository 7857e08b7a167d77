"""What tasks stage and the driver publishes, without a Spark."""

from __future__ import annotations

import dataclasses
import os
import pickle
import secrets

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.processes.program import SMALL_PARTS

import tailrace
from pyspark_tailrace import connections, publishing, restaging, sink
from pyspark_tailrace.kept_files import KeptFolder
from pyspark_tailrace.options import sink_options
from pyspark_tailrace.publishing import TaskStage, parts, publish_batch, publish_job
from pyspark_tailrace.sink import BatchSink, StagedMessage, StreamSink, stage_batches
from tailrace.requests.staging import SealedStage

pytestmark = pytest.mark.usefixtures("no_connections")


@pytest.fixture
def options(shared_node, feed_name):
    said = {"url": shared_node.url, "feed": feed_name, "create_feed": "true", "partitions": "3", "retry_for": "60"}
    return sink_options(said)


@pytest.fixture
def history(shared_node, feed_name, contents):
    return lambda: contents(shared_node.url, feed_name).history()


def rows(begin, end, value=b"v"):
    return pa.record_batch(
        [pa.array([b"%d" % n for n in range(begin, end)]), pa.array([value] * (end - begin))], names=["key", "value"]
    )


def stage(options, *batches, folder=None):
    """What the driver gets of a task."""
    return pickle.loads(pickle.dumps(stage_batches(options, iter(batches), folder, "query-0")))


def test_only_the_attempts_that_count_are_published(options, history):
    """As with speculation: both attempts have staged all of their rows, and one message reaches the driver."""
    tasks = [(rows(0, 50),), (rows(50, 100),)]
    for batches in tasks:
        stage(options, *batches)
    won = [stage(options, *batches) for batches in tasks]
    assert history() == {}
    publish_batch(options, "query", 0, "query", won)
    assert history() == {b"%d" % n: [b"v"] for n in range(100)}
    publish_batch(options, "query", 0, "query", [stage(options, rows(0, 30)), stage(options, rows(30, 100))])
    assert history() == {b"%d" % n: [b"v"] for n in range(100)}


def test_a_task_without_rows_stages_nothing(options):
    assert stage(options, rows(0, 0)) == ()
    assert not connections._connections
    publish_batch(options, "query", 0, "query", [(), ()])
    assert not connections._connections


def test_a_task_with_much_of_one_partition_makes_several_stages(options, history, monkeypatch):
    monkeypatch.setattr(publishing, "STAGE_PARTITION_BYTES", 1)
    monkeypatch.setattr(publishing, "PUBLISH_BYTES", 1)
    shares = stage(options, rows(0, 100))
    assert len(shares) == 3
    publish_job(options, "job:1", [shares, stage(options, rows(100, 150))])
    assert history() == {b"%d" % n: [b"v"] for n in range(150)}


@given(st.lists(st.dictionaries(st.integers(0, 2), st.integers(1, 10), min_size=1), max_size=12), st.integers(10, 20))
def test_parts_keep_the_order_and_the_bound(sizes, bytes_max):
    shares = [TaskStage(SealedStage(b"%d" % number, (), 1, 1), nbytes) for number, nbytes in enumerate(sizes)]
    found = list(parts(shares, bytes_max))
    assert [share for part in found for share in part] == shares
    for part in found:
        for partition in range(3):
            assert sum(share.nbytes.get(partition, 0) for share in part) <= bytes_max


def test_a_node_that_is_gone_ends_the_publish_after_retry_for(start_node, capsys):
    """What is staged is published once the job is run again, once."""
    node = start_node()
    options = sink_options({"url": node.url, "feed": "orders", "create_feed": "true", "retry_for": "1"})
    shares = stage(options, rows(0, 10))
    node.kill()
    text = r"batch 0 of query got no answer within 1 s \(option 'retry_for'\), and may be published: .*same checkpoint"
    with pytest.raises(tailrace.Unreachable, match=text):
        publish_batch(options, "query", 0, "query", [shares])
    with pytest.raises(tailrace.Unreachable, match=r"may be published: .*The job has no number"):
        publish_job(options, "job:1", [shares])
    node.start()
    for _ in range(2):
        publish_batch(options, "query", 0, "query", [shares])
    with tailrace.blocking.connect(node.url) as client:
        assert [p.high_seq for p in client.feed("orders").partitions()].count(0) < 16
        assert sum(p.high_seq for p in client.feed("orders").partitions()) == 10


VALUE = b"value" * 8


@pytest.fixture
def micro_batch(start_node, monkeypatch):
    """A function that runs a micro-batch of these keys, a task for each, on a node of small parts; and the node."""
    node = start_node(SMALL_PARTS)
    said = {"url": node.url, "feed": "orders", "create_feed": "true", "partitions": "1", "retry_for": "60"}

    def run(batch, keys, **more):
        monkeypatch.setattr(sink, "_micro_batch", lambda: ("query", batch))
        stream = StreamSink(sink_options(said | more))
        table = [pa.RecordBatch.from_pydict({"key": [key], "value": [VALUE]}) for key in keys]
        stream.commit([stream.write(iter([row])) for row in table], batch)

    return run, node


def test_a_micro_batch_of_more_than_a_part_is_written_once(micro_batch, contents, caplog):
    run, node = micro_batch
    keys = [b"%d" % number for number in range(50)]
    run(0, keys)
    run(0, keys[::-1])
    assert caplog.messages == ["tailrace: batch 0 of 'query' was published before: it is not written again"]
    assert contents(node.url).history() == {key: [VALUE] for key in keys}


def test_too_many_changes_of_one_key_are_written_at_least_once_and_the_next_batch_once(micro_batch, contents):
    run, node = micro_batch
    run(0, [b"0", b"1"])
    for _ in range(2):  # a restart plans the same batch
        with pytest.raises(tailrace.TooLarge, match=r"of one key, b'hot'.*\.option\('delivery', 'at_least_once'\)"):
            run(1, [b"hot"] * 100)
    assert contents(node.url).state().keys() == {b"0", b"1"}
    run(1, [b"hot"] * 100, delivery="at_least_once")
    run(2, [b"2"])
    run(2, [b"2"])
    history = contents(node.url).history()
    assert {key: len(values) for key, values in history.items()} == {b"0": 1, b"1": 1, b"hot": 100, b"2": 1}


def test_what_was_staged_for_a_feed_that_was_dropped_is_not_published_to_the_new_one(options, history, feed_name):
    task = stage(options, rows(0, 10))
    with tailrace.blocking.connect(options.url) as client:
        client.drop_feed(feed_name)
    with pytest.raises(tailrace.UnknownStage, match="staged anew"):
        publish_batch(options, "query", 0, "query", [task])
    assert history() == {}
    publish_batch(options, "query", 0, "query", [stage(options, rows(0, 10))])
    assert history() == {b"%d" % n: [b"v"] for n in range(10)}


def test_messages_of_another_batch_or_query_are_refused(options):
    share = stage(options, rows(0, 1))
    stream = StreamSink(options)
    with pytest.raises(RuntimeError, match="the commit of batch 1 got messages"):
        stream.commit([StagedMessage(0, "q", 0, share)], 1)
    with pytest.raises(RuntimeError, match="queries"):
        stream.commit([StagedMessage(0, "q", 1, share), StagedMessage(1, "r", 1, share)], 1)


@pytest.fixture
def numbered(options):
    """Runs a job with a number."""

    def run(number, begin, end, **more):
        job = BatchSink(dataclasses.replace(options, sink_id="nightly", batch_id=number, **more))
        job.commit([job.write(iter([rows(begin, end)])), None])

    return run


def test_a_number_that_comes_again_is_told_and_a_lower_one_is_refused(numbered, history, caplog):
    for number in (7, 8):
        numbered(number, 1, 2)
    assert caplog.messages == []
    numbered(8, 1, 2)
    assert caplog.messages == ["tailrace: batch 8 of 'nightly' was published before: it is not written again"]
    for number in (7, 3):
        with pytest.raises(tailrace.BatchBehind, match=r"(?s)older than the last one.*option\('first_batch', 9\)"):
            numbered(number, 1, 2)
    assert history() == {b"1": [b"v", b"v"]}


def test_a_number_that_comes_again_with_other_rows_is_refused(numbered, history):
    """As by two calls with one sink in one micro-batch."""
    numbered(0, 1, 2)
    with pytest.raises(tailrace.BatchChanged, match=r"(?s)'nightly' .* other rows.*\('first_batch', 1\).*'skip'"):
        numbered(0, 2, 40)
    assert len(history()) == 1


def test_where_some_partitions_had_the_number_it_is_told(numbered, history, caplog):
    """With other rows, if the job says so: what has gone where others had gone is not written."""
    numbered(0, 1, 2)
    numbered(0, 2, 40, is_compared=False)
    text = "tailrace: batch 0 of 'nightly' was published before in 1 of 3 partitions, and now in the others"
    assert caplog.messages == [text]
    assert 1 < len(history()) < 39


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("kind", [StreamSink, BatchSink])
def test_without_a_row_the_feed_is_made_nevertheless(options, shared_node, feed_name, delivery, kind, monkeypatch):
    monkeypatch.setattr(sink, "_micro_batch", lambda: ("query", 0))
    batch = (0,) if kind is StreamSink else ()
    with tailrace.blocking.connect(shared_node.url) as client:
        for create_feed in (False, True):
            made = kind(dataclasses.replace(options, create_feed=create_feed, delivery=delivery))
            made.commit([made.write(iter([rows(0, 0)])), None], *batch)
            assert (feed_name in {feed.name for feed in client.feeds()}) == create_feed
        made = kind(dataclasses.replace(options, create_feed=True, delivery=delivery, partitions=4))
        with pytest.raises(ValueError, match="has 3 partitions"):
            made.commit([], *batch)


def test_outside_of_a_query_nothing_can_be_staged_for_one(options):
    with pytest.raises(RuntimeError, match="at_least_once"):
        StreamSink(options).write(iter([rows(0, 1)]))


def without_stages(shares):
    """The shares of a task whose stages are on no node, as when another node leads."""
    return tuple(share._replace(stage=share.stage._replace(stage_id=secrets.token_bytes(16))) for share in shares)


@pytest.mark.parametrize("restage_bytes", [1, 500, 1_000_000])
@pytest.mark.parametrize("is_large", [False, True])
def test_lost_stages_are_made_again_from_what_the_tasks_kept(
    options, history, monkeypatch, caplog, tmp_path, is_large, restage_bytes
):
    """In their order, with several stages of a task as well, from memory and files; it is still the same batch."""
    monkeypatch.setattr(publishing, "STAGE_PARTITION_BYTES", 1 if is_large else 1 << 24)
    options, folder = dataclasses.replace(options, restage_bytes=restage_bytes), KeptFolder.find(str(tmp_path))
    tasks = [
        stage(options, rows(0, 60, b"1"), rows(0, 60, b"2"), folder=folder),
        stage(options, rows(60, 90), rows(90, 99), folder=folder),
    ]
    assert bool(list(tmp_path.glob("*/query-0/*"))) == (restage_bytes < 1_000_000)
    publish_batch(options, "query", 0, "query", [without_stages(task) for task in tasks])
    assert "batch 0 of 'query' is staged again" in caplog.text
    expected = {b"%d" % n: [b"1", b"2"] if n < 60 else [b"v"] for n in range(99)}
    assert history() == expected
    told = publish_batch(options, "query", 0, "query", [without_stages(task) for task in tasks])
    assert (told.written, len(told.skipped)) == ({}, 3)
    publish_job(options, "job:1", [without_stages(tasks[1])])
    assert history() == expected | {b"%d" % n: [b"v", b"v"] for n in range(60, 99)}


def test_a_lost_stage_of_a_task_that_kept_nothing_ends_the_publish(options, history):
    """One such task is enough, and no row of the others is written."""
    small, large = (stage(dataclasses.replace(options, restage_bytes=n), rows(0, 50)) for n in (1 << 20, 100))
    with pytest.raises(tailrace.UnknownStage, match="Start the query again"):
        publish_batch(options, "query", 0, "query", [without_stages(small), without_stages(large)])
    assert history() == {}


def test_a_lost_stage_whose_file_is_lost_too_ends_the_publish(options, history, tmp_path, caplog):
    folder = KeptFolder.find(str(tmp_path))
    task = stage(dataclasses.replace(options, restage_bytes=1), rows(0, 50), folder=folder)
    (path,) = tmp_path.glob("*/query-0/*")
    os.truncate(path, 100)
    with pytest.raises(tailrace.UnknownStage, match="Start the query again"):
        publish_batch(options, "query", 0, "query", [without_stages(task)])
    assert "the copy of a stage is lost, too" in caplog.text
    assert history() == {}


@pytest.mark.parametrize("ends", ["commit", "abort"])
@pytest.mark.parametrize("kind", [StreamSink, BatchSink])
def test_the_files_go_with_the_batch(options, tmp_path, monkeypatch, kind, ends):
    monkeypatch.setattr(sink, "_micro_batch", lambda: ("query", 0))
    """Spark makes the sink of a stream once for the tasks, and once for the commit."""
    options = dataclasses.replace(options, restage_bytes=1, restage_dir=str(tmp_path))
    made = kind(options)
    messages = [pickle.loads(pickle.dumps(made)).write(iter([rows(0, 50)])), None]
    assert len(list(tmp_path.glob("*/*/*.blocks"))) == 1
    driver = StreamSink(options) if kind is StreamSink else pickle.loads(pickle.dumps(made))
    getattr(driver, ends)(messages, *((0,) if kind is StreamSink else ()))
    assert list(tmp_path.glob("*/*/*")) == []


@pytest.mark.parametrize("more", [{"restage_bytes": 0}, {"delivery": "at_least_once"}])
def test_without_copies_there_is_no_folder(options, tmp_path, more):
    StreamSink(dataclasses.replace(options, restage_dir=str(tmp_path), **more))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("restage_bytes", [0, 1, 1_000_000])
def test_a_task_whose_stage_is_lost_before_the_seal_makes_another_one(
    options, history, monkeypatch, tmp_path, restage_bytes
):
    seal, failures = tailrace.blocking.Stage.seal, iter([True, True])

    def lost_seal(stage, level):
        if next(failures, False):
            raise tailrace.UnknownStage("another node leads")
        return seal(stage, level)

    monkeypatch.setattr(tailrace.blocking.Stage, "seal", lost_seal)
    options = dataclasses.replace(options, restage_bytes=restage_bytes)
    if not restage_bytes:
        with pytest.raises(tailrace.UnknownStage, match=r"another node leads.*Start the query again"):
            stage(options, rows(0, 50))
        return
    folder = KeptFolder.find(str(tmp_path))
    publish_batch(options, "query", 0, "query", [stage(options, rows(0, 50), folder=folder)])
    assert history() == {b"%d" % n: [b"v"] for n in range(50)}


@pytest.fixture
def levels(monkeypatch):
    """The levels at which stages were sealed."""
    seal, found = tailrace.blocking.Stage.seal, []

    def noted(stage, level="disk"):
        found.append(level)
        return seal(stage, level)

    monkeypatch.setattr(tailrace.blocking.Stage, "seal", noted)
    return found


def test_only_stages_without_another_copy_are_sealed_at_quorum_and_not_staged_again(
    options, history, monkeypatch, levels
):
    """The first stage of the task has room in its message, the others have not. The next leader lacks all of them."""
    monkeypatch.setattr(publishing, "STAGE_PARTITION_BYTES", 1)
    [first, *_] = stage(dataclasses.replace(options, restage_bytes=1_000_000), rows(0, 100))
    levels.clear()
    room = sum(first.nbytes.values())
    shares = stage(dataclasses.replace(options, restage_bytes=room), rows(0, 100))
    assert levels == ["disk", "quorum", "quorum"]
    assert [share.kept is not None for share in shares] == [True, False, False]
    publish, published = tailrace.blocking.Feed.publish, []

    def lost_once(feed, sink, batch, stages, **named):
        published.append([found.stage_id for found in stages])
        if len(published) == 1:
            raise tailrace.UnknownStage("another node leads")
        return publish(feed, sink, batch, stages, **named)

    monkeypatch.setattr(tailrace.blocking.Feed, "publish", lost_once)
    publish_batch(options, "query", 0, "query", [shares])
    [before, after] = published
    assert before[0] != after[0]
    assert before[1:] == after[1:]
    assert history() == {b"%d" % n: [b"v"] for n in range(100)}


def test_a_task_that_is_to_keep_nothing_stages_at_level_disk(options, levels):
    stage(dataclasses.replace(options, restage_bytes=0), rows(0, 100))
    assert levels == ["disk"]


def test_stages_that_are_lost_each_time_end_the_publish(options, monkeypatch):
    tries = []

    def lost(*arguments, **named):
        tries.append(arguments)
        raise tailrace.UnknownStage("the disk fails")

    monkeypatch.setattr(tailrace.blocking.Feed, "publish", lost)
    with pytest.raises(tailrace.UnknownStage, match="the disk fails"):
        publish_batch(options, "query", 0, "query", [stage(options, rows(0, 9))])
    assert len(tries) == restaging.RESTAGES_MAX
