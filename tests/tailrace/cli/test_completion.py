"""``tailrace completion``: the scripts, and what a shell that runs them is told."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
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
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("_TAILRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        run([])
    return capsys.readouterr().out.split()


def test_words_that_may_follow(monkeypatch, capsys):
    assert set(completed(monkeypatch, capsys, "tailrace ")) >= {"put", "get", "feed", "serve", "config"}
    assert completed(monkeypatch, capsys, "tailrace explain") == ["explain-resume"]
    assert set(completed(monkeypatch, capsys, "tailrace feed ")) == {"create", "list", "show", "set", "drop", "replay"}
    assert completed(monkeypatch, capsys, "tailrace feed set --hist") == ["--history-age", "--history-bytes"]
    assert completed(monkeypatch, capsys, "tailrace serve --log-f") == ["--log-format"]


def explained(monkeypatch, capsys, shell, line):
    """The answer to zsh or fish for a line whose last word is incomplete, at a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("_TAILRACE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    with pytest.raises(SystemExit):
        run([])
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_each_line_for_fish_has_one_word_and_its_whole_explanation(monkeypatch, capsys):
    lines = explained(monkeypatch, capsys, "fish", "tailrace serve --cl")
    words, explanations = zip(*(line.split("\t") for line in lines), strict=True)
    assert words == ("--cluster-store", "--cluster")
    assert explanations[1].endswith("does not use this node.")


@pytest.mark.slow
def test_each_line_for_zsh_has_one_word_and_its_whole_explanation(monkeypatch, capsys):
    assert len(explained(monkeypatch, capsys, "zsh", "tailrace serve --cl")) == 2


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_command_that_is_not_imported_has_no_explanation(monkeypatch, capsys, shell):
    [line] = explained(monkeypatch, capsys, shell, "tailrace explain")
    assert line in ("explain-resume", """_arguments '*: :(("explain-resume"))'""")


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


def environ():
    """The environment of a shell that finds this program first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "dumb"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes():
    script = (
        'eval "$(tailrace completion bash)"; COMP_WORDS=(tailrace feed s); COMP_CWORD=2; '
        '_tailrace_completion tailrace; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=environ(), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["show", "set"]), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish: apt-get install fish")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tailrace feed s", ["set", "show"]),
        ("tailrace serve --cl", ["--cluster", "--cluster-store"]),
        ("tailrace serve --data /etc/host", ["/etc/hostname", "/etc/hosts"]),  # files, if there are no words
    ],
)
def test_fish_completes(line, words):
    script = f"tailrace completion fish | source; complete -C {line!r}"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        env=environ(), capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    found = [each.partition("\t")[0] for each in done.stdout.splitlines()]
    assert set(found) >= set(words), done.stderr
    assert line.endswith("/etc/host") or sorted(found) == words


class Terminal:
    """A shell at a terminal, which is sent keys."""

    def __init__(self, *command):
        self._terminal, shell_end = pty.openpty()
        self._process = subprocess.Popen(
            command, stdin=shell_end, stdout=shell_end, stderr=shell_end, env=environ(), start_new_session=True
        )
        os.close(shell_end)

    def type(self, keys, awaited):
        """Sends keys, and returns what is shown until all of ``awaited`` are."""
        os.write(self._terminal, keys.encode())
        shown, ends_at = "", time.monotonic() + SECONDS_MAX
        while not all(each in shown for each in awaited):
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, ends_at - time.monotonic()))
            assert ready, f"{awaited} are not all shown: {shown}"
            shown += os.read(self._terminal, 65_536).decode(errors="replace")
        return shown

    def end(self):
        os.close(self._terminal)
        self._process.kill()
        self._process.wait()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: apt-get install zsh")
def test_zsh_completes_from_the_first_time_on(tmp_path):
    script = subprocess.run(["tailrace", "completion", "zsh"], env=environ(), capture_output=True, check=True).stdout
    (tmp_path / "_tailrace").write_bytes(script)
    zsh = Terminal("zsh", "-f", "-i")
    try:
        zsh.type(f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D; echo rea''dy\n", ["ready\r\n"])
        zsh.type("tailrace feed \t", ["create ", "drop ", "Change settings of a feed that exists."])
        zsh.type("\x15tailrace serve --log-fo\t", ["--log-format"])
    finally:
        zsh.end()
