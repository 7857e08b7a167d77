"""``tailrace fetch`` against a real node."""

from __future__ import annotations

import json

import pytest

from tailrace.cli.errors import WrongUsage
from tailrace.cli.fetch import parse_partitions


def test_a_copy_is_made_and_brought_up_to_date(call, made_feed, write, tmp_path):
    write((b"a", b"1"), (b"b", b"2"))
    first = call("fetch", made_feed, tmp_path / "copy")
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith(f"{tmp_path / 'copy'}: 2 partitions, ".encode())
    assert call("fetch", made_feed, tmp_path / "copy").out.endswith(b"; 0 bytes fetched\n")
    write((b"a", b"3"))
    told = [json.loads(line) for line in call("fetch", made_feed, tmp_path / "copy", "--json").out.splitlines()]
    assert [partition["partition"] for partition in told] == [0, 1]
    assert sum(partition["fetched_segments"] for partition in told) == 1
    assert sum(partition["seq"] for partition in told) == 3


def test_some_partitions(call, made_feed, tmp_path):
    assert b": 1 partitions, " in call("fetch", made_feed, tmp_path / "copy", "--partitions", "1").out
    done = call("fetch", made_feed, tmp_path / "copy", "--partitions", "1-2")
    assert done.code == 2
    assert "has the partitions 0 to 1, not 2" in done.err
    done = call("fetch", made_feed, tmp_path / "copy", "--partitions", "0-99999")
    assert (done.code, len(done.err) < 200) == (2, True), "the partitions are not listed"


def test_wrong_directories_and_feeds(call, made_feed, tmp_path):
    (tmp_path / "thesis.txt").touch()
    done = call("fetch", made_feed, tmp_path)
    assert (done.code, done.out) == (1, b"")
    assert done.err == f"tailrace: {tmp_path} is no copy of a feed, and not empty: name another directory\n"
    done = call("fetch", made_feed, tmp_path / "thesis.txt")
    assert done.err == f"tailrace: {tmp_path / 'thesis.txt'} is no directory, or below a file: name another one\n"
    assert call("fetch", "no-such-feed", tmp_path / "copy").code == 1
    done = call("fetch", made_feed, "")
    assert (done.code, done.err) == (2, "tailrace: directory is '': name the directory of the copy\n")


@pytest.mark.parametrize(("text", "partitions"), [("0", [0]), ("0-3,7", [0, 1, 2, 3, 7]), (" 5 , 2-2", [2, 5])])
def test_lists_of_partitions(text, partitions):
    assert parse_partitions(text) == partitions


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "1,,2", "1-", "0-99999999", "\u0663", "\uff11-\uff13"])
def test_lists_that_are_none(text):
    with pytest.raises(WrongUsage, match="0-3,7"):
        parse_partitions(text)
