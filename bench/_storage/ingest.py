"""20 million mutations through the SDK into a node of its own: rates, memory, what is written, what stays on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import tailrace
from _report import Line
from _server import Sample, Server, Watch, at_rest, bytes_on_disk
from _storage.data import ROW_BYTES, Rows

FEED = "bench"
PARTITIONS = 16
MEMORY_MIB_MAX = 768


class Ingest(NamedTuple):
    """``seconds`` until all was acknowledged; ``ends`` are the seconds until each part of ``part_rows`` rows was handed
    over, with as much under way as the writer permits.

    Bytes are of disk: ``written`` until all was at rest, and ``kept`` then, by kind.
    """

    rows: int
    seconds: float
    part_rows: int
    ends: list[float]
    samples: list[Sample]
    written: int
    kept: dict[str, int]
    live_bytes: int
    rest_seconds: float
    compactions: int
    segments: int
    node_cpu_s: float
    producer_cpu_s: float

    @property
    def rates(self) -> list[float]:
        """Rows a second in each part."""
        return [self.part_rows / (end - begin) for begin, end in zip([0.0, *self.ends], self.ends, strict=False)]

    def lines(self) -> list[Line]:
        """For the table."""
        rates, data = self.rates, self.kept.get("feeds", 0)
        third = rates[2] if len(rates) > 2 else rates[0]
        return [
            Line("ingest, all of it", self.rows / self.seconds, "rows/s"),
            Line(f"ingest, the third {self.part_rows:,}", third, "rows/s"),
            Line(f"ingest, the last {self.part_rows:,}", rates[-1], "rows/s"),
            Line("the last part's rate to the third's", rates[-1] / third, "", least=0.7),
            Line("ingest, the slowest part", min(rates), "rows/s"),
            Line("processor time of the node", self.node_cpu_s * 1e6 / self.rows, "µs/row"),
            Line("processor time of the producer", self.producer_cpu_s * 1e6 / self.rows, "µs/row"),
            Line("the node's RssAnon at most", max(s.node for s in self.samples) / 2**20, "MiB", most=MEMORY_MIB_MAX),
            Line("a compaction's RssAnon at most", max(s.compactions for s in self.samples) / 2**20, "MiB"),
            Line("write amplification: to disk / of input", self.written / (self.rows * ROW_BYTES)),
            Line("compactions", self.compactions),
            Line("from the last row until all is at rest", self.rest_seconds, "s"),
            Line("space amplification: segments / live rows", data / self.live_bytes),
            Line("the whole directory / live rows", sum(self.kept.values()) / self.live_bytes),
            Line("segments at rest", self.segments),
        ]


async def ingest(folder: Path, log: Path, rows: Rows, count: int) -> Ingest:
    """Writes ``count`` rows into a new node in ``folder``, waits for its rest, and stops it cleanly."""
    part_rows = max(count // 20, 1)
    ends: list[float] = []
    done = 0
    with Server(folder, log) as server, Watch(server, lambda: done) as watch:
        async with tailrace.connect(server.address) as client:
            await client.create_feed(FEED, partitions=PARTITIONS, retention="compact")
            node_cpu, own_cpu = server.cpu_seconds(), time.process_time()
            begin = time.perf_counter()
            async with client.feed(FEED).writer() as writer:
                for batch in rows.batches(count):
                    await writer.write(batch)
                    done += len(batch)
                    if done % part_rows == 0:
                        ends.append(time.perf_counter() - begin)
            seconds = time.perf_counter() - begin
            node_cpu, own_cpu = server.cpu_seconds() - node_cpu, time.process_time() - own_cpu
            details = await at_rest(client, server)
            rest_seconds = time.perf_counter() - begin - seconds
        written = server.written_bytes()
        kept = bytes_on_disk(folder)
        server.stop()
    return Ingest(
        rows=count,
        seconds=seconds,
        part_rows=part_rows,
        ends=ends,
        samples=watch.samples,
        written=written,
        kept=kept,
        live_bytes=rows.live_bytes,
        rest_seconds=rest_seconds,
        compactions=details["storage"]["compactions"],
        segments=sum(feed["segments"] for feed in details["feeds"]),
        node_cpu_s=node_cpu,
        producer_cpu_s=own_cpu,
    )
