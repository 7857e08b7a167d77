"""What a follower asks of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.checkpoint import Checkpoint


class IndexBusy(TailraceError):
    """Another program holds the store, so that a call of the index has not happened; it may succeed later.

    A follower calls again for as long as it lives. An index that raises it has waited for a moment by itself.
    """


class AppliedMutation(NamedTuple):
    """A mutation to apply: ``key`` now has ``value``, or is gone where that is None.

    ``timestamp`` is in microseconds since 1970 UTC. In one call of `Index.apply` a key is there once, with its newest
    mutation; an index may rely on the last one counting.
    """

    partition: int
    key: bytes
    value: bytes | None
    seq: int
    timestamp: int


@runtime_checkable
class Index(Protocol):
    """A store that `Feed.follow` keeps equal to a feed.

    Ground rules:

    1. Plain methods, never two at once; the follower calls all of them on one thread that is the index's own.
    2. What was applied and the checkpoint that covers it are stored together or not at all, also when the process
       dies. Every call has happened when it returns, and not at all where it raises. After IndexBusy the follower
       makes the same call again, unless it is left; any other exception ends it.
    3. What comes later in a partition has a higher seq, except after `rollback`. A mutation that is older than what
       the index holds of the same key and partition is passed over.

    An index whose store has no transactions is a `PreparedIndex` instead.
    """

    def open(self) -> Checkpoint | None:
        """Make ready, and say where the index stands; None where it holds nothing yet.

        Called first, and again after `close`. Whatever it raises ends the follower.
        """
        ...

    def apply(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        """Store ``mutations`` (at most 10,000 or 64 MiB from the follower; may be none) together with ``checkpoint``.

        ``checkpoint.positions`` is the whole truth: a partition that it does not have counts as not begun.
        ``checkpoint.rings`` is what changes in the rings: see `tailrace.ring.RingChange`.
        """
        ...

    def rollback(self, partition: int, seq: int) -> int | None:
        """The history of ``partition`` has forked after ``seq``: go back to a point at or below it, if you can.

        Returns the point at which the index now stands, one where it stood before between snapshots (an index that
        keeps old versions, and the position of each point with them); 0 where it has no such point left, and is to be
        cleared; or None: it cannot, and the follower reads every key that changed above ``seq`` again, or clears the
        partition where it does not know them. A point that is returned is the index's own position from then on: where
        it is opened again, `open` gives that.
        After None the index holds what it held, but the seqs of what is above ``seq`` count for nothing any more:
        whatever is applied next replaces it. The follower calls this before it applies anything of the new history,
        and again where it was interrupted.
        """
        ...

    def clear(self, partition: int) -> None:
        """Forget all that is of ``partition``, and where the index stood in it. It comes again from the beginning."""
        ...

    def close(self) -> None:
        """Let go of files and connections. May be called twice."""
        ...


@runtime_checkable
class PreparedIndex(Index, Protocol):
    """An index whose `apply` and `clear` may be interrupted half-way, as in a store without transactions.

    What differs from ground rule 2: `apply` stores the mutations first, and after them the checkpoint, in one write;
    `clear` forgets the rows first, and after them the position and the ring. Before each of them comes `prepare`, so
    that after a crash the follower knows which keys may have been touched.
    """

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Store ``checkpoint`` in one write, and change no row: what is applied next is within what it says."""
        ...
