"""Decodes values of JSON into columns, by Spark's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def decode(
    df: DataFrame, schema: StructType | str, *, column: str = "value", options: Mapping[str, str] | None = None
) -> DataFrame:
    """Replaces a column of JSON in bytes by a struct: ``decode(df, "city STRING").select("value.*")``.

    It runs inside the JVM, for streams and batches. The value of a deletion stays null.

    Args:
        df: The rows.
        schema: A StructType, or a schema as in ``CREATE TABLE``.
        column: The name of the column.
        options: Options of Spark's ``from_json``. ``{"mode": "FAILFAST"}`` fails on a value that does not fit; without
            it such a value is null.

    Returns:
        The rows with the struct.
    """
    from pyspark.sql import functions as F

    text = F.col(column).cast("string")
    # Spark Connect refuses an empty mapping, because it cannot tell its types.
    return df.withColumn(column, F.from_json(text, schema, dict(options) if options else None))
