"""``tailrace put``, ``get`` and ``delete`` against a real node."""

from __future__ import annotations

import json
import os
import subprocess

import pytest


def test_a_value_is_put_read_and_deleted(call, made_feed):
    done = call("put", made_feed, "k", "v")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(b", seq 1\n")
    assert call("get", made_feed, "k") == (0, b"v", "")
    assert call("delete", made_feed, "k").out.endswith(b", seq 2\n")
    assert call("get", made_feed, "k") == (1, b"", f"tailrace: feed {made_feed} has no key k\n")


def test_json(call, made_feed):
    version = json.loads(call("put", made_feed, "k", "v", "--json").out)
    assert version.keys() == {"partition", "branch", "seq"}
    item = json.loads(call("get", made_feed, "k", "--json").out)
    assert (item["key"], item["value"], item["deleted"]) == ("k", "v", False)
    assert {name: item[name] for name in version} == version
    assert json.loads(call("delete", made_feed, "k", "--json").out)["seq"] == 2


def test_bytes_go_in_and_come_out_as_they_are(call, start, made_feed):
    value = bytes(range(256)) * 10
    with start("put", made_feed, b"\xff\x01", "-") as process:
        process.communicate(value, timeout=120)
        assert process.returncode == 0
    assert call("get", made_feed, b"\xff\x01").out == value
    assert json.loads(call("get", made_feed, b"\xff\x01", "--json").out)["value_encoding"] == "base64"
    assert call("get", made_feed, b"\xff\x02").err == f"tailrace: feed {made_feed} has no key \\xff\\x02\n"


def write_without_end(pipe):
    for _ in range(64):
        pipe.write(bytes(1024 * 1024))


def test_an_input_without_end_is_refused_when_it_is_too_long(start, made_feed):
    """The reader of the other end is not waited for: it is cut off once there is a byte too many."""
    with start("put", made_feed, b"k", "-", bufsize=0) as process:
        with pytest.raises(BrokenPipeError):
            write_without_end(process.stdin)
        process.wait(60)
        assert process.returncode == 1
        assert b"more than the 16777216 bytes that a value may have" in process.stderr.read()


def test_after_two_hyphens_nothing_is_an_option(call, made_feed):
    assert call("put", made_feed, "--", "--key", "--value").code == 0
    assert call("get", made_feed, "--", "--key").out == b"--value"


def test_an_empty_value_is_a_value(call, made_feed):
    assert call("put", made_feed, "k", "").code == 0
    assert call("get", made_feed, "k") == (0, b"", "")


def test_an_empty_key_is_wrong_usage(call, made_feed):
    for command in (["put", made_feed, "", "v"], ["get", made_feed, ""], ["delete", made_feed, ""]):
        done = call(*command)
        assert (done.code, done.err) == (2, "tailrace: the key is empty; a key has at least one byte\n")


def test_what_is_too_large_fails(call, made_feed):
    done = call("put", made_feed, "k" * 5_000, "v")
    assert done.code == 1
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", [["put", "no-such-feed", "k", "v"], ["get", "no-such-feed", "k"]])
def test_a_feed_that_is_not_there(call, command):
    done = call(*command)
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith("tailrace: there is no feed 'no-such-feed'")


def test_a_node_is_found_by_option_or_environment(call, made_feed, served_url, monkeypatch):
    monkeypatch.setenv("TAILRACE_URL", "tailrace://127.0.0.1:1")
    assert call("put", made_feed, "k", "v", "--url", served_url).code == 0
    assert call("put", made_feed, "k", "v", "--node", served_url.removeprefix("tailrace://")).code == 0


def test_a_node_that_is_not_there(call, monkeypatch):
    monkeypatch.setattr("tailrace.cli.options.CONNECT_SECONDS_MAX", 0.2)
    done = call("get", "orders", "k", "--node", "127.0.0.1:1")
    assert done.code == 1
    assert "no node at 127.0.0.1:1" in done.err
    assert "TAILRACE_URL" in done.err
    assert done.err.count("\n") == 1


def test_at_a_terminal_a_value_can_do_nothing(start, made_feed, write, terminal):
    write((b"k", b"\x1b[2Jred\xff"))
    ours, its_end = terminal
    with start("get", made_feed, "k", stdout=its_end, stderr=subprocess.DEVNULL) as process:
        assert process.wait(120) == 0
    assert os.read(ours, 100) == b"\\x1b[2Jred\\xff\r\n"


def test_where_a_follower_is_asked_for_one_that_leads_is_none(call, monkeypatch):
    monkeypatch.setattr("tailrace.cli.options.CONNECT_SECONDS_MAX", 0.2)
    done = call("get", "orders", "k", "--state", "follower")
    assert (done.code, done.out) == (1, b"")
    assert "leads, and state='follower' asks for one that follows" in done.err
    assert call("get", "orders", "k", "--state", "any").code == 2


def test_a_key_is_put_with_a_ttl(call, made_feed):
    assert call("put", made_feed, "k", "v", "--ttl", "1s").code == 0
    assert call("put", made_feed, "for an hour", "v", "--ttl", "1h").code == 0
    while call("get", made_feed, "k").code == 0:
        pass
    done = call("export", made_feed, "--mutations")
    assert done.code == 0, done
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [(row["key"], row["deleted"]) for row in rows if row.get("expired")] == [("k", True)]
    assert call("get", made_feed, "for an hour").out == b"v"


@pytest.mark.parametrize("ttl", ["0s", "-1s", "1.5s", "soon", "400000h"])
def test_a_wrong_ttl_is_refused_and_nothing_is_put(call, made_feed, ttl):
    done = call("put", made_feed, "k", "v", "--ttl", ttl)
    assert done.code == 2
    assert "ttl" in done.err
    assert call("get", made_feed, "k").code == 1
