"""What ``tailrace status --watch`` shows beside the status: rates, and what is stuck. Pure.

A rate is the difference of two statuses over the node's own time between them, so a slow network falsifies none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from tailrace.cli.output import make_table, printable

# Longer lists are cut.
SHOWN_MAX = 16


class Rate(NamedTuple):
    """What happened to a feed in each second between two statuses; mutations that are not durable yet."""

    feed: str
    mutations: float
    durable: float
    waiting: int


def rates(before: dict[str, Any] | None, now: dict[str, Any]) -> list[Rate]:
    """Returns the rate of each feed, the busiest first; none without an earlier status of the same run of the node."""
    if before is None or "feeds" not in before or "feeds" not in now or before["node_id"] != now["node_id"]:
        return []
    seconds = now["uptime_s"] - before["uptime_s"]
    if seconds <= 0:  # it was started again
        return []
    earlier = {feed["feed_id"]: feed for feed in before["feeds"]}
    found = [
        Rate(
            feed["name"],
            (feed["mutations"] - earlier[feed["feed_id"]]["mutations"]) / seconds,
            (feed["durable"] - earlier[feed["feed_id"]]["durable"]) / seconds,
            feed["mutations"] - feed["durable"],
        )
        for feed in now["feeds"]
        if feed["feed_id"] in earlier
    ]
    return sorted(found, key=lambda rate: -abs(rate.mutations))


def stuck(details: dict[str, Any]) -> list[str]:
    """Returns what does not move, and why."""
    replication = details.get("replication", {})
    found = [details["failure"]] if details.get("failure") else []
    if replication.get("role") == "follower" and not replication.get("leader"):
        found.append("there is no leader to follow: no writes are taken")
    found += [f"{other['address']} does not answer" for other in replication.get("others", []) if not other["answers"]]
    found += [
        f"the follower at {replica['address']} is not connected, {replica['lag']:,} mutations behind"
        for replica in replication.get("replicas", [])
        if not replica.get("connected", True)
    ]
    found += [
        f"partition {each['partition']} of feed {each['feed']} cannot follow: {each['why']}"
        for each in replication.get("failing", [])
    ]
    store = details.get("cluster_store")
    if store and store["state"] != "connected":
        found.append(f"the cluster store is {store['state']}: {store['why']}")
    found += [
        f"the consumer {connection['name'] or connection['peer']} is slow"
        for connection in details.get("connections", [])
        if connection["slow"]
    ]
    return found


def render_moving(before: dict[str, Any] | None, now: dict[str, Any]) -> RenderableType:
    """Renders what is stuck, and the rates."""
    if "unreachable" in now:
        return Text()
    return Group(_stuck(stuck(now)), _rates(rates(before, now)))


def _stuck(found: list[str]) -> Text:
    if not found:
        return Text("nothing is stuck", style="green")
    more = [f"... and {len(found) - SHOWN_MAX:,} more"] if len(found) > SHOWN_MAX else []
    return Text("\n").join(Text(f"stuck: {printable(line)}", style="red") for line in found[:SHOWN_MAX] + more)


def _rates(found: list[Rate]) -> RenderableType:
    columns = [("feed", "left"), ("mutations/s", "right"), ("durable/s", "right"), ("not durable yet", "right")]
    rows = (
        (rate.feed, f"{rate.mutations:,.0f}", f"{rate.durable:,.0f}", f"{rate.waiting:,}") for rate in found[:SHOWN_MAX]
    )
    return make_table("Rates", columns, rows) if found else Text("")
