"""What is said of a version of Spark by its number. test_spark_versions.py runs other versions."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pyspark_tailrace.versions import SPARK_VERSION_MIN, check_version, java_version_max

# Begins a program in which PySpark is version 3.5: it has no module pyspark.sql.datasource.
OLD_PYSPARK = """
import pyspark, sys
pyspark.__version__ = "3.5.8"
sys.modules["pyspark.sql.datasource"] = None
"""


@pytest.mark.parametrize("version", ["4.0.0", "4.0.0.dev1", "4.1.4", "4.10.0", "5.0.0-SNAPSHOT", "unknown"])
def test_a_spark_is_taken(version):
    check_version("pyspark", version)


@pytest.mark.parametrize("version", ["3.5.8", "3.10.0", "2.4.8"])
def test_a_spark_that_is_too_old_is_refused(version):
    with pytest.raises(ImportError, match=rf"pyspark is version {version}, .* needs 4\.0 or newer"):
        check_version("pyspark", version)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["local_session()", "upsert_batch(url='', feed='')", "DefaultSource"])
def test_a_spark_without_sources_in_python_is_refused_by_its_version(call):
    code = f"{OLD_PYSPARK}import pyspark_tailrace; pyspark_tailrace.{call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pyspark is version 3.5.8, and Tailrace's source needs 4.0 or newer: pip install" in done.stderr


@pytest.mark.parametrize(
    ("version", "java"), [("4.0.5", 21), ("4.1.0.dev3", 21), ("4.2.0", None), ("4.10.0", None), ("unknown", None)]
)
def test_the_newest_java_of_a_spark(version, java):
    assert java_version_max(version) == java


def test_the_least_version_is_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    [wanted] = [text for text in project["optional-dependencies"]["spark"] if text.startswith("pyspark")]
    assert wanted == "pyspark>=" + ".".join(map(str, SPARK_VERSION_MIN))
