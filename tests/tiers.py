"""Selects the tests of a tier, and keeps the quick ones free of threads and processes. See tests/README.md.

``pytest --tier=quick`` runs the tests that have none of the marks ``slow``, ``long`` and ``soak``. ``--tier=test`` adds
the slow ones, except planted bugs. ``--tier=long`` runs the slow planted bugs, and the tests that are marked ``long``.
``--tier=soak`` runs the tests that are marked ``soak``, and every property test with many examples. Without the option
every test is run.
"""

from __future__ import annotations

import sys

import hypothesis
import pytest

TIERS = ("quick", "test", "long", "soak")
# Examples of a property test in each tier, as a share of what the test asks for.
EXAMPLES = {"quick": 0.1, "test": 1.0, "long": 1.0, "soak": 10.0}
EXAMPLES_MIN = 5
# What hypothesis runs if a test does not say how many examples it needs.
EXAMPLES_DEFAULT = 100

# Fixtures that start a thread, a process or a JVM: a test that takes one of them, however indirectly, is slow.
SLOW_FIXTURES = frozenset(
    {
        "bad_network",
        "new_set",
        "node_process",
        "open_member",
        "run_node",
        "shared_etcd",
        "served_url",
        "shared_node",
        "source_and_replica",
        "spark",
        "start_etcd",
        "start_node",
    }
)

# Events of ``sys.audit`` that a quick test must not cause, by what it would start.
_FORBIDDEN = {
    "_thread.start_new_thread": "a thread",
    "subprocess.Popen": "a process",
    "os.fork": "a process",
    "os.forkpty": "a process",
    "os.posix_spawn": "a process",
    "os.system": "a process",
}

_tier = "test"
_quick_test = ""


def examples(count: int) -> int:
    """Returns how many examples a property test runs in this tier, if ``count`` suffice for ``make test``."""
    return max(min(count, EXAMPLES_MIN), round(count * EXAMPLES[_tier]))


def first_in_test(values, count):
    """Returns the values as parameters: ``make test`` runs the first ``count`` of them, ``make soak`` the others."""
    return [
        value if number < count else pytest.param(value, marks=pytest.mark.soak) for number, value in enumerate(values)
    ]


def pytest_addoption(parser):
    parser.addoption("--tier", choices=TIERS, help="run the tests of this tier only (see tests/README.md)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    global _tier
    _tier = config.getoption("--tier") or "test"
    hypothesis.settings.register_profile("tier", parent=hypothesis.settings(), max_examples=examples(EXAMPLES_DEFAULT))
    hypothesis.settings.load_profile("tier")
    sys.addaudithook(_forbid)


@pytest.hookimpl(trylast=True)  # other conftest files mark what is slow, and hypothesis what is a property
def pytest_collection_modifyitems(config, items):
    for item in items:
        if not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    tier = config.getoption("--tier")
    if tier is None:
        return
    chosen, others = [], []
    for item in items:
        (chosen if tier in tiers_of(item) else others).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


def tiers_of(item):
    """Returns the names of the tiers in which a test runs."""
    slow, long, soak, planted = (item.get_closest_marker(name) for name in ("slow", "long", "soak", "planted"))
    if long or (planted and (slow or soak)):
        return {"long"}
    if soak:
        return {"soak"}
    found = {"test"} if slow else {"quick", "test"}
    return found | {"soak"} if item.get_closest_marker("hypothesis") else found


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    global _quick_test
    _quick_test = item.nodeid if "quick" in tiers_of(item) else ""
    yield
    _quick_test = ""


def _forbid(event, arguments):
    """Refuses a thread or a process to a quick test. Trio's idle threads of an earlier test go unnoticed."""
    if _quick_test and event in _FORBIDDEN:
        raise RuntimeError(
            f"{_quick_test} is in the tier quick, and started {_FORBIDDEN[event]}: mark it with @pytest.mark.slow"
        )
