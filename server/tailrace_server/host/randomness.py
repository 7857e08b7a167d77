"""Randomness, as an object that the node is given: a simulator hands over a seeded one."""

from __future__ import annotations

import os
from typing import Protocol


class Randomness(Protocol):
    """Where ids come from."""

    def token(self, size: int) -> bytes:
        """``size`` random bytes, unique for ever where size is 16."""
        ...


def fraction(randomness: Randomness) -> float:
    """A number from 0 to 1, 1 excluded: to spread what would happen at once."""
    return int.from_bytes(randomness.token(4), "little") / 2**32


class SystemRandomness:
    """The operating system's randomness."""

    def token(self, size: int) -> bytes:
        return os.urandom(size)
