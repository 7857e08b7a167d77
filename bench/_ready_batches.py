"""A source of Spark that hands out ready Arrow batches: what the way from a Python worker into Java costs by itself.

The batches are those that a client gets of a feed, in the sizes in which Tailrace's source hands them over. They lie in
files of Arrow, one for each partition. A worker maps a file when it first needs it, and keeps its batches: from then
on, it only hands them out. There is no node, no socket but Spark's own, and nothing to decode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tailrace.reading.schema import SCHEMA, Shape
from pyspark_tailrace.versions import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark_tailrace.worker_memory import spare_modules

FORMAT = "ready"


class ReadySource(DataSource):
    """``format("ready")``. Options: ``folder``, of the files; ``batches``, the number of micro-batches."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(self.options["folder"], schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self.options["folder"], schema, int(self.options["batches"]))


class _Share(InputPartition):
    """What a task hands out: the batches of a file, or a micro-batch's share of them."""

    def __init__(self, path: Path, step: int = 0, steps: int = 1) -> None:
        super().__init__((path.name, step))
        self.path = path
        self.step = step
        self.steps = steps


class _BatchReader(DataSourceReader):
    def __init__(self, folder: str, schema: StructType) -> None:
        self._folder = folder
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [_Share(path) for path in _files(self._folder)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _handed_out(partition, self._schema)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the number of micro-batches before it."""

    def __init__(self, folder: str, schema: StructType, steps: int) -> None:
        self._folder = folder
        self._schema = schema
        self._steps = steps

    def initialOffset(self) -> dict[str, int]:
        return {"step": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"step": min(start["step"] + 1, self._steps)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        steps = range(start["step"], end["step"])
        return [_Share(path, step, self._steps) for path in _files(self._folder) for step in steps]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _handed_out(partition, self._schema)

    def commit(self, end: dict[str, int]) -> None:
        pass


def _files(folder: str) -> list[Path]:
    return sorted(Path(folder).iterdir())


def _handed_out(share: InputPartition, schema: StructType) -> Iterator[Any]:
    assert isinstance(share, _Share)
    batches = _ready(share.path, schema.json())
    first, stop = (len(batches) * step // share.steps for step in (share.step, share.step + 1))
    yield from batches[first:stop]
    spare_modules()  # as Tailrace's source does


@cache
def _ready(path: Path, schema: str) -> list[Any]:
    """Returns the batches of a file, which stay with the worker."""
    shape = Shape(StructType.fromJson(json.loads(schema)))
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
    return list(shape.joined(map(shape.of, batches)))
