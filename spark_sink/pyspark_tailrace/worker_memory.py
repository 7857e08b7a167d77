"""Spares a Python worker of Spark the search for garbage in modules, which takes longer than the rest of a short task.

A worker that is kept for further tasks collects garbage after each of them, before it takes the next one
(``pyspark.daemon``). That visits every object of every module that the worker has imported: some 60,000 in 20 ms.
"""

from __future__ import annotations

import gc
import os

from pyspark import TaskContext

# The process that is spared: one that is forked from it has garbage of its own.
_spared = 0


def spare_modules() -> None:
    """Lets later collections of this process leave out all objects that live now. Call it when a task is done.

    It does so once in a process, and only in a worker of Spark. What is garbage now is collected before. An object that
    lives now is still freed with the last reference to it; only one in a cycle stays.
    """
    global _spared
    if _spared == os.getpid() or TaskContext.get() is None:
        return
    _spared = os.getpid()
    gc.collect()
    gc.freeze()
