"""bench/reads.py: its tables and targets."""

from __future__ import annotations

from _placement import FREE, ONE, OWN
from reads import Asked, Round, _placed_table, lines


def asked(p50_us):
    return Asked([p50_us / 1e6] * 3, 1, 10e-6, 20e-6, 0.5)


def round_of(placements, blocking_us, redis_us=40.0):
    placed = {
        (placement, name): asked(us)
        for placement in placements
        for name, us in (("blocking", blocking_us), ("Redis", redis_us))
    }
    found = {("tree", 1, name): placed[FREE, name] for name in ("blocking", "Redis")}
    return Round(found, placed)


def test_each_placement_has_a_target_of_its_own():
    found = lines([round_of((FREE, ONE, OWN), us) for us in (50, 56, 80)])
    assert [(line.what, round(line.value, 2), line.most) for line in found] == [
        ("get by the blocking client, tree: p50 to Redis GET's", 1.4, 1.5),
        ("get, blocking, on one processor: p50 to Redis GET's", 1.4, 1.5),
        ("get, blocking, on processors of their own: p50 to Redis GET's", 1.4, 1.5),
    ]


def test_a_placement_that_is_not_possible_has_no_target():
    assert len(lines([round_of((FREE,), 50)])) == 1


def test_the_table_of_placements_says_how_often_both_were_together():
    head, *rows = _placed_table([round_of((FREE, ONE), 50)])
    assert [row[:3] for row in rows] == [
        [FREE, "blocking", "50"],
        [FREE, "Redis", "40"],
        [ONE, "blocking", "50"],
        [ONE, "Redis", "40"],
    ]
    assert head[-1] == "together"
    assert rows[0][-1] == "50%"
