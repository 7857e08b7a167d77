"""Lets the tasks of a batch that a process runs share the renewals of its plan: most are shorter than a round."""

from __future__ import annotations

import collections
import os
import threading

from tailrace.consuming.renewals import Renewals, RenewedCheckpoint

# The plans that a process serves in turn: a worker of Spark runs one task at a time, of a few jobs.
PLANS_MAX = 16

# By process and thread, because each has connections of its own, and by plan. The least recently used comes first.
_renewals: collections.OrderedDict[tuple[int, int, tuple[RenewedCheckpoint, ...]], Renewals] = collections.OrderedDict()


def renewals_of(checkpoints: tuple[RenewedCheckpoint, ...]) -> Renewals | None:
    """Returns the renewals of the plan with these checkpoints, for a new connection; None without any."""
    if not checkpoints:
        return None
    key = os.getpid(), threading.get_ident(), checkpoints
    found = _renewals.pop(key, None) or Renewals(checkpoints)
    found.connection_made()
    _renewals[key] = found
    if len(_renewals) > PLANS_MAX:
        _renewals.popitem(last=False)
    return found
