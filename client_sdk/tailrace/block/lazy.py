"""Numpy and pyarrow, where they are installed: imported at the first need, since loading them takes 0.1 s."""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def numpy_or_none() -> Any:
    """The module numpy, or None where it is not installed."""
    return _import_or_none("numpy")


@functools.cache
def pyarrow_or_none() -> Any:
    """The module pyarrow, or None where it, or numpy, which taking columns needs too, is not installed."""
    return _import_or_none("pyarrow") if numpy_or_none() is not None else None


def pyarrow() -> Any:
    """The module pyarrow; ImportError that says how to install it where it is missing."""
    module = pyarrow_or_none()
    if module is None:
        raise ImportError("this needs pyarrow and numpy: pip install 'tailrace[arrow]'")
    return module


def _import_or_none(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
