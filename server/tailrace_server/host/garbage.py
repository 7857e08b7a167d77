"""Bounds the interpreter's searches for cyclic garbage, which stop every thread, by the number of new objects.

Objects are freed when nothing refers to them; a search finds objects that refer to each other. By default each full
search looks at all live objects. A node with 4,096 partitions has a million, and each search stopped it for 0.1 to
0.2 s of processor time, whenever the objects had grown by a quarter. So the survivors of a full search are left out of
later ones (`gc.freeze`):

    new objects ── young searches ── a full search ──> left out, until they are freed
                                                          │  as many again as the last thorough search has left
                                                          └──> taken in again: the next full search is thorough

A cycle that was left out, and became garbage later, waits for the next thorough search. Such cycles have at most as
many objects as are live, or THOROUGH_MIN, or as the node's partitions explain.

A young search looks at 700 new objects, most of which live on, and takes 0.1 ms. `search_early` does it right after the
answers to writers, in two parts: their next requests are not there yet, so it holds up none.

A thorough search of 3 million objects, as ten thousand feeds of a set have, holds the loop for a second of processor
time, and longer than the time-outs of a failover on a busy machine. So there is none as long as the partitions explain
the objects.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

# With fewer objects there is no thorough search: about 100 MB, and a tenth of a second.
THOROUGH_MIN = 1_000_000
# The objects of a partition in a feed of its own: about 50 for itself, and as many for each of its streams to replicas,
# or 120 on a follower.
OBJECTS_OF_PARTITION = 200
_FULL = 2  # the generation that a full search is of
# With this number of new objects there is a young search as soon as nothing waits. The interpreter begins one at 700.
EARLY_MIN = 350


def search_early() -> None:
    """Does the next young search now if half of its objects are there. Call it when nothing is likely to come soon.

    A search looks at the objects that are new since the one before, so more searches take no more time.
    """
    young, searches, _ = gc.get_count()
    if young >= EARLY_MIN and searches <= gc.get_threshold()[1]:  # else an older generation is due, by the interpreter
        gc.collect(0)


class Searches:
    """The searches of this process, while `bounded` is entered. One object at a time."""

    def __init__(self, count_partitions: Callable[[], int] = lambda: 0, thorough_min: int = THOROUGH_MIN) -> None:
        """Begins nothing yet.

        Args:
            count_partitions: returns the number of the node's partitions.
            thorough_min: the number of objects that are left out before there is a thorough search, beside those of
                the partitions.
        """
        self._count_partitions = count_partitions
        self._thorough_min = thorough_min
        self._left_out = 0  # objects at most that are left out now; before they are counted, those since entry
        self._is_counted = False  # to count them takes milliseconds for each hundred thousand, which few nodes need
        self._thorough_at = thorough_min
        self._is_thorough = False
        self.thorough = 0  # how many thorough searches there were

    @contextlib.contextmanager
    def bounded(self) -> Iterator[None]:
        """Leaves out of full searches all objects that live at entry, and those that survive one while the body runs.

        They stay left out at the end: the process exits then, or its next node would have to search all of them.
        """
        gc.collect()
        gc.freeze()
        self._left_out = 0
        self._is_counted = False
        gc.callbacks.append(self._searched)
        try:
            yield
        finally:
            gc.callbacks.remove(self._searched)

    def _searched(self, phase: str, info: dict[str, int]) -> None:
        """Handles the begin or end of a search, for `gc.callbacks`. No search can begin meanwhile."""
        if phase != "stop" or info["generation"] != _FULL:
            return
        survivors = len(gc.get_objects(_FULL))
        gc.freeze()
        if self._is_thorough:
            self._is_thorough = False
            self.thorough += 1
            self._note_left_out(0)
            return
        self._left_out += survivors
        least = self._thorough_min + OBJECTS_OF_PARTITION * self._count_partitions()
        if not self._is_counted:
            # A search becomes thorough at `least`, and when objects have doubled: not before half of `least` are new.
            if 2 * self._left_out < least:
                return
            self._note_left_out(self._left_out)
        thorough_at = max(self._thorough_at, least)
        if self._left_out < thorough_at:
            return
        # Many of the objects that were left out may be freed by now; to count them takes a tenth of a search.
        self._left_out = gc.get_freeze_count()
        if self._left_out >= thorough_at:
            gc.unfreeze()
            self._is_thorough = True

    def _note_left_out(self, new: int) -> None:
        """Counts the objects that are left out, of which at most ``new`` are new since entry."""
        self._left_out = gc.get_freeze_count()
        self._is_counted = True
        self._thorough_at = max(2 * (self._left_out - new), self._thorough_min)
