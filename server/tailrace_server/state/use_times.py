"""Orders the producers that a start finds by their last use: the first ones are forgotten first. Pure.

    manifests     the ages in them, before all of the journal
    journal       the places in it: a record is older than all records behind it

The journal has times of the wall clock only, which are not used for decisions. So its places stand for times shortly
before the start. If all producers had one time, they would be forgotten together as soon as there is one too many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Four seconds for each file of the journal. A monotonic clock of ten million seconds still separates two records.
_SECONDS_A_BYTE = 1e-9


class UseTimes(NamedTuple):
    """The times of a start at ``now`` (monotonic seconds) with a journal from the lsn ``begin`` to ``end``."""

    now: float
    begin: int = 0
    end: int = 0

    def at(self, lsn: int) -> float:
        """Returns the time for a record that ends at ``lsn``."""
        return self.now - (self.end - lsn) * _SECONDS_A_BYTE

    def at_each(self, lsns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns the times for many records."""
        return self.now - (self.end - lsns).astype(np.float64) * _SECONDS_A_BYTE

    @property
    def before(self) -> float:
        """The time before all of the journal."""
        return self.at(self.begin)
