"""The last batches of sinks, against a model that keeps everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.made_directory import MadeDirectory
from tests.tailrace_server.publishing.blocks import block

from tailrace.model.hashing import HASH_MAX
from tailrace_server.partition.published import publish as publish_blocks
from tailrace_server.state import last_batches
from tailrace_server.state.last_batches import (
    JOB_PREFIX,
    JOBS_MAX,
    PARTS_MAX,
    SINKS_MAX,
    BatchVerdict,
    LastBatch,
    LastBatches,
    PartMark,
    decide,
    first_free,
    from_json,
    to_json,
)

PARTS = (PartMark(5, 10), PartMark(9, 20))
# What happens to a partition: a publish of so many rows by one of some sinks, a flush, a rollback.
SINK = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), SINK, st.integers(1, 5)),
        st.tuples(st.just("flush"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("rollback"), st.integers(0, 100), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize(
    ("last", "batch", "origin", "digest", "verdict"),
    [
        (None, 0, "o", 7, BatchVerdict.PUBLISH),
        (LastBatch(4, "o", 9, 7), 5, "o", 7, BatchVerdict.PUBLISH),
        (LastBatch(4, "o", 9, 7), 4, "o", 7, BatchVerdict.SKIP),
        (LastBatch(4, "o", 9, 0), 4, "o", 0, BatchVerdict.SKIP),
        (LastBatch(4, "o", 9, 7), 4, "o", 8, BatchVerdict.CHANGED),
        (LastBatch(4, "o", 9, 0), 4, "o", 8, BatchVerdict.CHANGED),
        (LastBatch(4, "o", 9, 7), 4, "o", 0, BatchVerdict.CHANGED),
        (LastBatch(4, "o", 9, None), 4, "o", 8, BatchVerdict.SKIP),
        (LastBatch(4, "o", 9, 7), 4, "o", None, BatchVerdict.SKIP),
        (LastBatch(4, "o", 9, 7, PARTS), 4, "o", 7, BatchVerdict.CONTINUE),
        (LastBatch(4, "o", 9, None, PARTS), 4, "o", 7, BatchVerdict.CONTINUE),
        (LastBatch(4, "o", 9, 7, PARTS), 4, "o", 8, BatchVerdict.CHANGED),
        (LastBatch(4, "o", 9, 7, (*PARTS, PartMark(9, HASH_MAX))), 4, "o", 7, BatchVerdict.SKIP),
        (LastBatch(4, "o", 9, 7, PARTS), 5, "o", 7, BatchVerdict.PUBLISH),
        (LastBatch(4, "o", 9, 7, PARTS), 3, "o", 7, BatchVerdict.BEHIND),
        (LastBatch(4, "o", 9, 7, PARTS), 4, "p", 7, BatchVerdict.BEHIND),
        (LastBatch(4, "o", 9, 7), 3, "o", 7, BatchVerdict.BEHIND),
        (LastBatch(4, "o", 9, 7), 5, "p", 7, BatchVerdict.PUBLISH),
        (LastBatch(4, "o", 9, 7), 4, "p", 7, BatchVerdict.BEHIND),
        (LastBatch(4, "o", 9, 7), 0, "p", 7, BatchVerdict.BEHIND),
    ],
)
def test_the_table(last, batch, origin, digest, verdict):
    assert decide(last, batch, origin, digest) is verdict


@given(STEPS)
def test_it_tells_what_was_last_at_any_seq_that_is_not_flushed(steps):
    table, model = LastBatches(), []
    seq = flushed = batch = 0
    for step, what, rows in steps:
        if step == "publish":
            seq, batch = seq + rows, batch + 1
            table.tell({what: LastBatch(batch, "o", seq)})
            model.append((what, LastBatch(batch, "o", seq)))
        elif step == "flush":
            flushed = max(flushed, min(what, seq))
            table.flushed(flushed)
        else:
            seq = max(flushed, min(what, seq))
            table.forget_above(seq)
            model = [(sink, last) for sink, last in model if last.seq <= seq]
    for at in range(flushed, seq + 1):
        assert table.as_of(at) == {sink: last for sink, last in model if last.seq <= at}
    assert {sink: table.find(sink) for sink in "abc"} == {sink: dict(model).get(sink) for sink in "abc"}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("part"), st.integers(1, 5)),
            st.tuples(st.just("flush"), st.integers(0, 100)),
            st.tuples(st.just("rollback"), st.integers(0, 100)),
            st.tuples(st.just("restart"), st.integers(0, 100)),
        ),
        max_size=20,
    )
)
def test_the_parts_of_the_last_batch_are_known_below_what_is_flushed_too(steps):
    """Whatever of it a rollback leaves is known, also from a manifest."""
    table, parts = LastBatches(), []
    table.tell({"a": LastBatch(0, "o", 3)})
    seq = 3
    for step, number in steps:
        if step == "part":
            seq += number
            parts.append(PartMark(seq, parts[-1].through + 1 if parts else 5))
            table.tell({"a": LastBatch(1, "o", seq, 7, tuple(parts))})
        elif step == "flush":
            table.flushed(min(number, seq))
        elif step == "restart" and parts:
            manifest = from_json(to_json(table.as_of(seq)))
            table = LastBatches()
            table.tell(manifest)
        elif step == "rollback" and parts and number >= parts[0].seq:
            seq = min(number, seq)
            table.forget_above(seq)
            parts = [part for part in parts if part.seq <= seq]
    for at in range(parts[0].seq if parts else seq, seq + 1):
        known = tuple(part for part in parts if part.seq <= at)
        wanted = LastBatch(1, "o", known[-1].seq, 7, known) if known else LastBatch(0, "o", 3)
        assert table.as_of(at) == {"a": wanted}
    assert table.find("a") == (LastBatch(1, "o", parts[-1].seq, 7, tuple(parts)) if parts else LastBatch(0, "o", 3))


@given(st.dictionaries(SINK, st.builds(LastBatch, st.integers(0, 9), st.just("o"), st.integers(0, 50)), max_size=3))
def test_what_is_told_counts(told):
    table = LastBatches()
    table.tell({"a": LastBatch(3, "o", 20)})
    table.tell(told)
    assert table.as_of(50) == {"a": LastBatch(3, "o", 20)} | told


def test_as_json_and_back_in_the_same_order():
    table = {"b": LastBatch(1, "o", 2), "a": LastBatch(3, "p", 4, 0), "c": LastBatch(3, "p", 4, 2**64 - 1)}
    table |= {"d": LastBatch(3, "p", 9, 7, PARTS), "e": LastBatch(3, "p", 9, None, PARTS)}
    assert list(from_json(to_json(table)).items()) == list(table.items())
    assert to_json(table)["e"] == [3, "p", 9, None, [[5, 10], [9, 20]]]


def test_what_earlier_versions_have_written_is_read():
    assert from_json({"a": [3, "p", 4]}) == {"a": LastBatch(3, "p", 4, None)}
    assert to_json({"a": LastBatch(3, "p", 4, None)}) == {"a": [3, "p", 4]}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"a": 1},
        {"a": [1, "o"]},
        {"a": [-1, "o", 0]},
        {"a": [True, "o", 0]},
        {"a": [1, "\n", 0]},
        {"": [1, "o", 0]},
        {"a": [1, "o", 0, 7]},
        {"a": [1, "o", 0, None]},
        {"a": [1, "o", 0, "-" + "0" * 15]},
        {"a": [1, "o", 0, "00" * 8, "00" * 8]},
        {"a": [1, "o", 0, "00" * 8, None, None]},
        {"a": [1, "o", 9, None, []]},
        {"a": [1, "o", 9, None, [[9]]]},
        {"a": [1, "o", 9, None, [[9, 2**64]]]},
        {"a": [1, "o", 9, None, [[True, 7]]]},
        {"a": [1, "o", 9, None, [[8, 7]]]},
        {"a": [1, "o", 9, None, [[9, 7], [8, 8]]]},
        {"a": [1, "o", 9, None, [[8, 7], [9, 7]]]},
        {"a": [1, "o", 9, None, [[0, number] for number in range(PARTS_MAX)] + [[9, PARTS_MAX]]]},
    ],
)
def test_bad_json_is_refused(value):
    with pytest.raises(ValueError, match=r"needed|a last batch is|a digest is|a part is|comes behind|the last part of"):
        from_json(value)


def test_jobs_are_forgotten_before_queries_and_both_are_bounded():
    table = LastBatches()
    table.tell({"query": LastBatch(1, "o", 1)})
    for number in range(JOBS_MAX + 5):
        table.tell({f"{JOB_PREFIX}{number}": LastBatch(0, "o", 2 + number)})
    assert table.find("query") == LastBatch(1, "o", 1)
    assert table.find(f"{JOB_PREFIX}4") is None
    assert table.find(f"{JOB_PREFIX}5") is not None
    for number in range(SINKS_MAX):
        table.tell({f"q{number}": LastBatch(0, "o", 1_000 + number)})
    assert len(table) == SINKS_MAX
    assert table.find("query") is None


ANY_SINK = st.sampled_from(["a", "b", "c", *(f"{JOB_PREFIX}{number}" for number in range(8))])
ANY_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), ANY_SINK),
        st.tuples(st.just("told"), st.lists(ANY_SINK, max_size=6, unique=True)),
        st.tuples(st.sampled_from(["flush", "rollback", "restart"]), st.integers(0, 60)),
    ),
    max_size=60,
)


@given(ANY_STEPS)
def test_no_number_of_jobs_pushes_out_a_query(steps):
    """With 3 queries, 8 jobs, and room for 5 sinks of which 2 may be jobs, all queries are known after each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(last_batches, "JOBS_MAX", 2)
        patch.setattr(last_batches, "SINKS_MAX", 5)
        table, model = LastBatches(), {}
        seq = flushed = 0
        for step, what in steps:
            if step in ("publish", "told"):
                sinks = [what] if step == "publish" else what
                batches = {sink: LastBatch(seq + 1 + n, "o", seq + 1 + n) for n, sink in enumerate(sinks)}
                seq += len(sinks)
                table.tell(batches)
                for sink, last in batches.items():
                    model.setdefault(sink, []).append(last)
            elif step == "flush":
                flushed = max(flushed, min(what, seq))
                table.flushed(flushed)
            else:
                seq = max(flushed, min(what, seq)) if step == "rollback" else seq
                table.forget_above(seq)
                model = {sink: [last for last in lasts if last.seq <= seq] for sink, lasts in model.items()}
                if step == "restart":  # the manifest tells of all up to the flushed seq, the journal of the rest
                    restarted = LastBatches()
                    restarted.tell(from_json(to_json(table.as_of(flushed))))
                    for last, sink in sorted((last, sink) for sink, lasts in model.items() for last in lasts):
                        if last.seq > flushed:
                            restarted.tell({sink: last})
                    table = restarted
            jobs = [sink for sink in table.as_of(seq) if sink.startswith(JOB_PREFIX)]
            assert len(jobs) <= 2
            for sink in "abc":
                assert table.find(sink) == (model.get(sink) or [None])[-1]
            for job in jobs:
                assert table.find(job) == model[job][-1]


