"""The members of a set as a node's status tells of them, for ``tailrace member``. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from tailrace.cli.errors import CommandFailed

# The seconds between two looks at how far a change of the members has come.
POLL_SECONDS = 0.5


class MemberRow(NamedTuple):
    """A member as a node's status tells of it.

    ``disk``: the placement id of its directory, "" without an answer. ``seat``: that of the directory which has its
    vote, "" if the seat is vacant. ``state`` is a sentence. ``change``: "joins" or "leaves" if it is to do that.
    """

    address: str
    disk: str
    seat: str
    state: str
    change: str = ""

    @property
    def votes(self) -> bool:
        """Whether its present directory has the vote."""
        return bool(self.disk) and self.disk == self.seat


def rows_of(details: dict[str, Any]) -> list[MemberRow]:
    """Returns the members by a node's status, in the order of their list. Raises CommandFailed outside of a set."""
    replication = details.get("replication", {})
    members, voters = replication.get("members"), replication.get("voters")
    if not members:
        raise CommandFailed("this node is no member of a set (--members, --cluster-store)")
    if not voters or not voters["epoch"]:
        raise CommandFailed(
            why_not_added(replication)
            or "the voters of this set are not recorded yet: its leader records them once a majority of the members "
            "runs this version"
        )
    others = {other["address"]: other for other in replication["others"]}
    replicas = {replica["placement_id"]: replica for replica in replication["replicas"]}
    rows = []
    joining, leaving = voters.get("joining", ()), voters.get("leaving", ())
    for address, seat in zip(members, [*voters["seats"], *("" for _ in joining)], strict=True):
        seen = others.get(address, {"answers": True} | _own(details, replication))
        disk = seen["placement_id"] if seen["answers"] else ""
        change = "joins" if address in joining else "leaves" if address in leaving else ""
        rows.append(MemberRow(address, disk, seat, _state(seen, seat, replicas.get(disk)), change))
    return rows


def why_not_added(replication: dict[str, Any]) -> str:
    """Returns the sentence that the asked node is in its own list only, and whom to ask; "" if others have it, too."""
    others = replication.get("others", ())
    own = next(iter(set(replication["members"]) - {other["address"] for other in others}), "")
    of_set = [other for other in others if other["answers"] and other.get("members") and not other["is_new"]]
    strangers = [other for other in of_set if own not in other["members"]]
    if not own or not strangers:
        return ""
    member = max(strangers, key=lambda other: (other["role"] == "leader", other["term"]))
    address, names = member["address"], ", ".join(member["members"])
    return (
        f"{own} is no member yet: {names} are. `tailrace member list --node {address}` lists them, and `tailrace "
        f"member add {own} --node {address}` adds it"
    )


def _own(details: dict[str, Any], replication: dict[str, Any]) -> dict[str, Any]:
    """Returns what a node would tell of itself."""
    return {name: replication[name] for name in ("role", "term", "leader")} | {"placement_id": details["placement_id"]}


def _state(seen: dict[str, Any], seat: str, replica: dict[str, Any] | None) -> str:
    if not seen["answers"]:
        return "does not answer, or its answers do not count (`tailrace status`)"
    if seen["role"] == "leader":
        return f"leads in term {seen['term']}"
    behind = "" if replica is None or not replica["lag"] else f", {replica['lag']:,} mutations behind"
    follows = f"follows {seen['leader']}{behind}" if seen["leader"] else "follows no leader"
    if seen["placement_id"] == seat:
        return follows
    if seen.get("ready"):
        return f"{follows}; has caught up, and waits for its seat"
    return f"{follows}; has no vote until it has caught up"


def seats_of(rows: list[MemberRow]) -> int:
    """Returns the number of seats, vacant ones included. A member that is to join has none."""
    return sum(row.change != "joins" for row in rows)


def row_of(rows: list[MemberRow], address: str) -> MemberRow:
    """Returns the row of the member at ``address``. Raises CommandFailed."""
    found = next((row for row in rows if row.address == address), None)
    if found is None:
        raise CommandFailed(f"{address} is no member: {', '.join(row.address for row in rows)} are")
    return found


class Phase(NamedTuple):
    """How far a change of the members has come: a sentence, and whether it is over."""

    text: str
    is_over: bool = False
