"""Compares everything that clients were told with the history that the feed has in the end."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from .history import Answer, Kind
from .violation import Violation

if TYPE_CHECKING:
    from .history import History, Look, Row, State, Write


class Verdict:
    """``rows`` are the whole history of each partition, in order of seq from 1 on."""

    def __init__(self, history: History, rows: dict[int, list[Row]]) -> None:
        self.history = history
        self.rows = rows
        self.seqs: dict[int, dict[bytes, list[int]]] = {}  # of each key of each partition
        self.places: dict[bytes, tuple[int, int]] = {}  # of each value
        self.first_seqs: dict[Write, int] = {}  # of the writes whose place is known
        self.lost = 0  # acknowledged writes below the level that lasts that are gone
        self._owners: dict[tuple[int, int], Write] = {}

    def check(self) -> None:
        """Raises Violation."""
        self._index()
        deletions = [write for write in self.history.writes if not self._locate(write)]
        self._match_deletions(deletions)
        for write, first_seq in self.first_seqs.items():
            self._check_time(write, first_seq)
            self._check_condition(write, first_seq)
        for pipeline in self.history.pipelines:
            # Which of two deletions of one key is whose cannot be told.
            puts = [write for write in pipeline if write.changes[0][1] is not None]
            places = [self.first_seqs[write] for write in puts if write in self.first_seqs]
            if places != sorted(places):
                raise Violation(f"the rows of a writer stand in another order than they were written: {places}")
        for look in self.history.looks:
            self._check_look(look)
        for state in self.history.states:
            self._check_state(state)

    def final_state(self) -> dict[bytes, tuple[int, int, bytes]]:
        """(partition, seq, value) of each key that is there."""
        state = {}
        for partition, rows in self.rows.items():
            for seq, row in enumerate(rows, 1):
                if row.value is None:
                    state.pop(row.key, None)
                else:
                    state[row.key] = (partition, seq, row.value)
        return state

    def _index(self) -> None:
        for partition, rows in self.rows.items():
            seqs = self.seqs[partition] = defaultdict(list)
            timestamp = 0
            for seq, row in enumerate(rows, 1):
                seqs[row.key].append(seq)
                if self.history.partition_of(row.key) != partition:
                    raise Violation(f"{partition}/{seq}: key {row.key!r} belongs elsewhere")
                if row.timestamp < timestamp:
                    raise Violation(f"{partition}/{seq}: time went back from {timestamp} to {row.timestamp}")
                timestamp = row.timestamp
                if row.value is not None:
                    place = self.places.setdefault(row.value, (partition, seq))
                    if place != (partition, seq):
                        raise Violation(f"one write is there twice: at {place} and at {(partition, seq)}")
        for (partition, seq), row in self.history.seen.items():
            if self.rows[partition][seq - 1 : seq] != [row]:
                raise Violation(f"{partition}/{seq} was delivered as {row}, and is not there any more")
        for partition, seq, branch in self.history.names:
            branches = self.history.branches[partition]
            if branch not in branches.names(seq):
                raise Violation(f"{partition}/{seq} was told to be of branch {branch.hex()}; see {branches.log}")

    # Writes

    def _locate(self, write: Write) -> bool:
        """Finds the rows of a write; returns False if they are deletions, and no client was told their seqs."""
        if write.answer is Answer.WRITTEN:
            assert write.versions is not None
            first_seq, branch = write.versions.first_seq, write.versions.branch
            if branch in self.history.branches[write.partition].names(first_seq):
                self._claim(write, first_seq)
                return True
            if write.lasting:
                raise Violation(f"{write} was acknowledged, and its branch has ended before it")
            write.answer = Answer.NOT_WRITTEN  # it was lost with its level, and may not come back with another version
            self.lost += 1
        found = [(index, self.places.get(value)) for index, (_, value) in enumerate(write.changes) if value is not None]
        if not found:
            return write.answer is Answer.NOT_WRITTEN
        index, place = found[0]
        if place is None:
            if write.answer is Answer.WRITTEN_WITHIN:
                raise Violation(f"{write} was acknowledged, and is not there")
            if any(other is not None for _, other in found):
                raise Violation(f"{write} is there in part: {found}")
            return True
        if write.answer is Answer.NOT_WRITTEN:
            raise Violation(f"{write} was refused, and is there, at {place}")
        self._claim(write, place[1] - index)
        return True

    def _claim(self, write: Write, first_seq: int) -> None:
        rows = self.rows[write.partition]
        found = tuple((row.key, row.value) for row in rows[first_seq - 1 : first_seq - 1 + len(write.changes)])
        if first_seq < 1 or found != write.changes:
            raise Violation(f"{write} should be at seq {first_seq}, where {found} is")
        self.first_seqs[write] = first_seq
        for seq in range(first_seq, first_seq + len(write.changes)):
            if self._owners.setdefault((write.partition, seq), write) is not write:
                raise Violation(f"two writes were told to be at {write.partition}/{seq}")

    def _match_deletions(self, writes: list[Write]) -> None:
        """Matches the other rows, all of them deletions, with writes whose seq was told roughly or not at all."""
        assert all(len(write.changes) == 1 for write in writes), (
            "an unplaced write of several rows has a put among them"
        )
        must: dict[tuple[int, bytes], list[Write]] = defaultdict(list)
        may: Counter[tuple[int, bytes]] = Counter()
        for write in writes:
            key = (write.partition, write.changes[0][0])
            if write.answer is Answer.WRITTEN_WITHIN:
                must[key].append(write)
            else:
                may[key] += 1
        for partition, rows in self.rows.items():
            for seq, row in enumerate(rows, 1):
                if (partition, seq) in self._owners:
                    continue
                if row.value is not None:
                    raise Violation(f"nobody has asked for {partition}/{seq}: {row}")
                owner = _first_to_expire(must[partition, row.key], seq)
                if owner is not None:
                    must[partition, row.key].remove(owner)
                    self.first_seqs[owner] = seq
                elif may[partition, row.key]:
                    may[partition, row.key] -= 1
                else:
                    raise Violation(f"nobody has asked for the deletion at {partition}/{seq}: {row}")
        for (partition, key), left in must.items():
            if left:
                raise Violation(f"{len(left)} deletions of {key!r} in partition {partition} are lost: {left}")

    def _check_time(self, write: Write, first_seq: int) -> None:
        if first_seq <= write.floor:
            raise Violation(f"{write} stands at {first_seq}, before what was there when it was asked for")
        if write.answer is Answer.WRITTEN_WITHIN:
            assert write.versions is not None
            if not write.versions.first_seq <= first_seq <= write.versions.last_seq:
                raise Violation(f"{write} stands at {first_seq}")

    def _check_condition(self, write: Write, first_seq: int) -> None:
        if write.condition is None:
            return
        ((key, _),) = write.changes
        before = self._version_seq(write.partition, key, first_seq - 1)
        match write.condition.kind:
            case Kind.IF_ABSENT:
                held = before is None
            case Kind.IF_PRESENT:
                held = before is not None
            case Kind.IF_VERSION:
                version = write.condition.version
                held = version is not None and before == version.seq
                names = self.history.branches[write.partition].names(before or 0)
                if held and version is not None and version.branch not in names:
                    raise Violation(
                        f"{write} was made at {first_seq}, and the version it replaces is of another branch"
                    )
        if not held:
            raise Violation(f"{write} was made at {first_seq}, when the key was at {before}")

    # Looks

    def _row_seq(self, partition: int, key: bytes, at: int) -> int | None:
        """The seq of the newest row of ``key`` up to ``at``."""
        seqs = self.seqs[partition].get(key, [])
        index = bisect_right(seqs, at)
        return seqs[index - 1] if index else None

    def _version_seq(self, partition: int, key: bytes, at: int) -> int | None:
        seq = self._row_seq(partition, key, at)
        return None if seq is None or self.rows[partition][seq - 1].value is None else seq

    def _check_look(self, look: Look) -> None:
        partition, version, rows = look.partition, look.version, self.rows[look.partition]
        later = [seq for seq in self.seqs[partition].get(look.key, []) if seq > look.floor]
        if version is None:
            was_absent = self._version_seq(partition, look.key, look.floor) is None
            if not was_absent and all(rows[seq - 1].value is not None for seq in later):
                raise Violation(f"{look}: the key was there all the time")
            return
        if version.seq not in (self._version_seq(partition, look.key, look.floor), *later):
            raise Violation(f"{look}: that is not what the key was at any time since")
        row = rows[version.seq - 1]
        if row.value is None or look.value not in (None, row.value):
            raise Violation(f"{look}: the history has {row}")

    def _check_state(self, state: State) -> None:
        """Requires that the state was this at one moment, not before the client asked."""
        rows = self.rows[state.partition]
        begin = state.floor if state.at is None else state.at
        now: dict[bytes, bytes] = {}
        for row in rows[:begin]:
            _apply(now, row)
        wrong = {key for key in now.keys() | state.values.keys() if now.get(key) != state.values.get(key)}
        if state.at is not None and state.at < state.floor:
            raise Violation(f"{state.what} is at {state.at} of partition {state.partition}, not at {state.floor}")
        for row in rows[begin:] if state.at is None else ():
            if not wrong:
                return
            if row.value == state.values.get(row.key):
                wrong.discard(row.key)
            else:
                wrong.add(row.key)
        if wrong:
            raise Violation(
                f"{state.what} of partition {state.partition}, asked for at {state.floor}, known to be at {state.at}, "
                f"was never the state; {len(wrong)} keys differ: {sorted(wrong)[:5]}"
            )


def _first_to_expire(writes: list[Write], seq: int) -> Write | None:
    """Returns the write that may stand at ``seq`` and whose range ends first."""
    possible = [w for w in writes if w.versions is not None and max(w.versions.first_seq, w.floor + 1) <= seq]
    possible = [w for w in possible if w.versions is not None and seq <= w.versions.last_seq]
    return min(possible, key=lambda write: write.versions.last_seq if write.versions is not None else 0, default=None)


def _apply(state: dict[bytes, bytes], row: Row) -> None:
    if row.value is None:
        state.pop(row.key, None)
    else:
        state[row.key] = row.value
