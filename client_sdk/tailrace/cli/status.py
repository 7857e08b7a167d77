"""``tailrace status``: prints the state of a node, its feeds and its connections."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

import trio
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tailrace.cli.options import DEFAULT_URL, Json, Node, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json, printable
from tailrace.cli.tls_options import uses_node
from tailrace.cli.watching import render_moving
from tailrace.errors import Retryable
from tailrace.model.times import to_text
from tailrace.trio.client import Client

WATCH_INTERVAL_SECONDS = 1.0
# Longer tables are cut; --json prints all rows.
PARTITIONS_SHOWN_MAX = 64
BEGUN_SHOWN_MAX = 3


@uses_node
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the status, rates and what is stuck every second, until Ctrl-C.")
    ] = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Show the state of a node, its feeds and its connections."""
    node_target = target("status", url, node, token, "any")

    async def run() -> None:
        async with node_target.client() as client:
            if not watch:
                _print(make_console(), (await client.status()).details, json)
                return
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_at_signal, signals, nursery.cancel_scope)
                    await _watch(client, json)

    trio.run(run)


async def _cancel_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()


async def _watch(client: Client, json: bool) -> None:
    console = make_console()
    if json or not console.is_terminal:
        async for details in _every_second(client):
            _print(console, details, json)
            sys.stdout.flush()
        return
    before = None
    with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="ellipsis") as live:
        async for details in _every_second(client):
            live.update(Group(render_moving(before, details), render(details)), refresh=True)
            before = details


async def _every_second(client: Client) -> AsyncIterator[dict[str, Any]]:
    """Yields the status; if the node does not answer, an object with the reason alone."""
    while True:
        try:
            yield (await client.status()).details
        except Retryable as error:
            yield {"unreachable": str(error)}
        await trio.sleep(WATCH_INTERVAL_SECONDS)


def _print(console: Console, details: dict[str, Any], json: bool) -> None:
    if json:
        print_json(details)
    else:
        console.print(render(details))


def render(details: dict[str, Any]) -> RenderableType:
    """Renders a node's status, as ``/api/status`` returns it, as text and tables."""
    if "unreachable" in details:
        return Text(f"no answer: {printable(details['unreachable'])}", style="red")
    parts = [_summary(details), _feeds(details["feeds"])]
    # The status of an older node has no replicas.
    replication = details.get("replication", {})
    if replication.get("replicas"):
        parts.append(_replicas(replication["replicas"]))
    if any(feed.get("states") for feed in details["feeds"]):
        parts.append(_partitions(details["feeds"], in_set=bool(replication.get("members"))))
    if details.get("consumers"):  # an older node tells none
        parts.append(consumers_table(details["consumers"]))
    return Group(*parts, _connections(details["connections"]))


def _summary(details: dict[str, Any]) -> Text:
    healthy = Text("healthy", style="green") if details["healthy"] else Text("NOT healthy", style="bold red")
    journal = details["journal"]
    lines = [
        Text.assemble(f"{_cluster(details)}, {details['software']}, node {details['node_id'][:8]}, ", healthy),
        Text(f"up {show_seconds(details['uptime_s'])}, data in {printable(details['data'])}"),
        Text(
            f"journal: {show_bytes(journal['bytes'])} in {journal['files']} files, "
            f"{_usual_sync(journal['usual_sync_seconds'])}"
        ),
    ]
    if details.get("tls"):
        lines.append(_tls(details["tls"]))
    replication = details.get("replication", {})
    if replication:
        lines.append(Text(printable(_role(replication))))
    if replication.get("members"):
        lines.append(Text(printable(_versions(details["software"], replication))))
    if replication.get("doing"):
        lines.append(Text(f"doing: {printable(replication['doing'])}"))
    if details.get("cluster_store"):
        lines += _cluster_store(details["cluster_store"])
    lines += [Text(printable(line)) for line in _begun_anew(replication.get("begun_anew", []))]
    if replication.get("promotion"):
        lines.append(Text(f"promote: {printable(replication['promotion'])}"))
    if details["failure"] is not None:
        lines.insert(1, Text(printable(details["failure"]), style="red"))
    storage = details.get("storage", {})
    if storage.get("checkpoints"):
        kept = show_bytes(storage["checkpoint_bytes"])
        lines.append(Text(f"checkpoints: {storage['checkpoints']}, which keep {kept} of replaced segments"))
    if details["unclean_start"] is not None:
        lines.append(Text(f"the stop before this start was not clean: {printable(details['unclean_start'])}"))
    return Text("\n").join(lines)


