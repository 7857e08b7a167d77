"""bench/_placement.py: on which processors a client and its server may run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from _placement import FREE, ONE, OWN, Placement, missing, own_processors, placed, placements, processor_of


def test_two_processors_allow_all_placements():
    assert placements({7, 3}) == [
        Placement(FREE, frozenset({3, 7}), frozenset({3, 7})),
        Placement(ONE, frozenset({3}), frozenset({3})),
        Placement(OWN, frozenset({3}), frozenset({7})),
    ]
    assert missing({7, 3}) == ""


@pytest.mark.parametrize(("processors", "reason"), [({5}, "one processor"), (None, "cannot pin")])
def test_others_leave_only_the_schedulers_and_say_why(processors, reason):
    assert [placement.name for placement in placements(processors or ())] == [FREE]
    assert reason in missing(processors)


@pytest.mark.slow
def test_a_placement_ends_with_its_body():
    processors = own_processors()
    if missing(processors):
        pytest.skip(missing(processors))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        for placement in placements(processors):
            with placed(placement, [server.pid]):
                assert os.sched_getaffinity(0) == placement.client
                assert os.sched_getaffinity(server.pid) == placement.server
                assert processor_of("self") in placement.client
            assert os.sched_getaffinity(0) == os.sched_getaffinity(server.pid) == processors
        server.communicate(b"\n")


@pytest.mark.slow
def test_a_process_that_is_gone_has_no_processor():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert processor_of(gone.pid) == -1
