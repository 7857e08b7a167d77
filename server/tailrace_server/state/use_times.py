"""When the producers that a start finds were used last, in an order: what comes first is forgotten first. Pure.

    manifests     the ages that they tell, before all of the journal
    journal       its places: a record is older than all behind it

The journal has times of the wall clock only, which decide nothing. So its places stand for times shortly before the
start. Producers that all had one time would be forgotten all at once, with the first one that is too many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Four seconds a file of the journal. A monotonic clock of ten million seconds still tells one record from the next.
_SECONDS_A_BYTE = 1e-9


class UseTimes(NamedTuple):
    """For a start at ``now`` (monotonic seconds) with a journal from the lsn ``begin`` to ``end``."""

    now: float
    begin: int = 0
    end: int = 0

    def at(self, lsn: int) -> float:
        """The time that a record which ends at ``lsn`` stands for."""
        return self.now - (self.end - lsn) * _SECONDS_A_BYTE

    def at_each(self, lsns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The same of many records."""
        return self.now - (self.end - lsns).astype(np.float64) * _SECONDS_A_BYTE

    @property
    def before(self) -> float:
        """The time that comes before all of the journal."""
        return self.at(self.begin)
