"""The log of a node on stderr, as text or as JSON lines. Pure, but `set_up_logs`.

Each event is one line: a newline in a message is written as ``\\n``. Only a traceback has lines of its own as text; as
JSON it is one member.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import threading
from types import TracebackType
from typing import Any

from tailrace_server.node.serve_settings import LogFormat, LogLevel

_log = logging.getLogger("tailrace.server")

# Members that an event has if its call gives them, as ``extra``, or if its message begins so.
FIELDS = ("feed", "partition", "peer")
_BEGINNINGS = {
    "partition %s of feed %s": ("partition", "feed"),
    "feed %s": ("feed",),
    "connection of %s": ("peer",),
}
_ESCAPES = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\u2028"): "\\u2028", ord("\u2029"): "\\u2029"}


class TextLines(logging.Formatter):
    """Formats an event for people: time in UTC, level, logger and message, and a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the lines of the event."""
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage().translate(_ESCAPES)}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonLines(logging.Formatter):
    """Formats an event as a JSON object: time, level, logger, message, node, and what is known of ``FIELDS``."""

    def __init__(self, node: str) -> None:
        """``node``: the address by which other nodes know this one."""
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of the event."""
        event: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "node": self._node,
            **_fields(record),
        }
        trace = _trace(self, record)
        return json.dumps(event | {"traceback": trace} if trace else event)


def set_up_logs(level: LogLevel, form: LogFormat, node: str) -> None:
    """Logs to stderr from now on. A later call takes the place of an earlier one."""
    formatter: logging.Formatter = JsonLines(node) if form is LogFormat.JSON else TextLines()
    root = logging.getLogger()
    ours = next((handler for handler in root.handlers if isinstance(handler, _Handler)), None)
    if ours is None:
        ours = _Handler(sys.stderr)
        root.addHandler(ours)
    ours.setFormatter(formatter)
    root.setLevel(logging.WARNING)
    if form is LogFormat.JSON:
        _log_what_python_prints()
    logging.getLogger("tailrace").setLevel(level.name)


def _log_what_python_prints() -> None:
    """Logs errors that nothing has caught, and warnings: Python would print them as lines of text."""

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            _log.critical("the process ends by an internal error: %s", error, exc_info=(kind, error, trace))

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            info = args.exc_type, args.exc_value, args.exc_traceback
            _log.critical("a thread has ended by an internal error: %s", args.exc_value, exc_info=info)

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        if args.exc_value is not None:
            info = args.exc_type, args.exc_value, args.exc_traceback
            _log.error("an error was ignored in %r: %s", args.object, args.exc_value, exc_info=info)

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, in_thread, unraisable
    logging.captureWarnings(True)


class _Handler(logging.StreamHandler[Any]):
    """The handler that ``set_up_logs`` has added."""


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    args = record.args if isinstance(record.args, tuple) else ()
    beginning = next((names for text, names in _BEGINNINGS.items() if str(record.msg).startswith(text)), ())
    found = dict(zip(beginning, args, strict=False))
    found |= {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}
    return {name: value if isinstance(value, int) else str(value) for name, value in found.items()}
