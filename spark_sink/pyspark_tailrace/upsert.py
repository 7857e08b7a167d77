"""Supports output mode update by foreachBatch, because Spark refuses this mode for every sink written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark_tailrace.publishing import batch_origin
from pyspark_tailrace.source import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"


def upsert_batch(**options: object) -> Callable[[DataFrame, int], None]:
    """Makes a function for ``writeStream.outputMode("update").foreachBatch(...)`` that publishes each micro-batch once.

    The function writes the rows that an aggregation has changed, with their new values. The sink is the query, by its
    id, unless ``sink_id`` is given. A function that writes to one feed by several of these gives each its own
    ``sink_id``; otherwise the feed refuses the second one, because it has this batch of the sink with other rows.

    Spark Connect does not tell the id of the query, so ``sink_id`` is required there. Give ``origin`` as well, a name
    of the checkpoint, if batches of another checkpoint under the same ``sink_id`` are to be refused.

    Args:
        options: The options of ``format("tailrace")``. An option that is None is left out.

    Returns:
        The function.

    Raises:
        ValueError: ``batch_id`` is among the options. The function raises it if ``sink_id`` is missing with Spark
            Connect.
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
        origin = batch_origin(told.get("origin", query_id or sink_id), first_batch)
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
    except Exception:  # Spark Connect has no context; the exception depends on its version
        return None
    return found
