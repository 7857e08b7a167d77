"""``tailrace feed`` against a real node."""

from __future__ import annotations

import json


def test_a_feed_is_created_listed_shown_and_dropped(call, unused_name):
    done = call("feed", "create", unused_name, "--partitions", "3")
    assert done == (0, f"feed {unused_name}: 3 partitions, retention compact\n".encode(), "")
    assert unused_name.encode() in call("feed", "list").out
    shown = call("feed", "show", unused_name)
    assert shown.code == 0
    assert b"5555555555555555" in shown.out
    assert call("feed", "drop", unused_name, "--yes") == (0, b"", "")
    assert unused_name.encode() not in call("feed", "list").out


def test_json(call, unused_name):
    created = json.loads(call("feed", "create", unused_name, "--retention", "history", "--json").out)
    assert (created["name"], created["partitions"], created["retention"]) == (unused_name, 16, "history")
    listed = [json.loads(line) for line in call("feed", "list", "--json").out.splitlines()]
    assert created in listed
    shown = json.loads(call("feed", "show", unused_name, "--json").out)
    assert {**shown, "partitions": 16} == created
    assert [partition["id"] for partition in shown["partitions"]] == list(range(16))
    assert (shown["partitions"][0]["hash_first"], shown["partitions"][15]["hash_last"]) == ("0" * 16, "f" * 16)
    assert [(term, base) for _, term, base in shown["partitions"][0]["log"]] == [(1, 0)]


def test_creating_the_same_feed_again_is_fine_and_another_one_is_not(call, made_feed):
    assert call("feed", "create", made_feed, "--partitions", "2").code == 0
    done = call("feed", "create", made_feed, "--partitions", "4")
    assert (done.code, done.out) == (1, b"")
    assert "with other settings: partitions 2 (asked for: 4)." in done.err


def test_what_cannot_be_created(call):
    assert "cannot be the name of a feed" in call("feed", "create", "No Such Name").err
    assert call("feed", "create", "No Such Name").code == 1
    assert call("feed", "create", "x", "--partitions", "0").code == 1
    assert call("feed", "create", "x", "--partitions", "many").code == 2
    assert call("feed", "create", "x", "--retention", "forever").code == 2


def test_all_settings_of_a_feed_are_created_shown_and_changed(call, unused_name):
    options = ["--retention", "history", "--history-age", "30d", "--history-bytes", "10GiB"]
    assert call("feed", "create", unused_name, "--partitions", "1", *options).code == 0
    created = json.loads(call("feed", "show", unused_name, "--json").out)
    assert (created["history_age_s"], created["history_bytes"]) == (30 * 86_400, 10 * 2**30)
    assert b"history age 30 d, history bytes 10 GiB" in call("feed", "show", unused_name).out
    done = call("feed", "set", unused_name, "--history-age", "12h", "--history-bytes", "off")
    assert done == (
        0,
        f"feed {unused_name}: replication stream, history age 12 h, history bytes off, level default\n".encode(),
        "",
    )
    changed = json.loads(call("feed", "set", unused_name, "--history-age", "off", "--json").out)
    assert (changed["history_age_s"], changed["history_bytes"]) == (None, None)


def test_the_age_of_deletions_is_changed(call, made_feed):
    done = call("feed", "set", made_feed, "--tombstone-age", "7d")
    assert done == (0, f"feed {made_feed}: replication stream, tombstone age 7 d, level default\n".encode(), "")
    done = call("feed", "set", made_feed, "--history-age", "1h")
    assert done.code == 1
    assert "history_age_s is for histories" in done.err


def test_a_level_of_the_feeds_own(call, unused_name):
    done = call("feed", "create", unused_name, "--partitions", "1", "--level", "memory")
    assert done == (0, f"feed {unused_name}: 1 partitions, retention compact, level memory\n".encode(), "")
    assert call("put", unused_name, "k", "v").code == 0
    [line] = [line for line in call("feed", "list").out.decode().splitlines() if unused_name in line]
    assert "memory" in line
    assert b"tombstone age 3 d, level memory" in call("feed", "show", unused_name).out
    assert json.loads(call("feed", "set", unused_name, "--level", "disk", "--json").out)["level"] == "disk"
    done = call("feed", "set", unused_name, "--level", "default")
    assert done == (0, f"feed {unused_name}: replication stream, tombstone age 3 d, level default\n".encode(), "")
    assert json.loads(call("feed", "show", unused_name, "--json").out)["level"] is None


def check_refused_levels(call, *command):
    done = call("feed", *command, "--level", "quorum")
    assert done.code == 1
    assert "cannot have level quorum: it needs a set of nodes, and this node is in none" in done.err
    done = call("feed", *command, "--level", "replicas")
    assert done.code == 2
    assert (
        "Invalid value for '--level': 'replicas' is not one of 'memory', 'disk', 'quorum', 'default'; see" in done.err
    )


def test_a_level_that_a_feed_cannot_have(call, unused_name):
    check_refused_levels(call, "create", unused_name)
    assert unused_name.encode() not in call("feed", "list").out, "nothing was created"
    assert call("feed", "create", unused_name).code == 0
    check_refused_levels(call, "set", unused_name)


def test_what_cannot_be_set(call, made_feed):
    for option in ("--partitions", "--retention", "--keyspace"):
        done = call("feed", "set", made_feed, option, "3")
        assert done.code == 2
        assert f"{option} of a feed cannot be changed: create another feed" in done.err
    for arguments in ([], ["--history-age", "3 MiB"], ["--tombstone-age", "off"], ["--history-bytes", "-1"]):
        assert call("feed", "set", made_feed, *arguments).code == 2


def test_a_feed_that_is_not_there(call, unused_name):
    for command in (["feed", "show", unused_name], ["feed", "drop", "--yes", unused_name]):
        done = call(*command)
        assert done.code == 1
        assert f"there is no feed '{unused_name}'" in done.err
        assert done.err.count("\n") == 1


def test_a_feed_that_exists_is_shown_if_no_option_was_given(call, made_feed):
    done = call("feed", "create", made_feed)
    assert done == (0, f"feed {made_feed}: 2 partitions, retention compact\n".encode(), "")
    assert call("feed", "create", made_feed, "--retention", "history").code == 1


def test_a_drop_whose_input_is_no_terminal_needs_yes(start, call, made_feed):
    with start("feed", "drop", made_feed) as process:
        assert process.wait(120) == 1
    assert call("feed", "show", made_feed).code == 0
    with start("feed", "drop", made_feed, "--yes") as process:
        assert process.wait(120) == 0
    assert call("feed", "show", made_feed).code == 1
