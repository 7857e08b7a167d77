"""Settings that a running node reads again."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import trio

from tailrace_server.config import Limits, Replication, StorageConfig
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


@pytest.mark.parametrize("group", [Limits, StorageConfig, Replication])
def test_a_group_takes_over_only_what_needs_no_restart(group):
    def other(value, about):
        return value * 2 if value else max(1, about.least or 0)

    group_now, about = group(), settings_of(group)
    new = group(**{name: other(getattr(group_now, name), known) for name, known in about.items()})
    before = {name: getattr(group_now, name) for name in about}
    group_now.adopt(new)
    for name, known in about.items():
        wanted = getattr(new, name) if known.reloads else before[name]
        assert getattr(group_now, name) == wanted, name


async def test_a_running_node_uses_what_it_has_taken_over(node, client):
    """Each part that has copied a setting of storage at its start has the new one."""
    storage = StorageConfig(
        segment_bytes=2**17,
        flush_age_s=7.0,
        pushed_age_s=3.0,
        journal_bytes_max=2**21,
        journal_replay_s=0.5,
        free_bytes_min=2**60,
        stages_max=1,
        stage_bytes_max=2**20,
        stage_kept_bytes_max=5,
        compaction_rate=11,
        check_rate=0,
        check_pause_s=12.0,
    )
    memory_bytes = node.config.storage.memory_bytes_max
    node.adopt(node.config.limits, storage, Replication(ask_timeout_s=3.0, leader_timeout_s=9.0))
    assert node.storage.flusher._limits == (2**17, 7.0, memory_bytes, 2**21, 0.5, 3.0)
    assert node.storage.compactor._rate_max == 11
    assert (node.storage.checks._rate, node.storage.checks._pause_s) == (0, 12.0)
    assert (node.stages._stages_max, node.stages._bytes_max, node.stages.kept._bytes_max) == (1, 2**20, 5)
    assert (node.config.replication.ask_timeout_s, node.config.replication.leader_timeout_s) == (3.0, 9.0)
    await node.storage.space.look()
    assert "writes need" in node.storage.space.low


async def test_checks_of_checksums_begin_when_their_rate_is_set(run_node, node_config):
    config = dataclasses.replace(node_config, storage=StorageConfig(check_rate=0, reserve_bytes=0))
    running = await run_node(config)
    node = running.node
    assert node.storage.checks.statistics().check_passes == 0
    node.adopt(config.limits, StorageConfig(check_rate=2**20), config.replication)
    while not node.storage.checks.statistics().check_passes:
        await trio.lowlevel.checkpoint()
