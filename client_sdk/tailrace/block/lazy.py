"""Imports numpy and pyarrow, if they are installed, at the first need: loading them takes 0.1 s."""

from __future__ import annotations

import functools
import importlib
from typing import Any

# From this version on, pyarrow makes a list of byte strings as fast as numpy's objects; before, ten times as slowly.
_FAST_LISTS_SINCE = 26


@functools.cache
def numpy_or_none() -> Any:
    """Returns the module numpy; None if it is not installed."""
    return _import_or_none("numpy")


@functools.cache
def pyarrow_or_none() -> Any:
    """Returns the module pyarrow; None if it is not installed, or if numpy, which columns need too, is not."""
    return _import_or_none("pyarrow") if numpy_or_none() is not None else None


def require_numpy() -> None:
    """Raises ImportError, which tells how to install it, if numpy is missing."""
    if numpy_or_none() is None:
        raise ImportError("this needs numpy: pip install 'tailrace[arrow]'")


def pyarrow() -> Any:
    """Returns the module pyarrow. If it is missing, the ImportError tells how to install it."""
    module = pyarrow_or_none()
    if module is None:
        raise ImportError("this needs pyarrow and numpy: pip install 'tailrace[arrow]'")
    _load_pandas()
    return module


def strings_of(array: Any) -> list[Any]:
    """Returns the byte strings of a pyarrow array, and None for a null, by the fastest way that is there."""
    if _has_fast_lists():
        taken: list[Any] = array.to_pylist()
    else:
        _load_pandas()
        taken = array.to_numpy(zero_copy_only=False).tolist()
    return taken


@functools.cache
def _has_fast_lists() -> bool:
    return int(pyarrow_or_none().__version__.split(".")[0]) >= _FAST_LISTS_SINCE


@functools.cache
def _load_pandas() -> None:
    """Imports pandas, if it is installed, before pyarrow does at the first array that it makes or converts.

    pyarrow drops the error if Ctrl-C interrupts that import, and the program would go on.
    """
    _import_or_none("pandas")


def _import_or_none(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
