"""Runs the simulator: `python -m tests.simulation`, for `make simulate`.

SEED=n runs that seed, and prints its trace if TRACE=1. SEEDS=n runs that many seeds, from FIRST (0) on. SECONDS=n runs
as many as the time allows. NODES=n: each run has n nodes (1). SETS=1: two, three or five nodes, as the seed chooses.
COPIES=1: programs fetch copies. GROUP=1: the members of a group share the feed of a set. SEGMENTS=pull, push, switch or
any: segments pass between the nodes of a set so. STORY=name: tells a story of stories/ in place of faults by chance. A
run that fails ends the program with exit code 1 and the command that repeats it.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
import traceback

from .plan import ANY_SET, ANY_WAY, WAYS, plan_run
from .report import Report
from .stories.table import STORIES
from .world import simulate

# The pause between two lines that say how many seeds are done.
PROGRESS_SECONDS = 10.0
# How many objects more there may be until garbage is collected. A run makes millions, and few of them in cycles.
GARBAGE = 20_000
NUMBERS = {
    "SEED": -1,
    "SEEDS": 0,
    "SECONDS": 0,
    "FIRST": 0,
    "TRACE": 0,
    "SETS": 0,
    "NODES": 1,
    "COPIES": 0,
    "GROUP": 0,
}


def main():
    """Runs the seeds that the environment asks for; returns the exit code."""
    options = {name: int(os.environ.get(name) or default) for name, default in NUMBERS.items()}
    story = os.environ.get("STORY", "")
    if story and story not in STORIES:
        print(f"there is no story {story}; there are: {', '.join(STORIES)}", file=sys.stderr)
        return 2
    nodes = ANY_SET if options["SETS"] else options["NODES"]
    way = os.environ.get("SEGMENTS", "")
    if way and way not in (*WAYS, ANY_WAY):
        print(f"SEGMENTS is {way}; it may be {', '.join((*WAYS, ANY_WAY))}", file=sys.stderr)
        return 2
    chosen = {"nodes": nodes, "story": STORIES.get(story), "copies": bool(options["COPIES"]), "way": way}
    chosen["groups"] = bool(options["GROUP"])
    logging.disable(logging.CRITICAL)  # a node logs a lot about the faults of a run
    trace = print if options["TRACE"] else None
    if options["SEED"] >= 0:
        seeds, seconds = range(options["SEED"], options["SEED"] + 1), 0
    else:
        seconds = options["SECONDS"]
        count = options["SEEDS"] or (sys.maxsize if seconds else 20)
        seeds = range(options["FIRST"], options["FIRST"] + count)
    gc.freeze()  # else each collection looks at all modules again
    gc.set_threshold(GARBAGE)
    total, begun, shown = Report(), time.monotonic(), time.monotonic()
    done = 0
    for seed in seeds:
        try:
            total.add(simulate(seed, trace=trace, **chosen))
        except Exception as error:
            traceback.print_exception(error)
            print(f"seed {seed} has failed: {plan_run(seed, **chosen).command}", file=sys.stderr)
            return 1
        done += 1
        now = time.monotonic()
        if now - shown > PROGRESS_SECONDS:
            shown = now
            print(f"{done} seeds, {now - begun:.0f} s", flush=True)
        if seconds and now - begun >= seconds:
            break
    print(f"{done} seeds in {time.monotonic() - begun:.1f} s, all is well\n{total}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
