"""``tailrace completion``: the scripts, and what a shell that runs them is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.cli.commands import run
from tailrace.cli.completion import words_to_complete

SECONDS_MAX = 120


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_program_and_its_variable(capsys, shell):
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "tailrace" in script
    assert f"_TAILRACE_COMPLETE=complete_{shell}" in script


def test_another_shell_is_refused(capsys):
    assert run(["completion", "csh"]) == 2


def completed(monkeypatch, capsys, line):
    """The words that bash is told for a line whose last word is incomplete."""
    monkeypatch.setenv("_TAILRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        run([])
    return capsys.readouterr().out.split()


def test_words_that_may_follow(monkeypatch, capsys):
    assert set(completed(monkeypatch, capsys, "tailrace ")) >= {"put", "get", "feed", "serve", "config"}
    assert completed(monkeypatch, capsys, "tailrace explain") == ["explain-resume"]
    assert set(completed(monkeypatch, capsys, "tailrace feed ")) == {"create", "list", "show", "set", "drop"}
    assert completed(monkeypatch, capsys, "tailrace feed set --hist") == ["--history-age", "--history-bytes"]
    assert completed(monkeypatch, capsys, "tailrace serve --log-f") == ["--log-format"]


def test_the_first_word_is_completed_without_importing_the_commands(monkeypatch, capsys):
    before = set(sys.modules)
    completed(monkeypatch, capsys, "tailrace ")
    assert not {name for name in set(sys.modules) - before if name.startswith(("tailrace_server", "pyspark"))}


def test_the_words_of_each_shell():
    assert words_to_complete({}) is None
    assert words_to_complete({"COMP_WORDS": "tailrace feed"}) is None
    assert words_to_complete({"_TAILRACE_COMPLETE": "x", "COMP_WORDS": "tailrace feed s"}) == ["feed", "s"]
    assert words_to_complete({"_TAILRACE_COMPLETE": "x", "_TYPER_COMPLETE_ARGS": "tailrace put"}) == ["put"]
    assert words_to_complete({"_TAILRACE_COMPLETE": "x"}) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes():
    script = (
        'eval "$(tailrace completion bash)"; COMP_WORDS=(tailrace feed s); COMP_CWORD=2; '
        '_tailrace_completion tailrace; echo "${COMPREPLY[@]}"'
    )
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["show", "set"]), done.stderr
