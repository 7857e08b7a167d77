"""``tailrace explain-resume``: what it prints, and how it ends for positions that are none."""

from __future__ import annotations

import json

import pytest
import trio

import tailrace
from tailrace import Position, Positions
from tailrace.model.failover import FailoverLog


@pytest.fixture
def positions(served_url, made_feed, write):
    """Those of a consumer that has read two mutations of ``made_feed``; a third one has come since."""
    write((b"k", b"1"), (b"k", b"2"))

    async def read():
        async with tailrace.connect(served_url) as client, client.feed(made_feed).consume(until="now") as stream:
            async for _ in stream:
                pass
            return stream.latest_positions

    found = trio.run(read)
    write((b"k", b"3"))
    return found


def test_a_table_for_people(call, made_feed, positions):
    done = call("explain-resume", made_feed, str(positions))
    assert done.code == 0
    assert b"resumed now" in done.out
    assert b"goes on" in done.out
    assert b"stands" in done.out
    assert b"partition 0:" not in done.out, "where it just goes on there is nothing to be said"


def test_an_object_for_each_partition(call, made_feed, positions):
    done = call("explain-resume", made_feed, str(positions), "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["partition"] for row in rows] == [0, 1]
    assert sum(row["behind"] for row in rows) == 1
    assert {row["outcome"] for row in rows} == {"goes on"}


def test_from_a_file_and_from_the_standard_input(call, start, made_feed, positions, tmp_path):
    path = tmp_path / "positions"
    path.write_text(f"{positions}\n")
    assert call("explain-resume", made_feed, f"@{path}").out == call("explain-resume", made_feed, str(positions)).out
    for text, code in ((str(positions), 0), ("", 2)):
        with start("explain-resume", made_feed, "-", "--json") as process:
            out, err = process.communicate(text.encode(), timeout=120)
        assert (process.returncode, bool(out), bool(err)) == (code, not code, bool(code)), err


def test_a_sentence_for_what_does_not_just_go_on(call, made_feed, positions):
    stranger = Position.at(FailoverLog([(b"x" * 16, 1, 0)]), 2)
    done = call("explain-resume", made_feed, str(positions.with_position(0, stranger)))
    assert done.code == 0, "it is explained, which is all that was asked for"
    assert b"starts over" in done.out
    text = b" ".join(done.out.split())
    assert b"partition 0: The node's history has none of its 1 branches" in text
    assert b"reads it from the beginning" in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("yesterday", "POSITIONS: 'yesterday' is no positions string"),
        ("@/no/such/file", "POSITIONS: /no/such/file: No such file or directory"),
        ("trp1.AAAA", "POSITIONS: this positions string is damaged or cut off"),
    ],
)
def test_what_is_no_positions(call, made_feed, text, says):
    done = call("explain-resume", made_feed, text)
    assert (done.code, done.out) == (2, b"")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_positions_of_something_else(call, made_feed, positions):
    for other, says in (
        (Positions(bytes(16), positions.feed_id, positions), "belong to cluster 0000"),
        (Positions(positions.cluster_id, bytes(16), positions), "it is another feed, or one that was dropped"),
    ):
        done = call("explain-resume", made_feed, str(other))
        assert (done.code, done.out) == (1, b"")
        assert says in done.err
    assert call("explain-resume", "no-such-feed", str(positions)).code == 1
    assert call("explain-resume", made_feed, str(positions), "--visibility", "tape").code == 2
    done = call("explain-resume", made_feed, str(positions), "--visibility", "quorum")
    assert (done.code, done.err.count("\n")) == (1, 1)
