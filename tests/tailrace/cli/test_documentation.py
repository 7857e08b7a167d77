"""docs/reference/command-line.md has every command with every option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.cli import errors, options

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "command-line.md").read_text()
COMMON = {"--help", "--url", "--node", "--token", "--tls-ca", "--tls-cert", "--tls-key"}
OF_SERVE = {"--tls-cert", "--tls-key"}
COMMANDS = [
    ("serve",),
    *(("feed", name) for name in ("create", "list", "show", "set", "drop", "replay")),
    *(("group", name) for name in ("list", "show", "reset")),
    ("put",),
    ("get",),
    ("delete",),
    ("tail",),
    ("fetch",),
    ("status",),
    ("bench",),
]


def usage(command):
    """The lines of the page that show how a command is called."""
    found = re.search(rf"^    tailrace {' '.join(command)}\b.*(?:\n {{10,}}.*)*", PAGE, re.MULTILINE)
    assert found, f"tailrace {' '.join(command)} is not there"
    return found[0]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_options(call, command):
    help_text = call(*command, "--help").out.decode()
    offered = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", help_text, re.MULTILINE))
    common = COMMON - OF_SERVE if command == ("serve",) else COMMON
    assert set(re.findall(r"--[a-z-]+", usage(command))) == offered - common


def test_what_holds_for_all():
    assert options.DEFAULT_URL in PAGE
    assert f"{options.CONNECT_SECONDS_MAX:g} seconds to connect, {options.RETRY_SECONDS_MAX:g}" in PAGE.replace(
        "\n", " "
    )
    codes = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert [int(code) for code in codes] == [0, errors.FAILED, errors.WRONG_USAGE, errors.INTERRUPTED]
