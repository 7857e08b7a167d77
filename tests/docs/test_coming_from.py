"""The programs of the page for those who come from other systems run from top to bottom, and print what they say."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "coming-from.md"
_BLOCK = re.compile(r"^## (\d+)\. (.*)\n\n(?:.+\n\n)?```python\n((?:.*\n)*?)```$", re.MULTILINE)
_SYSTEMS = ["Kafka", "Redis", "NATS", "Couchbase"]


def tasks():
    """The number, the title and the program of each task."""
    return [(int(number), title, program) for number, title, program in _BLOCK.findall(PAGE.read_text())]


def test_there_are_twelve_tasks_and_each_system_has_its_way():
    assert [number for number, *_ in tasks()] == list(range(1, 13))
    for section in re.split(r"^## \d+\. ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        found = [row for row in re.findall(r"^\| (\w+) \|", section, re.MULTILINE) if row in _SYSTEMS]
        assert found == _SYSTEMS, section.partition("\n")[0]


def test_each_program_prints_what_it_says(tailrace_shared_node, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"URL": tailrace_shared_node.url}
    for _, title, program in tasks():
        exec(compile(program, title, "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        assert printed == re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE), title
