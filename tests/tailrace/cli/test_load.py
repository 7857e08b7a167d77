"""``tailrace import`` and ``tailrace export`` against a real node."""

from __future__ import annotations

import json
import signal

import pytest

from tailrace.cli.load import how_to_go_on
from tailrace.cli.rowfiles import batches

LINES = [{"id": number % 5, "total": number} for number in range(12)]


@pytest.fixture
def orders(tmp_path):
    path = tmp_path / "orders.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_a_file_is_imported_once_and_exported(call, made_feed, orders, tmp_path):
    done = call("import", made_feed, orders, "--key", "id")
    assert done == (0, f"{orders}: 12 rows, 0 of them deletions, are in feed {made_feed}\n".encode(), "")
    again = call("import", made_feed, orders, "--key", "id", "--json")
    assert json.loads(again.out) == {"feed": made_feed, "rows": 12, "deletions": 0, "written": 0, "present": 12}
    assert call("get", made_feed, "3").out == b'{"id": 3, "total": 8}'
    out = tmp_path / "out.csv"
    assert call("export", made_feed, out).out == f"{out}: 5 rows\n".encode()
    assert call("export", made_feed, out, "--json", "--key-prefix", "3").out.endswith(b'"rows": 1}\n')
    lines = [json.loads(line) for line in call("export", made_feed).out.splitlines()]
    assert {line["key"]: json.loads(line["value"])["total"] for line in lines} == {str(k % 5): k for k in range(7, 12)}


def test_other_options_are_another_import(call, made_feed, orders):
    call("import", made_feed, orders, "--key", "id")
    call("import", made_feed, orders, "--key", "id", "--value", "total")
    assert call("get", made_feed, "3").out == b"8"


def test_every_mutation_goes_from_feed_to_feed(call, made_feed, unused_name, tmp_path):
    for arguments in (("put", "a", "1"), ("put", "b", "2"), ("delete", "a")):
        assert call(arguments[0], made_feed, *arguments[1:]).code == 0
    path = tmp_path / "all.parquet"
    assert call("export", made_feed, path, "--mutations").out == f"{path}: 3 rows\n".encode()
    other = f"{unused_name}-other"
    call("feed", "create", other)
    done = call("import", other, path)
    assert done.out == f"{path}: 3 rows, 1 of them deletions, are in feed {other}\n".encode()
    assert call("get", other, "a").code == 1
    assert call("get", other, "b").out == b"2"


def test_a_dry_run_reads_all_and_writes_nothing(call, made_feed, orders):
    done = call("import", made_feed, orders, "--key", "id", "--dry-run", "--url", "tailrace://127.0.0.1:1")
    assert done == (
        0,
        f"{orders}: 12 rows, 0 of them deletions; all can be used, and nothing was written\n".encode(),
        "",
    )
    assert call("get", made_feed, "3").code == 1


def test_a_bad_row_is_named_by_its_line(call, made_feed, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("key,value\na,1\n,2\n")
    for dry in ((), ("--dry-run",)):
        done = call("import", made_feed, path, *dry)
        assert done.code == 1
        assert done.err == f"tailrace: {path}, line 3: the key has 0 bytes; a key has 1 to 4,096\n"


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.jsonl.gz", "x.csv"])
def test_a_file_that_cannot_be_read_is_named(call, made_feed, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b'"no such format')
    done = call("import", made_feed, path)
    assert done.code == 1
    [line] = done.err.splitlines()  # nothing was written, so it has no advice on how to go on
    assert line.startswith(f"tailrace: {path}")
    assert "this is no" in line or "cannot be read" in line


@pytest.mark.parametrize(
    ("is_bad", "has_id", "is_file", "how"),
    [
        (False, False, True, "run the same command again to go on"),
        (False, False, False, "with --id an import can go on"),
        (False, True, False, "run the same command again to go on"),
        (True, True, True, "mend that row, and run the same command again to go on"),
        (True, False, True, "once mended, it is another import: all its rows are written. With --id an import goes on"),
    ],
)
def test_how_an_import_goes_on(is_bad, has_id, is_file, how):
    assert how_to_go_on(is_bad=is_bad, has_id=has_id, is_file=is_file) == how


def test_a_pipe_goes_on_with_an_id(start, call, made_feed):
    rows = b"".join(b'{"key": "k%d", "value": "v"}\n' % number for number in range(10))
    for written in (10, 0):
        with start("import", made_feed, "-", "--id", "nightly", "--json") as process:
            out, err = process.communicate(rows, timeout=120)
        assert (process.returncode, json.loads(out)["written"], err) == (0, written, b"")
    with start("import", made_feed, "-", "--id", "nightly") as process:
        _, err = process.communicate(rows.replace(b'"v"', b'"w"'), timeout=120)
    assert b"the standard input has other rows than the import 'nightly' had before" in err


def test_ctrl_c_says_how_to_go_on(start, call, made_feed):
    with start("import", made_feed, "-", "--id", "nightly") as process:
        for number in range(2 * batches.ROWS_MAX + 1):
            process.stdin.write(b'{"key": "%d-%d", "value": "v"}\n' % (number // batches.ROWS_MAX, number % 10))
        process.stdin.flush()
        while call("get", made_feed, "1-9").code:  # the second batch is published once the first one is counted
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert process.returncode == 130
        assert b"rows are in the feed; run the same command again to go on" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("import", "FEED", "none.jsonl"), "none.jsonl: No such file or directory"),
        (("import", "FEED", "rows.txt"), "rows.txt: the name tells no format"),
        (("import", "FEED", "-", "--id", ""), "--id is '': 1 to 100 printable characters are needed"),
        (("import", "FEED", "-", "--delimiter", "ab"), "--delimiter is 'ab', and has to be one character"),
        (("export", "FEED", "/no/such/place.csv"), "/no/such/place.csv: No such file or directory"),
        (("export", "FEED", "--json"), "--json prints a summary"),
        (("export", "FEED", "--key-prefix", "k" * 5_000), "--key-prefix: "),
    ],
)
def test_wrong_usage(call, made_feed, arguments, said):
    done = call(*(made_feed if word == "FEED" else word for word in arguments))
    assert done.code == 2
    assert said in done.err


def test_a_feed_that_does_not_exist_is_named(call, orders):
    done = call("import", "no-such-feed", orders, "--key", "id")
    assert done.code == 1
    assert "no-such-feed" in done.err
