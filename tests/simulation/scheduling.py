"""Lets a seed decide the order of trio's tasks. Only virtual_time.py uses private names of trio, too.

trio shuffles the tasks of each pass of its loop, so that no program relies on an order. With its switch for
deterministic scheduling it sorts them first, and shuffles them by a generator that can be seeded: then a run depends on
the seed, and on nothing else of trio's.
"""

from __future__ import annotations

import contextlib

from trio._core import _run


@contextlib.contextmanager
def seeded(seed):
    """Schedules the tasks of trio runs in the body by ``seed``."""
    allowed, state = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run._r.seed(seed)
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = allowed
        _run._r.setstate(state)
