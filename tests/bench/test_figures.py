"""bench/_report.py: a figure, its target, and percentiles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _report import Line, number, p50, p99


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
