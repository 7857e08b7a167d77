"""Whatever is in a feed, it comes to a terminal as one line that does nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.output import from_argument, make_table, printable, to_json_line
from tailrace.cli.status import show_bytes, show_seconds


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain text", "plain text"),
        ("žluťoučký 🐎".encode(), "žluťoučký 🐎"),
        (b"\xff\x00", "\\xff\\x00"),
        (b"a\nb\tc\r", "a\\nb\\tc\\r"),
        (b"\x1b[31mred", "\\x1b[31mred"),
        ("\u202ereversed".encode(), "\\u202ereversed"),
        ("\x9bC1".encode(), "\\x9bC1"),
        (b"back\\slash", "back\\\\slash"),
        (b"caf\xc3", "caf\\xc3"),
        (b"", ""),
        ("text\udcff", "text\\xff"),
    ],
)
def test_printable(data, text):
    assert printable(data) == text


@given(st.binary())
def test_any_bytes_are_printable(data):
    assert printable(data).isprintable()


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_different_bytes_look_different(one, other):
    assert (printable(one) == printable(other)) == (one == other)


@given(st.text())
def test_a_line_of_json_is_one_line_of_ascii(text):
    line = to_json_line({"value": text})
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line) == {"value": text}


def test_arguments_are_the_bytes_that_were_typed():
    assert from_argument("k\udcff") == b"k\xff"
    assert from_argument("\u00e9") == "\u00e9".encode()


def test_cells_are_not_markup():
    table = make_table("", [("name", "left")], [["[red]x[/red]\x1b"]])
    assert [cell.plain for cell in table.columns[0].cells] == ["[red]x[/red]\\x1b"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (5 << 40, "5.0 TiB")],
)
def test_bytes_for_people(count, text):
    assert show_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (61, "1 min 1 s"), (7384, "2 h 3 min"), (90_000, "1 d 1 h")]
)
def test_durations_for_people(seconds, text):
    assert show_seconds(seconds) == text
