"""Values of JSON as columns, by Spark's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def decode(
    df: DataFrame, schema: StructType | str, *, column: str = "value", options: Mapping[str, str] | None = None
) -> DataFrame:
    """``df`` with ``column``, which is JSON in bytes, as a struct: ``decode(df, "city STRING").select("value.*")``.

    ``schema``: a StructType, or as in ``CREATE TABLE``. A deletion's value stays null. ``options`` are those of
    ``from_json``: ``{"mode": "FAILFAST"}`` fails for a value that is no such JSON; without it what cannot be read is
    null. It runs inside the JVM, for streams and batches alike.
    """
    from pyspark.sql import functions as F

    text = F.col(column).cast("string")
    # Spark Connect refuses a mapping without entries, whose types it does not know.
    return df.withColumn(column, F.from_json(text, schema, dict(options) if options else None))
