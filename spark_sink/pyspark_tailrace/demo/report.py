"""Makes the texts that the demonstration prints."""

from __future__ import annotations

import shlex
import shutil
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_tailrace.demo.comparison import printable, printable_path
from pyspark_tailrace.demo.memory import GIT, HERE, OTHERS, SERVER, SPARK, WORKERS
from pyspark_tailrace.demo.plan import FEED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark_tailrace.demo.comparison import Comparison
    from pyspark_tailrace.demo.history import History
    from pyspark_tailrace.demo.interruption import Interruption
    from pyspark_tailrace.demo.memory import MemoryMeter
    from pyspark_tailrace.demo.run import DemoResults
    from pyspark_tailrace.demo.search import Search
    from pyspark_tailrace.demo.workspace import Workspace

DIFFERENCES_SHOWN = 20
MEMORY_ROLES = (SERVER, SPARK, WORKERS, HERE, GIT, OTHERS)
NAME_WIDTH = 26
PATH_WIDTH = 40

QUERY = (
    "SELECT CAST(key AS TEXT), commit_id FROM items_fts JOIN items ON items.rowid = items_fts.rowid "
    "WHERE items_fts MATCH '{word}' ORDER BY rank LIMIT 5"
)


def source(history: History) -> Iterator[str]:
    """Yields the lines about the input."""
    if history.note:
        yield f"The history cannot be used: {history.note}. The input is instead:"
    yield history.title[0].upper() + history.title[1:] + "."


def opening(total: int, workspace: Workspace) -> Iterator[str]:
    """Yields the line about the run."""
    where = "which is kept" if workspace.kept else "which is removed at the end"
    yield f"It has {total:,} changes of paths. The working folder is {workspace.root}, {where}."


def results(found: DemoResults, server_bytes: int) -> Iterator[str]:
    """Yields the lines about the results. ``server_bytes``: the size of the servers' files after they have stopped."""
    yield ""
    yield from killed(found.interruption, found.produced.changes)
    yield ""
    yield from compared(found.comparison)
    yield ""
    yield from figures(found, server_bytes)
    yield ""
    yield from searched(found.search)


def killed(kill: Interruption, total: int) -> Iterator[str]:
    """Yields the lines about the kill."""
    batch, done = kill.batch, kill.written_of_batch
    yield (
        f"The leader of three servers, {kill.killed.address}, was killed for good (SIGKILL) with {kill.written:,} of "
        f"{total:,} mutations on the other disks ({kill.written / total:.0%}),"
    )
    yield (
        f"while Spark was writing micro-batch {batch.id}: {done:,} of its {batch.changes:,} mutations were there, "
        f"{batch.changes - done:,} were not."
    )
    yield (
        f"{kill.successor.address} leads since then: the servers have chosen it by themselves, {kill.down_s:.1f} s "
        "after the kill."
    )
    if kill.kills > 1:
        yield f"It was kill number {kill.kills}: no write was in flight at the earlier ones."
    yield "The sink and the follower continued by themselves. The feed has every mutation exactly once."


def compared(comparison: Comparison) -> Iterator[str]:
    """Yields the lines about the comparison, with the differences."""
    yield "The index, compared path by path with the tree at the end of the history:"
    yield _figure("paths in the tree", f"{comparison.expected:,}")
    yield _figure("paths in the index", f"{comparison.found:,}")
    yield _figure("equal, mode and blob", f"{comparison.equal:,}")
    yield _figure("different", f"{len(comparison.differences):,}")
    for difference in comparison.differences[:DIFFERENCES_SHOWN]:
        yield f"    {difference}"
    rest = len(comparison.differences) - DIFFERENCES_SHOWN
    if rest > 0:
        yield f"    and {rest:,} more"


def figures(found: DemoResults, server_bytes: int) -> Iterator[str]:
    """Yields the lines with counts, times and sizes."""
    produced = found.produced
    total, nbytes = produced.changes, produced.data_bytes
    superseded = total - found.rows_applied
    yield "Figures:"
    yield _figure("mutations", f"{total:,}, {produced.deletions:,} of them deletions")
    yield _figure("micro-batches", batch_times([batch.ended - batch.started for batch in found.batches]))
    yield _figure("written at the kill", f"{found.interruption.written:,}")
    yield _figure("in: all acknowledged", f"after {found.seconds_in:.1f} s{_rates(total, nbytes, found.seconds_in)}")
    yield _figure("out: in the index", f"after {found.seconds_out:.1f} s{_rates(total, nbytes, found.seconds_out)}")
    yield _figure("barrier", f"{seconds(found.barrier_s)}, from the last acknowledgement until the index had it")
    yield _figure("rows written to it", f"{found.rows_applied:,}; {superseded:,} were superseded before")
    yield _figure("keys and values", megabytes(nbytes))
    yield _figure("as files for Spark", f"{megabytes(produced.file_bytes)} in {produced.files:,} files")
    yield _figure("servers' data", f"{megabytes(server_bytes)} of all three; the killed one has less than the others")
    yield _figure("index", megabytes(found.index_bytes))
    yield from memory(found.memory)


