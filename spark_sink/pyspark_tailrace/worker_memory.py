"""Spares a Python worker of Spark the search for garbage in modules, which takes longer than the rest of a short task.

A worker that is kept collects garbage after each task, and after each step of a plan, before it takes the next one
(``pyspark.daemon``). That visits every object of every module that the worker has imported: some 60,000 in 20 ms.
"""

from __future__ import annotations

import gc
import os
import sys

from pyspark import TaskContext

# The module that forks workers, and keeps them: one of another kind ends after its first task.
_DAEMON = "pyspark.daemon"

# The process that is spared, and the modules that it had: one that is forked from it has garbage of its own.
_spared = 0, 0


def spare_modules() -> None:
    """Lets later collections of this process leave out all objects that live now. Call it when a task or step is done.

    It does so again only when further modules have been imported, and only in a worker of Spark. What is garbage now is
    collected before. An object that lives now is still freed with the last reference to it; only one in a cycle stays.
    """
    global _spared
    state = os.getpid(), len(sys.modules)
    if _spared == state or not _is_worker():
        return
    _spared = state
    gc.collect()
    gc.freeze()


def _is_worker() -> bool:
    """Tells whether this process runs a task, or was forked for steps of plans."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return TaskContext.get() is not None or (spec is not None and spec.name == _DAEMON)
