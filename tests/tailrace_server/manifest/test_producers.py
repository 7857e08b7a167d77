"""A table goes through JSON, and through what happens between a flush and the next start."""

from __future__ import annotations

import collections
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import VersionRange
from tailrace_server.manifest.producers import NO_PRODUCERS, producers_from_json, producers_to_json, read_producers
from tailrace_server.state import producers
from tailrace_server.state.producers import (
    ENTRY_AGE_S_MAX,
    FORGOTTEN_AGE_S_MAX,
    RESULTS_MAX,
    ProducerTable,
    ResendVerdict,
)

PARTITION = 3
# Blocks in the order of the partition: which of a few producers wrote it, and how many rows.
BLOCKS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=80)


def written(blocks):
    """(producer id, number, result) of each block; the branch changes now and then."""
    numbers, seq, records = {}, 0, []
    for index, (producer, rows) in enumerate(blocks):
        producer_id = producer * 0x1111111111111111
        number = numbers[producer_id] = numbers.get(producer_id, 0) + 1
        branch = bytes([index // 20]) * 16
        records.append((producer_id, number, VersionRange(PARTITION, branch, seq + 1, seq + rows)))
        seq += rows
    return records


def table_of(records, now=0.0):
    table = ProducerTable()
    for producer_id, number, result in records:
        table.record(producer_id, number, result, now)
    return table


def answers(table, records, now=0.0):
    """What the table says to each of these blocks, sent again, and to each producer's next one."""
    asked = {(producer_id, number + more) for producer_id, number, _ in records for more in (0, 1)}
    return {
        (producer_id, number): table.decide(producer_id, number, resend=True, now=now) for producer_id, number in asked
    }


def through_json(value):
    return json.loads(json.dumps(value))


@given(BLOCKS)
def test_a_table_comes_back(blocks):
    records = written(blocks)
    table = table_of(records)
    value = through_json(producers_to_json(table, 2**63 - 1, 100.0))
    assert answers(producers_from_json(value, PARTITION, -50.0), records) == answers(table, records)


@given(BLOCKS, st.data())
def test_hazard_19d_a_flush_and_the_journal_give_the_table_again(blocks, data):
    """The manifest knows what was flushed, and a start records the rest again, which a crash may have cut."""
    records = written(blocks)
    flushed = data.draw(st.integers(0, len(records)))
    kept = data.draw(st.integers(flushed, len(records)))
    flushed_seq = records[flushed - 1][2].last_seq if flushed else 0
    value = through_json(producers_to_json(table_of(records), flushed_seq, 0.0))
    table = producers_from_json(value, PARTITION, 0.0)
    for producer_id, number, result in records[flushed:kept]:
        table.record(producer_id, number, result, 0.0)
    held = {(producer_id, number): result for producer_id, number, result in records[:kept]}
    sent = collections.Counter(producer_id for producer_id, _, _ in records)
    above = collections.Counter(producer_id for producer_id, _, _ in records[flushed:])
    model = answers(table_of(records[:kept]), records)
    for (producer_id, number), decision in answers(table, records).items():
        if above[producer_id] < RESULTS_MAX:
            still_known = number > sent[producer_id] - RESULTS_MAX or model[producer_id, number].result is None
            assert decision == model[producer_id, number] or not still_known
        if number > sent[producer_id] - RESULTS_MAX:  # what its writer may send again
            assert decision.result == held.get((producer_id, number))


@given(BLOCKS, st.integers(0, 300))
def test_nothing_above_the_flushed_seq_is_written(blocks, through_seq):
    value = producers_to_json(table_of(written(blocks)), through_seq, 0.0)
    lasts = [result[3] for entry in value["entries"] for result in entry[3]]
    assert all(last <= through_seq for last in lasts)
    assert all(entry[1] == entry[3][-1][0] for entry in value["entries"])


def test_ages_count_only_time_in_which_a_node_ran():
    result = VersionRange(PARTITION, b"b" * 16, 1, 1)
    table = table_of([(1, 1, result)], now=1_000.0)
    value = through_json(producers_to_json(table, 1, 1_000.0 + ENTRY_AGE_S_MAX - 10))
    assert value["entries"] == [["0000000000000001", 1, ENTRY_AGE_S_MAX - 10, [[1, 0, 1, 1]]]]
    again = producers_from_json(value, PARTITION, 5.0)  # another clock, perhaps days later
    assert len(again.snapshot(14.0)[0]) == 1
    assert len(again.snapshot(15.0)[0]) == 0


def test_what_is_over_its_age_is_not_written():
    table = table_of([(1, 1, VersionRange(PARTITION, b"b" * 16, 1, 1))])
    assert producers_to_json(table, 1, ENTRY_AGE_S_MAX + 5.0) == {**NO_PRODUCERS, "evicted_age_s": 5.0}


def test_an_eviction_is_remembered_for_a_day(monkeypatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    records = [(n, 1, VersionRange(PARTITION, b"b" * 16, n, n)) for n in (1, 2, 3)]
    value = through_json(producers_to_json(table_of(records, now=7.0), 3, 10.0))
    assert value["evicted_age_s"] == 3.0
    table = producers_from_json(value, PARTITION, 100.0)
    assert table.decide(1, 1, resend=True, now=100.0).verdict is ResendVerdict.UNKNOWN
    assert table.decide(1, 1, resend=True, now=97.0 + FORGOTTEN_AGE_S_MAX).verdict is ResendVerdict.ACCEPT
    assert producers_to_json(table, 3, 97.0 + ENTRY_AGE_S_MAX + FORGOTTEN_AGE_S_MAX)["evicted_age_s"] is None


def test_the_least_recently_used_still_goes_first(monkeypatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    table = table_of([(1, 1, VersionRange(PARTITION, b"b" * 16, 1, 1))], now=1.0)
    table.record(2, 1, VersionRange(PARTITION, b"b" * 16, 2, 2), 2.0)
    table.record(1, 2, VersionRange(PARTITION, b"b" * 16, 3, 3), 3.0)
    table = producers_from_json(producers_to_json(table, 3, 3.0), PARTITION, 0.0)
    table.record(3, 1, VersionRange(PARTITION, b"b" * 16, 4, 4), 0.0)
    assert table.decide(2, 1, resend=True, now=0.0).verdict is ResendVerdict.UNKNOWN
    assert table.decide(1, 3, resend=True, now=0.0).verdict is ResendVerdict.ACCEPT


GOOD = {
    "evicted_age_s": 1.5,
    "branches": ["ab" * 16],
    "entries": [["00000000000000ff", 2, 3, [[1, 0, 5, 6], [2, 0, 7, 7]]]],
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"evicted_age_s": -1}, "a number, 0 or more"),
        ({"evicted_age_s": "1"}, "a number, 0 or more"),
        ({"branches": None}, "a list of at most 160000"),
        ({"branches": ["ab"]}, "32 hexadecimal digits"),
        ({"branches": []}, "one of 0 branches"),
        ({"entries": {}}, "a list of at most 10000"),
        ({"entries": [GOOD["entries"][0]] * 10_001}, "a list of at most 10000 is needed, not 10001"),
        ({"entries": [GOOD["entries"][0]] * 2}, "a producer is there twice"),
        ({"entries": [[]]}, "a producer is its id, last number, age and results"),
        ({"entries": [["ff", 1, 0, [[1, 0, 1, 1]]]]}, "16 hexadecimal digits"),
        ({"entries": [["00000000000000ff", 2, 0, [[1, 0, 1, 1]]]]}, "has last number 2, and no result of it"),
        ({"entries": [["00000000000000ff", 2, 0, []]]}, "has last number 2, and no result of it"),
        ({"entries": [["00000000000000ff", 1, None, [[1, 0, 1, 1]]]]}, "a number, 0 or more"),
        ({"entries": [["00000000000000ff", 17, 0, [[n, 0, 1, 1] for n in range(1, 18)]]]}, "at most 16 is needed"),
        ({"entries": [["00000000000000ff", 1, 0, [[1, 0, 1]]]]}, "a result is number, one of"),
        ({"entries": [["00000000000000ff", 1, 0, [[1, 0, 2, 1]]]]}, "a result is"),
        ({"entries": [["00000000000000ff", 1, 0, [[True, 0, 1, 1]]]]}, "a result is"),
        ({"entries": [["00000000000000ff", 1, 0, [[1, 1, 1, 1]]]]}, "one of 1 branches"),
        ({"entries": [["00000000000000ff", 1, 0, [[1, 0, -1, 1]]]]}, "a result is"),
        ({"entries": [["00000000000000ff", 0, 0, [[0, 0, 1, 1]]]]}, "a result is"),
    ],
)
def test_what_it_cannot_be_is_named(changes, why):
    assert read_producers(GOOD) is GOOD
    with pytest.raises(ValueError, match=why):
        producers_from_json({**GOOD, **changes}, PARTITION, 0.0)


def test_other_members_are_refused():
    with pytest.raises(ValueError, match="an object of evicted_age_s, branches, entries is needed"):
        read_producers({**GOOD, "more": 1})
