"""Makes the answer to a scrape: reads a node in slices of its loop's time, and writes the text in a thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from tailrace_server.serving.metrics.catalogue import CONSUMERS_MAX, FEEDS_MAX, SINKS_MAX
from tailrace_server.serving.metrics.first_rows import FirstRows
from tailrace_server.serving.metrics.lags import settle_all
from tailrace_server.serving.metrics.node_readers import read_node
from tailrace_server.serving.metrics.partition_readers import PartitionSums
from tailrace_server.serving.metrics.samples import BoundedNames, Samples
from tailrace_server.serving.metrics.stored_readers import StoredSums
from tailrace_server.serving.metrics.stream_readers import StreamSums
from tailrace_server.serving.readiness import why_not_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from tailrace_server.serving.services import Services

# The seconds for which a scrape has the loop before others have their turn.
SLICE_SECONDS = 0.002
# The steps between two looks at the clock.
_STEPS_AT_ONCE = 16


class Scrapes:
    """The scrapes of one node; one at a time reads it. Only its own methods change its fields."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self._turn = trio.Lock()
        self._feeds = BoundedNames(FEEDS_MAX)
        self._sinks = BoundedNames(SINKS_MAX)
        self._consumers = BoundedNames(CONSUMERS_MAX)
        self._stored = BoundedNames(CONSUMERS_MAX)
        self._rows = FirstRows(node)

    async def text(self, accept: str, feed: str = "") -> tuple[bytes, str]:
        """Returns the body of an answer and its content type.

        Args:
            accept: The header of the request that names the wanted formats.
            feed: The name of a feed whose partitions get series of their own; "" for none.
        """
        async with self._turn:
            samples = await self._read(feed)
        return await self._node.host.workers.in_own_thread(partial(_encode, samples.families(), accept))

    async def _read(self, feed: str) -> Samples:
        node, samples = self._node, Samples()
        read_node(node, samples)
        samples.add("tailrace_ready", not await why_not_ready(node))
        self._rows.begin()
        sums = PartitionSums(node, self._feeds, self._sinks, self._rows, feed)
        streams = StreamSums(node, self._consumers, self._feeds, self._rows)
        stored = StoredSums(node, self._stored, self._feeds, self._rows)
        for steps in (sums.steps(samples), streams.steps(), stored.steps()):
            await self._in_slices(steps)
        await settle_all([*sums.lags, *streams.lags, *stored.lags], self._rows)
        sums.add_to(samples)
        streams.add_to(samples)
        stored.add_to(samples)
        return samples

    async def _in_slices(self, steps: Iterator[None]) -> None:
        """Goes through ``steps``, and lets other tasks run after each SLICE_SECONDS."""
        monotonic = self._node.clock.monotonic
        await trio.lowlevel.checkpoint()
        until = monotonic() + SLICE_SECONDS
        for number, _ in enumerate(steps):
            if number % _STEPS_AT_ONCE == 0 and monotonic() >= until:
                await trio.lowlevel.checkpoint()
                until = monotonic() + SLICE_SECONDS


class _Read:
    """A collector of families that were read already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Returns the families."""
        return self._families


def _encode(families: list[Metric], accept: str) -> tuple[bytes, str]:
    """Returns the text of ``families`` and of the process, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read(families))
    ProcessCollector(namespace="tailrace", registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