def test_the_first_number_that_is_free():
    assert first_free([]) == 0
    assert first_free([None, LastBatch(4, "o", 1), LastBatch(7, "o", 1)]) == 8


def test_a_query_is_known_after_many_batch_jobs_of_a_real_partition():
    """Through what a PUBLISH calls, a flush, and a restart: the batch of the query would be written again otherwise."""
    made = MadeDirectory()
    feed = made.create("orders", 1)

    def publish(sink, batch):
        [partition] = made.node.feeds.named("orders").partitions
        publish_blocks(
            partition,
            [block()],
            sink,
            batch,
            "o",
            made.node.storage.journal,
            now_us=made.host.clock.wall_us(),
            digest=batch,
        )
        made.node.storage.journal.sync()
        partition.durable_through(partition.high_seq)

    publish("query", 7)
    for number in range(SINKS_MAX + 1):
        publish(f"{JOB_PREFIX}{number}", 0)
    found = [feed.partitions[0].sinks.find("query")]
    made.flush("orders")
    for _ in range(2):
        made.stop()
        made.start()
        [partition] = made.node.feeds.named("orders").partitions
        found.append(partition.sinks.find("query"))
        assert len(partition.sinks) == 1 + JOBS_MAX
    assert [decide(last, 7, "o", 7) for last in found] == [BatchVerdict.SKIP] * 3
    assert [decide(last, 7, "o", 8) for last in found] == [BatchVerdict.CHANGED] * 3


def test_a_publish_looks_at_no_batch_before_the_last_one():
    """Otherwise a start took 460 us for each of 15,000 publishes, and ever more with their number."""
    looks = []

    class Counted(LastBatch):
        @property
        def seq(self):
            looks.append(self)
            return self[2]

    table = LastBatches()
    for batch in range(1_000):
        table.tell({"query": Counted(batch, "o", batch + 1)})
    assert len(looks) <= 4_000
    assert [table.as_of(seq)["query"].batch for seq in (1, 500, 1_000)] == [0, 499, 999]
