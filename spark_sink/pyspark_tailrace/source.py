"""The data source ``tailrace``: makes the readers and writers of Spark's jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_tailrace.versions import datasource
from pyspark_tailrace.worker_memory import spare_modules

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from pyspark_tailrace.versions import StreamArrowWriter

FORMAT = "tailrace"


class TailraceSource(datasource.DataSource):
    """The data source ``tailrace``, which `register` makes known. Programs use ``format("tailrace")``."""

    is_case_sensitive = False  # about the names of columns

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        spare_modules()  # a worker that Spark keeps makes the source of each job

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType | str:
        """Returns the columns of a feed. Spark calls it for readers only. Raises ValueError for bad options."""
        from pyspark_tailrace.reading.options import read_options
        from pyspark_tailrace.reading.schema import SCHEMA

        read_options(self.options)
        spare_modules()
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Returns the reader of a streaming query. Raises ValueError for bad options or columns."""
        from pyspark_tailrace.reading.options import stream_options
        from pyspark_tailrace.reading.schema import check_schema
        from pyspark_tailrace.reading.start_tracking import StartTrackingReader
        from pyspark_tailrace.reading.stream_reader import StreamReader
        from pyspark_tailrace.versions import HAS_READ_LIMITS

        # Checked here too: if Spark does not ask for the schema, this is the first call whose errors it shows.
        options = stream_options(self.options)
        check_schema(schema, is_case_sensitive=self.is_case_sensitive)
        return StreamReader(options, schema) if HAS_READ_LIMITS else StartTrackingReader(options, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader of a batch job. Raises ValueError for bad options or columns."""
        from pyspark_tailrace.reading.batch_reader import BatchReader
        from pyspark_tailrace.reading.options import batch_options
        from pyspark_tailrace.reading.schema import check_schema

        options = batch_options(self.options)
        check_schema(schema, is_case_sensitive=self.is_case_sensitive)
        return BatchReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter:
        """Returns the sink of a streaming query. Raises ValueError for bad options or columns."""
        from pyspark_tailrace.options import check_stream_options, sink_options
        from pyspark_tailrace.sink import StreamSink, check_schema, with_columns

        if overwrite:
            raise ValueError(
                "outputMode 'complete' is not supported: it would replace the whole feed with each batch. Use "
                "outputMode 'append', or 'update' with .foreachBatch(pyspark_tailrace.upsert_batch(...)), which writes "
                "the changed rows"
            )
        options = with_columns(sink_options(self.options), schema, is_case_sensitive=self.is_case_sensitive)
        check_stream_options(options)
        check_schema(schema, options)
        spare_modules()
        return StreamSink(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Returns the sink of a batch job. Raises ValueError for bad options or columns."""
        from pyspark_tailrace.options import check_job_options, sink_options
        from pyspark_tailrace.sink import BatchSink, check_schema, with_columns

        if overwrite:
            raise ValueError("mode 'overwrite' is not supported: it would drop the feed's rows. Use mode 'append'")
        options = with_columns(sink_options(self.options), schema, is_case_sensitive=self.is_case_sensitive)
        check_job_options(options)
        check_schema(schema, options)
        spare_modules()
        return BatchSink(options)


class CaseSensitiveSource(TailraceSource):
    """The data source for a session with ``spark.sql.caseSensitive``, a setting that Spark does not tell to sources."""

    is_case_sensitive = True


def source_for(case_sensitive: str | None) -> type[TailraceSource]:
    """Returns the source for a session's value of ``spark.sql.caseSensitive``."""
    return CaseSensitiveSource if (case_sensitive or "").lower() == "true" else TailraceSource
