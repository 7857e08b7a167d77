"""``tailrace tail`` as a process: what it prints, and that it goes on where it was ended."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from tailrace.block import lazy
from tailrace.cli.tail import json_lines, plain_lines
from tailrace.consuming.events import Rollback
from tailrace.consuming.partition_catch_up import PartitionCatchUp
from tailrace.model.times import to_text

pytestmark = pytest.mark.slow

SECONDS_MAX = 120


def lines(process, count):
    return [process.stdout.readline() for _ in range(count)]


def end(process, number=signal.SIGINT):
    """Exit code, what else was printed, and the positions on stderr."""
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS_MAX)
    found = re.fullmatch(rb"tailrace: to go on from here: --since (\S+)\n", err)
    assert found, err
    return process.returncode, out, found[1].decode()


def test_what_there_is_and_what_comes(start, made_feed, write):
    write((b"k", b"v"), (b"k", None))
    with start("tail", made_feed) as process:
        found = lines(process, 2)
        write((b"\xff\n", b"\x1b[2J"))
        found += lines(process, 1)
        code, rest, _ = end(process)
    assert (code, rest) == (0, b"")
    assert [re.sub(rb"^\d:\d\t", b"", line) for line in found] == [
        b"put\tk\tv\n",
        b"delete\tk\n",
        b"put\t\\xff\\n\t\\x1b[2J\n",
    ]


def test_json(start, made_feed, write):
    write((b"k", b"v"), (b"k", None), (b"k", b"\xff"))
    with start("tail", made_feed, "--json") as process:
        rows = [json.loads(line) for line in lines(process, 3)]
        end(process)
    assert all(row.keys() >= {"key", "value", "seq", "partition", "deleted", "timestamp"} for row in rows)
    assert [(row["value"], row["seq"], row["deleted"]) for row in rows] == [
        ("v", 1, False),
        (None, 2, True),
        ("/w==", 3, False),
    ]
    assert rows[2]["value_encoding"] == "base64"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_goes_on_where_it_was_ended(start, made_feed, write, number):
    write((b"k", b"1"))
    with start("tail", made_feed, "--json") as process:
        lines(process, 1)
        code, _, positions = end(process, number)
    assert code == 0
    write((b"k", b"2"))
    with start("tail", made_feed, "--json", "--since", positions) as process:
        [line] = lines(process, 1)
        _, rest, _ = end(process)
    assert (json.loads(line)["value"], rest) == ("2", b"")


def test_positions_in_a_file(start, made_feed, write, tmp_path):
    path = tmp_path / "positions"
    write((b"k", b"1"))
    for value in (b"1", b"2"):
        since = f"@{path}" if path.exists() else "beginning"
        with start("tail", made_feed, "--since", since, "--positions-to", path) as process:
            [line] = lines(process, 1)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=SECONDS_MAX) == (b"", b"")
        assert line.endswith(b"\t" + value + b"\n")
        assert path.read_text().startswith("trp1.")
        write((b"k", b"2"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["positions"]


def test_a_file_that_cannot_be_written(start, made_feed, write, tmp_path):
    write((b"k", b"1"))
    with start("tail", made_feed, "--positions-to", tmp_path / "no" / "file") as process:
        lines(process, 1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert b"No such file or directory; to go on from here: --since trp1." in errors


def test_now_leaves_out_what_was_there(start, made_feed, write, served_url):
    write((b"k", b"old"))
    with start("tail", made_feed, "--since", "now") as process:
        _, _, positions = end_when_open(process, start, made_feed)
    write((b"k", b"new"))
    with start("tail", made_feed, "--since", positions) as process:
        [line] = lines(process, 1)
        end(process)
    assert line.endswith(b"\tnew\n")


def test_since_a_time(start, made_feed, write):
    write((b"k", b"old"))
    with start("tail", made_feed, "--json") as process:
        [line] = lines(process, 1)
        end(process)
    after_us = json.loads(line)["timestamp"] + 1
    write((b"k", b"new"))
    with start("tail", made_feed, "--since", to_text(after_us)) as process:
        assert lines(process, 1)[0].endswith(b"\tnew\n")
        end(process)
    with start("tail", made_feed, "--since", "-1h") as process:
        assert [line.split(b"\t")[-1] for line in lines(process, 2)] == [b"old\n", b"new\n"]
        end(process)


def test_it_ends_by_itself(start, made_feed, write):
    write((b"k", b"1"), (b"k", b"2"))
    for place in ("now", "-0s"):
        with start("tail", made_feed, "--json", "--until", place) as process:
            out, err = process.communicate(timeout=SECONDS_MAX)
        rows = [json.loads(line) for line in out.splitlines()]
        assert (process.returncode, [row["value"] for row in rows]) == (0, ["1", "2"])
        assert err.startswith(b"tailrace: to go on from here: --since trp1.")
    between = to_text(rows[1]["timestamp"])
    with start("tail", made_feed, "--until", between) as process:
        out, err = process.communicate(timeout=SECONDS_MAX)
    assert out.endswith(b"\tput\tk\t1\n")
    with start("tail", made_feed, "--until", "now", "--since", err.split()[-1].decode()) as process:
        assert process.communicate(timeout=SECONDS_MAX)[0].endswith(b"\tput\tk\t2\n")


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (("--until", "beginning"), "--until: 'beginning' is no positions string"),
        (("--until", "2026-11-21"), "--until: '2026-11-21' has no time zone"),
        (("--since", "-1m", "--until", "-2m"), "is before --since"),
    ],
)
def test_until_something_that_is_no_end(call, made_feed, places, says):
    done = call("tail", made_feed, *places)
    assert (done.code, done.out) == (2, b"")
    assert says in done.err


def end_when_open(process, start, feed):
    """Ends a tail once its stream is open, which the node's status tells."""
    while True:
        with start("status", "--json") as status:
            connections = json.loads(status.communicate(timeout=SECONDS_MAX)[0])["connections"]
        if any(connection["name"] == "tailrace tail" and connection["streams"] == 2 for connection in connections):
            return end(process)


