"""Scrapes of a node, read as Prometheus reads them."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families


class Scraped:
    """The samples of one scrape, by name and labels."""

    def __init__(self, text):
        self.text = text
        self.samples = {}
        self.types = {}
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.samples, f"{key} comes twice"
                self.samples[key] = sample.value

    def value(self, name, /, **labels):
        """The value of a sample; None if there is none."""
        return self.samples.get((name, tuple(sorted(labels.items()))))

    def by(self, name, label):
        """The values of a metric by one of its labels."""
        return {dict(labels)[label]: value for (of, labels), value in self.samples.items() if of == name}


async def scrape(node, feed=""):
    body, _ = await node.metrics("", feed)
    return Scraped(body.decode())


@pytest.fixture
def scraped(running):
    """Scrapes the node: ``await scraped()``."""

    async def scraped(feed=""):
        return await scrape(running.node, feed)

    return scraped
