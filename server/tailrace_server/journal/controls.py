"""The payloads of a partition's control records, as JSON. Pure.

    FAILOVER_ENTRY    the failover log from here on, and the count of earlier rollbacks, if there were any
    ROLLED_BACK       the seq reached, the count of rollbacks with this one, and log and producers as of then
    PRODUCERS_TOLD    the producers as the leader had them at a seq

The count of rollbacks orders logs: within one history terms only grow, but a rollback may take them back.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tailrace.block.header import SEQ_MAX
from tailrace.model.failover import FailoverLog


class LogRecord(NamedTuple):
    """The payload of a FAILOVER_ENTRY. ``rollbacks`` counts the partition's earlier rollbacks."""

    log: FailoverLog
    rollbacks: int = 0

    def encode(self) -> bytes:
        """Returns the payload: the log alone if the partition was never rolled back."""
        log = self.log.to_json()
        return json.dumps({"log": log, "rollbacks": self.rollbacks} if self.rollbacks else log).encode()

    @classmethod
    def decode(cls, payload: bytes) -> LogRecord:
        """Parses a payload of ``encode``. Raises KeyError, TypeError or ValueError for others."""
        value = json.loads(payload)
        if isinstance(value, list):
            return cls(FailoverLog.from_json(value))
        return cls(FailoverLog.from_json(value["log"]), _count(value["rollbacks"]))


class RollbackRecord(NamedTuple):
    """The payload of a ROLLED_BACK: the partition stands at ``seq`` with this log, for the ``rollbacks``-th time.

    ``producers`` is the result of `producers_to_json` for the table as of then.
    """

    seq: int
    log: FailoverLog
    rollbacks: int
    producers: dict[str, Any]

    def encode(self) -> bytes:
        """Returns the payload."""
        return json.dumps({**self._asdict(), "log": self.log.to_json()}).encode()

    @classmethod
    def decode(cls, payload: bytes) -> RollbackRecord:
        """Parses a payload of ``encode``; producers are not checked. Raises KeyError, TypeError or ValueError."""
        value = json.loads(payload)
        log, producers = FailoverLog.from_json(value["log"]), value["producers"]
        return cls(_count(value["seq"]), log, _count(value["rollbacks"]), producers)


class ProducersRecord(NamedTuple):
    """The payload of a PRODUCERS_TOLD: ``value`` is the result of `producers_to_json`, as of ``seq``."""

    seq: int
    value: dict[str, Any]

    def encode(self) -> bytes:
        """Returns the payload."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, payload: bytes) -> ProducersRecord:
        """Parses a payload of ``encode``; ``value`` is not checked. Raises KeyError, TypeError or ValueError."""
        value = json.loads(payload)
        return cls(_count(value["seq"]), value["value"])


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= SEQ_MAX:
        raise ValueError(f"a number from 0 to {SEQ_MAX} is needed, not {value!r:.60}")
    return value
