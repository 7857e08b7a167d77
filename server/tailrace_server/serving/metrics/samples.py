"""The samples of one scrape, as families of prometheus-client. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from tailrace_server.serving.metrics.catalogue import CATALOGUE, OTHER, Kind
from tailrace_server.state.durations import Durations


class Samples:
    """Gathers the samples of one scrape. Each is of a metric of the catalogue."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Adds a sample of the metric ``name``; ``labels`` are the values of its labels."""
        described = CATALOGUE[name]
        self._family(name).add_sample(name, dict(zip(described.labels, labels, strict=True)), float(value))

    def add_durations(self, name: str, durations: Durations, *labels: str) -> None:
        """Adds the buckets of the histogram ``name``, its count and its sum."""
        family, of = self._family(name), dict(zip(CATALOGUE[name].labels, labels, strict=True))
        count = 0
        for bound, count in durations.counts():
            label = "+Inf" if bound is None else repr(bound)
            family.add_sample(f"{name}_bucket", of | {"le": label}, count)
        family.add_sample(f"{name}_count", of, count)
        family.add_sample(f"{name}_sum", of, durations.seconds)

    def _family(self, name: str) -> Metric:
        family = self._families.get(name)
        if family is None:
            described = CATALOGUE[name]
            # The library appends the suffix of counters itself.
            bare = name.removesuffix("_total") if described.kind is Kind.COUNTER else name
            family = self._families[name] = Metric(bare, described.text, described.kind.value)
        return family

    def families(self) -> list[Metric]:
        """Returns the families that have samples, in the order of the catalogue."""
        return [self._families[name] for name in CATALOGUE if name in self._families]


class BoundedNames:
    """Bounds the distinct names that have series of their own. Only its own methods change its fields.

    A name keeps its place as long as it is seen in each scrape. So a series does not come and go with others.
    """

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._kept: dict[str, None] = {}

    def keep(self, seen: Iterable[str]) -> None:
        """Forgets the names that are not among ``seen``, and gives places to new ones, in their order."""
        seen = dict.fromkeys(seen)
        self._kept = {name: None for name in self._kept if name in seen}
        for name in seen:
            if len(self._kept) >= self._names_max:
                return
            self._kept.setdefault(name)

    def label(self, name: str) -> str:
        """Returns ``name`` if it has a series of its own, else `OTHER`."""
        return name if name in self._kept else OTHER
