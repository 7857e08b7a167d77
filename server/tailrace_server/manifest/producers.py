"""A partition's producers as JSON for the manifest. Pure.

    {"evicted_age_s": null, "branches": ["0a1b..."],
     "entries": [["1122334455667788", 7, 12.5, [[6, 0, 90, 99], [7, 0, 100, 110]]]]}

An entry is the producer's id, the number of its last block, the seconds since its last use, and its last results:
number, index of the branch, first and last seq. The least recently used producer comes first. Ages are of the node's
monotonic time, and continue at the next start: time without a running node does not count, so no entry is forgotten
early. ``evicted_age_s`` is the age of the last eviction, for age or for room; null if there was none within a day.

If all 16 results of a producer are above the flushed seq, its entry is left out: its older numbers are forgotten, and
the journal has the newer ones. If a crash loses all of these, the producer's next block is out of order, and the writer
takes a new id. Nothing is written twice, but the writer is told of a larger loss than there was.
"""

from __future__ import annotations

from typing import Any

from tailrace.model import VersionRange
from tailrace.model.failover import SEQ_MAX
from tailrace_server.manifest.fields import ID, read_id, read_list, read_number
from tailrace_server.state.producer_columns import RESULTS_MAX, ProducerEntry
from tailrace_server.state.producers import PRODUCERS_MAX, ProducerTable

NO_PRODUCERS: dict[str, Any] = {"evicted_age_s": None, "branches": [], "entries": []}

_NUMBER_MAX = 2**32 - 1  # producer seqs are u32 in a block


def producers_to_json(table: ProducerTable, through_seq: int, now: float) -> dict[str, Any]:
    """Returns the table as of ``through_seq``, the flushed seq. Newer results come back from the journal.

    ``now`` is monotonic seconds. A result above the flushed seq may be of a block that a crash still loses. With many
    producers this takes a while: a ``copy`` of the table may be given to another thread.
    """
    entries, evicted_age_s = table.snapshot(now)
    branches: dict[bytes, int] = {}
    written = []
    for producer_id, _, results, age_s in entries:
        kept = [
            [number, branches.setdefault(result.branch, len(branches)), result.first_seq, result.last_seq]
            for number, result in results
            if result.last_seq <= through_seq
        ]
        if kept:
            written.append([f"{producer_id:016x}", kept[-1][0], age_s, kept])
    return {"evicted_age_s": evicted_age_s, "branches": [branch.hex() for branch in branches], "entries": written}


def producers_from_json(value: dict[str, Any], partition: int, now: float) -> ProducerTable:
    """Restores the table from ``value``, a manifest's ``producers``. Raises ValueError if it is malformed."""
    table = ProducerTable()
    table.restore(*_parse(value, partition), now)
    return table


def read_producers(value: Any) -> dict[str, Any]:
    """Returns ``value`` if it can be restored. ValueError."""
    _parse(value, 0)
    assert isinstance(value, dict)
    return value


def _parse(value: Any, partition: int) -> tuple[list[ProducerEntry], float | None]:
    if not isinstance(value, dict) or value.keys() != NO_PRODUCERS.keys():
        raise ValueError(f"an object of {', '.join(NO_PRODUCERS)} is needed, not {value!r:.60}")
    evicted_age_s = None if value["evicted_age_s"] is None else read_number(value["evicted_age_s"])
    branches = [ID.read(branch) for branch in read_list(value["branches"], PRODUCERS_MAX * RESULTS_MAX)]
    entries = [_parse_entry(item, branches, partition) for item in read_list(value["entries"], PRODUCERS_MAX)]
    if len({entry.producer_id for entry in entries}) != len(entries):
        raise ValueError("a producer is there twice")
    return entries, evicted_age_s


def _parse_entry(item: Any, branches: list[bytes], partition: int) -> ProducerEntry:
    if not isinstance(item, list) or len(item) != len(ProducerEntry._fields):
        raise ValueError(f"a producer is its id, last number, age and results, not {item!r:.60}")
    producer_id, last_number, age_s, results = item
    parsed = [_parse_result(result, branches, partition) for result in read_list(results, RESULTS_MAX)]
    if not parsed or parsed[-1][0] != last_number:
        raise ValueError(f"producer {producer_id!r:.60} has last number {last_number}, and no result of it")
    return ProducerEntry(int.from_bytes(read_id(producer_id, 8), "big"), last_number, tuple(parsed), read_number(age_s))


def _parse_result(item: Any, branches: list[bytes], partition: int) -> tuple[int, VersionRange]:
    if isinstance(item, list) and len(item) == 4 and all(type(number) is int for number in item):
        number, branch, first_seq, last_seq = item
        if 0 < number <= _NUMBER_MAX and 0 <= branch < len(branches) and 0 <= first_seq <= last_seq <= SEQ_MAX:
            return number, VersionRange(partition, branches[branch], first_seq, last_seq)
    raise ValueError(f"a result is number, one of {len(branches)} branches, first and last seq, not {item!r:.60}")
