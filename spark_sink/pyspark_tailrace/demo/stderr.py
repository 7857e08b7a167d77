"""Redirects stderr while Spark runs."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Redirects stderr of this process, and of processes that it starts, to a file during the body.

    Java prints warnings that no log setting can silence, and PySpark prints tracebacks of threads after Java was
    killed.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
