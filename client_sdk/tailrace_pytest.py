"""The pytest plugin of Tailrace: nodes as fixtures. `tailrace.testing` has the nodes.

pytest loads this module in each of its runs, so it imports nothing of Tailrace before a test asks for a fixture. It is
outside of the package `tailrace` since the import of that would load the client.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tailrace.testing import Node, NodeSet

FIXTURES = frozenset({"tailrace_node", "tailrace_shared_node", "tailrace_set", "tailrace_make_node"})
# Whether the last run used a fixture, in the cache of pytest: then the server is loaded while tests are collected.
USED = "tailrace/used"
_HAS_USER = pytest.StashKey[bool]()

pytest.register_assert_rewrite("tailrace.testing.index_contract", "tailrace.testing.index_model")


def _warm_up() -> None:
    from tailrace import testing

    testing.warm_up()


def pytest_configure(config: pytest.Config) -> None:
    """Begins to load the server if the last run used it."""
    cache = _cache(config)
    if cache is not None and cache.get(USED, False) and not config.option.collectonly:
        _warm_up()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Begins to load the server when the first test is found that asks for it."""
    config = item.config
    if _HAS_USER not in config.stash and not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        config.stash[_HAS_USER] = True
        if not config.option.collectonly:
            _warm_up()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remembers for the next run whether a test asked for a node."""
    cache, used = _cache(session.config), _HAS_USER in session.config.stash
    if cache is not None and used != cache.get(USED, False):
        cache.set(USED, used)


def _cache(config: pytest.Config) -> pytest.Cache | None:
    """Returns pytest's cache; None without one, and in the controller of pytest-xdist, which runs no tests."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker and getattr(config.option, "dist", "no") != "no":
        return None
    return getattr(config, "cache", None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Shows the end of a node's log with a test that has failed."""
    report = yield
    if report.failed and not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        for name, value in getattr(item, "funcargs", {}).items():
            if name in FIXTURES and hasattr(value, "log_tail") and (tail := value.log_tail()):
                report.sections.append((f"log of {name}", tail))
    return report


@pytest.fixture(scope="session")
def tailrace_shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Runs one node for all tests of the session. Give each test a feed of its own, and do not stop the node."""
    from tailrace import testing

    with testing.node(tmp_path_factory.mktemp("tailrace-shared")) as node:
        yield node


@pytest.fixture
def tailrace_node(tailrace_make_node: Callable[..., Node]) -> Node:
    """Runs a node for the test, on an empty directory: a `tailrace.testing.Node`."""
    return tailrace_make_node()


@pytest.fixture
def tailrace_make_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Node]]:
    """Starts nodes for the test: a function with the options of `tailrace.testing.node`."""
    import contextlib

    from tailrace import testing

    with contextlib.ExitStack() as nodes:

        def make(**options: Any) -> Node:
            return nodes.enter_context(testing.node(tmp_path_factory.mktemp("tailrace"), **options))

        yield make


@pytest.fixture
def tailrace_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeSet]:
    """Runs a set of three nodes for the test, which has a leader: a `tailrace.testing.NodeSet`."""
    from tailrace import testing

    with testing.node_set(tmp_path_factory.mktemp("tailrace-set")) as made:
        yield made
