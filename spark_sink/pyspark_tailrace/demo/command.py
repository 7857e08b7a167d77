"""``tailrace demo``: the whole way of the data on real input, with the leader of three servers killed on the way."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import trio
import typer

from pyspark_tailrace.demo import report
from pyspark_tailrace.demo.git import GitFailed
from pyspark_tailrace.demo.history import History, open_history
from pyspark_tailrace.demo.plan import CHANGES_MIN
from pyspark_tailrace.demo.progress import ProgressBars
from pyspark_tailrace.demo.run import DemoResults, run
from pyspark_tailrace.demo.standard_library import StandardLibrary
from pyspark_tailrace.demo.stderr import stderr_to
from pyspark_tailrace.demo.workspace import Workspace, open_workspace
from tailrace.cli.errors import CommandFailed, WrongUsage, alone

INTERRUPTED = 130  # as shells have it: 128 and the number of SIGINT


def demo(
    repo: Annotated[
        Path, typer.Option("--repo", metavar="PATH", help="The git repository whose history is the input.")
    ] = Path("."),
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Where to work; kept. What an earlier run left there is replaced."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the temporary folder that is taken without --data.")
    ] = False,
) -> None:
    """Feed a repository's history through Spark into a set of servers, follow it with an index, and compare with git.

    The leader of the set is killed on the way, for good, and another server promoted. The exit code is 1 where the
    index is not equal to git's tree.
    """
    with _explained(), _stopped_by_sigterm():
        history, total = choose_history(repo)
        with open_workspace(data, keep=keep) as workspace:
            _print(report.opening(total, workspace))
            with ProgressBars() as bars, stderr_to(workspace.spark_log):
                found = trio.run(_run_until_stopped, history, total, workspace, bars)
            _print(report.results(found, workspace.server_bytes))
            _print(["", *report.by_hand(workspace, found.commands, found.url, found.search)])
    _require_equal(found)


async def _run_until_stopped(history: History, total: int, workspace: Workspace, bars: ProgressBars) -> DemoResults:
    """The demo; KeyboardInterrupt where a signal ends it, once it has cleaned up.

    The signals come as events. A KeyboardInterrupt of the signal's handler may strike inside of trio itself, which then
    ends without any clean-up.
    """
    stopped = False
    found: DemoResults | Exception | None = None

    async def stop(scope: trio.CancelScope) -> None:
        nonlocal stopped
        async for _ in signals:
            stopped = True
            scope.cancel()

    try:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stop, nursery.cancel_scope)
                try:
                    found = await run(history, total, workspace, bars)
                except Exception as error:  # raised below: the nursery would make a group of it
                    found = error
                nursery.cancel_scope.cancel()
    except BaseException:
        if not stopped:
            raise
    if stopped or found is None:
        raise KeyboardInterrupt
    if isinstance(found, Exception):
        raise found
    return found


def choose_history(repo: Path) -> tuple[History, int]:
    """The history to feed and the count of its changes: that of ``repo``, where it has enough of them.

    Prints which. WrongUsage where ``repo`` is no folder.
    """
    try:
        history = open_history(repo)
    except ValueError as error:
        raise WrongUsage(f"--repo: {error}") from None
    _print(report.source(history))
    total = history.count()
    if total < CHANGES_MIN:
        history = StandardLibrary(note=f"{total} changes are too few for a leader that is killed in the midst of them")
        _print(report.source(history))
        total = history.count()
    return history, total


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def _require_equal(found: DemoResults) -> None:
    different = len(found.comparison.differences)
    if different:
        raise CommandFailed(f"the index is not equal to the tree: {different:,} paths differ")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raises the one cause of what went wrong, with all notes, as an error that the command line explains."""
    try:
        yield
    except BaseException as error:
        if _is_interrupt(error):
            raise CommandFailed("stopped; nothing is left running", INTERRUPTED) from None
        cause = alone(error)
        notes = getattr(error, "__notes__", [])
        if isinstance(cause, GitFailed | ImportError | sqlite3.Error):
            raise CommandFailed("; ".join([str(cause), *notes])) from error
        if cause is not error:
            for note in notes:
                cause.add_note(note)
        raise cause from None


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does; SIGINT gets its handler back, which a shell takes from what it runs behind."""
    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        (signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))),
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
