"""What `import pyspark_tailrace` does, and above all what it does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pyspark.sql.datasource import DataSource

import pyspark_tailrace
from pyspark_tailrace import register

pytestmark = pytest.mark.slow


def test_importing_loads_nothing():
    code = "import sys, pyspark_tailrace; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyspark", "pyarrow", "numpy", "trio", "tailrace"} & set(loaded)


@pytest.mark.parametrize("name", pyspark_tailrace.__all__)
def test_each_public_name_is_there_and_listed(name):
    assert getattr(pyspark_tailrace, name) is not None
    assert name in dir(pyspark_tailrace)


def test_default_source_is_what_spark_looks_for():
    assert issubclass(pyspark_tailrace.DefaultSource, DataSource)
    assert pyspark_tailrace.DefaultSource.name() == "tailrace"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pyspark_tailrace.nothing


@pytest.mark.parametrize("failure", ["ImportError('no pyarrow')", "RuntimeError('built for another numpy')"])
def test_default_source_that_cannot_be_imported_is_absent_and_a_warning_says_so(failure):
    code = f"""
import sys, warnings
class Broken:
    def find_spec(self, name, path, target=None):
        if name == "pyspark_tailrace.source":
            raise {failure}
sys.meta_path.insert(0, Broken())
import pyspark_tailrace
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(hasattr(pyspark_tailrace, "DefaultSource"))
print(caught[0].message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    absent, said = done.stdout.splitlines()
    assert absent == "False"
    assert said.startswith("the Spark source 'tailrace' is not available: ")


FOUND_BY_SPARK = """
import io, sys, warnings
class Broken:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            raise RuntimeError("built for another numpy")
sys.meta_path.insert(0, Broken())
warnings.simplefilter("ignore")
# What Spark runs, in a process of its own, to find sources.
from pyspark.sql.worker.lookup_data_sources import _main
found = io.BytesIO()
_main(io.BytesIO(), found)
print(*(name for name in ("tailrace", "another") if name.encode() + b"\\0" in found.getvalue()))
"""

ANOTHER = """
from pyspark.sql.datasource import DataSource
class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "another"
"""


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        ("nothing", ["tailrace", "another"]),
        ("pyspark_tailrace.source", ["another"]),
        # These are imported by a job only.
        ("pyarrow", ["tailrace", "another"]),
        ("tailrace", ["tailrace", "another"]),
    ],
)
def test_sources_of_others_are_found_whatever_is_broken_of_ours(tmp_path, broken, found):
    (tmp_path / "pyspark_another.py").write_text(ANOTHER)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-c", FOUND_BY_SPARK, broken]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == found


def test_spark_finds_the_source_by_itself(spark, shared_node, feed_name, contents):
    """In a session in which it was not registered, writing and reading work all the same."""
    options = {"url": shared_node.url, "feed": feed_name}
    session = spark.newSession()
    try:
        rows = session.range(10).selectExpr("cast(id as string) AS key", "cast(id as string) AS value")
        rows.write.format("tailrace").options(**options, create_feed="true").mode("append").save()
        assert len(contents(shared_node.url, feed_name).state()) == 10
        assert session.read.format("tailrace").options(**options).load().count() == 10
    finally:
        register(spark)  # makes it this thread's session again
