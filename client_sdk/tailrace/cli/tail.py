"""``tailrace tail``: follows a feed from a given place until it is interrupted."""

from __future__ import annotations

import contextlib
import enum
import math
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import trio
import typer

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.inputs import read_positions
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, ReadState, StateOption, Target, Token, Url, target
from tailrace.cli.output import from_argument, printable, to_json_line
from tailrace.cli.tls_options import uses_node
from tailrace.consuming.events import Mutations, Rollback
from tailrace.consuming.session import Event
from tailrace.consuming.subscription import require_catch_up
from tailrace.model import CatchUpMode, OnDataGone
from tailrace.model.failover import SEQ_MAX
from tailrace.model.json_rows import bytes_field, mutation_to_row
from tailrace.model.position import Positions
from tailrace.model.times import looks_like_time, parse_time
from tailrace.trio.stream import Stream
from tailrace.wire.filters import StreamFilter

# Lines are written in parts of this size: more than a pipe takes at once, and little memory.
WRITE_CHARS = 256 * 1024
# After Ctrl-C, a write to a slow reader may take this long.
GRACE_SECONDS = 0.5


class CatchUpOption(enum.StrEnum):
    """The choices of --catch-up, as in `tailrace.Feed.consume`."""

    AUTO = "auto"
    SEGMENTS = "segments"
    STREAM = "stream"


class DataGoneOption(enum.StrEnum):
    """The choices of --on-data-gone, as in `tailrace.Feed.consume`."""

    RAISE = "raise"
    RESTART = "restart"


