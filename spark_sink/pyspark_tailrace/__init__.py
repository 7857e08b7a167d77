"""Tailrace for Spark: the data source ``tailrace``, sessions, and the partition of a key as a column.

Spark finds this package by its name, and imports it in a separate process whenever a job names a source that is not
built in. An exception there would break every other source that is found this way. So names are imported on first use.
If ``DefaultSource``, the attribute that Spark looks for, cannot be imported, it is absent and a warning says why.
Programs call ``register(spark)``, or ``local_session()``, which registers the source itself.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_tailrace.partitioning import partition_of
    from pyspark_tailrace.reading.decoding import decode
    from pyspark_tailrace.session import local_session, register
    from pyspark_tailrace.source import TailraceSource as DefaultSource
    from pyspark_tailrace.upsert import upsert_batch

__all__ = ["DefaultSource", "decode", "local_session", "partition_of", "register", "upsert_batch"]

_HOMES = {
    "DefaultSource": ("pyspark_tailrace.source", "TailraceSource"),
    "decode": ("pyspark_tailrace.reading.decoding", "decode"),
    "local_session": ("pyspark_tailrace.session", "local_session"),
    "partition_of": ("pyspark_tailrace.partitioning", "partition_of"),
    "register": ("pyspark_tailrace.session", "register"),
    "upsert_batch": ("pyspark_tailrace.upsert", "upsert_batch"),
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = home
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        # A missing library raises ImportError; a library that was built for another version can raise anything.
        # Spark asks with hasattr(), which treats only AttributeError as "absent".
        if name != "DefaultSource":
            raise
        warnings.warn(f"the Spark source 'tailrace' is not available: {error}", RuntimeWarning, stacklevel=2)
        raise AttributeError(f"{name} cannot be imported: {error}") from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
