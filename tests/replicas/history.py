"""What writers asked for and were told, and what that says about the history that there is in the end.

    acknowledged at quorum     it is there, where it was told, on the branch that it was told
    acknowledged at disk       likewise, unless its branch has ended below it: a promotion may lose it
    refused                    it is nowhere
    without an answer          it is there once, or nowhere

Every value is written once, so it names its write. Writers that go by versions (``base``) say what they have replaced:
nothing may have come in between.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.processes.history import Answers, Row
from tests.processes.violation import Violation

if TYPE_CHECKING:
    from tailrace import Version
    from tailrace.model.failover import FailoverLog


class Copy(NamedTuple):
    """All that a node has of a feed, by partition."""

    rows: dict[int, list[Row]]
    logs: dict[int, FailoverLog]


@dataclass(slots=True, eq=False)
class Write:
    """``base``: the version that it was to replace, () where it was to be the first. ``version`` once acknowledged."""

    key: bytes
    value: bytes
    level: str
    base: Version | tuple[()] | None = None
    version: Version | None = None
    refused: bool = False


class History(Answers):
    """Writers note here; ``check`` judges."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Write] = []
        self.floors: dict[int, int] = defaultdict(int)  # the greatest seq of a partition that nobody may lose any more
        self.newest: dict[bytes, Version] = {}  # of each key, likewise

    def ask(self, key: bytes, value: bytes, level: str, base: Version | tuple[()] | None = None) -> Write:
        """Somebody is about to write."""
        write = Write(key, value, level, base)
        self.writes.append(write)
        return write

    def acknowledge(self, write: Write, version: Version) -> None:
        """He was told where it is."""
        write.version = version
        if write.level == "quorum":
            self.keep(write.key, version)
        self.answered()

    def keep(self, key: bytes, version: Version) -> None:
        """Nobody may lose this any more."""
        partition, _, seq = version
        self.floors[partition] = max(self.floors[partition], seq)
        if key not in self.newest or self.newest[key].seq < seq:
            self.newest[key] = version

    # The verdict

    def check(self, copy: Copy) -> None:
        """Raises Violation where something is not as it was told."""
        places = _places(copy)
        for write in self.writes:
            place = places.get(write.value)
            if write.version is not None:
                self._check_acknowledged(write, place, copy)
            elif write.refused and place is not None:
                raise Violation(f"{write} was refused, and is at {place}")
            if place is not None and write.base is not None:
                _check_base(write, place, copy)
        strangers = places.keys() - {write.value for write in self.writes}
        if strangers:
            raise Violation(f"nobody has written {sorted(strangers)[:5]}")

    def _check_acknowledged(self, write: Write, place: tuple[int, int] | None, copy: Copy) -> None:
        assert write.version is not None
        partition, branch, seq = write.version
        if place == (partition, seq):
            if copy.logs[partition].branch_at(seq) != branch:
                raise Violation(f"{write} is there, and on another branch: {copy.logs[partition]}")
        elif place is not None:
            # Sent again after its branch had ended below it, it would have another version, and be told that one.
            raise Violation(f"{write} is at {place}")
        elif write.level == "quorum" or copy.logs[partition].branch_at(seq) == branch:
            raise Violation(f"{write} was acknowledged at {write.level}, and is lost; {copy.logs[partition]}")

    def lost(self, copy: Copy) -> int:
        """How many writes that were acknowledged at disk are gone, as a promotion may lose them."""
        places = _places(copy)
        return sum(write.version is not None and write.value not in places for write in self.writes)

    def figures(self) -> str:
        """What there was, for people."""
        told = [write.level for write in self.writes if write.version is not None]
        refused = sum(write.refused for write in self.writes)
        return (
            f"{told.count('quorum')} writes acknowledged at quorum, {told.count('disk')} at disk, {refused} refused, "
            f"{len(self.writes) - len(told) - refused} in doubt"
        )


def _places(copy: Copy) -> dict[bytes, tuple[int, int]]:
    """Partition and seq of each value. Violation where one is there twice."""
    found: dict[bytes, tuple[int, int]] = {}
    for partition, rows in copy.rows.items():
        for seq, row in enumerate(rows, 1):
            if row.value is not None:
                place = found.setdefault(row.value, (partition, seq))
                if place != (partition, seq):
                    raise Violation(f"{row.value!r} is there twice: at {place} and at {(partition, seq)}")
    return found


def _check_base(write: Write, place: tuple[int, int], copy: Copy) -> None:
    partition, seq = place
    before = next((s for s in range(seq - 1, 0, -1) if copy.rows[partition][s - 1].key == write.key), 0)
    expected = write.base[2] if write.base else 0
    if before != expected:
        raise Violation(f"{write} was made at {place}, when the key was at {before}")
    if write.base and copy.logs[partition].branch_at(before) != write.base[1]:
        raise Violation(f"{write} was made at {place}, and what it replaces is of another branch")


def compare(name: str, copy: Copy, other: str, expected: Copy) -> None:
    """Violation where one node has something else than another one."""
    if copy.logs != expected.logs:
        raise Violation(f"the failover logs differ: {name} has {copy.logs}, {other} has {expected.logs}")
    for partition, rows in expected.rows.items():
        found = copy.rows.get(partition, [])
        if found != rows:
            seq = next((s for s, (a, b) in enumerate(zip(found, rows, strict=False), 1) if a != b), None)
            raise Violation(
                f"partition {partition}: {name} has {len(found)} rows, {other} has {len(rows)}; the first that differs "
                f"is {seq}"
            )


def final_state(copy: Copy) -> dict[bytes, bytes]:
    """The present value of each key."""
    state: dict[bytes, bytes] = {}
    for rows in copy.rows.values():
        for row in rows:
            if row.value is None:
                state.pop(row.key, None)
            else:
                state[row.key] = row.value
    return state
