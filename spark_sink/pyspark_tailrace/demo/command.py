"""The command ``tailrace demo``: runs all components on real input, and kills the leader of three servers."""

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
        typer.Option(
            "--data", metavar="DIR", help="The working folder, which is kept. Replaces files of earlier runs."
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Without --data: keep the temporary working folder.")] = False,
) -> None:
    """Feed a repository's history through Spark into a set of servers, follow it with an index, and compare with git.

    The leader of the set is killed in the middle, for good, and the others choose another one. The exit code is 1 if
    the index differs from git's tree.
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
    """Runs the demo. Raises KeyboardInterrupt, after the clean-up, if a signal ends it.

    Signals come as events, because a KeyboardInterrupt of a signal handler may be raised inside trio itself, which then
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
                except Exception as error:  # raised below, because the nursery would wrap it in a group
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
    """Returns the history to feed, and the count of its changes. It is that of ``repo`` if it has enough changes.

    Prints its title. Raises WrongUsage if ``repo`` is no folder.
    """
    try:
        history = open_history(repo)
    except ValueError as error:
        raise WrongUsage(f"--repo: {error}") from None
    _print(report.source(history))
    total = history.count()
    if total < CHANGES_MIN:
        history = StandardLibrary(note=f"it has {total} changes, too few to kill a leader in the middle of them")
        _print(report.source(history))
        total = history.count()
    return history, total


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def _require_equal(found: DemoResults) -> None:
    different = len(found.comparison.differences)
    if different:
        raise CommandFailed(f"the index differs from git's tree in {different:,} paths")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raises the single cause of an error, with all notes, as an error that the command line explains."""
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
    """Makes SIGTERM act as Ctrl-C, and restores SIGINT's handler, which shells disable for background processes."""
    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        (signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))),
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
