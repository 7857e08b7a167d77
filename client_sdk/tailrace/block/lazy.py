"""Imports numpy and pyarrow, if they are installed, at the first need: loading them takes 0.1 s."""

from __future__ import annotations

import functools
import importlib
from typing import Any


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
    return module


def _import_or_none(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
