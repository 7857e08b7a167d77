"""The reference of the metrics is that of the catalogue."""

from __future__ import annotations

import re

from tests.docs.metrics_page import PAGE, with_tables

from tailrace_server.serving.metrics.catalogue import CATALOGUE, CONSUMERS_MAX, FEEDS_MAX, SINKS_MAX, SUBJECTS, Kind


def test_the_page_has_the_tables_of_the_catalogue():
    page = PAGE.read_text()
    assert page == with_tables(page), "run: python -m tests.docs.metrics_page"


def test_the_page_names_the_bounds():
    page = PAGE.read_text()
    for bound, what in ((FEEDS_MAX, "feeds"), (CONSUMERS_MAX, "consumers"), (SINKS_MAX, "sinks")):
        assert f"{bound} {what}" in page


def test_names_are_unique_and_follow_prometheus():
    assert len(CATALOGUE) == sum(map(len, SUBJECTS.values()))
    for name, metric in CATALOGUE.items():
        assert re.fullmatch(r"tailrace_[a-z_]+", name)
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER), name
        assert not re.search(r"_(ms|us|kib|mib|count|percent)\b", name), name
        assert metric.text.endswith("."), name
        assert (metric.kind is Kind.HISTOGRAM) <= name.endswith("_seconds"), name
