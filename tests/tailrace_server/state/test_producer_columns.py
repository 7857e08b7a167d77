import collections
import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.model import VersionRange
from tailrace_server.state.producer_columns import (
    RESULT_BYTES,
    RESULTS_MAX,
    SLOT_BYTES,
    ProducerColumns,
    ProducerResults,
)

BRANCHES = [bytes([letter]) * 16 for letter in b"uvw"]


class Model:
    """The same, an object a result."""

    def __init__(self):
        self.results = {}
        self.used_at = {}

    def record(self, producer, number, result, now):
        self.results.setdefault(producer, collections.deque(maxlen=RESULTS_MAX)).append((number, result))
        self.used_at[producer] = now

    def keep(self, is_kept):
        self.results = {
            producer: collections.deque([r for r in results if is_kept(producer, r[1])], maxlen=RESULTS_MAX)
            for producer, results in self.results.items()
        }
        self.results = {producer: results for producer, results in self.results.items() if results}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(1, 6), st.integers(1, 4)),
        st.tuples(st.just("many"), st.integers(1, 6), st.integers(1, 40)),
        st.tuples(st.just("drop_above"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("forget"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("copy"), st.just(0), st.just(0)),
        st.tuples(st.just("restore"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(steps, st.integers(0, 2))
@settings(max_examples=examples(300))
def test_columns_say_what_objects_would(taken, jump):
    """Numbers may have gaps, as those of a replica that was told of some and took others."""
    columns, model = ProducerColumns(), Model()
    seq, now, numbers = 0, 0.0, collections.Counter()

    def record(producer):
        nonlocal seq, now
        numbers[producer] += 1 + (jump and seq % 7 == jump)
        now += 1
        result = VersionRange(3, BRANCHES[seq // 25 % 3], seq + 1, seq + 2)
        seq += 2
        for each in (columns, model):
            each.record(producer, numbers[producer], result, now)

    for kind, first, second in taken:
        if kind in ("record", "many"):
            for _ in range(second):
                record(first)
        elif kind == "drop_above":
            seq = min(seq, first)
            columns.drop_above(seq)
            model.keep(lambda _, result: result.last_seq <= seq)  # noqa: B023
        elif kind == "forget":
            oldest = sorted(model.results, key=lambda p: model.used_at[p])[:first]
            columns.forget(columns.oldest(first))
            model.keep(lambda producer, _: producer not in oldest)  # noqa: B023
        elif kind == "copy":
            columns = columns.copy()
        else:
            columns = ProducerColumns.of(columns.entries(now), now)
        assert len(columns) == len(model.results)
        for producer in range(1, 8):
            results = model.results.get(producer, ())
            assert columns.last_number(producer) == (results[-1][0] if results else None)
            known = dict(results)
            for number in range(numbers[producer] + 2):
                assert columns.result(producer, number) == known.get(number)
        assert {e.producer_id: e.results for e in columns.entries(now)} == {
            producer: tuple(results) for producer, results in model.results.items()
        }
        used = sorted(model.results, key=lambda p: model.used_at[p])
        assert [e.producer_id for e in columns.entries(now)] == used
        assert [e.age_s for e in columns.entries(now)] == [now - model.used_at[p] for p in used]


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=60), st.integers(0, 2)), max_size=6),
    st.integers(0, 200),
)
@settings(max_examples=examples(100))
def test_many_at_once_are_what_they_are_one_by_one(pieces, drop):
    one_by_one, at_once = ProducerColumns(), ProducerColumns()
    seq, numbers = 0, collections.Counter()
    for now, (producers, branch) in enumerate(pieces):
        rows = []
        for producer in producers:
            numbers[producer] += 1
            rows.append((producer, numbers[producer], seq + 1, seq + 2))
            result = VersionRange(3, BRANCHES[branch], seq + 1, seq + 2)
            one_by_one.record(producer, numbers[producer], result, now + len(rows) / 64)
            seq += 2
        columns = zip(np.array(rows, np.uint64).T, (np.uint64, np.uint32, np.uint64, np.uint64), strict=True)
        used_at = now + np.arange(1, len(rows) + 1) / 64
        at_once.record_all(
            3, BRANCHES[branch], ProducerResults(*(column.astype(type_) for column, type_ in columns)), used_at
        )
        for each in (one_by_one, at_once):
            each.drop_above(seq - drop % 5)
    assert at_once.entries(9.0) == one_by_one.entries(9.0)
    for producer in range(1, 6):
        assert at_once.last_number(producer) == one_by_one.last_number(producer)
        assert at_once.result(producer, numbers[producer]) == one_by_one.result(producer, numbers[producer])


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 250), st.integers(0, 40)), max_size=6),
    st.sampled_from((70, 150, 10_000)),
)
@example([(1, 10, 0), (2, 400, 0), (1, 20, 0), (2, 400, 30)], 10_000)
@example([(1, 400, 0), (1, 400, 0)], 150)
@settings(max_examples=examples(100))
def test_results_of_a_producer_that_is_alone_for_long_count_the_same(taken, branch_rows):
    """Those in a row are cut out, if they are of one branch."""
    columns, model = ProducerColumns(), Model()
    seq, numbers = 0, collections.Counter()
    for producer, count, dropped in taken:
        for _ in range(count):
            numbers[producer] += 1
            seq += 1
            result = VersionRange(3, BRANCHES[seq // branch_rows % 3], seq, seq)
            for each in (columns, model):
                each.record(producer, numbers[producer], result, float(seq))
        if dropped:
            columns.drop_above(seq - dropped)
            model.keep(lambda _, result: result.last_seq <= seq - dropped)  # noqa: B023
        assert {e.producer_id: e.results for e in columns.entries(0.0)} == {
            known: tuple(results) for known, results in model.results.items()
        }
        for known, results in model.results.items():
            assert columns.last_number(known) == results[-1][0]
            assert columns.result(known, results[0][0]) == results[0][1]
            assert columns.result(known, results[0][0] - 1) is None
            numbers[known] = results[-1][0]
        live = sum(map(len, model.results.values()))
        assert columns.nbytes <= SLOT_BYTES * len(columns) + RESULT_BYTES * (2 * live + 136)


@pytest.mark.parametrize("others", [0, 5])
def test_a_producer_that_is_alone_for_long_has_its_columns_kept(monkeypatch, others):
    columns = ProducerColumns()
    rewritten, rewrite = [], ProducerColumns._rewrite

    def noted(self, rows):
        rewritten.append(len(self._slot))
        rewrite(self, rows)

    monkeypatch.setattr(ProducerColumns, "_rewrite", noted)
    for number in range(1, 2_001):
        for producer in range(1, 2 if number > 20 else others + 2):
            columns.record(producer, number, VersionRange(1, BRANCHES[0], number, number), float(number))
    assert len(rewritten) <= bool(others)  # before it was alone for long
    assert columns.nbytes < RESULT_BYTES * 400 + SLOT_BYTES * (others + 1)


@pytest.mark.parametrize(("producers", "results"), [(1, 1), (1, 100), (50, 3), (3_000, 1), (3_000, 5), (300, 40)])
def test_what_they_take_is_what_they_say(producers, results):
    ids = [(number * 0x9E3779B97F4A7C15) % 2**64 for number in range(producers)]
    tracemalloc.start()
    try:
        columns = ProducerColumns()
        for number in range(1, results + 1):
            for place, id in enumerate(ids):
                seq = producers * number + place
                columns.record(id + 0, number, VersionRange(1, BRANCHES[0], seq, seq), float(seq))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= 1.1 * columns.nbytes + 2_048
    live = producers * min(results, RESULTS_MAX)
    assert columns.nbytes <= SLOT_BYTES * producers + RESULT_BYTES * (2 * live + 136)
