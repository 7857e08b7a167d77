"""The log of a node: one event a line, as text and as JSON."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from tailrace_server.node.logs import JsonLines, TextLines

NODE = "127.0.0.1:4700"


def record(message, *args, level=logging.INFO, error=None, **extra):
    logger = logging.getLogger("tailrace.server")
    made = logger.makeRecord(logger.name, level, __file__, 1, message, args, error, extra=extra or None)
    made.created = 1_795_224_525.25
    return made


def raised():
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        return sys.exc_info()


def test_text():
    assert TextLines().format(record("it is %s", 3)) == "2026-11-21T01:28:45.250000Z INFO tailrace.server: it is 3"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028"])
def test_a_message_stays_on_its_line(end):
    event = record("%s", f"one{end}2026-11-21 ERROR forged")
    assert len(TextLines().format(event).splitlines()) == 1
    line = JsonLines(NODE).format(event)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == f"one{end}2026-11-21 ERROR forged"


def test_json():
    found = json.loads(JsonLines(NODE).format(record("it is %s", 3, level=logging.WARNING)))
    assert found == {
        "time": "2026-11-21T01:28:45.250000Z",
        "level": "warning",
        "logger": "tailrace.server",
        "message": "it is 3",
        "node": NODE,
    }


def test_a_traceback_is_one_member_of_the_json_and_lines_of_the_text():
    event = record("it failed", error=raised())
    line = JsonLines(NODE).format(event)
    assert "\n" not in line
    assert json.loads(line)["traceback"].startswith("Traceback (most recent call last):\n")
    first, *rest = TextLines().format(event).splitlines()
    assert first.endswith("it failed")
    assert rest[-2:] == ["ValueError: first", "second"]


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (record("partition %s of feed %s: %s", 3, "orders", "x"), {"partition": 3, "feed": "orders"}),
        (record("feed %s: %s", "orders", "x"), {"feed": "orders"}),
        (record("connection of %s ends: %s", "a:1", "x"), {"peer": "a:1"}),
        (record("anything", feed="orders", partition=1, other=3), {"partition": 1, "feed": "orders"}),
        (record("it is %s", 3), {}),
    ],
)
def test_the_subject_of_an_event_is_in_members(event, fields):
    found = json.loads(JsonLines(NODE).format(event))
    assert {name: found[name] for name in ("feed", "partition", "peer") if name in found} == fields


@pytest.mark.slow
@pytest.mark.parametrize(
    "ends",
    [
        "raise ValueError('a bug')",
        "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
        "import warnings; warnings.warn('look')",
        "class Bad:\n    def __del__(self): raise ValueError('a bug')\nBad()",
    ],
    ids=["exception", "thread", "warning", "destructor"],
)
def test_what_python_prints_by_itself_is_an_event_too(ends):
    code = f"""
from tailrace_server.node.logs import set_up_logs
from tailrace_server.node.serve_settings import LogFormat, LogLevel
set_up_logs(LogLevel.INFO, LogFormat.JSON, {NODE!r})
{ends}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    [line] = done.stderr.splitlines()
    assert json.loads(line)["node"] == NODE
