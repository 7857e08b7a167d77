"""Settings that a running node reads again."""

from __future__ import annotations

import logging

import pytest

from tailrace_server.config import Limits
from tailrace_server.node.configure import load_settings
from tailrace_server.node.reloading import Reloading
from tailrace_server.node.settings import paths
from tailrace_server.setting import settings_of


@pytest.fixture
def file(tmp_path, monkeypatch):
    for path in paths():
        monkeypatch.delenv("TAILRACE_" + "_".join(path).upper(), raising=False)
    file = tmp_path / "tailrace.toml"
    file.write_text("[limits]\nfeeds_max = 5\nstreams_max = 6\n")
    return file


@pytest.fixture
def applied():
    return []


@pytest.fixture
def reloading(file, applied):
    loaded = load_settings(str(file), {"limits": {"streams_max": "7"}})
    return Reloading(str(file), loaded, applied.append)


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.INFO, "tailrace.server")

    def told():
        messages = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return messages

    return told


def test_what_has_changed_is_applied_and_told_once(reloading, file, applied, told):
    file.write_text("[limits]\nfeeds_max = 9\n")
    reloading.reload()
    assert told() == [("INFO", "setting limits.feeds_max was 5, and is 9")]
    assert (applied[-1].limits.feeds_max, applied[-1].limits.streams_max) == (9, 7), "an option still wins"
    reloading.reload()
    assert told() == [("INFO", "no setting has changed")]


def test_what_needs_a_restart_is_told_until_it_is_undone(reloading, file, told):
    before = file.read_text()
    file.write_text('listen = ":4701"\n' + before)
    for _ in range(2):
        reloading.reload()
        assert told() == [("WARNING", "setting listen has changed: restart the node to use it")]
    file.write_text(before)
    reloading.reload()
    assert told() == [("INFO", "no setting has changed")]


@pytest.mark.parametrize("text", ["[limits]\nfeeds_max = 0\nstreams_max = 3\n", "voters = 3\n", "not TOML"])
def test_wrong_settings_change_nothing(reloading, file, applied, told, text):
    file.write_text(text)
    reloading.reload()
    [(level, message)] = told()
    assert level == "ERROR"
    assert message.startswith("the settings stay as they are: ")
    assert not applied


def test_a_file_that_is_gone_changes_nothing(reloading, file, applied, told):
    file.unlink()
    reloading.reload()
    assert told()[0][0] == "ERROR"
    assert not applied


def test_limits_take_over_only_what_needs_no_restart():
    limits, fixed = Limits(), [name for name, about in settings_of(Limits).items() if not about.reloads]
    limits.adopt(Limits(feeds_max=1, answer_bytes_max=2**20))
    assert (limits.feeds_max, limits.answer_bytes_max) == (1, Limits().answer_bytes_max)
    assert {"answer_bytes_max", "incoming_segments_max", "noop_interval_s"} <= set(fixed)
