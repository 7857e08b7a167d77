"""The demonstration's own figures: a repository's history through Spark to a feed and an index, in mutations a second.

    python bench/demo.py [--repo .]

``tailrace demo``, run once, in a temporary folder: files for Spark, a streaming query that publishes exactly once into
a set of three servers of which the leader is killed on the way, a follower with an SQLite index and its full text. So
what it says is the whole way of real text, starts and a failover included. ``bench/_large_repository.py`` makes a large
repository.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile

from _report import Line, show
from _server import PROGRAM

# As the demonstration prints them.
_FIGURE = re.compile(r"^ +(?P<name>[a-z]+): .*after (?P<seconds>[\d.,]+) s: (?P<rate>[\d,]+) mutations/s", re.MULTILINE)
_DONE = {"in": "all acknowledged", "out": "all in the index"}


def main() -> None:
    """Runs it, and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", default=".", help="the git repository whose history is fed; this one by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        command = [PROGRAM, "demo", "--repo", arguments.repo, "--data", f"{folder}/demo"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        sys.exit(f"the demonstration has failed:\n{ran.stdout}")
    lines = []
    for figure in _FIGURE.finditer(ran.stdout):
        what = _DONE[figure["name"]]
        lines.append(Line(f"{what}, after", float(figure["seconds"].replace(",", "")), "s"))
        lines.append(Line(what, float(figure["rate"].replace(",", "")), "mutations/s"))
    assert len(lines) == 2 * len(_DONE), f"the demonstration has printed something else:\n{ran.stdout}"
    show(lines, "the demonstration, a leader killed on the way")


if __name__ == "__main__":
    main()
