"""The alert rules and the dashboard use metrics that there are, and each alert has its section in the guide."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.tailrace_server.serving.metrics.promtool import promtool

from tailrace_server.serving.metrics.catalogue import CATALOGUE, Kind

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "tailrace.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "tailrace.json"
UNIT_TESTS = Path(__file__).parent / "alerts_test.yml"
GUIDE = ROOT / "docs" / "guides" / "alerts.md"
LABELS_OF_PROMETHEUS = {"job", "instance", "le"}


def alerts():
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def panels():
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def queries():
    """Each expression of the rules and of the dashboard, by its place."""
    found = {rule["alert"]: rule["expr"] for rule in alerts()}
    for panel in panels():
        found |= {f"{panel['title']} {target['refId']} {panel['id']}": target["expr"] for target in panel["targets"]}
    return found


QUERIES = queries()


def sample_names():
    """The names of all samples that a node gives, with the metric that each is of."""
    names = {}
    for name, metric in CATALOGUE.items():
        endings = ("_bucket", "_count", "_sum") if metric.kind is Kind.HISTOGRAM else ("",)
        names |= {name + ending: metric for ending in endings}
    return names


SAMPLES = sample_names()


@pytest.mark.parametrize("place", QUERIES)
def test_each_query_is_of_metrics_and_labels_that_there_are(place):
    query = QUERIES[place]
    used = re.findall(r"tailrace_\w+", re.sub(r'"[^"]*"', '""', query))
    assert used or query.startswith("up{"), query
    assert [name for name in used if name not in SAMPLES] == []
    known = LABELS_OF_PROMETHEUS.union(*(SAMPLES[name].labels for name in used))
    for labels in re.findall(r"by \(([^)]*)\)", query):
        assert set(labels.split(", ")) <= known


@pytest.mark.parametrize("place", QUERIES)
def test_counters_are_used_by_their_rate_only(place):
    query = QUERIES[place]
    for name, metric in SAMPLES.items():
        if metric.kind is not Kind.GAUGE and re.search(rf"\b{name}\b", query):
            assert re.search(rf"(rate|increase)\({name}\b", query), query


def test_each_alert_has_its_section_and_each_section_its_alert():
    named = [rule["alert"] for rule in alerts()]
    assert len(named) == len(set(named))
    assert re.findall(r"^### (\w+)$", GUIDE.read_text(), re.M) == named
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"docs/guides/alerts.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_metrics_that_the_guide_names_are_there():
    named = set(re.findall(r"`(tailrace_\w+)`", GUIDE.read_text()))
    assert named
    assert named <= CATALOGUE.keys()


def test_panels_have_titles_units_and_ids_of_their_own():
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["legendFormat"] for target in panel["targets"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_labels_of_legends_are_in_their_query():
    for panel in panels():
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                metrics = [SAMPLES[name] for name in re.findall(r"tailrace_\w+", target["expr"]) if name in SAMPLES]
                aggregated = re.findall(r"by \(([^)]*)\)", target["expr"])
                kept = set(", ".join(aggregated).split(", ")) if aggregated else set(metrics[0].labels) | {"instance"}
                assert label in kept, f"{panel['title']}: {label}"


@pytest.mark.slow
def test_promtool_accepts_the_rules():
    assert f"{len(alerts())} rules found" in promtool("check", "rules", RULES)


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    cases = {}
    for group in yaml.safe_load(UNIT_TESTS.read_text())["tests"]:
        for case in group["alert_rule_test"]:
            cases.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    assert cases == {rule["alert"]: {True, False} for rule in alerts()}


@pytest.mark.slow
def test_the_rules_fire_when_they_should_and_not_before():
    assert "SUCCESS" in promtool("test", "rules", UNIT_TESTS)
