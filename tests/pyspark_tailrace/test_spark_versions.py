"""The other versions of Spark that are supported: tests of the sink and the source, run with each of them.

``make sparks`` runs them, ``make sparks SPARK=4.0.5`` with one version.
"""

from __future__ import annotations

import os
import subprocess

import pyspark
import pytest
from tests.pyspark_tailrace.spark_venvs import ROOT, VERSIONS, python_of

pytestmark = [pytest.mark.soak, pytest.mark.slow]

FOLDER = "tests/pyspark_tailrace"
TESTS = (
    "test_session.py",
    "test_sink_streaming.py",
    "test_sink_exactly_once.py",
    "test_exactly_once.py::test_a_driver_that_is_killed_at_every_point",
    "test_partitioning.py",
    "test_upsert.py",
    "reading/test_spark.py",
    "reading/test_start_tracking.py",
)
# PySpark 4.0 leaves sockets to the collector of garbage, which warns of them.
OPTIONS = ("-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("version", [*VERSIONS, pyspark.__version__])
@pytest.mark.parametrize("tests", TESTS)
def test_a_version_of_spark_passes(version, tests):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [python_of(version), "-m", "pytest", *OPTIONS, f"{FOLDER}/{tests}"]
    done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
