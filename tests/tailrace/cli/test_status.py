"""``tailrace status``: once, as JSON, and again and again."""

from __future__ import annotations

import io
import json
import signal

from rich.console import Console

from tailrace.cli.status import render

SECONDS_MAX = 120


def rendered(details):
    file = io.StringIO()
    Console(width=200, file=file).print(render(details))
    return file.getvalue()


def test_tables(call, node_process, monkeypatch):
    """On a node of its own: of the one that tests share only the first partitions of many are shown."""
    monkeypatch.setenv("TAILRACE_URL", node_process.url)
    assert call("feed", "create", "orders", "--partitions", "2").code == 0
    assert call("put", "orders", "k", "v").code == 0
    done = call("status")
    assert (done.code, done.err) == (0, "")
    text = done.out.decode()
    assert ", healthy\n" in text
    row, *partitions = [line.split() for line in text.splitlines() if "orders" in line]
    assert row[:5] == ["orders", "2", "compact", "1", "0"]
    assert [row[:5] + row[6:7] for row in partitions] == [
        ["orders", number, "leader", "1", "1", "-"] for number in "01"
    ], "no quorum where there is no set"
    assert "leads in term 1\n" in text
    assert "no node follows it, so none can be promoted" in " ".join(text.split())
    assert "tailrace status" in text


def test_json_is_the_whole_status(call, made_feed):
    done = call("status", "--json")
    status = json.loads(done.out)
    assert done.out.count(b"\n") == 1
    assert status["healthy"] is True
    assert made_feed in [feed["name"] for feed in status["feeds"]]


def test_watching(start, made_feed):
    with start("status", "--watch", "--json") as process:
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0
        assert process.stderr.read() == b""
    assert first["uptime_s"] < second["uptime_s"]


def test_watching_into_a_pipe_prints_tables(start, made_feed):
    with start("status", "--watch") as process:
        seen = 0
        while seen < 2:
            seen += b"up " in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0


def test_a_node_that_ails_and_strange_names_are_shown(call):
    details = json.loads(call("status", "--json").out)
    details.update(healthy=False, failure="the disk\x1b is gone", unclean_start="there is no file CLEAN")
    details["connections"][0].update(name="[bold]\x07", slow=True)
    text = rendered(details)
    assert "NOT healthy" in text
    assert "the disk\\x1b is gone" in text
    assert "not clean: there is no file CLEAN" in text
    assert "[bold]\\x07" in text
    assert "slow" in text


def test_checkpoints_are_shown_while_there_are_some(call):
    details = json.loads(call("status", "--json").out)
    assert (details["storage"]["checkpoints"], details["storage"]["checkpoint_bytes"]) == (0, 0)
    assert "checkpoints" not in rendered(details)
    details["storage"].update(checkpoints=3, checkpoint_bytes=3 * 1024 * 1024)
    assert "checkpoints: 3, which keep 3.0 MiB of replaced segments" in rendered(details)
    del details["storage"]["checkpoints"]  # an older node
    assert "checkpoints" not in rendered(details)


def test_a_node_that_does_not_answer_is_told_and_waited_for():
    assert "no answer: nobody there" in rendered({"unreachable": "nobody there"})


def test_replicas_are_shown(call, made_feed):
    details = json.loads(call("status", "--json").out)
    assert "Replicas" not in rendered(details)
    details["replication"] = {
        "role": "leader",
        "term": 7,
        "leader": "",
        "default_level": "quorum",
        "members": ["a:1", "b:1", "c:1"],
        "replica_of": None,
        "others": [
            {"address": "b:1", "answers": True, "software": "tailrace 9.8.7"},
            {"address": "c:1", "answers": False},
        ],
        "doing": "waits for b:1",
        "promotion": "leads already: it would change nothing",
        "replicas": [
            {
                "placement_id": "01" * 16,
                "address": "b:1",
                "votes": True,
                "connected": False,
                "partitions": 3,
                "lag": 1_234,
                "since_ack_s": None,
            }
        ],
    }
    followers = [{"lag": 1_234, "connected": False}, {"lag": 0, "connected": True}]
    state = {"role": "leader", "term": 7, "branches": [[], []], "durable": 9, "quorum": 8, "visible": 8}
    del details["feeds"][1:]
    details["feeds"][0]["states"] = [state | {"id": id, "followers": followers} for id in range(100)]
    text = rendered(details)
    assert "leads in a set of 3 in term 7; writes are at level quorum by default" in text
    assert f"members: a:1 {details['software']}, b:1 tailrace 9.8.7, c:1 does not answer" in text
    details["replication"]["others"] = [{"address": a, "answers": True} for a in ("b:1", "c:1")]
    assert "b:1 an earlier version, c:1 an earlier version" in rendered(details)
    for other in details["replication"]["others"]:
        other["software"] = details["software"]
    assert f"all members: {details['software']}" in rendered(details)
    assert "doing: waits for b:1" in text
    assert "promote: leads already" in text
    [replica] = [line.split() for line in text.splitlines() if line.strip().startswith("01010101")]
    assert replica == ["01010101", "b:1", "yes", "no", "3", "1,234", "never"]
    assert "Partitions, the first 64 of 100" in text
    assert "1,234 (not connected), 0" in text


def test_a_follower_says_whom_it_follows(call):
    details = json.loads(call("status", "--json").out)
    replication = details["replication"]
    assert (replication["role"], replication["members"]) == ("leader", [])
    details["replication"] = replication | {"role": "follower", "term": 2, "leader": "b:1", "replica_of": "b:1"}
    assert "follows b:1, term 2" in rendered(details)
    details["replication"]["leader"] = ""
    assert "knows no leader to follow, term 2" in rendered(details)
    del details["replication"]
    assert "follows" not in rendered(details), "a node from before there were replicas"


def test_a_cluster_store_says_what_goes_on_and_what_waits(call):
    details = json.loads(call("status", "--json").out)
    assert details["cluster_store"] is None
    store = {"store": "etcd://a:2379", "state": "connected", "since_s": 3.0, "why": "", "case": "voter", "step": ""}
    details["cluster_store"] = store | {"goes_on": "everything", "waits": "nothing"}
    assert "cluster store etcd://a:2379: connected for 3 s\n" in rendered(details)
    assert "goes on" not in rendered(details)
    bad = {
        "state": "unreachable",
        "why": "refused",
        "goes_on": "writes",
        "waits": "moves",
        "to_do": "start etcd",
        "last_trouble": {"state": "lease_lost", "why": "revoked", "lasted_s": 0.4, "ago_s": 75.0},
        "case": "spare",
        "step": "no",
    }
    details["cluster_store"] = store | bad
    for line in (
        ": unreachable for 3 s: refused\n",
        "goes on: writes; waits: moves\n",
        "to do: start etcd\n",
        "was lease_lost until 1 min 15 s ago, for 0 s: revoked\n",
        "members: no\n",
    ):
        assert line in rendered(details)


def test_a_fast_fsync_and_one_that_was_not_measured_are_not_told_as_zero(call):
    details = json.loads(call("status", "--json").out)
    for seconds, text in (
        (0.0, "too few fsyncs yet"),
        (0.000004, "usually below 0.01 ms"),
        (0.00123, "usually 1.23 ms"),
    ):
        details["journal"]["usual_sync_seconds"] = seconds
        assert text in rendered(details)


def test_the_cluster_is_told_first(call):
    details = json.loads(call("status", "--json").out)
    id = details["cluster_id"][:8]
    assert rendered(details).startswith(f"cluster {id}, ")
    assert rendered(details | {"cluster": "shop"}).startswith(f"cluster shop ({id}), ")
