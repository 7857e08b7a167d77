"""What `import pyspark_tailrace` does, and above all what it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.datasource import DataSource

import pyspark_tailrace


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
