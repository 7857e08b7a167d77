"""The commands of the guides print what the guides show."""

from __future__ import annotations

import re
import shlex

import pytest
from tests.docs.test_docs import DOCS, sections

from tailrace.cli.commands import run


def dialogues(text):
    """Each command with the lines that it prints, as shown; those of stderr begin with ``tailrace:``."""
    shown = "".join(re.findall(r"^(?:    .*\n)+", text, re.MULTILINE))
    commands = re.sub("^    ", "", shown, flags=re.MULTILINE).split("$ ")[1:]
    for command in commands:
        line, *printed = command.splitlines()
        yield line, [text for text in printed if text != "^C" and not text.startswith("tailrace:")]


@pytest.fixture
def perform(node_process, monkeypatch, capfdbinary, tmp_path):
    """Runs a command line, without the ``tailrace`` before it; a tail ends when it has caught up. Gives its stdout."""
    monkeypatch.setenv("TAILRACE_URL", node_process.url)
    monkeypatch.chdir(tmp_path)

    def perform(line):
        name, *arguments = shlex.split(line)[1:]
        more = ["--until", "now"] if name == "tail" else []
        capfdbinary.readouterr()
        assert run([name, *arguments, *more]) == 0
        return capfdbinary.readouterr().out.decode().splitlines()

    return perform


def test_the_commands_of_getting_started(perform):
    text = sections((DOCS / "guides" / "getting-started.md").read_text())["Write, read, follow: from a shell"]
    found = list(dialogues(text))
    assert len(found) > 7
    for line, printed in found:
        said = perform(line)
        if printed != ["..."]:
            assert said == printed, line
