"""The name under which Spark knows Tailrace, and what it makes for a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

FORMAT = "tailrace"


class TailraceSource(DataSource):
    """``format("tailrace")``. Registered by ``register(spark)``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType | str:
        """Asked for by readers alone, which Tailrace does not offer to Spark. ValueError says what reads a feed."""
        raise ValueError(
            "format('tailrace') writes feeds and does not read them: feed.consume() and feed.items() of the SDK do"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The sink of a streaming query. Raises ValueError for options or columns that it cannot take."""
        from pyspark_tailrace.options import sink_options
        from pyspark_tailrace.sink import StreamSink, check_schema

        if overwrite:
            raise ValueError(
                "outputMode 'complete' would have to replace the whole feed with each batch, which no consumer could "
                "follow: use outputMode 'append', or 'update' with .foreachBatch(pyspark_tailrace.upsert_batch(...)), "
                "which writes the rows that have changed"
            )
        options = sink_options(self.options)
        check_schema(schema, options)
        return StreamSink(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The sink of a batch job. Raises ValueError for options or columns that it cannot take."""
        from pyspark_tailrace.options import sink_options
        from pyspark_tailrace.sink import BatchSink, check_schema

        if overwrite:
            raise ValueError("mode 'overwrite' would have to drop what the feed holds: use mode 'append'")
        options = sink_options(self.options)
        check_schema(schema, options)
        return BatchSink(options)
