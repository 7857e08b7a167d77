"""Seeds of runs that leave things to chance: of what the suite runs nothing is, and others look for more."""

from __future__ import annotations

import os
import random

_SEEDS = range(100)


def seed_of(variable: str, default: int) -> int:
    """The seed that the environment's ``variable`` names, any for "any", else ``default``."""
    said = os.environ.get(variable, "")
    return random.choice(_SEEDS) if said == "any" else int(said or default)
