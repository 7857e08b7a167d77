"""What the demonstration prints: texts made from figures."""

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
from pyspark_tailrace.demo.servers import promotion

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
    """What is fed."""
    if history.note:
        yield f"There is no history to feed: {history.note}. So it is something else:"
    yield history.title[0].upper() + history.title[1:] + "."


def opening(total: int, workspace: Workspace) -> Iterator[str]:
    """What will be done."""
    where = "which stays" if workspace.kept else "which is removed at the end"
    yield f"It has {total:,} changes of paths. Working in {workspace.root}, {where}."


def results(found: DemoResults, server_bytes: int) -> Iterator[str]:
    """What came of it. ``server_bytes``: of the servers' files, once they have stopped."""
    yield ""
    yield from killed(found.interruption, found.produced.changes)
    yield ""
    yield from compared(found.comparison)
    yield ""
    yield from figures(found, server_bytes)
    yield ""
    yield from searched(found.search)


def killed(kill: Interruption, total: int) -> Iterator[str]:
    """The kill and its moment."""
    batch, done = kill.batch, kill.written_of_batch
    yield (
        f"The leader of three servers, {kill.killed.address}, was killed for good (SIGKILL) with {kill.written:,} of "
        f"{total:,} mutations on its disk ({kill.written / total:.0%}),"
    )
    yield (
        f"while Spark was writing micro-batch {batch.id}: of its {batch.changes:,} mutations {done:,} were there, "
        f"{batch.changes - done:,} were not."
    )
    yield (
        f"{kill.promoted.address} was promoted (`{shell('tailrace', *promotion(kill.promoted))}`); for "
        f"{kill.down_s:.1f} s nobody led."
    )
    if kill.kills > 1:
        yield f"It was kill number {kill.kills}: nothing was in flight at the one before."
    yield "The sink and the follower went on by themselves; every mutation is in the feed, and none twice."


def compared(comparison: Comparison) -> Iterator[str]:
    """The comparison, and what is not equal."""
    yield "The index, compared with the tree that the history ends at, path by path:"
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
    """How much and how fast."""
    produced = found.produced
    total, nbytes = produced.changes, produced.data_bytes
    superseded = total - found.rows_applied
    yield "Figures:"
    yield _figure("mutations", f"{total:,}, {produced.deletions:,} of them deletions")
    yield _figure("micro-batches", batch_times([batch.ended - batch.started for batch in found.batches]))
    yield _figure("written at the kill", f"{found.interruption.written:,}")
    yield _figure("in: all acknowledged", f"after {found.seconds_in:.1f} s{_rates(total, nbytes, found.seconds_in)}")
    yield _figure("out: in the index", f"after {found.seconds_out:.1f} s{_rates(total, nbytes, found.seconds_out)}")
    yield _figure(
        "barrier", f"{seconds(found.barrier_s)}, asked for when all was acknowledged, back when the index had it"
    )
    yield _figure("rows written to it", f"{found.rows_applied:,}; {superseded:,} had been superseded by then")
    yield _figure("keys and values", megabytes(nbytes))
    yield _figure("as files for Spark", f"{megabytes(produced.file_bytes)} in {produced.files:,} files")
    yield _figure("servers' data", f"{megabytes(server_bytes)}, of all three; the killed one stays behind")
    yield _figure("index", megabytes(found.index_bytes))
    yield from memory(found.memory)


def batch_times(times: Sequence[float]) -> str:
    """How many micro-batches there were, and how long they took.

    >>> batch_times([9.0, 1.0, 0.5, 3.0])
    "4; the first, which starts Spark's Python workers, took 9.0 s, the others 1.0 s (median)"
    """
    first = f"{len(times)}; the first, which starts Spark's Python workers, took {seconds(times[0])}"
    return first if len(times) == 1 else f"{first}, the others {seconds(statistics.median(times[1:]))} (median)"


def memory(meter: MemoryMeter) -> Iterator[str]:
    """The peaks of memory."""
    if not meter.peak_total:
        yield _figure("peak memory", "not measured: this system has no /proc")
        return
    yield _figure("peak memory", f"{mebibytes(meter.peak_total)} together, at one moment; each at its own:")
    for role in MEMORY_ROLES:
        if role in meter.peaks:
            yield f"    {mebibytes(meter.peaks[role]):>10}  {role}"


def searched(search: Search | None) -> Iterator[str]:
    """A query of the full text and what it found."""
    if search is None:
        yield "No text has a word of six letters to be searched for."
        return
    yield f"Full-text query {search.word!r}: {search.paths:,} paths in {seconds(search.seconds)}. The best:"
    for hit in search.hits:
        yield f"  {printable_path(hit.path):<{PATH_WIDTH}}  {printable(' '.join(hit.snippet.split()))}"


def by_hand(workspace: Workspace, commands: list[list[str]], url: str, search: Search | None) -> Iterator[str]:
    """How to go on by hand. ``commands``: what each server was called with."""
    root = workspace.root if workspace.kept else Path("DIR")
    if workspace.kept:
        yield f"To go on by hand ({workspace.root} stays until it is removed):"
    else:
        yield "With --data DIR everything would be kept, and you could go on by hand:"
    index = root / workspace.index.name
    query = QUERY.format(word="index" if search is None else search.word)
    tailrace = script()
    for number, command in enumerate(commands, 1):
        here = [word.replace(str(workspace.root), str(root)) for word in command]
        # By default all of them would want the same two ports for these.
        doors = ["--http", "off", "--ws", "off"]
        yield _figure(f"server {number} of the set:", shell(tailrace, *here, *doors))
    yield _figure("tail the feed:", shell(tailrace, "tail", FEED, "--url", url))
    # The statement has single quotes and nothing that a shell would see within double ones.
    yield _figure("query the index:", f'{shell(*sqlite(), index)} "{query}"')


def script() -> str:
    """The command ``tailrace`` as it can be called here."""
    beside = Path(sys.executable).with_name("tailrace")
    return "tailrace" if shutil.which("tailrace") or not beside.exists() else str(beside)


def sqlite() -> list[str]:
    """A program that queries an SQLite file, given the file and the statement."""
    if shutil.which("sqlite3"):
        return ["sqlite3"]
    code = "import sqlite3, sys; [print(*row) for row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2])]"
    return [sys.executable, "-c", code]


def shell(*words: object) -> str:
    """A command as it is typed."""
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
