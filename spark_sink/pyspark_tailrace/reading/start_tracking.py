"""The reader of a streaming query for a Spark that tells it neither the start of a micro-batch nor a limit (4.0, 4.1).

Such a Spark asks only for the end of the next micro-batch. The start is the end of the last one that it had planned. A
new query starts at ``initialOffset``. A restarted one has the last micro-batch of its checkpoint planned first, as an
empty range at its end, before Spark asks for an end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from pyspark_tailrace.reading.stream_reader import StreamReader

log = logging.getLogger("tailrace.spark")

_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


class StartTrackingReader(StreamReader):
    """Keeps the limits of the options by itself. Lives as long as the query, in one process of the driver."""

    _last_planned: dict[str, Any] | None = None
    _is_start_assumed = False
    _has_warned = False

    def latestOffset(self) -> dict[str, str]:  # type: ignore[override]
        """Returns the end of the next micro-batch, within the limits of the options."""
        start = self._last_planned
        if start is None:
            start, self._is_start_assumed = self.initialOffset(), True
        end = super().latestOffset(start, self.getDefaultReadLimit())
        behind = self.reportLatestOffset()["behind"]
        if behind and not self._has_warned and self._is_limited:
            self._has_warned = True
            log.warning(
                "tailrace: 'maxRowsPerTrigger' or 'maxBytesPerTrigger' leaves %d mutations to later micro-batches. "
                "With Trigger.AvailableNow this version of Spark ends the query after one: leave the option out, or "
                "start the query again",
                behind,
            )
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the tasks of a micro-batch. Raises ValueError if this query cannot have limits."""
        is_told = self._last_planned is None and start == end  # of a query with a checkpoint
        if is_told and self._is_start_assumed and self._is_limited and start != self.initialOffset():
            # Otherwise the query would go back to the rows after its first offset, and write them again.
            raise ValueError(
                f"this version of Spark asked for the query's end before it told its start, because {_WRAPPER} is "
                "true: set it to false, or leave out the options 'maxRowsPerTrigger' and 'maxBytesPerTrigger'"
            )
        self._last_planned = end
        return super().partitions(start, end)

    @property
    def _is_limited(self) -> bool:
        return self._options.max_rows is not None or self._options.max_bytes is not None
