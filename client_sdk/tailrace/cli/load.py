"""``tailrace import``: writes the rows of a file to a feed, each of them once."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import typer
import xxhash
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tailrace.cli.errors import CommandFailed, WrongUsage, alone
from tailrace.cli.options import DEFAULT_URL, FeedName, Json, Node, Token, Url, target
from tailrace.cli.output import print_json, printable
from tailrace.cli.rowfiles import loader
from tailrace.cli.rowfiles.arrow_files import arrow_records, require_pyarrow
from tailrace.cli.rowfiles.batches import RULE, Batch, batches
from tailrace.cli.rowfiles.delimited import csv_records
from tailrace.cli.rowfiles.fields import Fields
from tailrace.cli.rowfiles.formats import Format, format_of
from tailrace.cli.rowfiles.json_lines import json_records
from tailrace.cli.rowfiles.loader import Loader
from tailrace.cli.rowfiles.records import BadRecord, Record
from tailrace.cli.rowfiles.sources import Source
from tailrace.cli.tls_options import uses_node
from tailrace.errors import BatchChanged
from tailrace.model import Delete
from tailrace.trio.client import Client

# The names of imports among the sinks of a feed.
PREFIX = "import:"
ID_CHARS_MAX = 100


RowFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The file; - reads the standard input.", show_default=False)
]
FileFormat = Annotated[
    Format | None,
    typer.Option("--format", help="The format. By default the name of the file tells it; JSON lines for -."),
]
KeyField = Annotated[str | None, typer.Option("--key", metavar="FIELD", help="The field of the key. [default: key]")]
ValueField = Annotated[
    str | None,
    typer.Option(
        "--value",
        metavar="FIELD",
        help="The field of the value. By default value; with --key alone the value is the whole row, as JSON.",
    ),
]
DeletedField = Annotated[
    str | None,
    typer.Option(
        "--deleted",
        metavar="FIELD",
        help="The field that is true if the key is deleted. By default deleted, but none with --key or --value.",
    ),
]
Delimiter = Annotated[
    str, typer.Option("--delimiter", metavar="CHAR", help="The character between the fields of CSV; \\t is a tab.")
]
ImportId = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="The name of this import in the feed. The rows of an ID are written once, in any number of runs. "
        "By default it is made of the path, the size and the time of change of the file.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and check the whole file, and write nothing.")]


@uses_node
def load(
    feed: FeedName,
    file: RowFile,
    format: FileFormat = None,
    key: KeyField = None,
    value: ValueField = None,
    deleted: DeletedField = None,
    delimiter: Delimiter = ",",
    id: ImportId = None,
    dry_run: DryRun = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Write the rows of a file to a feed, each of them once.

    The feed has to exist. Files have JSON lines, CSV, Parquet or Arrow; JSON lines and CSV may be compressed by gzip.
    Without --key and --value a row has the fields that `tailrace export` writes: key, value, deleted. The order of the
    rows of a key is kept.

    If the import is interrupted, the same command goes on where it ended, and writes nothing twice. A row that cannot
    be used ends it, with the line. The batches before that row are in the feed then; --dry-run finds it before.

    \b
    Examples:
      tailrace import orders orders.jsonl --key id
      tailrace import orders orders.csv --key id --value total
      tailrace export orders | tailrace import orders --url tailrace://other:4700 -
    """
    fields = Fields.named(key, value, deleted)
    kind = format_of(file, format)
    separator = _delimiter(delimiter)
    if not kind.is_text:
        require_pyarrow(kind)
    name = None if id is None else _checked_id(id)
    with Source(file) as source:
        records = _records(source, kind, fields, separator)
        read = batches(map(fields.change, records))
        if dry_run:
            _report(feed, source, _count(source, read), json, is_dry=True)
            return
        sink = PREFIX + (name or import_id(source, kind, fields, separator))
        run = _Run(source, sink, has_id=id is not None)
        run.load(feed, read, target("import", url, node, token).call)
        _report(feed, source, run.progress, json, is_dry=False)
        if source.state is not None and source.has_changed():
            raise CommandFailed(f"{source.name} was changed while it was imported: rows may be missing or torn")


def import_id(source: Source, format: Format, fields: Fields, delimiter: str) -> str:
    """Returns the id of an import: of the same file with the same options it is always the same one."""
    if source.state is None:
        return secrets.token_hex(16)
    told = repr((RULE, tuple(source.state), format.value, tuple(fields), delimiter))
    return xxhash.xxh3_128_hexdigest(told.encode(errors="surrogateescape"))


def _checked_id(id: str) -> str:
    if not 1 <= len(id) <= ID_CHARS_MAX or not id.isprintable():
        raise WrongUsage(f"--id is {id[:40]!r}: 1 to {ID_CHARS_MAX} printable characters are needed")
    return id


