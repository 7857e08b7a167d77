"""Randomness, as an object that the node is given: a simulator hands over a seeded one."""

from __future__ import annotations

import os
from typing import Protocol


class Randomness(Protocol):
    """Where ids come from."""

    def token(self, size: int) -> bytes:
        """``size`` random bytes, unique for ever where size is 16."""
        ...


class SystemRandomness:
    """The operating system's randomness."""

    def token(self, size: int) -> bytes:
        return os.urandom(size)
