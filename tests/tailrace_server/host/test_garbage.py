"""Full searches for cyclic garbage look at what is new, and find all in the end. Each test has a process of its own."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import gc, json, sys, weakref
from tailrace_server.host.garbage import Searches

looked_at = []  # objects that a full search has before it

def note(phase, info):
    if phase == "start" and info["generation"] == 2:
        looked_at.append(len(gc.get_objects()))

class Cycle:
    def __init__(self):
        self.own = self

def live_long(count):
    return [[number] for number in range(count)]

gc.callbacks.append(note)
searches = Searches(thorough_min=400_000)
"""


def run(body):
    return json.loads(subprocess.run([sys.executable, "-c", PROGRAM + body], capture_output=True, check=True).stdout)


def test_a_search_looks_at_what_is_new():
    looked_at = run(
        """
searches = Searches()
with searches.bounded():
    looked_at.clear()
    held = live_long(500_000)
print(json.dumps(looked_at))
"""
    )
    assert len(looked_at) >= 3
    assert max(looked_at) < 200_000


def test_what_is_left_out_is_counted_once_there_are_many_new_objects():
    """To count a million objects takes a tenth of a second: a node whose search cannot become thorough counts none."""
    at_entry, after_one, before_half, behind_half, at_the_end, thorough = run(
        """
counts, count = [], gc.get_freeze_count
gc.get_freeze_count = lambda: counts.append(count()) or counts[-1]
seen, held = [], []

def hold_more():
    held.append(live_long(50_000))
    gc.collect()
    seen.append(len(counts))

with searches.bounded():
    seen.append(len(counts))
    gc.collect()
    seen.append(len(counts))
    for _ in range(3):
        hold_more()
    found = seen[:2] + seen[-1:]
    hold_more()
    hold_more()
    found.append(seen[-1])
    for _ in range(2):
        hold_more()
    found.append(seen[-1])
print(json.dumps([*found, searches.thorough]))
"""
    )
    assert (at_entry, after_one, before_half) == (0, 0, 0), "no search can become thorough: less than 200,000 are new"
    assert (behind_half, at_the_end, thorough) == (1, 1, 0)


def test_what_is_held_is_searched_again_when_it_has_doubled():
    found = run(
        """
with searches.bounded():
    held, seen = [], []
    for _ in range(40):
        held.append(live_long(50_000))
        seen.append(searches.thorough)
print(json.dumps(seen))
"""
    )
    assert 2 <= found[-1] <= 4, "at 0.4, 0.8 and 1.6 million objects"


def test_what_the_partitions_explain_is_not_searched_again():
    found = run(
        """
searches = Searches(lambda: 8_000, thorough_min=400_000)  # which explain 1.6 million objects
with searches.bounded():
    held, seen = [], []
    for _ in range(60):
        held.append(live_long(50_000))
        seen.append(searches.thorough)
print(json.dumps(seen))
"""
    )
    assert not any(found[:38]), "up to 1.9 million objects"
    assert found[-1] == 1, "at 2 million of 3"


def test_a_cycle_that_was_left_out_is_found_by_a_thorough_search():
    before, after, thorough = run(
        """
with searches.bounded():
    cycle = Cycle()
    held = live_long(200_000)
    gc.collect()
    gone = weakref.ref(cycle)
    del cycle
    gc.collect()
    before = gone() is None
    for _ in range(40):
        held.append(live_long(50_000))
    after = gone() is None
print(json.dumps([before, after, searches.thorough]))
"""
    )
    assert not before, "it was left out"
    assert after
    assert thorough


def test_objects_that_come_and_go_bring_about_no_thorough_search():
    """They are freed when nothing refers to them, left out or not."""
    thorough = run(
        """
with searches.bounded():
    for _ in range(40):
        held = live_long(100_000)
print(json.dumps(searches.thorough))
"""
    )
    assert thorough == 0


def test_nothing_more_is_left_out_when_the_body_is_over():
    before, after, callbacks = run(
        """
with searches.bounded():
    held = live_long(100_000)
before = gc.get_freeze_count()
held.append(live_long(300_000))
print(json.dumps([before, gc.get_freeze_count(), len(gc.callbacks)]))
"""
    )
    assert before == after
    assert callbacks == 1


def test_a_young_search_is_done_early_unless_an_older_one_is_due():
    searches, left = run(
        """
from tailrace_server.host.garbage import EARLY_MIN, search_early
searches, held = [], []
gc.collect()
gc.callbacks.append(lambda phase, info: phase == "start" and searches.append(info["generation"]))

def grow(count):
    held.extend([number] for number in range(count))
    before = len(searches)
    search_early()
    return len(searches) - before

assert grow(EARLY_MIN // 2) == 0
assert grow(EARLY_MIN) == 1
for _ in range(10):
    assert grow(EARLY_MIN + 10) == 1
assert searches == 11 * [0]
assert grow(EARLY_MIN + 10) == 0
held.extend([number] for number in range(700))
assert searches[-1] == 1
print(json.dumps([searches, gc.get_count()[1]]))
"""
    )
    assert searches == [*11 * [0], 1]
    assert left == 0