def _tls(tls: dict[str, Any]) -> Text:
    """Returns a line on the certificate in use, red if it has expired or if new files cannot be used."""
    ends_s = tls["expires_in_s"]
    when = f"expires in {show_seconds(ends_s)}" if ends_s > 0 else "has EXPIRED"
    text = f"TLS: the certificate {when}, at {tls['expires_at']}"
    if tls["error"]:
        text += f"; the new files cannot be used: {tls['error']}"
    return Text(printable(text), style="red" if tls["error"] or ends_s <= 0 else "")


def _begun_anew(begun: list[dict[str, Any]]) -> list[str]:
    """Returns lines on the partitions that a follower has begun anew, the first few."""
    lines = [_begun_line(each) for each in begun[:BEGUN_SHOWN_MAX]]
    return [*lines, f"... and {len(begun) - BEGUN_SHOWN_MAX:,} more"] if len(begun) > BEGUN_SHOWN_MAX else lines


def _begun_line(begun: dict[str, Any]) -> str:
    partition = f"partition {begun['partition']} of feed {begun['feed']}"
    if begun["why"] == "damaged":
        return f"copied anew: {partition}, which could not be read here, has the segments of its leader"
    return (
        f"begun anew: {partition} stood at seq {begun['stood_at']:,}, and its leader has {begun['why']} rows below seq "
        f"{begun['kept_from']:,}"
    )


def _cluster(details: dict[str, Any]) -> str:
    """Names the cluster, by its name if it has one, and by the beginning of its id."""
    name = printable(details.get("cluster", ""))
    return f"cluster {name} ({details['cluster_id'][:8]})" if name else f"cluster {details['cluster_id'][:8]}"


def _usual_sync(seconds: float) -> str:
    """Returns the median duration of the last fsyncs, which is 0.0 before the first ones."""
    if not seconds:
        return "too few fsyncs yet to tell how long one takes"
    milliseconds = 1000 * seconds
    return f"fsync usually {f'{milliseconds:.2f}' if milliseconds >= 0.01 else 'below 0.01'} ms"


def _versions(own: str, replication: dict[str, Any]) -> str:
    """Returns which software each member of the set runs, which shows how far a rolling update has come."""
    others = {other["address"]: other for other in replication["others"]}
    found = [(address, others.get(address, {"answers": True, "software": own})) for address in replication["members"]]
    told = [(address, _software(other)) for address, other in found]
    if len({software for _, software in told}) == 1:
        return f"all members: {told[0][1]}"
    return "members: " + ", ".join(f"{address} {software}" for address, software in told)


def _software(member: dict[str, Any]) -> str:
    if not member["answers"]:
        return "does not answer"
    return member.get("software") or "an earlier version"


def _role(replication: dict[str, Any]) -> str:
    """Returns a sentence on the role of the node in its set."""
    if replication["members"] and replication.get("default_level"):
        return f"{_leading(replication)}; writes are at level {replication['default_level']} by default"
    return _leading(replication)


def _leading(replication: dict[str, Any]) -> str:
    among = f" in a set of {len(replication['members'])}" if replication["members"] else ""
    if replication["role"] == "leader":
        return f"leads{among} in term {replication['term']}"
    follows = f"follows {replication['leader']}" if replication["leader"] else "knows no leader to follow"
    return f"{follows}{among}, term {replication['term']}"


def _cluster_store(store: dict[str, Any]) -> list[Text]:
    """Returns lines on the coordinator: its state, and in a bad one what goes on and what waits."""
    state = f"cluster store {store['store']}: {store['state']} for {show_seconds(store['since_s'])}"
    lines = [f"{state}{': ' if store['why'] else ''}{store['why']}"]
    if store["state"] != "connected":
        lines.append(f"goes on: {store['goes_on']}; waits: {store['waits']}")
        if store.get("to_do"):  # an older node tells none
            lines.append(f"to do: {store['to_do']}")
    last = store.get("last_trouble")
    if last is not None:
        why = f": {last['why']}" if last["why"] else ""
        ago, lasted = show_seconds(last["ago_s"]), show_seconds(last["lasted_s"])
        lines.append(f"the cluster store was {last['state']} until {ago} ago, for {lasted}{why}")
    if store["case"] != "voter":
        lines.append(f"members: {store['step']}")
    return [Text(printable(line)) for line in lines]


