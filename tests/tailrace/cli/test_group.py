"""``tailrace group`` against a real node."""

from __future__ import annotations

import json

import pytest

import tailrace
from tailrace import Mutations, blocking


@pytest.fixture
def feed(served_url, unused_name):
    with blocking.connect(served_url) as client:
        feed = client.create_feed(unused_name, partitions=2)
        feed.write([tailrace.Put(b"%d" % number, b"v") for number in range(20)])
        yield feed


def read(feed, **options):
    """Reads and commits all rows. Returns how many there were."""
    count = 0
    with feed.consume(**options) as stream:
        while (event := stream.next(timeout=0.5 if count else 60)) is not None:
            count += len(event) if isinstance(event, Mutations) else 0
            stream.commit()
    return count


def rows(done):
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_a_group_is_listed_shown_and_moved(call, feed):
    assert read(feed, group="mailers") == 20
    [told] = [each for each in rows(call("group", "list", "--json")) if each["feed"] == feed.name]
    assert (told["kind"], told["name"], told["lag"], told["members"]) == ("group", "mailers", 0, [])
    [shown] = rows(call("group", "show", feed.name, "mailers", "--json"))
    assert [each["state"] for each in shown["owned"]] == ["free", "free"]
    assert sum(each["seq"] for each in shown["owned"]) == 20
    assert b"mailers" in call("group", "list").out
    assert b"generation" in call("group", "show", feed.name, "mailers").out
    arguments = ["group", "reset", feed.name, "mailers", "--to", "beginning", "--json"]
    would = rows(call(*arguments, "--dry-run"))
    assert sum(each["behind"] for each in would) == 20
    assert rows(call("group", "show", feed.name, "mailers", "--json")) == [shown]
    assert rows(call(*arguments)) == would
    assert read(feed, group="mailers") == 20


def test_a_name_is_moved_to_positions_and_to_now_and_forgotten(call, feed, tmp_path):
    with feed.consume(name="reader", until="now") as stream:
        for _ in stream:
            pass
        stream.commit()
        stored = stream.latest_positions
    feed.write([tailrace.Put(b"%d" % number, b"w") for number in range(20)])
    path = tmp_path / "positions"
    path.write_text(str(stored))
    assert call("group", "reset", feed.name, "reader", "--to", "now").code == 0
    assert read(feed, name="reader", until="now") == 0
    assert call("group", "reset", feed.name, "reader", "--to", f"@{path}").code == 0
    assert read(feed, name="reader", until="now") == 20
    assert call("group", "reset", feed.name, "reader", "--forget").code == 0
    assert read(feed, name="reader", until="now") == 40


def test_a_group_that_is_read_is_not_moved(call, feed):
    with feed.consume(group="mailers") as stream:
        assert stream.next(timeout=60) is not None
        done = call("group", "reset", feed.name, "mailers", "--to", "now")
        assert (done.code, "stop what reads it first" in done.err) == (1, True)


@pytest.mark.parametrize("options", [[], ["--to", "now", "--forget"], ["--to", "soon"]])
def test_what_cannot_be_meant(call, feed, options):
    assert call("group", "reset", feed.name, "mailers", *options).code in (1, 2)


def test_an_unknown_group_is_told(call, feed):
    done = call("group", "show", feed.name, "nothing")
    assert (done.code, "has no group 'nothing'" in done.err) == (1, True)


def test_a_group_is_moved_to_a_time_a_number_and_seqs(call, feed):
    assert read(feed, group="mailers") == 20
    counts = {each.id: each.high_seq for each in feed.partitions()}
    for to, expected in (
        ("earliest", {0: 0, 1: 0}),
        ("last:3", {partition: seq - 3 for partition, seq in counts.items()}),
        ("-1h", {0: 0, 1: 0}),
        ("0=2", {0: 2}),
        ("0=2,1=4", {0: 2, 1: 4}),
    ):
        arguments = ["group", "reset", feed.name, "mailers", "--to", to, "--json"]
        would = rows(call(*arguments, "--dry-run"))
        assert {row["partition"]: row["to"] for row in would} == expected
        assert sum(row["behind"] for row in would) == sum(counts[p] - seq for p, seq in expected.items())
        assert rows(call(*arguments)) == would
    assert read(feed, group="mailers") == 20 - 6
    assert call("group", "reset", feed.name, "mailers", "--to", "latest").code == 0
    [shown] = rows(call("group", "show", feed.name, "mailers", "--json"))
    assert shown["lag"] == 0


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("last:x", "last:100"),
        ("0=1,0", "has to be as 0=4711,3=12"),
        ("soon", "or write beginning, now, last:N, a time, or seqs"),
        ("0=9999", "seq 9999 of partition 0, which has come to"),
        ("7=1", "partition 7: the feed has 2"),
        ("2026-13-01T00:00:00Z", "--to"),
    ],
)
def test_a_place_that_is_none_is_refused(call, feed, to, message):
    read(feed, group="mailers")
    done = call("group", "reset", feed.name, "mailers", "--to", to)
    assert done.code != 0
    assert message in done.err
