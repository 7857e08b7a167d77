import errno
import json
import os

import pytest
import trio

import tailrace
from tailrace.cli.commands import installed_commands, invoke, make_app, run
from tailrace_server.config import Config
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.host.disk import RealFile
from tailrace_server.node.start import open_node
from tailrace_server.offline import commands

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path):
    path = str(tmp_path / "data")

    async def write():
        async with (
            open_node(Config(path, listen=("127.0.0.1", 0))) as node,
            tailrace.connect(f"tailrace://127.0.0.1:{node.listening[1]}") as client,
        ):
            feed = await client.create_feed("orders", partitions=2)
            for number in range(20):
                await feed.put(b"k%d" % number, b"v")
            for partition in node.feeds.named("orders").partitions:
                await node.storage.flusher.flush(partition)
            await node.storage.flusher._trimmer.trim()  # the feed gets its FEED

    trio.run(write)
    return path


@pytest.fixture
def segment(data, tmp_path):
    return next((tmp_path / "data" / "feeds").glob("*/*/*.seg"))


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_commands_are_found():
    assert {"verify", "repair", "backup", "restore"} <= installed_commands().keys()


def test_verify_of_a_good_directory(data, capsys):
    assert run(["verify", data]) == 0
    out = capsys.readouterr().out
    assert "no problems" in out
    assert "segment" in out
    assert run(["verify", data, "--files", "--json"]) == 0
    *files, summary = lines(capsys)
    assert summary["ok"] is True
    assert summary["files"] == len(files)
    assert {file["state"] for file in files} == {"ok"}


def test_verify_of_a_damaged_one_names_file_and_offset_and_fails(data, segment, capsys):
    flip(segment, 64 + 96 + 3)
    assert run(["verify", data]) == 1
    captured = capsys.readouterr()
    assert segment.name in captured.out
    assert "checksum" in captured.out
    assert captured.err == ""
    assert run(["verify", data, "--json"]) == 1
    *files, summary = lines(capsys)
    assert summary["ok"] is False
    [bad] = [file for file in files if file["state"] == "problem"]
    assert bad["findings"][0]["offset"] == 64


def test_repair_says_what_it_would_do_then_does_it(data, segment, capsys, tmp_path):
    flip(segment, 64 + 96 + 3)
    for path in (tmp_path / "data" / "journal").iterdir():
        path.unlink()
    assert run(["repair", data, "--dry-run"]) == 0
    assert "lost: feed" in capsys.readouterr().out
    assert run(["verify", data]) == 1
    capsys.readouterr()
    assert run(["repair", data, "--json"]) == 0
    [outcome] = lines(capsys)
    assert outcome["actions"]
    assert outcome["lost"]
    assert (tmp_path / "data" / "lost").is_dir()
    assert run(["verify", data]) == 0
    capsys.readouterr()
    assert run(["repair", data]) == 0
    assert "nothing to repair" in capsys.readouterr().out


