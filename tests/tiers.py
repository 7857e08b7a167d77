"""Selects the tests of a tier, and keeps the quick ones free of threads and processes. See tests/README.md.

``pytest --tier=quick`` runs the tests that have none of the marks ``slow``, ``long`` and ``soak``. ``--tier=test`` adds
the slow ones, except planted bugs. ``--tier=long`` runs the slow planted bugs, and the tests that are marked ``long``.
``--tier=soak`` runs the tests that are marked ``soak``, and every property test with many examples. Without the option
every test is run.
"""

from __future__ import annotations

import functools
import re
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
        "postgres",
        "run_node",
        "shared_etcd",
        "secured_node",
        "served_url",
        "shared_node",
        "source_and_replica",
        "spark",
        "start_etcd",
        "start_node",
        "tailrace_make_node",
        "tailrace_node",
        "tailrace_set",
        "tailrace_shared_node",
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

# `make long` collects only files with these marks: to collect all of them takes each process six seconds.
_MARK_OF_LONG = re.compile(r"\bmark\.(long|planted)\b")

# The marks of files whose tests all belong to other tiers. `make quick` does not import such files.
_OTHER_TIERS = {"quick": ("slow", "long", "soak"), "test": ("long", "soak")}
_MARK_OF_FILE = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(\w+)", re.MULTILINE)

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


def pytest_ignore_collect(collection_path, config):
    """Leaves out the files without a test of the tier, if that is seen without an import."""
    if not collection_path.name.startswith("test_"):
        return None
    return None if is_collected(collection_path, config.getoption("--tier")) else True


def is_collected(path, tier):
    """Returns whether a file may have tests of the tier, as far as its text tells."""
    if tier is None:
        return True
    return may_be_long(path) if tier == "long" else not is_of_others(path, tier)


def is_of_others(path, tier):
    """Returns whether a mark of the whole file keeps its tests out of the tier."""
    mark = path.suffix == ".py" and _MARK_OF_FILE.search(path.read_text())
    return bool(mark) and mark[1] in _OTHER_TIERS.get(tier, ())


def may_be_long(path):
    """Returns whether a file may have a test of ``make long``: it, or a conftest.py of its, has the marks."""
    return any(map(_has_mark_of_long, (path, *(folder / "conftest.py" for folder in path.parents))))


@functools.cache
def _has_mark_of_long(path):
    return path.exists() and _MARK_OF_LONG.search(path.read_text()) is not None


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
        tiers = tiers_of(item)
        if "long" in tiers and not may_be_long(item.path):
            raise pytest.UsageError(
                f"{item.nodeid}: `make long` finds it only if its file has the words mark.long or mark.planted"
            )
        (chosen if tier in tiers else others).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


def tiers_of(item):
    """Returns the names of the tiers in which a test runs."""
    marks = {mark.name for mark in item.iter_markers()}
    if "long" in marks or ("planted" in marks and not marks.isdisjoint({"slow", "soak"})):
        return {"long"}
    if "soak" in marks:
        return {"soak"}
    found = {"test"} if "slow" in marks else {"quick", "test"}
    return found | {"soak"} if "hypothesis" in marks else found


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
