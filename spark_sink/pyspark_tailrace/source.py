"""The name under which Spark knows Tailrace."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

FORMAT = "tailrace"


class TailraceSource(DataSource):
    """``format("tailrace")``. Registered by ``register(spark)``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT
