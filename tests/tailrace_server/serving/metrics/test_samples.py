"""The bound of names, and the families of a scrape."""

from __future__ import annotations

import pytest

from tailrace_server.serving.metrics.catalogue import OTHER
from tailrace_server.serving.metrics.samples import BoundedNames, Samples


def labels(names, of):
    return [names.label(name) for name in of]


def test_names_above_the_bound_are_others():
    names = BoundedNames(2)
    names.keep(["a", "b", "c", "a"])
    assert labels(names, "abc") == ["a", "b", OTHER]


def test_a_name_keeps_its_place_until_it_is_gone():
    names = BoundedNames(2)
    names.keep(["b", "c"])
    names.keep(["a", "b", "c"])
    assert labels(names, "abc") == [OTHER, "b", "c"]
    names.keep(["a", "c"])
    assert labels(names, "abc") == ["a", OTHER, "c"]


def test_a_sample_is_of_the_catalogue_with_all_its_labels():
    samples = Samples()
    with pytest.raises(KeyError):
        samples.add("tailrace_unknown", 1)
    with pytest.raises(ValueError, match="shorter"):
        samples.add("tailrace_requests_total", 1)


def test_families_come_in_the_order_of_the_catalogue():
    samples = Samples()
    samples.add("tailrace_term", 1)
    samples.add("tailrace_requests_total", 2, "GET")
    samples.add("tailrace_healthy", True)
    assert [family.name for family in samples.families()] == ["tailrace_healthy", "tailrace_requests", "tailrace_term"]