def test_it_ends_when_nobody_reads_any_more(start, made_feed, write, tmp_path):
    write((b"k", b"1"))
    path = tmp_path / "positions"
    with start("tail", made_feed, "--positions-to", path) as process:
        lines(process, 1)
        process.stdout.close()
        assert process.wait(SECONDS_MAX) == 0
        assert process.stderr.read() == b""
    assert not path.exists(), "what was printed may not have been read"


def test_a_reader_that_waits_does_not_keep_it_from_ending(start, made_feed, write):
    write(*((b"%d" % number, b"v" * 1_000_000) for number in range(3)))
    with start("tail", made_feed, "--json") as process:
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0
        assert b"--since trp1." in process.stderr.read()


def test_a_feed_that_is_dropped_ends_it(start, call, made_feed, write):
    write((b"k", b"1"))
    with start("tail", made_feed) as process:
        lines(process, 1)
        call("feed", "drop", "--yes", made_feed)
        _, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert b"Traceback" not in errors
    assert len(errors.splitlines()) == 2


@pytest.mark.parametrize(("last", "values"), [("0", []), ("2", [b"1", b"2"]), ("9", [b"0", b"1", b"2"])])
def test_the_last_mutations(start, made_feed, write, last, values):
    for number in range(3):
        write((b"k", b"%d" % number))
    with start("tail", made_feed, "-n", last, "--until", "now") as process:
        out, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0
    assert [line.split(b"\t")[-1] for line in out.splitlines()] == values


def test_one_start_only(call, made_feed):
    done = call("tail", made_feed, "-n", "2", "--since", "now")
    assert done.code == 2
    assert "--last and --since both name a start" in done.err


@pytest.mark.parametrize(
    ("since", "says"),
    [
        ("yesterday", "is no positions string"),
        ("@/no/such/file", "--since: /no/such/file: No such file or directory"),
        ("", "is no positions string"),
        ("2026-11-21T10:00:00", "no time zone: add Z"),
        ("-15", "is no time: write 2026-11-21T10:00:00Z, or -15m"),
    ],
)
def test_since_something_that_is_no_place(call, made_feed, since, says):
    done = call("tail", made_feed, "--since", since)
    assert (done.code, done.out) == (2, b"")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_a_feed_that_is_not_there(start):
    with start("tail", "no-such-feed") as process:
        out, errors = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, out) == (1, b"")
    assert errors.startswith(b"tailrace: there is no feed 'no-such-feed'")