def _replicas(replicas: list[dict[str, Any]]) -> RenderableType:
    columns = [
        ("replica", "left"),
        ("at", "left"),
        ("votes", "left"),
        ("connected", "left"),
        ("partitions", "right"),
        ("behind", "right"),
        ("last acknowledged", "right"),
    ]
    rows = (
        (
            replica["placement_id"][:8],
            replica["address"],
            "yes" if replica["votes"] else "no",
            "yes" if replica.get("connected", True) else "no",
            replica["partitions"],
            f"{replica['lag']:,}",
            "never" if replica["since_ack_s"] is None else f"{show_seconds(replica['since_ack_s'])} ago",
        )
        for replica in replicas
    )
    return make_table("Replicas", columns, rows)


def _partitions(feeds: list[dict[str, Any]], *, in_set: bool) -> RenderableType:
    columns = [
        ("feed", "left"),
        ("partition", "right"),
        ("role", "left"),
        ("term", "right"),
        ("branches", "right"),
        ("durable", "right"),
        ("quorum", "right"),
        ("visible", "right"),
        ("followers behind", "left"),
    ]
    rows = [
        (
            feed["name"],
            state["id"],
            state["role"],
            state["term"],
            len(state["branches"]),
            f"{state['durable']:,}",
            f"{state['quorum']:,}" if in_set else "-",
            f"{state['visible']:,}",
            ", ".join(_behind(follower) for follower in state["followers"]),
        )
        for feed in feeds
        for state in feed["states"]
    ]
    more = f", the first {PARTITIONS_SHOWN_MAX} of {len(rows):,}" if len(rows) > PARTITIONS_SHOWN_MAX else ""
    return make_table(f"Partitions{more}", columns, rows[:PARTITIONS_SHOWN_MAX])


def _behind(follower: dict[str, Any]) -> str:
    return f"{follower['lag']:,}" + ("" if follower.get("connected", True) else " (not connected)")


def _feeds(feeds: list[dict[str, Any]]) -> RenderableType:
    columns = [
        ("feed", "left"),
        ("partitions", "right"),
        ("retention", "left"),
        ("mutations", "right"),
        ("not durable yet", "right"),
        ("memory", "right"),
    ]
    rows = (
        (
            feed["name"],
            feed["partitions"],
            feed["retention"],
            f"{feed['mutations']:,}",
            f"{feed['mutations'] - feed['durable']:,}",
            show_bytes(feed["memory_bytes"]),
        )
        for feed in feeds
    )
    return make_table("Feeds", columns, rows) if feeds else Text("\nno feeds")


def consumers_table(consumers: list[dict[str, Any]]) -> RenderableType:
    """Renders consumers with a name and groups, as the status tells them."""
    columns = [
        ("feed", "left"),
        ("consumer", "left"),
        ("kind", "left"),
        ("partitions", "right"),
        ("behind", "right"),
        ("last commit", "right"),
        ("generation", "right"),
        ("without owner", "right"),
        ("read by", "left"),
    ]
    rows = (
        (
            consumer["feed"],
            consumer["name"],
            consumer["kind"],
            consumer["partitions"],
            f"{consumer['lag']:,}",
            to_text(consumer["committed_us"]),
            consumer.get("generation", ""),  # an older node tells none
            consumer.get("unowned", ""),
            ", ".join(member["peer"] for member in consumer["members"]) or "none",
        )
        for consumer in consumers
    )
    return make_table("Consumers", columns, rows)


def _connections(connections: list[dict[str, Any]]) -> RenderableType:
    columns = [
        ("peer", "left"),
        ("name", "left"),
        ("age", "right"),
        ("streams", "right"),
        ("in flight", "right"),
        ("", "left"),
    ]
    rows = (
        (
            connection["peer"],
            connection["name"],
            show_seconds(connection["age_s"]),
            connection["streams"],
            show_bytes(connection["outstanding_bytes"] + connection["backlog_bytes"]),
            "slow" if connection["slow"] else "",
        )
        for connection in connections
    )
    return make_table("Connections", columns, rows)


def show_bytes(count: float) -> str:
    """Formats a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def show_seconds(seconds: float) -> str:
    """Formats a duration for people, in its two largest units."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
