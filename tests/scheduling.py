"""Chooses the process that runs a file of tests, and the order of the files. See tests/README.md.

Each file is run by one process. All files with a Spark session share one process, and its session: to start one costs
more than most tests. The files that take longest come first, so that no process is left alone with one in the end.
"""

from __future__ import annotations

import collections
import functools
import gc
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
# A test or a fixture that takes the fixture `spark`.
_TAKES_SPARK = re.compile(r"^def \w+\([^)]*\bspark\b", re.MULTILINE)

# The files that take longest, besides those with the Spark session of their process: their tests start processes, or
# are few and long.
LONGEST = (
    "tests/pyspark_tailrace/demo/test_command.py",
    "tests/docs/test_pages.py",
    "tests/pyspark_tailrace/test_connect.py",
    "tests/pyspark_tailrace/test_sink_cluster.py",
    "tests/pyspark_tailrace/test_java.py",
    "tests/simulation/stories/test_stories.py",
    "tests/simulation/test_simulation.py",
    "tests/tailrace_server/offline/test_repair.py",
    "tests/processes/test_members.py",
    "tests/processes/test_deposed.py",
    "tests/processes/test_failover.py",
    "tests/tailrace/testing/test_plugin.py",
    "tests/tailrace_server/stream/test_segments_model.py",
    "tests/tailrace_server/replication/test_begun_anew.py",
    "tests/processes/test_old_disks.py",
    "tests/simulation/test_replay.py",
)


@functools.cache
def takes_spark(path: str) -> bool:
    """Returns whether a test of the file takes the Spark session of its process."""
    return _TAKES_SPARK.search((_ROOT / path).read_text()) is not None


@pytest.hookimpl(hookwrapper=True)
def pytest_collection_modifyitems(items):
    yield  # the other plugins mark tests, and select those of the tier
    paths = {path: path.relative_to(_ROOT).as_posix() for path in {item.path for item in items}}
    slow_counts = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))

    def place(item):
        path = paths[item.path]
        number = LONGEST.index(path) if path in LONGEST else len(LONGEST)
        return not takes_spark(path), number, -slow_counts[item.path]

    items.sort(key=place)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Leaves the half million objects of the collected tests out of searches for garbage: one takes 0.2 s with them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Returns a scheduler of pytest-xdist for ``--dist loadfile``."""
    from xdist.scheduler import LoadFileScheduling

    class SparkInOneProcess(LoadFileScheduling):
        def _split_scope(self, nodeid):
            path = super()._split_scope(nodeid)
            return "spark" if takes_spark(path) else path

    return SparkInOneProcess(config, log) if config.getoption("dist") == "loadfile" else None
