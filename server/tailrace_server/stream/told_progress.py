"""The progress that a consumer tells, which handles rows elsewhere than on its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tailrace.model import Level
    from tailrace_server.partition.partition import Partition


class ToldProgress(NamedTuple):
    """What a connection has told last: the seq of each partition up to which all rows of a level were handled."""

    feed_id: bytes
    level: Level
    seqs: dict[Partition, int]
