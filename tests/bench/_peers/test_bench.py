"""Which questions each server is asked, in which order, and what becomes of its logs."""

from __future__ import annotations

import dataclasses

import pytest

from _peers.bench import NEEDS, QUESTIONS, Bench
from _peers.worker import QUESTIONS as ANSWERED
from _peers.worker import Found


@dataclasses.dataclass
class OneServer:
    name: str
    client: str


class Asking(Bench):
    """Notes what it is asked, and answers at once."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked = []

    def _answer(self, server, question, log, count, rate=0.0, after="keep"):
        self.asked.append((server.name, question, log, count, rate, after))
        return None if server.name == "ill" else Found(1_000, 0.5)


OURS, OTHER, ILL = OneServer("Tailrace", "tailrace"), OneServer("Redis Streams", "redis"), OneServer("ill", "etcd")


def test_each_question_has_an_answer():
    assert set(QUESTIONS) == set(ANSWERED)
    assert set(NEEDS) | set(NEEDS.values()) <= set(QUESTIONS)


def test_the_first_server_is_another_one_in_each_round():
    bench = Asking([OURS, OTHER], 1.0, ["one"])
    bench.round(0)
    bench.round(1)
    assert [name for name, *_ in bench.asked] == ["Tailrace", "Redis Streams", "Redis Streams", "Tailrace"]


def test_the_rate_of_the_open_loop_is_half_of_what_the_same_server_did_in_this_round():
    bench = Asking([OTHER, ILL], 1.0, ["half", "many"])
    found = bench.round(3)
    # The other one has no limit that is known.
    assert sorted((name, question) for name, question, *_ in bench.asked) == [
        ("Redis Streams", "half"),
        ("Redis Streams", "many"),
        ("ill", "many"),
    ]
    [(_, _, log, count, rate, after)] = [asked for asked in bench.asked if asked[1] == "half"]
    assert (log, count, rate, after) == ("half_3", 2_000, 1_000.0, "drop")
    assert set(found) == {("many", "Redis Streams"), ("half", "Redis Streams")}


@pytest.mark.parametrize(
    ("server", "questions", "kept"),
    [
        (OURS, ["write", "read", "columns"], ["write", "read"]),
        (OTHER, ["write", "read", "columns"], ["write"]),
        (OURS, ["write", "columns"], ["write"]),
        (OTHER, ["write"], []),
    ],
)
def test_a_log_is_dropped_by_the_last_that_needs_it(server, questions, kept):
    bench = Asking([server], 1.0, questions)
    bench.round(0)
    assert {log for _, _, log, *_ in bench.asked} == {"write_0"}
    assert [question for _, question, _, _, _, after in bench.asked if after == "keep"] == kept


def test_a_scale_changes_the_counts():
    bench = Asking([OURS], 0.1, ["put_rows", "large"])
    bench.round(0)
    assert [count for _, _, _, count, _, _ in bench.asked] == [50_000, 4]
