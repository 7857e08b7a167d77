"""The interpreter's searches for cyclic garbage, which stop every thread: bounded by what is new, not by what is held.

Objects are freed when nothing refers to them; a search is for those that refer to each other. By default each full one
looks at everything that lives: a node with 4,096 partitions has a million objects, and stood still for 0.1 to 0.2 s of
processor time each time that it had grown by a quarter. So what has survived a full search is left out of the next
ones (`gc.freeze`):

    new objects ── young searches ── a full search ──> left out, until they are freed
                                                          │  as many again as the last thorough search has left
                                                          └──> taken in again: the next full search is thorough

A cycle that was left out and is garbage since waits for the next thorough search. Such cycles are never more than what
lives, or than THOROUGH_MIN objects.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# Below this nothing is searched again: some 100 MB, and a tenth of a second.
THOROUGH_MIN = 1_000_000
_FULL = 2  # the generation that a full search is of


class Searches:
    """Those of this process, while `bounded` is entered. One at a time."""

    def __init__(self, thorough_min: int = THOROUGH_MIN) -> None:
        """``thorough_min``: before so many objects were left out there is no thorough search."""
        self._thorough_min = thorough_min
        self._left_out = 0  # objects at most that are left out now
        self._thorough_at = thorough_min
        self._is_thorough = False
        self.thorough = 0  # how many thorough searches there were

    @contextlib.contextmanager
    def bounded(self) -> Iterator[None]:
        """Leaves out of full searches what lives when this is entered, and what survives one while the body runs.

        What was left out stays so: the process ends, or its next node would have to search all of it.
        """
        gc.collect()
        gc.freeze()
        self._note_left_out()
        gc.callbacks.append(self._searched)
        try:
            yield
        finally:
            gc.callbacks.remove(self._searched)

    def _searched(self, phase: str, info: dict[str, int]) -> None:
        """For `gc.callbacks`: a search begins or has ended. No search can begin meanwhile."""
        if phase != "stop" or info["generation"] != _FULL:
            return
        survivors = len(gc.get_objects(_FULL))
        gc.freeze()
        if self._is_thorough:
            self._is_thorough = False
            self.thorough += 1
            self._note_left_out()
            return
        self._left_out += survivors
        if self._left_out < self._thorough_at:
            return
        # Of what was left out much may have been freed since; to count that takes a tenth of a search.
        self._left_out = gc.get_freeze_count()
        if self._left_out >= self._thorough_at:
            gc.unfreeze()
            self._is_thorough = True

    def _note_left_out(self) -> None:
        self._left_out = gc.get_freeze_count()
        self._thorough_at = max(2 * self._left_out, self._thorough_min)
