"""The commands ``tailrace verify``, ``repair``, ``backup`` and ``restore``."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tailrace.cli.errors import CommandFailed
from tailrace.cli.options import Json
from tailrace.cli.output import make_console, make_table, print_json, printable
from tailrace_server.directory.watcher import Unwatched, Watcher
from tailrace_server.host.clock import SystemClock
from tailrace_server.host.disk import RealDisk, is_no_space
from tailrace_server.host.randomness import SystemRandomness
from tailrace_server.offline.backup import backup as take_backup
from tailrace_server.offline.repair import RepairOutcome
from tailrace_server.offline.repair import repair as repair_directory
from tailrace_server.offline.report import FileResult, Finding, Report, feed_text
from tailrace_server.offline.restore import restore as restore_backup
from tailrace_server.offline.verify import verify as verify_directory

# Longer tables are cut: --json has all findings.
_FINDINGS_SHOWN_MAX = 200

Directory = Annotated[str, typer.Argument(metavar="DIR", help="A data directory.", show_default=False)]
Copies = Annotated[bool, typer.Option("--copy", help="Copy segments instead of linking them.")]


def _new(metavar: str) -> Any:
    return typer.Argument(metavar=metavar, help="A directory that is empty or does not exist.", show_default=False)


def verify(
    directory: Directory,
    files: Annotated[bool, typer.Option("--files", help="List the good files, too.")] = False,
    json: Json = False,
) -> None:
    """Read and check all files in the directory of a stopped node, without changes. Exit code 1 for any problem."""
    with _watching("verify", directory, "verify writes only LOCK") as watcher:
        report = verify_directory(RealDisk(), directory, watcher)
    if json:
        for file in report.files:
            print_json(file.to_json())
        print_json(report.summary())
    else:
        _show_report(report, files)
    if report.problems:
        raise CommandFailed("")


def repair(
    directory: Directory,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")] = False,
    json: Json = False,
) -> None:
    """Make the damaged directory of a stopped node consistent, and list lost rows in lost/."""
    with _watching("repair", directory, "make space, and run it again: it continues") as watcher:
        outcome = repair_directory(
            RealDisk(),
            directory,
            SystemRandomness(),
            SystemClock(),
            time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
            is_dry=dry_run,
            watcher=watcher,
        )
    if json:
        print_json(_outcome_to_json(outcome))
    else:
        _show_outcome(outcome)


def backup(
    directory: Directory,
    target: Annotated[str, _new("TARGET")],
    copy: Copies = False,
    json: Json = False,
) -> None:
    """Take a backup of a directory, while a node runs on it or not."""
    with _watching("backup", target, "the backup is incomplete: remove the files in it") as watcher:
        taken = take_backup(RealDisk(), directory, target, SystemClock().wall_us(), copies=copy, watcher=watcher)
    if json:
        print_json(taken._asdict())
    else:
        print(
            f"{printable(target)}: {taken.segments} segments, {taken.linked} of them linked, {taken.segment_bytes:,} "
            f"bytes; {taken.journal_bytes:,} bytes of the journal"
        )


def restore(
    source: Annotated[
        str, typer.Argument(metavar="BACKUP", help="A directory made by `tailrace backup`.", show_default=False)
    ],
    directory: Annotated[str, _new("DIR")],
    copy: Copies = False,
    json: Json = False,
) -> None:
    """Make a data directory from a backup, for another node of the same cluster."""
    with _watching("restore", directory, "the restore is incomplete: remove the files in it") as watcher:
        restored = restore_backup(RealDisk(), source, directory, SystemRandomness(), copies=copy, watcher=watcher)
    if json:
        print_json(restored._asdict())
    else:
        linked = f"{restored.linked} of them linked"
        print(f"{printable(directory)}: {restored.files} files, {linked}, {restored.nbytes:,} bytes")


class _Bar:
    """A watcher that shows a progress bar."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=0, file="")
        self._total = 0

    def expect(self, nbytes: int) -> None:
        """Adds bytes to the total."""
        self._total += nbytes
        self._progress.update(self._task, total=self._total)

    def begin(self, path: str) -> None:
        """Shows the file beside the bar."""
        self._progress.update(self._task, file=printable(os.path.basename(path)))

    def read(self, nbytes: int) -> None:
        """Advances the bar by bytes that were read."""
        self._progress.advance(self._task, nbytes)


@contextlib.contextmanager
def _watching(title: str, written: str, full: str) -> Iterator[Watcher]:
    """Yields a watcher. On a full disk it raises CommandFailed with the advice ``full`` for directory ``written``."""
    try:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(_bar(title)) if sys.stderr.isatty() else Unwatched()
    except OSError as error:
        if not is_no_space(error):
            raise
        raise CommandFailed(f"{error.filename or written}: {error.strerror}; {full}") from None


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Watcher]:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, TextColumn("{task.fields[file]}", markup=False), console=console, transient=True) as bar:
        yield _Bar(bar, title)


def _show_report(report: Report, files: bool) -> None:
    console = make_console()
    kinds = [
        (kind, count, f"{nbytes:,}", ", ".join(map(str, report.versions(kind))), bad or "")
        for kind, count, nbytes, bad in report.kinds()
    ]
    columns = [
        ("what", "left"),
        ("files", "right"),
        ("bytes", "right"),
        ("version", "right"),
        ("with problems", "right"),
    ]
    console.print(make_table("Files", columns, kinds))
    if files:
        rows = [(file.path, f"{file.nbytes:,}", file.state) for file in report.files]
        console.print(make_table("All files", [("file", "left"), ("bytes", "right"), ("", "left")], rows))
    for title, found in (("Problems", report.problems), ("Notes", report.notes)):
        if found:
            _show_findings(console, title, found)
    console.print(f"{len(report.problems)} problems" if report.problems else "no problems")


def _show_findings(console: Console, title: str, found: list[tuple[FileResult, Finding]]) -> None:
    rows = [
        (file.path, "" if finding.offset is None else finding.offset, finding.what, finding.means)
        for file, finding in found[:_FINDINGS_SHOWN_MAX]
    ]
    columns = [("file", "left"), ("offset", "right"), ("what", "left"), ("meaning", "left")]
    console.print(make_table(title, columns, rows))
    if len(found) > len(rows):
        console.print(f"and {len(found) - len(rows)} more: --json shows all")


def _outcome_to_json(outcome: RepairOutcome) -> dict[str, Any]:
    lost = outcome.lost
    return {
        "actions": outcome.actions,
        "dry_run": outcome.is_dry,
        "lost": [
            {
                "feed": feed_id.hex(),
                "name": lost.names.get(feed_id),
                "partition": partition,
                "first_seq": first,
                "last_seq": last,
            }
            for feed_id, partition, first, last in lost.seqs
        ],
        "exported_rows": lost.exported_rows,
        "moved_files": lost.moved_files,
        "directory": lost.directory if lost.lines or lost.moved_files else None,
    }


def _show_outcome(outcome: RepairOutcome) -> None:
    if not outcome.actions:
        print("no problems: nothing to repair")
        return
    for action in outcome.actions:
        print(printable(action))
    lost = outcome.lost
    would = "would be " if outcome.is_dry else ""
    for feed_id, partition, first, last in lost.seqs[:_FINDINGS_SHOWN_MAX]:
        feed = printable(feed_text(feed_id, lost.names.get(feed_id)))
        print(f"lost: {feed}, partition {partition}, seqs {first} to {last}")
    if lost.lines or lost.moved_files:
        where = printable(lost.directory)
        print(f"{lost.lines} lines {would}in {where}/index.jsonl, {lost.moved_files} files {would}moved there")