def test_repair_names_the_feeds_of_which_rows_are_lost(data, segment, capsys, tmp_path):
    feed_id = segment.parent.parent.name
    flip(segment, 64 + 96 + 3)
    for path in (tmp_path / "data" / "journal").iterdir():
        path.unlink()
    assert run(["repair", data, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert f"lost: feed orders ({feed_id}), partition {segment.parent.name}, seqs " in told
    assert f"partition {segment.parent.name} of feed orders ({feed_id}): " in told
    assert run(["repair", data, "--json"]) == 0
    [outcome] = lines(capsys)
    assert {(lost["feed"], lost["name"]) for lost in outcome["lost"]} == {
        (feed_id, "orders"),
        (SYSTEM_FEED_ID.hex(), "_feeds"),
    }
    [index] = (tmp_path / "data" / "lost").glob("*/index.jsonl")
    listed = [json.loads(line) for line in index.read_text().splitlines()]
    assert {line.get("name") for line in listed if line.get("feed") == feed_id} == {"orders"}


def test_verify_names_the_feeds(data, segment, capsys):
    feed_id = segment.parent.parent.name
    flip(segment, 64 + 96 + 3)
    assert run(["verify", data, "--json"]) == 1
    found = [finding for line in lines(capsys) if "findings" in line for finding in line["findings"]]
    assert any(f"partition {segment.parent.name} of feed orders ({feed_id}): " in each["means"] for each in found)


def test_backup_and_restore(data, tmp_path, capsys):
    target, again = str(tmp_path / "backup"), str(tmp_path / "again")
    assert run(["backup", data, target, "--json"]) == 0
    [taken] = lines(capsys)
    assert taken["segments"] == taken["linked"] > 0
    assert run(["restore", target, again]) == 0
    assert "files" in capsys.readouterr().out
    assert run(["backup", data, target]) == 1
    assert "not empty" in capsys.readouterr().err

    async def read():
        async with (
            open_node(Config(again, listen=("127.0.0.1", 0))) as node,
            tailrace.connect(f"tailrace://127.0.0.1:{node.listening[1]}") as client,
        ):
            return [item.key async for item in client.feed("orders").items()]

    assert sorted(trio.run(read)) == sorted(b"k%d" % number for number in range(20))


def test_what_is_no_data_directory_is_one_line(tmp_path, capsys):
    for command in (
        ["verify", str(tmp_path)],
        ["repair", str(tmp_path)],
        ["backup", str(tmp_path), str(tmp_path / "b")],
    ):
        assert run(command) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_bar_is_shown_where_people_look(data, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert invoke(make_app({"verify": installed_commands()["verify"]}), ["verify", data]) == 0
    with commands._bar("verify") as watcher:
        watcher.expect(10)
        watcher.begin("/data/x")
        watcher.read(10)
    assert "no problems" in capsys.readouterr().out


def test_what_was_done_is_told_in_words(data, tmp_path, capsys, monkeypatch):
    target = str(tmp_path / "backup")
    assert run(["backup", data, target]) == 0
    assert "of them linked" in capsys.readouterr().out
    assert run(["restore", target, str(tmp_path / "again"), "--copy", "--json"]) == 0
    assert lines(capsys)[0]["linked"] == 0
    assert run(["verify", data, "--files"]) == 0
    assert "journal/00000001.log" in capsys.readouterr().out
    monkeypatch.setattr(commands, "_FINDINGS_SHOWN_MAX", 0)
    (tmp_path / "data" / "NODE").write_text("x")
    assert run(["verify", data]) == 1
    assert "and 1 more: --json shows all" in capsys.readouterr().out
    assert run(["repair", data]) == 0
    assert "0 lines in" in capsys.readouterr().out


def test_what_cannot_be_read_or_written_is_one_line_that_names_it(data, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    file, missing = str(tmp_path / "file"), str(tmp_path / "missing")
    for command, told in (
        (["verify", missing], f"{missing}: No such file"),
        (["repair", missing], f"{missing}: No such file"),
        (["backup", missing, str(tmp_path / "b")], f"{missing}: No such file"),
        (["restore", missing, str(tmp_path / "b")], "it does not exist"),
        (["restore", data, str(tmp_path / "b")], "no finished backup"),
        (["backup", data, file], f"{file}: Not a directory"),
        (["backup", data, f"{file}/b"], f"{file}: File exists"),
        (["backup", data, f"{data}/b"], "lies in"),
    ):
        assert run(command) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert told in line
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(("command", "told"), [("backup", "the backup is incomplete"), ("repair", "it continues")])
def test_a_full_disk_is_one_line_that_says_what_to_do(data, segment, tmp_path, capsys, monkeypatch, command, told):
    flip(segment, 64 + 96 + 3)

    def write_at(self, offset, buffers, nbytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(RealFile, "write_at", write_at)
        target = [str(tmp_path / "backup")] if command == "backup" else []
        assert run([command, data, *target]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line
    assert told in line
    assert (target or [data])[0] in line