@uses_node
def tail(
    feed: FeedName,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="WHERE",
            help="Start here: beginning, now, a time such as 2026-11-21T10:00:00Z or -15m (15 minutes ago), the "
            "positions that an earlier tail has printed, or @FILE with such positions.  [default: beginning]",
            show_default=False,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            "-n",
            metavar="N",
            min=0,
            max=SEQ_MAX,
            help="Start with the last N mutations of each partition. A compact feed has fewer if some were superseded.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="WHERE",
            help="End here: now, positions, @FILE or a time. Without it, tail runs until Ctrl-C.",
        ),
    ] = None,
    key_prefix: Annotated[
        str, typer.Option("--key-prefix", metavar="PREFIX", help="Print only keys that begin with this prefix.")
    ] = "",
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Do not fetch or print values.")] = False,
    positions_to: Annotated[
        Path | None,
        typer.Option(
            "--positions-to", metavar="FILE", help="Write the positions at the end to this file, not to stderr."
        ),
    ] = None,
    catch_up: Annotated[
        CatchUpOption,
        typer.Option(
            "--catch-up",
            help="How to read what the node has in segments: as files if it is much, always as files, or never.",
        ),
    ] = CatchUpOption.AUTO,
    on_data_gone: Annotated[
        DataGoneOption,
        typer.Option(
            "--on-data-gone",
            help="If the next rows of a partition are gone: end with an error, or print a rollback and what is kept.",
        ),
    ] = DataGoneOption.RAISE,
    state: ReadState = StateOption.LEADER,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Follow a feed.

    Prints each mutation of the feed, present and future ones, on a line: partition:seq, put or delete, key and value,
    with tabs in between. At the end it prints the positions at which the next tail can go on without a gap.

    \b
    Examples:
      tailrace tail orders --since now
      tailrace tail orders -n 100
      tailrace tail orders --since -15m --key-prefix 4711/ --json
      tailrace tail orders --until now --positions-to positions.txt
      tailrace tail orders --since @positions.txt
    """
    if last is not None and since is not None:
        raise WrongUsage("--last and --since both name a start: give one of them")
    where = "beginning" if since is None else since
    start = f"last:{last}" if last is not None else _parse_place(where, "--since", "beginning", "now")
    end = None if until is None else _parse_place(until, "--until", "now")
    if isinstance(start, datetime) and isinstance(end, datetime) and end < start:
        raise WrongUsage(f"--until: {end} is before --since")
    filter = _parse_filter(key_prefix, keys_only)
    _check_catch_up(catch_up, start, end)
    lines = json_lines if json else plain_lines
    target_node = target("tail", url, node, token, state.value)
    follower = _Follower(target_node, feed, start, end, filter, catch_up.value, on_data_gone.value, lines)
    try:
        trio.run(follower.run)
    finally:
        _tell(follower.positions, positions_to)


def _parse_place(where: str, option: str, *words: str) -> str | Positions | datetime:
    if where in words:
        return where
    if not looks_like_time(where):
        return read_positions(option, where, hint=f"; or write {', '.join(words)} or a time")
    try:
        return parse_time(where)
    except ValueError as error:
        raise WrongUsage(f"{option}: {error}") from None


def _parse_filter(key_prefix: str, keys_only: bool) -> StreamFilter:
    filter = StreamFilter(from_argument(key_prefix), keys_only)
    try:
        filter.check()
    except ValueError as error:
        raise WrongUsage(f"--key-prefix: {error}") from None
    return filter


def _check_catch_up(
    catch_up: CatchUpOption, since: str | Positions | datetime, until: str | Positions | datetime | None
) -> None:
    """Raises WrongUsage if the bounds or this installation do not permit ``catch_up``."""
    if catch_up is not CatchUpOption.SEGMENTS:
        return
    if isinstance(since, datetime) or isinstance(until, datetime):
        raise WrongUsage("--catch-up segments: times are read by the stream; use auto, or positions")
    try:
        require_catch_up(catch_up.value)
    except ImportError as error:
        raise WrongUsage(f"--catch-up segments: {error}") from None


class _Follower:
    """Prints a feed.

    Attributes:
        positions: The positions after the printed mutations; None if they are not known.
    """

    def __init__(
        self,
        target: Target,
        feed: str,
        since: str | Positions | datetime,
        until: str | Positions | datetime | None,
        filter: StreamFilter,
        catch_up: CatchUpMode,
        on_data_gone: OnDataGone,
        lines: Callable[[Event], Iterator[str]],
    ) -> None:
        self._target = target
        self._feed = feed
        self._since = since
        self._until = until
        self._filter = filter
        self._catch_up = catch_up
        self._on_data_gone = on_data_gone
        self._lines = lines
        self._output = _Output()
        self._unread = False
        self.positions: Positions | None = None

    async def run(self) -> None:
        """Runs until the end, until SIGINT or SIGTERM, or until the reader of stdout is gone."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_at_signal, signals, nursery.cancel_scope)
                nursery.start_soon(self._cancel_without_reader, nursery.cancel_scope)
                try:
                    async with (
                        self._target.client() as client,
                        client.feed(self._feed).consume(
                            self._since,
                            until=self._until,
                            key_prefix=self._filter.key_prefix,
                            keys_only=self._filter.keys_only,
                            catch_up=self._catch_up,
                            on_data_gone=self._on_data_gone,
                        ) as stream,
                    ):
                        await self._print(stream)
                except BrokenPipeError:
                    self._unread = True
                nursery.cancel_scope.cancel()
        if self._unread:
            self.positions = None  # the reader may not have read all printed lines

    async def _cancel_at_signal(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        await anext(signals)
        self._output.hurry()
        scope.cancel()

    async def _cancel_without_reader(self, scope: trio.CancelScope) -> None:
        """Ends the command when the reader of a pipe is gone, without a write: a feed may be silent for hours."""
        descriptor = sys.stdout.fileno()
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            # The writing end never becomes readable, but its error wakes it when the other end is closed.
            await trio.lowlevel.wait_readable(descriptor)
            self._unread = True
            scope.cancel()

    async def _print(self, stream: Stream) -> None:
        self.positions = stream.positions
        async for event in stream:
            for line in self._lines(event):
                self._output.add(line)
                if self._output.chars >= WRITE_CHARS:
                    await self._output.write()
            if not stream.has_event():
                await self._output.write()
            if not self._output.chars:
                self.positions = stream.latest_positions


class _Output:
    """Writes to stdout in a thread, so that a slow reader does not block other tasks.

    It writes to the descriptor, since a thread that hangs in a write at exit must not hold the lock of ``sys.stdout``.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._writing = trio.CancelScope()
        self._grace_s = math.inf
        self.chars = 0

    def add(self, line: str) -> None:
        self._lines.append(line)
        self.chars += len(line)

    async def write(self) -> None:
        """Writes the lines that were added. Raises BrokenPipeError if the reader is gone."""
        data = "".join(self._lines).encode(sys.stdout.encoding or "utf-8", "backslashreplace")
        self._lines = []
        if data:
            # It is shielded, so that written lines count as written.
            deadline = trio.current_time() + self._grace_s
            with trio.CancelScope(deadline=deadline, shield=True) as self._writing:
                await trio.to_thread.run_sync(_write_all, sys.stdout.fileno(), data, abandon_on_cancel=True)
            if self._writing.cancelled_caught:
                await trio.sleep_forever()  # the command is being ended
        self.chars = 0

    def hurry(self) -> None:
        """Limits the present write to `GRACE_SECONDS`, since the command ends."""
        self._grace_s = GRACE_SECONDS
        self._writing.deadline = trio.current_time() + GRACE_SECONDS


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def json_lines(event: Event) -> Iterator[str]:
    """Yields a JSON object for each mutation, with its partition, and for each rollback."""
    if isinstance(event, Mutations):
        for mutation in event:
            yield to_json_line({**mutation_to_row(mutation), "partition": event.partition})
    elif isinstance(event, Rollback):
        keys = None if event.keys is None else [bytes_field("key", key) for key in event.keys]
        yield to_json_line({"rollback": True, "partition": event.partition, "seq": event.seq, "keys": keys})


def plain_lines(event: Event) -> Iterator[str]:
    """Yields a line for each mutation: partition and seq, put, delete or expire, key, and the value if there is one.

    Tabs separate the fields; tabs inside a field are escaped.
    """
    if isinstance(event, Mutations):
        for mutation in event:
            where = f"{event.partition}:{mutation.seq}"
            if mutation.value is None:
                done = ("expire" if mutation.expired else "delete") if mutation.deleted else "put"
                yield f"{where}\t{done}\t{printable(mutation.key)}\n"
            else:
                yield f"{where}\tput\t{printable(mutation.key)}\t{printable(mutation.value)}\n"
    elif isinstance(event, Rollback):
        yield f"{event.partition}:{event.seq}\trollback\n"


def _tell(positions: Positions | None, path: Path | None) -> None:
    """Prints or stores the positions, if they are known. Raises CommandFailed if the file cannot be written."""
    if positions is None:
        return
    if path is None:
        with contextlib.suppress(OSError):  # stderr may be closed
            print(f"tailrace: to go on from here: --since {positions}", file=sys.stderr)
        return
    try:
        # The file is replaced in one step: an earlier tail's positions are better than half a string.
        whole = path.with_name(f"{path.name}.new")
        whole.write_text(f"{positions}\n", encoding="ascii")
        whole.replace(path)
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror or error}; to go on from here: --since {positions}") from None
