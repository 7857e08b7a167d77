"""Reads the settings of a running node again, on SIGHUP, and says what has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tailrace.cli.errors import CommandFailed
from tailrace_server.node.configure import configure, load_settings
from tailrace_server.node.serve_settings import Settings
from tailrace_server.node.settings import Loaded, Path, paths, show_value, value_of

log = logging.getLogger("tailrace.server")


class Changes(NamedTuple):
    """The settings that differ from those in force: those that a running node takes, and those that need a restart."""

    reloaded: tuple[Path, ...]
    restart: tuple[Path, ...]


def compare(in_force: Mapping[Path, Any], after: Settings) -> Changes:
    """Returns the settings that differ."""
    known = paths()
    differing = [path for path in known if in_force[path] != value_of(after, path)]
    return Changes(
        tuple(path for path in differing if known[path].reloads),
        tuple(path for path in differing if not known[path].reloads),
    )


class Reloading:
    """The settings in force, and how they are read again."""

    def __init__(self, file: str | None, loaded: Loaded, apply: Callable[[Settings], None]) -> None:
        """``apply`` puts those settings in force that need no restart, and leaves the others alone."""
        self._file = file
        self._flags = next(source.values for source in loaded.sources if source.name == "flag")
        self._in_force = {path: value_of(loaded.settings, path) for path in paths()}
        self._apply = apply

    def reload(self) -> None:
        """Reads the file again and applies it. If a setting is wrong, all stay as they are.

        A setting that needs a restart is named by each reload until the node has been started again.
        """
        try:
            after = load_settings(self._file, self._flags).settings
            configure(after)
        except CommandFailed as error:
            log.error("the settings stay as they are: %s", error)
            return
        changes, known = compare(self._in_force, after), paths()
        for path in changes.reloaded:
            old, new = (show_value(value, known[path]) for value in (self._in_force[path], value_of(after, path)))
            log.info("setting %s was %s, and is %s", ".".join(path), old, new)
            self._in_force[path] = value_of(after, path)
        for path in changes.restart:
            log.warning("setting %s has changed: restart the node to use it", ".".join(path))
        if not any(changes):
            log.info("no setting has changed")
        self._apply(after)
