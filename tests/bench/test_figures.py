"""bench/_report.py: a figure, its target, and percentiles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _report import SECTION_END, Line, figures, number, p50, p99, replace_section


def test_a_line_without_a_target_is_met():
    assert Line("rows", 3.0).is_met


@pytest.mark.parametrize(("value", "is_met"), [(0.9, False), (1.0, True), (2.0, True), (2.1, False)])
def test_a_target_includes_its_bounds(value, is_met):
    assert Line("ratio", value, least=1.0, most=2.0).is_met is is_met


def test_numbers_have_as_many_digits_as_say_something():
    assert [number(value) for value in (1_234_567.8, 99.44, 0.012345)] == ["1,234,568", "99.4", "0.0123"]


def test_the_p99_of_a_hundred_values_is_the_greatest():
    assert p99(list(range(100))) == 99
    assert p99(list(range(200))) == 198


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_values_in_their_order(values):
    assert min(values) <= p50(values) <= max(values)
    assert p50(values) <= p99(values)
    assert p99(values) in values
    assert sum(value > p99(values) for value in values) <= len(values) / 100


def test_nothing_has_no_percentiles():
    assert math.isnan(p50([]))
    assert math.isnan(p99([]))


def test_a_table_has_figures_targets_and_whether_they_are_met():
    assert figures([Line("rows", 3.0, "rows/s", least=2.0), Line("p99", 0.5, "ms", most=0.1), Line("n", 7)]) == [
        "|  | found | target |",
        "| --- | --- | --- |",
        "| rows | 3 rows/s | at least 2: met |",
        "| p99 | 0.5 ms | at most 0.1: **missed** |",
        "| n | 7 |  |",
    ]


def test_a_program_replaces_its_own_section_only(tmp_path):
    readme = tmp_path / "README.md"
    mark = "<!-- by bench/{}.py --readme: begin -->"
    sections = [f"{mark.format(name)}\n\n{name}\n\n{SECTION_END}\n" for name in "abc"]
    readme.write_text("begin\n" + "".join(sections) + "rest\n")
    replace_section(readme, "b.py", ["new", "figures"])
    assert readme.read_text() == "begin\n" + "".join(sections).replace("\nb\n", "\nnew\nfigures\n") + "rest\n"


def test_a_readme_without_the_section_is_not_touched(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("nothing here")
    with pytest.raises(ValueError, match=r"has no section of b\.py"):
        replace_section(readme, "b.py", ["new"])
    assert readme.read_text() == "nothing here"
