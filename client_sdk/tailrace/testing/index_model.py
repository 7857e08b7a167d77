"""A plain dict beside an index under test: after each call the index has to hold what the dict holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.indexes import AppliedMutation, Index, PreparedIndex
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.testing.index_calls import checkpoint_at, mutation

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Sequence

KEYS = (b"a", b"b", b"c", b"d", b"e")
TEXTS = (None, "alpha beta", "beta gamma", "", "gamma gamma delta")
STEPS_MAX = 15
CHANGES_MAX = 4


def random_steps(rnd: random.Random) -> list[tuple[Any, ...]]:
    """Returns calls for `IndexModel.take`. Within a batch no key comes twice, as the contract says."""
    return [_random_step(rnd) for _ in range(rnd.randint(1, STEPS_MAX))]


def _random_step(rnd: random.Random) -> tuple[Any, ...]:
    name = rnd.choice(["apply", "apply", "apply", "die", "late", "rollback", "clear", "reopen"])
    changes = [(key, rnd.choice(TEXTS)) for key in rnd.sample(KEYS, rnd.randint(1, CHANGES_MAX))]
    arguments: dict[str, tuple[Any, ...]] = {
        "apply": (changes,),
        "die": (changes,),
        "late": changes[0],
        "rollback": (rnd.randint(0, 3),),
        "clear": (rnd.randint(0, 1),),
    }
    return (name, *arguments.get(name, ()))


class IndexModel:
    """The expected rows of an index that is opened, as {key: mutation}. Every key has one of two partitions.

    Args:
        index: The index.
        require: Raises AssertionError unless an index holds exactly these mutations.
    """

    def __init__(self, index: Index, require: Callable[[Index, Iterable[AppliedMutation]], None]) -> None:
        self._index = index
        self._require = require
        self._rows: dict[bytes, AppliedMutation] = {}
        self._seqs: dict[int, int] = {}
        self._checkpoint: Checkpoint | None = None
        self._has_gone_back = False  # by itself, to a point of its own: the model knows its rows no more

    def take(self, steps: Sequence[tuple[Any, ...]]) -> None:
        """Makes each call, and compares the rows after it."""
        for name, *arguments in steps:
            getattr(self, f"_{name}")(*arguments)
            if self._has_gone_back:
                return
            self._require(self._index, self._rows.values())
        self._reopen()

    def _next(self, key: bytes, text: str | None) -> AppliedMutation:
        partition = key[0] % 2
        self._seqs[partition] = self._seqs.get(partition, 0) + 1
        return mutation(key, text, self._seqs[partition], partition)

    def _hold(self, batch: Iterable[AppliedMutation]) -> None:
        for row in batch:
            if row.value is None:
                self._rows.pop(row.key, None)
            else:
                self._rows[row.key] = row

    def _apply(self, changes: Sequence[tuple[bytes, str | None]]) -> None:
        batch = [self._next(key, text) for key, text in changes]
        self._checkpoint = checkpoint_at(self._seqs) if self._seqs else None
        self._index.apply(batch, checkpoint_at(self._seqs))
        self._hold(batch)

    def _die(self, changes: Sequence[tuple[bytes, str | None]]) -> None:
        if isinstance(self._index, PreparedIndex):
            return  # its rows may be half applied
        seqs = dict(self._seqs)

        def batch() -> Iterator[AppliedMutation]:
            yield from [self._next(key, text) for key, text in changes]
            raise InterruptedError

        try:
            self._index.apply(batch(), checkpoint_at({9: 9}))  # type: ignore[arg-type]
        except InterruptedError:
            self._seqs = seqs
            return
        raise AssertionError("apply() has returned though its mutations raised an error")

    def _late(self, key: bytes, text: str | None) -> None:
        """Applies a mutation that is older than the one that is held of the key."""
        if key in self._rows and self._rows[key].seq > 1:
            self._index.apply([mutation(key, text, self._rows[key].seq - 1, key[0] % 2)], checkpoint_at(self._seqs))
            self._checkpoint = checkpoint_at(self._seqs)

    def _rollback(self, back: int) -> None:
        """Goes ``back`` seqs in partition 0. Every key above gets an older value, or none."""
        if 0 not in self._seqs:
            return
        target = max(0, self._seqs[0] - back)
        self._has_gone_back = self._index.rollback(0, target) is not None
        if self._has_gone_back:
            return
        above = [row for row in self._rows.values() if row.partition == 0 and row.seq > target]
        read_again = [
            row._replace(seq=1, timestamp=7) if row.key != b"b" else row._replace(value=None) for row in above
        ]
        self._seqs[0] = target
        self._checkpoint = checkpoint_at(self._seqs)
        self._index.apply(read_again, self._checkpoint)
        self._hold(read_again)

    def _clear(self, partition: int) -> None:
        self._index.clear(partition)
        self._rows = {key: row for key, row in self._rows.items() if row.partition != partition}
        self._seqs.pop(partition, None)
        if self._checkpoint is not None:
            positions = self._checkpoint.positions.without(partition)
            self._checkpoint = Checkpoint(positions) if positions else None

    def _reopen(self) -> None:
        self._index.close()
        found = self._index.open()
        positions = [None if checkpoint is None else checkpoint.positions for checkpoint in (found, self._checkpoint)]
        assert positions[0] == positions[1], f"open() returned {found}, and the checkpoint was {self._checkpoint}"
