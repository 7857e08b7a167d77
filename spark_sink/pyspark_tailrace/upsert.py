"""Output mode update, by way of foreachBatch: Spark refuses it of every sink that is written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark_tailrace.publishing import numberer
from pyspark_tailrace.source import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"


def upsert_batch(**options: object) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.outputMode("update").foreachBatch(...)``: each micro-batch is published once.

    ``options`` are those of ``format("tailrace")``; the rows that an aggregation has changed are written with their new
    values; one that is None is left out. The sink is the query, by its id, unless ``sink_id`` names another one. A
    function of one's own that writes to one feed by several of these gives each a ``sink_id`` of its own: the second
    would be passed over, since the feed has this batch of the sink already. With Spark Connect, which does not
    tell the query's id there, ``sink_id`` has to be given, and ``origin``, a name of the checkpoint, where the batches
    of another checkpoint under the same ``sink_id`` are to be refused rather than taken for those that are there.
    """
    told = {name: _text(value) for name, value in options.items() if value is not None}
    if "batch_id" in told:
        raise ValueError("upsert_batch() takes no 'batch_id': Spark numbers the batches of a query")
    first_batch = int(told.pop("first_batch", "0"))

    def upsert(frame: DataFrame, batch: int) -> None:
        query_id = _query_id(frame)
        sink_id = told.get("sink_id", query_id)
        if sink_id is None:
            raise ValueError("Spark does not tell the query's id here: give upsert_batch(sink_id=...)")
        origin = numberer(told.get("origin", query_id or sink_id), first_batch)
        numbered = told | {"sink_id": sink_id, "batch_id": str(batch + first_batch), "origin": origin}
        if numbered.get("delivery") == "at_least_once":
            numbered = told
        frame.write.format(FORMAT).options(**numbered).mode("append").save()

    return upsert


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _query_id(frame: DataFrame) -> str | None:
    try:
        found: str | None = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except Exception:  # Spark Connect has no context; what it raises depends on its version
        return None
    return found
