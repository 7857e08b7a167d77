"""Finds the modules of bench/, which is not a package. A source distribution has its figures, but not its programs."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
collect_ignore_glob = [] if (BENCH / "peers.py").exists() else ["test_*.py"]
sys.path.append(str(BENCH))
