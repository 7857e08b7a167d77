"""The name under which Spark knows Tailrace, and what it makes for a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

FORMAT = "tailrace"


class TailraceSource(DataSource):
    """The data source ``tailrace``, which `register` makes known. Programs use ``format("tailrace")``."""

    is_case_sensitive = False  # about the names of columns

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType | str:
        """The columns of a feed. Asked for by readers alone; ValueError for options that they cannot take."""
        from pyspark_tailrace.reading.options import read_options
        from pyspark_tailrace.reading.schema import SCHEMA

        read_options(self.options)
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The source of a streaming query. Raises ValueError for options or columns that it cannot take."""
        from pyspark_tailrace.reading.options import stream_options
        from pyspark_tailrace.reading.schema import check_schema
        from pyspark_tailrace.reading.stream_reader import StreamReader

        # Here too: without a look at the schema, this is the first place whose errors Spark shows.
        options = stream_options(self.options)
        check_schema(schema, is_case_sensitive=self.is_case_sensitive)
        return StreamReader(options, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The source of a batch job. Raises ValueError for options or columns that it cannot take."""
        from pyspark_tailrace.reading.batch_reader import BatchReader
        from pyspark_tailrace.reading.options import batch_options
        from pyspark_tailrace.reading.schema import check_schema

        options = batch_options(self.options)
        check_schema(schema, is_case_sensitive=self.is_case_sensitive)
        return BatchReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The sink of a streaming query. Raises ValueError for options or columns that it cannot take."""
        from pyspark_tailrace.options import check_stream_options, sink_options
        from pyspark_tailrace.sink import StreamSink, check_schema, with_columns

        if overwrite:
            raise ValueError(
                "outputMode 'complete' would have to replace the whole feed with each batch, which no consumer could "
                "follow: use outputMode 'append', or 'update' with .foreachBatch(pyspark_tailrace.upsert_batch(...)), "
                "which writes the rows that have changed"
            )
        options = with_columns(sink_options(self.options), schema, is_case_sensitive=self.is_case_sensitive)
        check_stream_options(options)
        check_schema(schema, options)
        return StreamSink(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The sink of a batch job. Raises ValueError for options or columns that it cannot take."""
        from pyspark_tailrace.options import check_job_options, sink_options
        from pyspark_tailrace.sink import BatchSink, check_schema, with_columns

        if overwrite:
            raise ValueError("mode 'overwrite' would have to drop what the feed holds: use mode 'append'")
        options = with_columns(sink_options(self.options), schema, is_case_sensitive=self.is_case_sensitive)
        check_job_options(options)
        check_schema(schema, options)
        return BatchSink(options)


class CaseSensitiveSource(TailraceSource):
    """The same for a session with ``spark.sql.caseSensitive``, which Spark does not tell to sources."""

    is_case_sensitive = True


def source_for(case_sensitive: str | None) -> type[TailraceSource]:
    """Returns the source for a session's value of ``spark.sql.caseSensitive``."""
    return CaseSensitiveSource if (case_sensitive or "").lower() == "true" else TailraceSource