def test_into_a_file(start, made_feed, write, tmp_path):
    write((b"k", b"1"))
    path = tmp_path / "out"
    with open(path, "wb") as file, start("tail", made_feed, stdout=file, stderr=subprocess.PIPE) as process:
        while not path.stat().st_size:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0
    assert path.read_bytes().endswith(b"\tput\tk\t1\n")


def test_a_rollback_is_a_line():
    event = Rollback(2, 7, (b"a", b"\xff"))
    assert list(plain_lines(event)) == ["2:7\trollback\n"]
    [line] = json_lines(event)
    assert json.loads(line) == {
        "rollback": True,
        "partition": 2,
        "seq": 7,
        "keys": [{"key": "a"}, {"key": "/w==", "key_encoding": "base64"}],
    }


def test_a_prefix_and_no_values(start, made_feed, write):
    write((b"order/1", b"v"), (b"user/1", b"v"), (b"order/1", None))
    with start("tail", made_feed, "--key-prefix", "order/", "--keys-only") as process:
        found = lines(process, 2)
        write((b"user/2", b"v"), (b"order/2", b"v"))
        found += lines(process, 1)
        end(process)
    rows = sorted(re.sub(rb"^\d:\d\t", b"", line) for line in found)
    assert rows == [b"delete\torder/1\n", b"put\torder/1\n", b"put\torder/2\n"]


def test_a_prefix_that_no_key_can_have(call, made_feed):
    result = call("tail", made_feed, "--key-prefix", "a" * 4097)
    assert result.code == 2
    assert "--key-prefix: key_prefix has 4097 bytes" in result.err


@pytest.fixture
def in_segments(call, made_feed, write, tmp_path):
    """The name of a feed whose rows are all in segments: a fetch has flushed them."""
    write(*((b"k%d" % number, b"v") for number in range(10)), (b"k3", None))
    assert call("fetch", made_feed, str(tmp_path / "copy")).code == 0
    return made_feed


@pytest.fixture
def copied(monkeypatch):
    """The partitions whose segments were read."""
    copied, begin = [], PartitionCatchUp.begin

    def noted(copy, told, *arguments):
        copied.append(told.partition)
        begin(copy, told, *arguments)

    monkeypatch.setattr(PartitionCatchUp, "begin", noted)
    return copied


@pytest.fixture
def tail_to_now(call, in_segments, monkeypatch, tmp_path):
    """Runs the command to its end in this process; returns its lines, sorted, and the positions at its end."""

    def tail(*arguments):
        out, positions = tmp_path / "out", tmp_path / "positions"
        with out.open("w") as stdout, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", stdout)
            done = call("tail", in_segments, "--until", "now", "--positions-to", str(positions), *arguments)
        assert (done.code, done.err) == (0, "")
        return sorted(out.read_text().splitlines()), positions.read_text()

    return tail


@pytest.mark.parametrize(("catch_up", "partitions"), [("segments", {0, 1}), ("stream", set()), ("auto", set())])
def test_segments_give_the_same_lines_and_positions(tail_to_now, copied, catch_up, partitions):
    expected = tail_to_now()
    assert len(expected[0]) == 11
    assert not copied
    assert tail_to_now("--catch-up", catch_up) == expected
    assert set(copied) == partitions


@pytest.mark.parametrize("bound", ["--since", "--until"])
def test_segments_know_no_times(call, made_feed, bound):
    result = call("tail", made_feed, "--catch-up", "segments", bound, "-15m")
    assert (result.code, result.out) == (2, b"")
    assert "--catch-up segments: times are read by the stream; use auto, or positions" in result.err


def test_segments_need_numpy(call, made_feed, monkeypatch):
    monkeypatch.setattr(lazy, "numpy_or_none", lambda: None)
    result = call("tail", made_feed, "--catch-up", "segments")
    assert (result.code, result.out) == (2, b"")
    assert "--catch-up segments: this needs numpy: pip install 'tailrace[arrow]'" in result.err


def test_a_way_to_catch_up_that_does_not_exist(call, made_feed):
    result = call("tail", made_feed, "--catch-up", "files")
    assert result.code == 2
    assert "'files' is not one of 'auto', 'segments', 'stream'" in result.err
