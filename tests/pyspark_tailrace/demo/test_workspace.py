"""The working folder: when it stays, when it goes, and what is never removed."""

from __future__ import annotations

import fcntl

import pytest

from pyspark_tailrace.demo.failure import DemoFailed
from pyspark_tailrace.demo.workspace import MARKER, open_workspace


def test_temporary_folder_is_removed():
    with open_workspace(None, keep=False) as workspace:
        (workspace.root / "x").write_text("x")
        assert not workspace.kept
    assert not workspace.root.exists()


def test_temporary_folder_stays_when_told():
    with open_workspace(None, keep=True) as workspace:
        assert workspace.kept
    assert [path.name for path in workspace.root.iterdir()] == [MARKER]
    (workspace.root / MARKER).unlink()
    workspace.root.rmdir()


def test_failure_keeps_the_folder_and_says_where(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OSError, match="no space") as raised, open_workspace(None, keep=False) as workspace:
        raise OSError("no space")
    assert raised.value.__notes__ == [f"the logs are in {workspace.root}"]
    assert workspace.root.exists()


def test_interrupt_does_not_keep_it():
    with pytest.raises(KeyboardInterrupt), open_workspace(None, keep=False) as workspace:
        raise KeyboardInterrupt
    assert not workspace.root.exists()


def test_given_folder_is_made_kept_and_replaced_by_the_next_run(tmp_path):
    data = tmp_path / "a" / "b"
    with open_workspace(data, keep=False) as workspace:
        workspace.server_data[1].mkdir()
        (workspace.server_data[1] / "LOCK").touch()
        workspace.index.touch()
        (workspace.root / "link").symlink_to(tmp_path)
    assert workspace.index.exists()
    with open_workspace(data, keep=False) as workspace:
        assert [path.name for path in workspace.root.iterdir()] == [MARKER]
    assert tmp_path.exists()


def test_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(DemoFailed, match="is not empty, and not from an earlier"), open_workspace(tmp_path, keep=False):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_folder_is_for_one_run_at_a_time(tmp_path):
    with open_workspace(tmp_path, keep=False) as workspace:
        workspace.index.touch()
        with pytest.raises(DemoFailed, match="another run uses"), open_workspace(tmp_path, keep=False):
            pass
        assert workspace.index.exists()


def test_folder_whose_server_runs_is_left_alone(tmp_path):
    with open_workspace(tmp_path, keep=False) as workspace:
        workspace.server_data[1].mkdir()
    with (workspace.server_data[1] / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DemoFailed, match="a server still runs on"), open_workspace(tmp_path, keep=False):
            pass
    assert workspace.server_data[1].exists()
