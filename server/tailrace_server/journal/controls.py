"""What the control records of a partition say, as JSON. Pure.

    FAILOVER_ENTRY    the failover log from here on; where the partition was rolled back before, also how often
    ROLLED_BACK       down to which seq, how often with this time, and log and producers as they are then
    PRODUCERS_TOLD    the producers as the leader had them at a seq

How often it was rolled back orders logs: within one history terms only grow, and a rollback may take them back.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tailrace.block.header import SEQ_MAX
from tailrace.model.failover import FailoverLog


class LogRecord(NamedTuple):
    """The payload of a FAILOVER_ENTRY. ``rollbacks`` is how often the partition had been rolled back."""

    log: FailoverLog
    rollbacks: int = 0

    def encode(self) -> bytes:
        """The payload: of a partition that was never rolled back, the log alone."""
        log = self.log.to_json()
        return json.dumps({"log": log, "rollbacks": self.rollbacks} if self.rollbacks else log).encode()

    @classmethod
    def decode(cls, payload: bytes) -> LogRecord:
        """What ``encode`` made. KeyError, TypeError, ValueError for anything else."""
        value = json.loads(payload)
        if isinstance(value, list):
            return cls(FailoverLog.from_json(value))
        return cls(FailoverLog.from_json(value["log"]), _count(value["rollbacks"]))


class RollbackRecord(NamedTuple):
    """The payload of a ROLLED_BACK: the partition stands at ``seq`` with this log, for the ``rollbacks``-th time.

    ``producers`` is what `producers_to_json` made of the table as it is then.
    """

    seq: int
    log: FailoverLog
    rollbacks: int
    producers: dict[str, Any]

    def encode(self) -> bytes:
        """The payload."""
        return json.dumps({**self._asdict(), "log": self.log.to_json()}).encode()

    @classmethod
    def decode(cls, payload: bytes) -> RollbackRecord:
        """What ``encode`` made. KeyError, TypeError, ValueError for anything else; producers are not looked into."""
        value = json.loads(payload)
        log, producers = FailoverLog.from_json(value["log"]), value["producers"]
        return cls(_count(value["seq"]), log, _count(value["rollbacks"]), producers)


class ProducersRecord(NamedTuple):
    """The payload of a PRODUCERS_TOLD: ``value`` is what `producers_to_json` made, as of ``seq``."""

    seq: int
    value: dict[str, Any]

    def encode(self) -> bytes:
        """The payload."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, payload: bytes) -> ProducersRecord:
        """What ``encode`` made. KeyError, TypeError, ValueError for anything else; ``value`` is not looked into."""
        value = json.loads(payload)
        return cls(_count(value["seq"]), value["value"])


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= SEQ_MAX:
        raise ValueError(f"a number from 0 to {SEQ_MAX} is needed, not {value!r:.60}")
    return value
