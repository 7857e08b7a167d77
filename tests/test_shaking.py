"""What is shaken comes later, and is the same otherwise; without the variable nothing is shaken."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import trio
from tests.shaking import LATE_SECONDS_MAX, SEED, Shaker

PROGRAM = """
import os, threading, trio
from trio.testing import MockClock
import tests.shaking as shaking

shaking.LATE_SHARE = shaking.STALL_SHARE = 1.0
stalls = []
shaking.time = type("Time", (), {"sleep": stalls.append})

async def main():
    ours, theirs = trio.socket.socketpair()
    await theirs.send(b"bytes")
    assert await ours.recv(5) == b"bytes"
    assert await trio.to_thread.run_sync(lambda: 7) == 7
    with trio.move_on_after(1):
        await trio.to_thread.run_sync(os.stat, "/nowhere")

for clock in (None, MockClock(autojump_threshold=0)):
    for is_on in (False, True):
        shaking.shaker.begin("seed") if is_on else shaking.shaker.end()
        stalls.clear()
        try:
            trio.run(main, clock=clock)
        except FileNotFoundError:
            print("late" if any(stalls) else "in time")
"""


def test_the_same_seed_shakes_alike_and_another_one_does_not():
    def of(seed):
        shaker = Shaker()
        shaker.begin(seed)
        return [shaker.late_seconds(0.5) for _ in range(100)]

    assert of("1") == of("1") != of("2")
    assert 20 < sum(map(bool, of("1"))) < 80
    assert max(of("1")) <= LATE_SECONDS_MAX


def test_nothing_is_late_outside_of_tests():
    shaker = Shaker()
    assert not any(shaker.late_seconds(1.0) for _ in range(10))
    assert shaker.late(len) is len


@pytest.mark.slow
def test_programs_get_the_same_results_later():
    environment = {**os.environ, "TAILRACE_SHAKE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout.split("\n"), done.stderr) == (["in time", "late", "in time", "in time", ""], "")


@pytest.mark.skipif(SEED != "", reason="this run is shaken")
def test_trio_is_its_own_unless_it_is_asked_for():
    assert trio.run.__module__ == trio.sleep.__module__ == "trio"
