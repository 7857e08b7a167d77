"""Knows which versions of Spark are supported, and stands in for what the earlier ones lack.

    lacking in  what                                           in its place
    4.0         DataSourceStreamArrowWriter                    two older base classes at once
    4.0         a source in place of one that Spark has found  the one that it has found
    4.0         DatetimeType                                   its subclasses; there is no time of day
    4.0, 4.1    a stream reader that is told start and limit   `reading.start_tracking`
    4.0, 4.1    to_arrow_schema(timezone=)                     its default, which is UTC
    4.0, 4.1    a Hadoop that runs on Java 24 and newer        Java up to 21

Classes are looked for, so that a version that has them uses its own. Only bounds are numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import re
from typing import TYPE_CHECKING

import pyspark
from pyspark.errors import AnalysisException

# Earlier versions have no sources and sinks that are written in Python. pyproject.toml has the same bound.
SPARK_VERSION_MIN = (4, 0)
# Hadoop before 3.5, which these versions come with, calls Subject.getSubject. Java 24 took that away. Java 21 is the
# newest that they were released for.
_OLDER_HADOOP = ((4, 0), (4, 1))
_OLDER_HADOOP_JAVA_MAX = 21


def check_version(what: str, version: str) -> None:
    """Raises ImportError if this version of Spark is too old for the source."""
    found = _numbers(version)
    if found is not None and found < SPARK_VERSION_MIN:
        least = ".".join(map(str, SPARK_VERSION_MIN))
        raise ImportError(
            f"{what} is version {version}, and Tailrace's source needs {least} or newer: pip install 'pyspark>={least}'"
        )


def java_version_max(version: str) -> int | None:
    """Returns the newest Java that runs this version of Spark; None if no bound is known."""
    return _OLDER_HADOOP_JAVA_MAX if _numbers(version) in _OLDER_HADOOP else None


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """Returns the Arrow schema that Spark expects for a schema, with times in UTC."""
    if _takes_timezone():
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


@functools.cache
def _takes_timezone() -> bool:
    return "timezone" in inspect.signature(to_arrow_schema).parameters  # 0.2 ms, for each task


def register_source(spark: SparkSession, source: type[datasource.DataSource]) -> None:
    """Registers a source in a session.

    Spark 4.0 refuses a name under which it has found a source by itself. For ours it has found `DefaultSource`, which
    differs only if names of columns are matched by case.
    """
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _numbers(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


check_version("pyspark", pyspark.__version__)  # before an import that fails in a version that is too old
from pyspark.sql import datasource as datasource  # noqa: E402
from pyspark.sql import types  # noqa: E402
from pyspark.sql.pandas.types import to_arrow_schema  # noqa: E402

# Whether Spark tells the reader of a stream where a micro-batch starts, and its limit.
HAS_READ_LIMITS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None

# The types of times, for isinstance().
TIME_TYPES: tuple[type[types.DataType], ...] = (
    (types.DatetimeType,)
    if hasattr(types, "DatetimeType")
    else (types.DateType, types.TimestampType, types.TimestampNTZType)
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceArrowWriter, datasource.DataSourceStreamWriter):
        """A streaming sink that takes Arrow batches.

        Spark 4.0 looks for the first of these classes to decide that a writer takes Arrow batches, also in a stream.
        The methods of the second take the number of the micro-batch.
        """


if TYPE_CHECKING or HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable as ReadAllAvailable
    from pyspark.sql.streaming.datasource import ReadLimit as ReadLimit
    from pyspark.sql.streaming.datasource import ReadMaxBytes as ReadMaxBytes
    from pyspark.sql.streaming.datasource import ReadMaxRows as ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow
else:

    class ReadLimit:
        """A limit of a micro-batch."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclasses.dataclass
    class ReadMaxRows(ReadLimit):
        """A number of rows."""

        max_rows: int

    @dataclasses.dataclass
    class ReadMaxBytes(ReadLimit):
        """A number of bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """A reader that can end a query at the rows that exist."""