def _delimiter(text: str) -> str:
    found = "\t" if text == "\\t" else text
    if len(found) != 1 or found in '\r\n"':
        raise WrongUsage(f"--delimiter is {text!r}, and has to be one character, and no quote or line end")
    return found


def _records(source: Source, format: Format, fields: Fields, delimiter: str) -> Iterator[Record]:
    if format is Format.JSONL:
        return json_records(source.lines())
    if format is Format.CSV:
        return csv_records(source.lines(), delimiter)
    return arrow_records(source.file, format, fields.columns, source.count_rows)


def _count(source: Source, read: Iterator[Batch]) -> loader.Progress:
    """Reads all batches, and writes nothing."""
    rows = deletions = 0
    with _bar(source) as told, _named(source):
        for batch in read:
            rows += len(batch.changes)
            deletions += sum(isinstance(change, Delete) for change in batch.changes)
            told(rows)
    return loader.Progress(rows, 0, deletions)


class _Run:
    """One run of an import, and what it says if it does not come to its end."""

    def __init__(self, source: Source, sink: str, *, has_id: bool) -> None:
        self._source = source
        self._sink = sink
        self._has_id = has_id
        self.progress = loader.Progress()

    def load(self, feed: str, read: Iterator[Batch], call: Callable[..., None]) -> None:
        """Loads the batches by ``call(work)``, which connects. Raises CommandFailed and the errors of the SDK."""
        try:
            with _bar(self._source) as told, _named(self._source):
                call(partial(self._work, feed, read, told))
        except BaseException as error:
            cause = alone(error)
            if isinstance(cause, BatchChanged):
                raise CommandFailed(
                    f"{self._source.name} has other rows than the import {self._sink.removeprefix(PREFIX)!r} had "
                    "before: what was not written yet cannot be told from what was. Give another --id to write all"
                ) from None
            done = self.progress.written + self.progress.present
            if done and isinstance(cause, KeyboardInterrupt | Exception):
                how = how_to_go_on(is_bad=_is_bad(cause), has_id=self._has_id, is_file=self._source.state is not None)
                with contextlib.suppress(OSError):
                    print(f"tailrace: at least the first {done:,} rows are in the feed; {how}", file=sys.stderr)
            raise

    async def _work(self, feed: str, read: Iterator[Batch], told: Callable[[int], None], client: Client) -> None:
        def note(progress: loader.Progress) -> None:
            self.progress = progress
            told(progress.written + progress.present)

        await Loader(client.feed(feed), self._sink, note).load(read)


def how_to_go_on(*, is_bad: bool, has_id: bool, is_file: bool) -> str:
    """Returns the advice for an import that has ended early: ``is_bad``: since a row cannot be used."""
    if has_id:
        return f"{'mend that row, and ' if is_bad else ''}run the same command again to go on"
    if is_bad:
        return "once mended, it is another import: all its rows are written. With --id an import goes on"
    return "run the same command again to go on" if is_file else "with --id an import can go on"


def _is_bad(error: BaseException) -> bool:
    return isinstance(error, CommandFailed) and isinstance(error.__cause__, BadRecord)


@contextlib.contextmanager
def _named(source: Source) -> Iterator[None]:
    """Puts the name of the file before the place of a bad record."""
    try:
        yield
    except BaseException as error:
        cause = alone(error)
        if isinstance(cause, BadRecord):
            raise CommandFailed(f"{printable(source.name)}{', ' if cause.place else ': '}{cause}") from cause
        raise


@contextlib.contextmanager
def _bar(source: Source) -> Iterator[Callable[[int], None]]:
    """Yields the function that moves a progress bar to a number of rows. There is no bar without a terminal."""
    if not sys.stderr.isatty():
        yield lambda rows: None
        return
    columns = (
        TextColumn("import"),
        BarColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("import", total=None, rows=0)
        yield lambda rows: progress.update(task, completed=source.read_units, total=source.total_units, rows=rows)


def _report(feed: str, source: Source, done: loader.Progress, json: bool, *, is_dry: bool) -> None:
    rows = done.written + done.present
    if json:
        written, present = (0, 0) if is_dry else (done.written, done.present)
        print_json(
            {"feed": feed, "rows": rows, "deletions": done.deletions, "written": written, "present": present}
            | ({"dry_run": True} if is_dry else {})
        )
        return
    what = f"{rows:,} rows, {done.deletions:,} of them deletions"
    if is_dry:
        print(f"{printable(source.name)}: {what}; all can be used, and nothing was written")
    else:
        before = f"; {done.present:,} rows were there from an earlier run" if done.present else ""
        print(f"{printable(source.name)}: {what}, are in feed {feed}{before}")