def batch_times(times: Sequence[float]) -> str:
    """Returns the number of micro-batches and their times.

    >>> batch_times([9.0, 1.0, 0.5, 3.0])
    "4; the first, which starts Spark's Python workers, took 9.0 s, the others 1.0 s (median)"
    """
    first = f"{len(times)}; the first, which starts Spark's Python workers, took {seconds(times[0])}"
    return first if len(times) == 1 else f"{first}, the others {seconds(statistics.median(times[1:]))} (median)"


def memory(meter: MemoryMeter) -> Iterator[str]:
    """Yields the lines with the peaks of memory."""
    if not meter.peak_total:
        yield _figure("peak memory", "not measured: this system has no /proc")
        return
    yield _figure("peak memory", f"{mebibytes(meter.peak_total)} in total; each part at its own peak:")
    for role in MEMORY_ROLES:
        if role in meter.peaks:
            yield f"    {mebibytes(meter.peaks[role]):>10}  {role}"


def searched(search: Search | None) -> Iterator[str]:
    """Yields the lines about a full-text query."""
    if search is None:
        yield "There is no full-text query: no text has a word of six letters."
        return
    yield f"Full-text query {search.word!r}: {search.paths:,} paths in {seconds(search.seconds)}. The best:"
    for hit in search.hits:
        yield f"  {printable_path(hit.path):<{PATH_WIDTH}}  {printable(' '.join(hit.snippet.split()))}"


def by_hand(workspace: Workspace, commands: list[list[str]], url: str, search: Search | None) -> Iterator[str]:
    """Yields the commands to try next. ``commands`` are the arguments of each server."""
    root = workspace.root if workspace.kept else Path("DIR")
    if workspace.kept:
        yield f"To try it by hand ({workspace.root} is kept until you remove it):"
    else:
        yield "To try it by hand, run the demo with --data DIR, which keeps its files:"
    index = root / workspace.index.name
    query = QUERY.format(word="index" if search is None else search.word)
    tailrace = script()
    for number, command in enumerate(commands, 1):
        here = [word.replace(str(workspace.root), str(root)) for word in command]
        # By default all servers would use the same two ports for these listeners.
        listeners = ["--http", "off", "--ws", "off"]
        yield _figure(f"server {number} of the set:", shell(tailrace, *here, *listeners))
    yield _figure("tail the feed:", shell(tailrace, "tail", FEED, "--url", url))
    # The statement has single quotes, and no character that a shell expands within double quotes.
    yield _figure("query the index:", f'{shell(*sqlite(), index)} "{query}"')


def script() -> str:
    """Returns the command ``tailrace``, with its path if it is not on the PATH."""
    beside = Path(sys.executable).with_name("tailrace")
    return "tailrace" if shutil.which("tailrace") or not beside.exists() else str(beside)


def sqlite() -> list[str]:
    """Returns a command that queries an SQLite file; its arguments are the file and the statement."""
    if shutil.which("sqlite3"):
        return ["sqlite3"]
    code = "import sqlite3, sys; [print(*row) for row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2])]"
    return [sys.executable, "-c", code]


def shell(*words: object) -> str:
    """Returns a command as typed in a shell."""
    return " ".join(shlex.quote(str(word)) for word in words)


def _figure(name: str, text: str) -> str:
    return f"  {name:<{NAME_WIDTH}} {text}"


def _rates(count: int, nbytes: int, elapsed: float) -> str:
    if elapsed <= 0:
        return ""
    return f": {count / elapsed:,.0f} mutations/s, {nbytes / elapsed / 1e6:,.1f} MB/s"


def megabytes(nbytes: int) -> str:
    """Returns a number of bytes in MB (1,000,000 bytes).

    >>> megabytes(1_234_567)
    '1.2 MB'
    """
    return f"{nbytes / 1e6:,.1f} MB"


def mebibytes(nbytes: int) -> str:
    """Returns a number of bytes in MiB (1,048,576 bytes).

    >>> mebibytes(2 << 30)
    '2,048 MiB'
    """
    return f"{nbytes / (1 << 20):,.0f} MiB"


def seconds(elapsed: float) -> str:
    """Returns a time in s, or in ms below one second.

    >>> seconds(0.01234)
    '12.3 ms'
    """
    return f"{elapsed * 1000:.3g} ms" if elapsed < 0.9995 else f"{elapsed:,.1f} s"
