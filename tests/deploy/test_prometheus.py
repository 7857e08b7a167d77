"""A real Prometheus scrapes a loaded node, and tells the lag of its consumers."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import trio
import yaml

import tailrace
from tailrace.testing.ports import free_port
from tailrace_server.serving.console import http_listener

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "tailrace.rules.yml"
DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "tailrace.json"
INSTALL = "apt-get install prometheus"
POLL_SECONDS = 0.05
SECONDS_MAX = 60.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason=f"needs prometheus: {INSTALL}"),
]


class Prometheus:
    """A Prometheus that scrapes some addresses many times a second, with the alert rules."""

    def __init__(self, directory, *targets):
        self._directory = directory
        self._targets = ["{}:{}".format(*target) for target in targets]
        self._port = free_port()

    @contextlib.contextmanager
    def running(self):
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "200ms"},
            "scrape_configs": [{"job_name": "tailrace", "static_configs": [{"targets": self._targets}]}],
            "rule_files": [str(RULES)],
        }
        path = self._directory / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        command = [
            *("prometheus", f"--config.file={path}", f"--storage.tsdb.path={self._directory / 'tsdb'}"),
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with open(self._directory / "prometheus.log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield self
        finally:
            process.kill()
            process.wait()

    def _get(self, path, **parameters):
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            error.close()  # it is starting
            return None

    async def get(self, path, **parameters):
        """Returns the data of an answer; None before there is one."""
        with contextlib.suppress(OSError):
            return await trio.to_thread.run_sync(functools.partial(self._get, path, **parameters))
        return None

    async def value(self, query):
        """Returns the only value of a query; None if it has none yet."""
        data = await self.get("query", query=query)
        values = [] if data is None else [float(each["value"][1]) for each in data["result"]]
        assert len(values) <= 1, f"{query}: {values}"
        return values[0] if values else None

    async def has_series(self, query):
        """Returns whether a query has a value that is a number. Fails if it is refused."""
        data = await self.get("query", query=query)
        return data is not None and any(each["value"][1] != "NaN" for each in data["result"])

    async def until(self, query, holds):
        """Asks until the value is as wanted; gives it."""
        while True:
            value = await self.value(query)
            if value is not None and holds(value):
                return value
            await trio.sleep(POLL_SECONDS)


@pytest.fixture
async def prometheus(running, tmp_path):
    async with http_listener(running.node, ("127.0.0.1", 0)) as address:
        with Prometheus(tmp_path, address).running() as started:
            yield started


async def keep_writing(feed):
    number = 0
    while True:
        async with feed.writer() as writer:
            for _ in range(100):
                number += 1
                await writer.put(b"%d" % number, b"v" * 100)
        await trio.sleep(POLL_SECONDS)


async def keep_reading(running):
    async with (
        tailrace.connect(running.url, name="reader", retry_for=60) as client,
        client.feed("orders").consume() as stream,
    ):
        async for _ in stream:
            pass


async def test_the_lag_of_a_consumer_that_stands_still_grows_and_that_of_one_that_reads_does_not(
    running, feed, prometheus, nursery
):
    nursery.start_soon(keep_reading, running)
    async with (
        tailrace.connect(running.url, name="stuck", retry_for=60) as client,
        client.feed("orders").consume(),
        trio.open_nursery() as writing,
    ):
        writing.start_soon(keep_writing, feed)
        assert await prometheus.until("up", bool) == 1
        lag = 'tailrace_consumer_lag_seconds{{consumer="{}",feed="orders"}}'.format
        first = await prometheus.until(lag("stuck"), lambda seconds: seconds > 0)
        await prometheus.until(lag("stuck"), lambda seconds: seconds > first + 1)
        assert await prometheus.until(f"deriv({lag('stuck')}[5s])", lambda slope: 0.8 < slope < 1.2)
        await prometheus.until("rate(tailrace_written_mutations_total[5s])", lambda rate: rate > 0)
        await prometheus.until('histogram_quantile(0.5, rate(tailrace_write_seconds_bucket{level="disk"}[5s]))', bool)
        writing.cancel_scope.cancel()
    await prometheus.until(lag("reader"), lambda seconds: seconds == 0)
    assert await prometheus.until('tailrace_consumer_lag_mutations{consumer="reader"}', lambda count: count == 0) == 0


def queries():
    """Each expression of the dashboard with its panel, as Grafana asks if all jobs and nodes are chosen."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "10s")
            query = re.sub(r"\$(job|instance)\b", ".+", query)
            assert "$" not in query, query
            found.append((panel["title"], query))
    return found


async def test_each_query_of_the_dashboard_has_series_of_a_loaded_set(members, tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(http_listener(each.node, ("127.0.0.1", 0))) for each in members]
        prometheus = stack.enter_context(Prometheus(tmp_path, *listeners).running())
        client = await stack.enter_async_context(members.client())
        feed = await client.create_feed("orders", partitions=1)
        load = await stack.enter_async_context(trio.open_nursery())
        load.start_soon(keep_writing, feed)
        load.start_soon(keep_reading, members)
        load.start_soon(keep_asking, client)
        missing = queries()
        assert len(missing) > 40
        with trio.move_on_after(SECONDS_MAX):
            while missing:
                missing = [each for each in missing if not await prometheus.has_series(each[1])]
                await trio.sleep(POLL_SECONDS)
        assert missing == []
        load.cancel_scope.cancel()


async def keep_asking(client):
    """Looks keys up, in a feed and in one that there is not."""
    while True:
        await client.feed("orders").get(b"1")
        with pytest.raises(tailrace.UnknownFeed):
            await client.feed("none").get(b"1")
        await trio.sleep(POLL_SECONDS)


async def test_every_rule_is_evaluated_without_an_error(running, feed, prometheus):
    await prometheus.until("tailrace_ready", bool)
    rules = []
    with trio.move_on_after(SECONDS_MAX):  # a scrape may come too late on a slow machine, and an alert is pending then
        while not rules or any(rule["health"] == "unknown" or rule["alerts"] for rule in rules):
            data = await prometheus.get("rules")
            rules = [] if data is None else [rule for group in data["groups"] for rule in group["rules"]]
            await trio.sleep(POLL_SECONDS)
    assert rules
    assert {rule["name"]: rule.get("lastError") for rule in rules} == {rule["name"]: None for rule in rules}
    assert not [rule["name"] for rule in rules if rule["alerts"]]
