"""The methods of an index, as a follower calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.indexes.checkpoint import Checkpoint


class IndexBusy(TailraceError):
    """Another program holds the store. The call has had no effect, and may succeed later.

    An index waits for a moment before it raises this. The follower repeats the call for as long as it lives.
    """


class AppliedMutation(NamedTuple):
    """A mutation that an index applies.

    Each key occurs once in a call of `Index.apply`, with its newest mutation.

    Attributes:
        partition: The partition, from 0.
        key: 1 to 4,096 bytes.
        value: The new value; None if the key was deleted.
        seq: The seq of the mutation.
        timestamp: When the node accepted it, in microseconds since 1970 UTC.
    """

    partition: int
    key: bytes
    value: bytes | None
    seq: int
    timestamp: int


@runtime_checkable
class Index(Protocol):
    """A store that `Feed.follow` keeps equal to a feed.

    Rules:

    1. All methods are plain functions. The follower calls them one at a time, on one thread that belongs to the index.
    2. The index stores mutations and their checkpoint together or not at all, even if the process dies. A call that
       raises has had no effect. After `IndexBusy` the follower repeats the call; any other exception ends the follower.
    3. Later mutations of a partition have higher seqs, except after `rollback`. The index ignores a mutation that is
       older than the one it holds for the same key.

    Implement `PreparedIndex` instead if the store has no transactions.
    """

    def open(self) -> Checkpoint | None:
        """Opens the store, and returns its checkpoint. Called first, and again after `close`.

        Returns:
            The stored checkpoint, or None if the store is empty.

        Raises:
            Exception: Any exception ends the follower; after `IndexBusy` the follower calls again for 60 s.
        """
        ...

    def apply(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        """Stores mutations together with their checkpoint.

        Args:
            mutations: At most 10,000 mutations or 64 MiB; may be empty.
            checkpoint: The new checkpoint. A partition that is missing in its ``positions`` counts as not begun. Its
                ``rings`` hold changes of the stored rings (``tailrace.ring.RingChange``).

        Raises:
            IndexBusy: Another program holds the store. Nothing was stored.
        """
        ...

    def rollback(self, partition: int, seq: int) -> int | None:
        """Goes back to an earlier point if the index can. The history of the partition has forked above ``seq``.

        An index that keeps old versions returns the point to which it went back. From then on this is its position, and
        `open` returns it. An index that returns None keeps its rows; the seqs of those above ``seq`` no longer count,
        and the next mutation of such a key replaces it. The follower then reads every key that changed above
        ``seq`` again, or clears the partition if it does not know these keys.

        The follower calls this before it applies anything of the new history. It calls it again if it was interrupted.

        Args:
            partition: The partition.
            seq: The last seq that both histories share.

        Returns:
            The seq of the point, at most ``seq``; 0 if there is no such point and the partition is to be cleared; None
            if the index cannot go back.

        Raises:
            IndexBusy: Another program holds the store. Nothing was changed.
        """
        ...

    def clear(self, partition: int) -> None:
        """Deletes everything of a partition, its position included. The partition is sent again from the beginning.

        Args:
            partition: The partition.

        Raises:
            IndexBusy: Another program holds the store. Nothing was changed.
        """
        ...

    def close(self) -> None:
        """Closes files and connections. It may be called twice."""
        ...


@runtime_checkable
class PreparedIndex(Index, Protocol):
    """An index for a store without transactions. Its ``apply`` and ``clear`` may be interrupted half-way.

    It differs from rule 2 of `Index`: ``apply`` stores the mutations first, and then the checkpoint in one write.
    ``clear`` deletes the rows first, and then the position and the ring. The follower calls `prepare` before each of
    them, so that it knows after a crash which keys may have changed.
    """

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Stores a checkpoint in one write, and changes no row. The following changes are within its bounds.

        Args:
            checkpoint: The checkpoint.

        Raises:
            IndexBusy: Another program holds the store. Nothing was stored.
        """
        ...


class Taken(NamedTuple):
    """The answer of `SharedIndex.take`.

    Attributes:
        checkpoint: The stored positions and rings of the partitions that were taken; None if there are no positions.
        later: The other partitions: the index has a later generation of them, which is the value.
    """

    checkpoint: Checkpoint | None
    later: Mapping[int, int]


@runtime_checkable
class SharedIndex(Index, Protocol):
    """An index that the members of a group fill together: ``feed.follow(index, group=...)``.

    Each member has an object of its own, and all of them one store. A partition has one owner at a time, whose
    *generation* grows with each new owner. The store keeps the generation of each partition beside its position:

    1. `take` stores generations. Each later call of ``apply``, ``rollback`` and ``clear`` compares those that this
       object has taken with the stored ones, in its own transaction.
    2. If one differs, another member has taken the partition. The call raises `tailrace.NotOwner`, whose
       ``partitions`` are these, and has had no effect.
    3. The checkpoints of ``apply`` have only partitions that this object has taken. A partition that is missing keeps
       its position.
    """

    def open_shared(self, group: str) -> None:
        """Opens the store for a member of a group, in place of ``open``. The member owns no partition yet.

        If the store was used without a group or by another group, its generations are forgotten, and its former
        followers cannot change it any more.

        Args:
            group: The name of the group.

        Raises:
            IndexBusy: Another program holds the store.
        """
        ...

    def take(self, generations: Mapping[int, int]) -> Taken:
        """Takes partitions over from their last owners, unless the store has a later generation of them.

        Args:
            generations: The generation of each partition, at least 1.

        Returns:
            The positions and rings to begin at, and the partitions that were not taken.

        Raises:
            IndexBusy: Another program holds the store. Nothing was taken.
        """
        ...

    def give_back(self, generations: Mapping[int, int]) -> None:
        """Forgets that this object has taken partitions. The store keeps their rows and positions.

        Args:
            generations: The generation of each partition. One that was taken in another generation meanwhile stays.
        """
        ...
