"""docs/reference/configuration.md has every setting as the code has it."""

from __future__ import annotations

import importlib.util
import re

from tests.docs.test_docs import DOCS

from tailrace_server.node.settings import paths

PAGE = (DOCS / "reference" / "configuration.md").read_text()


def test_the_tables_are_those_of_the_code():
    spec = importlib.util.spec_from_file_location("settings_of_the_docs", DOCS / "settings.py")
    settings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(settings)
    assert PAGE.partition(settings.MARK)[2].strip() == settings.tables().strip(), "run: python docs/settings.py"


def test_every_setting_has_a_row():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert rows == [path[-1] for path in paths()]


def test_the_file_that_is_shown_is_right(tmp_path):
    from tailrace_server.node.config_commands import problems_of

    [shown] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
    file = tmp_path / "tailrace.toml"
    file.write_text(shown)
    assert problems_of(str(file)) == []
