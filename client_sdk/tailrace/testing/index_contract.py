"""The contract of an index as tests, for indexes of Tailrace and for those of users."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.consuming.ring import RingChange
from tailrace.errors import BadPosition, NotOwner
from tailrace.indexes import AppliedMutation, Index, PreparedIndex, SharedIndex
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, FailoverLog
from tailrace.model.position import Position
from tailrace.testing.index_calls import checkpoint_at, chunk, mutation, ring_of
from tailrace.testing.index_model import IndexModel, random_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# Sequences of calls that are compared with a dict. Each takes milliseconds in a store of files.
SEEDS = range(10)


class IndexContract:
    """The contract of `tailrace.indexes.Index` as tests. A subclass says how an index is made and read:

        class TestMyIndex(tailrace.testing.IndexContract):
            def make_index(self, path):
                return MyIndex(path / "index")

            def rows(self, index):
                return dict(index.select_all())

    Values are JSON objects with the members "title" and "text".

    Attributes:
        is_persistent: A second index over the same path has what the first one stored.
        keeps_rings: The index stores rings. Without them it is filled again after a rollback.
        checks_feed: `Index.apply` refuses a checkpoint of another feed with `tailrace.BadPosition`.
    """

    is_persistent = True
    keeps_rings = True
    checks_feed = True

    def make_index(self, path: Path) -> Index:
        """Makes the index, and does not open it.

        Args:
            path: A folder for its files. Several indexes are made over the same folder, one after the other.

        Returns:
            The index.

        Raises:
            NotImplementedError: The subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define make_index(self, path)")

    def rows(self, index: Any) -> dict[bytes, bytes]:
        """Reads everything that the index holds.

        Args:
            index: The opened index.

        Returns:
            The value of each key. An index that keeps a part of the values returns what it would make of them again.

        Raises:
            NotImplementedError: The subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define rows(self, index)")

    def versions(self, index: Any) -> dict[bytes, tuple[int, int, int]] | None:
        """Reads the versions of the rows, if the index keeps them.

        Args:
            index: The opened index.

        Returns:
            The partition, seq and timestamp of each key. By default None, and they are not compared.
        """
        return None

    def check(self, index: Any) -> None:
        """Checks what has to agree inside of the index; by default nothing. Tests call it after changes.

        Args:
            index: The opened index.
        """

    @pytest.fixture
    def index(self, tmp_path: Path) -> Iterator[Index]:
        """Makes an index and opens it for a test."""
        index = self.make_index(tmp_path)
        with contextlib.closing(index):
            assert index.open() is None, "a new index has no checkpoint"
            yield index

    def _require(self, index: Index, mutations: Iterable[AppliedMutation]) -> None:
        """Raises AssertionError unless the index holds exactly these mutations."""
        expected = {row.key: row for row in mutations}
        assert self.rows(index) == {key: row.value for key, row in expected.items()}
        versions = self.versions(index)
        if versions is not None:
            assert versions == {key: (row.partition, row.seq, row.timestamp) for key, row in expected.items()}

    def _reopen(self, index: Index) -> Checkpoint | None:
        index.close()
        return index.open()

    def _seqs(self, index: Index) -> dict[int, int]:
        """Returns the stored seqs by partition, after the index was opened again."""
        found = self._reopen(index)
        return {} if found is None else {p: position.seq for p, position in found.positions.items()}

    def _went_back(self, index: Index, partition: int, seq: int) -> bool:
        """Rolls back. Returns whether the index went to a point by itself, which is checked then."""
        point = index.rollback(partition, seq)
        if point is None:
            return False
        assert 0 <= point <= seq, f"rollback(..., {seq}) returned {point}, which is no point at or below"
        if point:
            assert self._seqs(index)[partition] == point, "open() has to return the point that rollback returned"
        return True

    # Rows and checkpoints

    def test_it_is_an_index(self, index: Index) -> None:
        assert isinstance(index, Index), "it lacks a method of tailrace.indexes.Index"

    def test_a_new_one_holds_nothing(self, index: Index) -> None:
        assert self._reopen(index) is None
        assert self.rows(index) == {}

    def test_what_was_applied_is_there_with_its_checkpoint(self, index: Index) -> None:
        a, b = mutation(b"a", "one", 1), mutation(b"b", "two", 1, partition=3)
        index.apply([a, b], checkpoint_at({0: 1, 3: 1}))
        self._require(index, [a, b])
        assert self._reopen(index) == checkpoint_at({0: 1, 3: 1})
        self._require(index, [a, b])

    def test_it_is_there_for_another_process(self, index: Index, tmp_path: Path) -> None:
        if not self.is_persistent:
            pytest.skip("the index is not persistent")
        a = mutation(b"a", "one", 1)
        index.apply([a], checkpoint_at({0: 1}))
        other = self.make_index(tmp_path)  # the first one is not closed, as after a crash
        with contextlib.closing(other):
            assert other.open() == checkpoint_at({0: 1})
            self._require(other, [a])
            self.check(other)

    def test_a_later_value_replaces_an_earlier_one(self, index: Index) -> None:
        index.apply([mutation(b"a", "one", 1)], checkpoint_at({0: 1}))
        second = mutation(b"a", "two", 2)
        index.apply([second], checkpoint_at({0: 2}))
        self._require(index, [second])
        self.check(index)

    def test_a_deletion_removes_the_row(self, index: Index) -> None:
        index.apply([mutation(b"a", "one", 1), mutation(b"b", "two", 2)], checkpoint_at({0: 2}))
        index.apply([mutation(b"a", None, 3), mutation(b"never there", None, 4)], checkpoint_at({0: 4}))
        assert self.rows(index).keys() == {b"b"}
        self.check(index)

    @pytest.mark.parametrize("text", ["older", None])
    def test_what_is_older_is_passed_over(self, index: Index, text: str | None) -> None:
        newest = mutation(b"a", "newest", 5)
        index.apply([newest], checkpoint_at({0: 5}))
        index.apply([mutation(b"a", text, 4)], checkpoint_at({0: 5}))
        self._require(index, [newest])
        self.check(index)

    def test_seqs_of_different_partitions_are_not_compared(self, index: Index) -> None:
        """A key that has moved to a new partition counts its seqs anew."""
        index.apply([mutation(b"a", "old", 500), mutation(b"b", "old", 501)], checkpoint_at({0: 501}))
        moved = mutation(b"a", "new", 1, partition=7)
        index.apply([moved, mutation(b"b", None, 2, partition=7)], checkpoint_at({0: 501, 7: 2}))
        self._require(index, [moved])

    def test_the_same_again_changes_nothing(self, index: Index) -> None:
        batch, checkpoint = [mutation(b"a", "one", 1), mutation(b"b", None, 2)], checkpoint_at({0: 2})
        index.apply(batch, checkpoint)
        before = self.rows(index)
        index.apply(batch, checkpoint)
        assert self.rows(index) == before
        self.check(index)

    def test_a_checkpoint_alone(self, index: Index) -> None:
        index.apply([], checkpoint_at({0: 7}))
        assert self._reopen(index) == checkpoint_at({0: 7})
        assert self.rows(index) == {}

    def test_a_checkpoint_keeps_all_of_its_positions(self, index: Index) -> None:
        log = FailoverLog([(b"v" * 16, 9, 40), (b"u" * 16, 2, 0)])
        full, unknown = Position.at(log, 90, 80, 100, 95), Position.at(log, 5, 5, SNAPSHOT_LAST_UNKNOWN)
        checkpoint = checkpoint_at({0: full, 1: unknown, 2: 7})
        index.apply([], checkpoint)
        assert self._reopen(index) == checkpoint

    def test_a_checkpoint_is_the_whole_truth(self, index: Index) -> None:
        index.apply([], checkpoint_at({0: 7, 1: 8, 2: 9}))
        index.apply([], checkpoint_at({1: 10}))
        assert self._reopen(index) == checkpoint_at({1: 10})
        index.apply([], checkpoint_at({}))
        assert self._reopen(index) is None

    def test_another_feed_is_refused(self, index: Index) -> None:
        if not self.checks_feed:
            pytest.skip("the index does not compare feeds")
        a, b = mutation(b"a", "one", 1), mutation(b"b", "x", 2)
        index.apply([a], checkpoint_at({0: 1}))
        with pytest.raises(BadPosition, match="another feed"):
            index.apply([b], checkpoint_at({0: 2}, feed=b"g" * 16))
        with pytest.raises(BadPosition, match="belong to cluster"):
            index.apply([b], checkpoint_at({0: 2}, cluster=b"d" * 16))
        self._require(index, [a])
        assert self._reopen(index) == checkpoint_at({0: 1})

    # Crashes

    def test_dying_before_the_commit_leaves_rows_and_checkpoint_as_they_were(self, index: Index) -> None:
        if isinstance(index, PreparedIndex):
            pytest.skip("rows of a PreparedIndex may be half applied")
        a = mutation(b"a", "one", 1)
        index.apply([a], checkpoint_at({0: 1}))

        def dies_half_way() -> Iterator[AppliedMutation]:
            yield mutation(b"a", "two", 2)
            yield mutation(b"b", "three", 3)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            index.apply(dies_half_way(), checkpoint_at({0: 3}))  # type: ignore[arg-type]
        self._require(index, [a])
        assert self._reopen(index) == checkpoint_at({0: 1})
        index.apply([mutation(b"a", None, 2)], checkpoint_at({0: 3}))
        assert self.rows(index) == {}

    def test_prepare_stores_the_checkpoint_and_changes_no_row(self, index: Index) -> None:
        if not isinstance(index, PreparedIndex):
            pytest.skip("the index has no method prepare")
        a = mutation(b"a", "one", 1)
        index.apply([a], checkpoint_at({0: 1}))
        index.prepare(checkpoint_at({0: 5}))
        assert self._reopen(index) == checkpoint_at({0: 5})
        self._require(index, [a])

    def test_close_may_be_called_twice(self, index: Index) -> None:
        index.close()
        index.close()
        assert index.open() is None

    # Clearing and rollbacks

    def test_clear_forgets_one_partition(self, index: Index) -> None:
        kept = mutation(b"c", "three", 1, partition=1)
        index.apply([mutation(b"a", "one", 1), mutation(b"b", "two", 2), kept], checkpoint_at({0: 2, 1: 1}))
        index.clear(0)
        self._require(index, [kept])
        assert self._reopen(index) == checkpoint_at({1: 1})
        self.check(index)
        again = mutation(b"a", "anew", 1)
        index.apply([again], checkpoint_at({0: 1, 1: 1}))
        self._require(index, [again, kept])

    def test_clear_of_everything_frees_the_index_for_another_feed(self, index: Index) -> None:
        index.clear(0)
        index.apply([mutation(b"a", "one", 1)], checkpoint_at({0: 1}))
        index.clear(0)
        assert self._reopen(index) is None
        index.apply([], checkpoint_at({0: 3}, feed=b"g" * 16))
        assert self._reopen(index) == checkpoint_at({0: 3}, feed=b"g" * 16)

    def test_rollback_keeps_what_is_held_and_lets_anything_replace_what_is_above(self, index: Index) -> None:
        below, above, gone = mutation(b"a", "common", 100), mutation(b"b", "lost", 150), mutation(b"c", "lost", 151)
        other = mutation(b"d", "other", 150, partition=1)
        index.apply([below, above, gone, other], checkpoint_at({0: 151, 1: 150}))
        if self._went_back(index, 0, 100):
            return
        assert self.rows(index) == {row.key: row.value for row in (below, above, gone, other)}
        self._reopen(index)
        read_again = mutation(b"b", "from before", 90)
        older = [mutation(b"a", "older", 99), mutation(b"d", "older", 149, partition=1)]
        index.apply([read_again, mutation(b"c", None, 120), *older], checkpoint_at({0: 100, 1: 150}))
        self._require(index, [below, read_again, other])
        self.check(index)

    def test_rollback_may_be_repeated(self, index: Index) -> None:
        index.apply([mutation(b"a", "one", 50), mutation(b"b", "two", 60)], checkpoint_at({0: 60}))
        for seq in (55, 55, 40):
            if self._went_back(index, 0, seq):
                return
        a = mutation(b"a", "forty", 40)
        index.apply([a], checkpoint_at({0: 40}))
        assert self.rows(index)[b"a"] == a.value

    @pytest.mark.parametrize("seed", SEEDS)
    def test_any_sequence_of_calls_leaves_what_a_dict_would_hold(self, index: Index, seed: int) -> None:
        IndexModel(index, self._require).take(random_steps(random.Random(seed)))
        self.check(index)

    # Rings

    def _require_rings(self) -> None:
        if not self.keeps_rings:
            pytest.skip("the index keeps no rings")

    def test_rings_are_stored_with_the_rows(self, index: Index) -> None:
        self._require_rings()
        a, b, c = chunk((1, b"a"), (2, b"b")), chunk((3, b"a")), chunk((1, b"x"))
        positions = checkpoint_at({0: 2, 1: 1}).positions
        index.apply([mutation(b"a", "one", 1)], Checkpoint(positions, {0: RingChange(0, None, (a,))}))
        index.apply([], Checkpoint(positions, {0: RingChange(0, None, (b,)), 1: RingChange(0, None, (c,))}))
        found = self._reopen(index)
        assert found is not None
        assert found.positions == positions
        assert ring_of(found) == (0, [(1, b"a"), (2, b"b"), (3, b"a")])
        assert ring_of(found, 1) == (0, [(1, b"x")])

    def test_what_is_below_the_floor_counts_for_nothing(self, index: Index) -> None:
        self._require_rings()
        positions = checkpoint_at({0: 9}).positions
        for floor_seq, entries in ((0, chunk((1, b"a"))), (0, chunk((2, b"b"))), (1, chunk((3, b"c")))):
            index.apply([], Checkpoint(positions, {0: RingChange(floor_seq, None, (entries,))}))
        assert ring_of(self._reopen(index)) == (1, [(2, b"b"), (3, b"c")])
        index.apply([], Checkpoint(positions, {0: RingChange(0)}))
        assert ring_of(self._reopen(index))[0] == 1, "a floor does not fall"

    def test_what_was_read_again_replaces_entries(self, index: Index) -> None:
        self._require_rings()
        positions = checkpoint_at({0: 9}).positions
        index.apply([], Checkpoint(positions, {0: RingChange(0, None, (chunk((1, b"a"), (3, b"b")),))}))
        index.apply([], Checkpoint(positions, {0: RingChange(0, None, (chunk((4, b"c")),))}))
        index.apply([], Checkpoint(positions, {0: RingChange(0, 2, (chunk((7, b"b"), (7, b"c")),))}))
        assert ring_of(self._reopen(index)) == (0, [(1, b"a"), (7, b"b"), (7, b"c")])

    def test_clear_forgets_the_ring(self, index: Index) -> None:
        self._require_rings()
        positions = checkpoint_at({0: 9, 1: 9}).positions
        rings = {0: RingChange(5, None, (chunk((7, b"a")),)), 1: RingChange(5, None, (chunk((8, b"b")),))}
        index.apply([], Checkpoint(positions, rings))
        index.clear(0)
        found = self._reopen(index)
        assert found is not None
        assert list(found.rings) == [1]
        assert ring_of(found, 1) == (5, [(8, b"b")])

    # Members of a group

    @pytest.fixture
    def members(self, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
        """Makes two indexes over one store, and opens them as members of a group."""
        pair: tuple[Any, Any] = self.make_index(tmp_path), self.make_index(tmp_path)
        if not isinstance(pair[0], SharedIndex):
            pytest.skip("the members of a group cannot share the index: it is no tailrace.indexes.SharedIndex")
        with contextlib.closing(pair[0]), contextlib.closing(pair[1]):
            for index in pair:
                index.open_shared("g")
            yield pair

    def test_members_apply_the_partitions_that_each_has_taken(self, members: tuple[Any, Any]) -> None:
        one, two = members
        assert one.take({0: 1, 2: 1}).checkpoint is None
        assert two.take({1: 1}).checkpoint is None
        a, b = mutation(b"a", "one", 1), mutation(b"b", "two", 1, partition=1)
        one.apply([a], checkpoint_at({0: 1}))
        two.apply([b], checkpoint_at({1: 1}))
        one.apply([], checkpoint_at({2: 5}))
        self._require(one, [a, b])
        assert self._seqs(one) == {0: 1, 1: 1, 2: 5}

    def test_the_next_owner_goes_on_at_the_position_of_the_one_before(self, members: tuple[Any, Any]) -> None:
        one, two = members
        one.take({0: 1, 1: 1})
        rings = {p: RingChange(0, None, (chunk((1, b"a")),)) for p in (0, 1)} if self.keeps_rings else {}
        one.apply([mutation(b"a", "one", 1)], Checkpoint(checkpoint_at({0: 1, 1: 7}).positions, rings))
        one.give_back({0: 1})
        checkpoint, later = two.take({0: 2})
        assert (checkpoint.positions, later) == (checkpoint_at({0: 1}).positions, {})
        assert list(checkpoint.rings) == ([0] if self.keeps_rings else [])
        second = mutation(b"a", "two", 2)
        two.apply([second], checkpoint_at({0: 2}))
        one.apply([], checkpoint_at({1: 8}))
        self._require(two, [second])
        assert self._seqs(two) == {0: 2, 1: 8}

    def test_what_a_former_owner_changes_is_refused(self, members: tuple[Any, Any]) -> None:
        """It was stopped, and does not know yet that it has lost a partition."""
        one, two = members
        one.take({0: 1, 1: 1})
        a = mutation(b"a", "one", 1)
        one.apply([a], checkpoint_at({0: 1, 1: 1}))
        two.take({0: 2})
        stale = mutation(b"a", "stale", 2)
        calls: list[tuple[Any, ...]] = [
            (one.apply, [stale], checkpoint_at({0: 2, 1: 1})),
            (one.apply, [], checkpoint_at({0: 0})),
            (one.rollback, 0, 0),
            (one.clear, 0),
        ]
        for method, *arguments in calls:
            with pytest.raises(NotOwner) as caught:
                method(*arguments)
            assert caught.value.partitions == (0,)
        one.give_back({0: 1})
        with pytest.raises(NotOwner):
            one.apply([stale], checkpoint_at({0: 2}))
        b = mutation(b"b", "other", 2, partition=1)
        one.apply([b], checkpoint_at({1: 2}))
        self._require(two, [a, b])
        assert self._seqs(two) == {0: 1, 1: 2}

    def test_an_earlier_generation_takes_nothing(self, members: tuple[Any, Any]) -> None:
        one, two = members
        two.take({0: 5, 1: 2})
        assert one.take({0: 4, 1: 3, 2: 1}).later == {0: 5}
        one.apply([], checkpoint_at({1: 1, 2: 1}))
        with pytest.raises(NotOwner):
            one.apply([], checkpoint_at({0: 1}))
        with pytest.raises(NotOwner):
            two.apply([], checkpoint_at({0: 1}))  # it has lost partition 1, and has to forget it first
        two.give_back({1: 2})
        two.apply([], checkpoint_at({0: 9}))
        assert self._seqs(one) == {0: 9, 1: 1, 2: 1}

    def test_a_partition_that_is_taken_again_stays_taken(self, members: tuple[Any, Any]) -> None:
        one, _ = members
        one.take({0: 1})
        one.apply([], checkpoint_at({0: 3}))
        assert one.take({0: 2}).checkpoint.positions == checkpoint_at({0: 3}).positions
        one.give_back({0: 1})
        one.apply([], checkpoint_at({0: 4}))
        assert self._seqs(one) == {0: 4}

    def test_a_follower_without_a_group_ends_its_members(self, members: tuple[Any, Any]) -> None:
        one, two = members
        one.take({0: 500})
        one.apply([], checkpoint_at({0: 3}))
        assert two.open() == checkpoint_at({0: 3})
        with pytest.raises(RuntimeError, match="not of group 'g'"):
            one.apply([], checkpoint_at({0: 4}))
        with pytest.raises(RuntimeError, match="not of group 'g'"):
            one.take({1: 1})
        two.apply([], checkpoint_at({0: 5}))
        one.open_shared("another")
        with pytest.raises(RuntimeError):
            two.apply([], checkpoint_at({0: 6}))
        checkpoint, later = one.take({0: 1})  # the generations of the other group count for nothing
        assert (checkpoint.positions, later) == (checkpoint_at({0: 5}).positions, {})

    def test_members_keep_one_prefix(self, members: tuple[Any, Any]) -> None:
        one, two = members
        if not hasattr(one, "keep_prefix"):
            pytest.skip("the index notes no prefix")
        one.keep_prefix(b"")
        with pytest.raises(ValueError, match="key_prefix"):
            two.keep_prefix(b"rome/")
        two.keep_prefix(b"")
