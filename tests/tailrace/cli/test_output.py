"""Whatever is in a feed, it comes to a terminal as one line that does nothing."""

from __future__ import annotations

import io
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tailrace.cli.output import fit, from_argument, make_table, printable, to_json_line
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
    lines = rendered(make_table("", [("name", "left")], [["[red]x[/red]\x1b"]]), 80)
    assert "[red]x[/red]\\x1b" in [line.strip() for line in lines]


def rendered(table, width):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(table)
    return out.getvalue().split("\n")


HEADINGS = ("feed", "partition", "role", "term", "branches", "durable", "quorum", "visible", "followers behind")
COLUMNS = [(heading, "right" if heading in ("partition", "durable") else "left") for heading in HEADINGS]
ROW = ["orders-of-the-north", "12", "leader", "3", "2", "1,234,567", "-", "1", "17 (not connected), 18"]


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_a_narrow_terminal_cuts_nothing(width):
    lines = rendered(make_table("Partitions", COLUMNS, [ROW]), width)
    assert max(map(len, lines)) <= width
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)
    letters = Counter("".join(lines))
    told = Counter("".join([*HEADINGS, *ROW]))
    assert all(letters[char] >= count for char, count in told.items() if char != " ")


def test_at_80_columns_headings_and_numbers_stay_in_one_piece():
    lines = rendered(make_table("Partitions", COLUMNS, [ROW]), 80)
    for word in [*" ".join(HEADINGS).split(), "1,234,567"]:
        assert any(word in line for line in lines), word


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 60)).map(lambda pair: (pair[0], sum(pair)))),
    st.integers(0, 300),
)
def test_columns_fit(wanted, room):
    widths = fit(wanted, room)
    assert sum(widths) <= max(room, len(wanted))
    assert all(1 <= width <= natural for width, (_, natural) in zip(widths, wanted, strict=True))
    if sum(natural for _, natural in wanted) <= room:
        assert widths == [natural for _, natural in wanted]
    elif sum(least for least, _ in wanted) <= room:
        assert sum(widths) == room
        assert all(width >= least for width, (least, _) in zip(widths, wanted, strict=True))


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
