"""What ``tailrace status --watch`` shows of what moves and what does not."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tailrace.cli.watching import SHOWN_MAX, Rate, rates, render_moving, stuck


def status(uptime_s, *mutations, durable=None, **more):
    feeds = [
        {"name": f"f{number}", "feed_id": f"{number:032x}", "mutations": count, "durable": durable or count}
        for number, count in enumerate(mutations)
    ]
    return {"node_id": "n", "uptime_s": uptime_s, "feeds": feeds, "failure": None, "connections": [], **more}


def test_rates_are_over_the_nodes_own_time():
    assert rates(status(10.0, 100, 5), status(12.0, 300, 5)) == [Rate("f0", 100.0, 100.0, 0), Rate("f1", 0.0, 0.0, 0)]
    assert rates(status(10.0, 5, 100), status(10.5, 6, 150, durable=6))[0] == Rate("f1", 100.0, -188.0, 144)


@pytest.mark.parametrize(
    "before",
    [None, {"unreachable": "gone"}, status(20.0, 1), {**status(1.0, 1), "node_id": "another"}],
    ids=["first", "after a silence", "started again", "another node"],
)
def test_without_an_earlier_status_of_this_run_there_is_no_rate(before):
    assert rates(before, status(12.0, 300)) == []


def test_a_new_feed_has_no_rate_yet():
    assert [rate.feed for rate in rates(status(1.0, 1), status(2.0, 1, 7))] == ["f0"]


def test_what_is_stuck():
    assert stuck(status(1.0)) == []
    assert stuck(status(1.0, replication={"role": "leader", "leader": "a:1"})) == []
    found = stuck(
        status(
            1.0,
            failure="the disk is full",
            connections=[{"name": "index", "peer": "a:1", "slow": True}, {"name": "", "peer": "b:1", "slow": True}],
            cluster_store={"state": "unreachable", "why": "refused"},
            replication={
                "role": "follower",
                "leader": "",
                "others": [{"address": "c:1", "answers": False}, {"address": "d:1", "answers": True}],
                "replicas": [{"address": "e:1", "lag": 1_200, "connected": False}],
                "failing": [{"feed": "orders", "partition": 3, "why": "damaged"}],
            },
        )
    )
    assert found == [
        "the disk is full",
        "there is no leader to follow: no writes are taken",
        "c:1 does not answer",
        "the follower at e:1 is not connected, 1,200 mutations behind",
        "partition 3 of feed orders cannot follow: damaged",
        "the cluster store is unreachable: refused",
        "the consumer index is slow",
        "the consumer b:1 is slow",
    ]


def rendered(before, now):
    out = io.StringIO()
    Console(file=out, width=200).print(render_moving(before, now))
    return out.getvalue()


def test_rendering_is_safe_and_bounded():
    slow = [{"name": f"\x1b{number}", "peer": "a:1", "slow": True} for number in range(SHOWN_MAX + 5)]
    text = rendered(status(1.0, 1), status(2.0, 1_001, connections=slow))
    assert "\x1b" not in text
    assert "\\x1b0 is slow" in text
    assert "and 5 more" in text
    assert "1,000" in text
    assert "nothing is stuck" in rendered(None, status(1.0))
    assert rendered(None, {"unreachable": "x"}).strip() == ""


@pytest.mark.slow
def test_it_fills_a_terminal_and_leaves_it_as_it_was(served_url, made_feed, terminal):
    tailrace = Path(sys.executable).with_name("tailrace")
    ours, its_end = terminal
    with subprocess.Popen(
        [tailrace, "status", "--watch", "--url", served_url],
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        env=os.environ,
    ) as process:
        seen = b""
        while b"Rates" not in seen:
            seen += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        while b"\x1b[?1049l" not in seen[seen.index(b"Rates") :]:
            seen += os.read(ours, 65_536)
        assert process.wait(60) == 0
    assert b"\x1b[?1049h" in seen, "the screen of its own"
    assert seen.rindex(b"\x1b[?1049l") > seen.rindex(b"\x1b[?1049h")
    assert b"nothing is stuck" in seen
