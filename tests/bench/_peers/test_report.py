"""What bench/peers.py makes of its figures: medians, ratios, targets, tables and the section of the README."""

from __future__ import annotations

import pytest

from _peers.report import _ROWS, Run, bars, lines, write_readme
from _peers.worker import Found
from _report import SECTION_END as END

BEGIN = "<!-- by bench/peers.py --readme: begin -->"

NAMES = {"Tailrace": "0.2", "Redis Streams": "7", "Kafka": "4"}


def a_run(*rounds):
    return Run(list(rounds), NAMES, ["redis 8.1"], 1.0, [1.0, 2.5], 0.03, 90.0)


def half(ours, theirs):
    return {("half", "Tailrace"): Found(9, 1.0, p99=ours), ("half", "Redis Streams"): Found(9, 1.0, p99=theirs)}


def many(ours, theirs):
    return {
        ("many", "Tailrace"): Found(ours, 1.0, client=0.1, server=0.2),
        ("many", "Kafka"): Found(theirs, 2.0, client=0.3, server=0.4),
    }


def test_a_median_is_of_the_rounds_in_which_the_question_was_answered():
    run = a_run(half(1.0, 2.0), {}, half(3.0, 2.0), half(8.0, 2.0))
    assert run.median("half", "Tailrace", "p99") == 3.0
    assert run.median("half", "Kafka", "p99") is None


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds():
    run = a_run(half(1.0, 1.0), half(20.0, 10.0), half(90.0, 10.0))
    assert run.ratio("half", "p99", "Redis Streams") == 2.0
    assert run.ratio("half", "p99", "Kafka") is None


def test_processor_time_is_in_microseconds_for_an_operation():
    assert a_run(many(1_000, 100)).median("many", "Tailrace", "server") == pytest.approx(200.0)


def test_targets_are_those_of_which_both_sides_took_part():
    found = {line.what: line for line in lines(a_run(half(3.0, 2.0)))}
    assert list(found) == ["each at half of its own limit, p99, to Redis's"]
    assert found["each at half of its own limit, p99, to Redis's"].value == 1.5
    assert not found["each at half of its own limit, p99, to Redis's"].is_met


def test_a_row_without_processor_time_has_no_bars_of_it():
    made = bars(a_run(many(1_000, 100) | half(3.0, 2.0)))
    assert made["64 putters, puts/s"] == (
        {"Tailrace": 1_000.0, "Kafka": 50.0},
        {"Tailrace": (pytest.approx(100.0), pytest.approx(200.0)), "Kafka": (pytest.approx(3e3), pytest.approx(4e3))},
    )
    assert made["a put at half of its own limit, p99, µs"] == ({"Tailrace": 3.0, "Redis Streams": 2.0}, {})


def test_rows_of_processor_time_have_names_of_their_own():
    names = [row.name.partition(",")[0] for row in _ROWS if row.has_processor]
    assert len(set(names)) == len(names)


@pytest.mark.slow  # matplotlib
def test_the_section_of_the_readme_is_replaced_and_says_who_wins(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold figures\n{END}\nafter\n")
    write_readme(a_run(many(1_000, 100) | half(3.0, 2.0)), readme, tmp_path / "plots")
    text = readme.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old figures" not in text
    assert "| 64 putters, puts/s | **1,000** |  | 50 |" in text
    assert "- Tailrace is the first in: 64 putters" in text
    assert "p99, µs: Redis Streams wins; Tailrace has 1.50 times its figure." in text
    assert "at most 1: **missed**" in text
    assert (tmp_path / "plots/peers.svg").exists()
