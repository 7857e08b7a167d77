"""Runs the simulator: `python -m tests.simulation`, for `make simulate`.

SEED=n runs that one and prints its trace where TRACE=1; SEEDS=n runs so many, from FIRST on (0); SECONDS=n runs as many
as that time allows. SETS=1: of sets of several nodes (sets/world.py). Whatever goes wrong ends it with the seed, and
exit code 1.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback

from .report import Report
from .set_world import simulate as simulate_set
from .world import simulate

# How often it says how far it is.
PROGRESS_SECONDS = 10.0


def main():
    options = {
        name: int(os.environ.get(name) or default)
        for name, default in (("SEED", -1), ("SEEDS", 0), ("SECONDS", 0), ("FIRST", 0), ("TRACE", 0), ("SETS", 0))
    }
    logging.disable(logging.CRITICAL)  # a node says a lot about what is done to it here
    trace = print if options["TRACE"] else None
    if options["SEED"] >= 0:
        seeds, seconds = range(options["SEED"], options["SEED"] + 1), 0
    else:
        seconds = options["SECONDS"]
        count = options["SEEDS"] or (sys.maxsize if seconds else 20)
        seeds = range(options["FIRST"], options["FIRST"] + count)
    run, of_sets = (simulate_set, " SETS=1") if options["SETS"] else (simulate, "")
    total, begun, told = Report(), time.monotonic(), time.monotonic()
    done = 0
    for seed in seeds:
        try:
            total.add(run(seed, trace=trace))
        except Exception as error:
            traceback.print_exception(error)
            print(f"seed {seed} has failed: make simulate{of_sets} SEED={seed}", file=sys.stderr)
            return 1
        done += 1
        now = time.monotonic()
        if now - told > PROGRESS_SECONDS:
            told = now
            print(f"{done} seeds, {now - begun:.0f} s", flush=True)
        if seconds and now - begun >= seconds:
            break
    print(f"{done} seeds in {time.monotonic() - begun:.1f} s, all is well\n{total}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
