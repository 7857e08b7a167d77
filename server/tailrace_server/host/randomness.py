"""Randomness, as an object that the node is given: a simulator hands over a seeded one."""

from __future__ import annotations

import os
from typing import Protocol


class Randomness(Protocol):
    """The source of ids."""

    def token(self, size: int) -> bytes:
        """Returns ``size`` random bytes, unique for ever if size is 16."""
        ...


def fraction(randomness: Randomness) -> float:
    """Returns a number from 0 to 1, 1 excluded: to spread events that would happen at once."""
    return int.from_bytes(randomness.token(4), "little") / 2**32


class SystemRandomness:
    """The operating system's randomness."""

    def token(self, size: int) -> bytes:
        return os.urandom(size)
