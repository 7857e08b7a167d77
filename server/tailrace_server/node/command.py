"""``tailrace serve``: runs a node until it is told to stop.

The ready line on stdout is the last thing of the start: every listener answers by then, and the line has the real
ports. SIGTERM and SIGINT end the process with exit code 0 at any moment. Before the ready line they abandon the start,
after it they stop the node cleanly. A second signal changes nothing. A node is built to survive SIGKILL.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import trio

from tailrace.cli.errors import CommandFailed, WrongUsage, alone
from tailrace.link.address import Address
from tailrace_server.config import Config
from tailrace_server.host.allocator import keep_freed_memory
from tailrace_server.host.disk import is_no_space
from tailrace_server.host.tls import NodeTls
from tailrace_server.journal import JournalDamaged
from tailrace_server.node.configure import Configured, configure, load_settings
from tailrace_server.node.descriptors import (
    permitted_limits,
    permitted_storage,
    raise_descriptor_limit,
    wanted_descriptors,
)
from tailrace_server.node.flags import Assignments, ConfigFile, given_flags, with_flags
from tailrace_server.node.logs import set_up_logs
from tailrace_server.node.node import Node
from tailrace_server.node.reloading import Reloading
from tailrace_server.node.serve_settings import Settings
from tailrace_server.node.service_manager import READY, STOPPING, tell_service_manager
from tailrace_server.node.settings import unknown_names
from tailrace_server.node.start import open_node
from tailrace_server.serving.listeners import show_listen_address

log = logging.getLogger("tailrace.server")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DISK_ERRORS = (errno.EIO, errno.EROFS, errno.ESTALE, errno.ENXIO, errno.ENODEV)
ADDRESS_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)


class Listening(NamedTuple):
    """The addresses of a node's listeners, with the real ports; None without a listener."""

    frames: tuple[str, int]
    http: tuple[str, int] | None
    ws: tuple[str, int] | None

    def __str__(self) -> str:
        frames, http, ws = map(show_listen_address, (self.frames, self.http, self.ws))
        return f"frames on {frames}, http on {http}, ws on {ws}"


@with_flags
def serve(config: ConfigFile = None, set_: Assignments = None, **given: Any) -> None:
    """Serve a node over a data directory until SIGTERM or Ctrl-C.

    When every listener answers, one line on stdout has the addresses:
    "tailrace: ready, frames on ..., http on ..., ws on ...".
    """
    loaded = load_settings(config, given_flags(given, set_))
    settings = loaded.settings.serve
    if not settings.data:
        raise WrongUsage("--data has to name the data directory; TAILRACE_DATA or `data` in --config may do so, too")
    configured = configure(loaded.settings)
    name = str(Address(*configured.config.listen))
    set_up_logs(settings.log_level, settings.log_format, name)
    wanted = configured.config.limits
    descriptors = raise_descriptor_limit(wanted_descriptors(wanted))
    node_config = dataclasses.replace(
        configured.config,
        limits=permitted_limits(wanted, descriptors),
        storage=permitted_storage(configured.config.storage, descriptors),
    )
    _check_tls(node_config)

    def reload_of(node: Node) -> Callable[[], None]:
        def apply(now: Settings) -> None:
            set_up_logs(now.serve.log_level, now.serve.log_format, name)
            raised = raise_descriptor_limit(wanted_descriptors(now.limits))
            node.adopt(permitted_limits(now.limits, raised), now.storage, now.replication)

        return Reloading(config, loaded, apply).reload

    for unknown, meant in unknown_names().items():
        log.warning("the environment has %s, which is no setting; did you mean %s?", unknown, meant)
    keep_freed_memory()
    try:
        with _sigterm_as_sigint():
            opened = open_node(node_config) if configured.store is None else _open_clustered(node_config, configured)
            trio.run(_serve, node_config, opened, configured, reload_of)
    except* KeyboardInterrupt:
        print("tailrace: stopped before it was ready", file=sys.stderr)
    except* JournalDamaged as group:
        failure, data = alone(group), settings.data
        failure.add_note(f"look at all of it with `tailrace verify {data}`; `tailrace repair {data}` saves the rest")
        raise
    except* OSError as group:
        raise CommandFailed(f"cannot serve: {_explain(group, settings.listen, settings.data)}") from group


def _check_tls(config: Config) -> None:
    """Raises WrongUsage if a file of certificates cannot be used."""
    if config.tls is not None:
        try:
            NodeTls(config.tls)
        except ValueError as error:
            raise WrongUsage(f"TLS: {error}") from None


def _explain(group: BaseExceptionGroup[OSError], listen: str, data: str) -> str:
    error = alone(group)
    assert isinstance(error, OSError)
    reason = error.strerror or str(error)
    if error.filename:
        return f"{error.filename}: {reason}"
    if is_no_space(error):
        return f"{data}: {reason}"
    if error.errno in _DISK_ERRORS:  # a call with a descriptor tells no name
        return f"{data}: {reason}: see to the disk"
    if isinstance(error, socket.gaierror) or error.errno in ADDRESS_ERRORS:
        return reason if reason.startswith("--") else f"--listen {listen}: {reason}"
    return reason


def _open_clustered(config: Config, configured: Configured) -> contextlib.AbstractAsyncContextManager[Node]:
    # Not imported without the option: the client of HTTP would be a good part of the start, and need not be installed.
    try:
        from tailrace_server.node.clustered import ClusterStore, open_clustered
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        raise CommandFailed("--cluster-store needs httpx2: pip install 'tailrace[etcd]'") from None
    assert configured.store is not None
    return open_clustered(config, ClusterStore(configured.store, configured.voters))


async def _serve(
    config: Config,
    opened: contextlib.AbstractAsyncContextManager[Node],
    configured: Configured,
    reload_of: Callable[[Node], Callable[[], None]],
) -> None:
    had_terminal = sys.stdin is not None and sys.stdin.isatty()
    # The receiver outlives the node, so that no signal interrupts a stop that has begun.
    with contextlib.ExitStack() as until_stopped:
        async with opened as node:
            signals = until_stopped.enter_context(trio.open_signal_receiver(*SIGNALS))
            async with contextlib.AsyncExitStack() as listeners:
                http = ws = None
                tls = None if node.host.tls is None else node.host.tls.for_browsers
                # A listener that is off is not imported: that would be a good part of the start.
                if config.http is not None:
                    from tailrace_server.serving.console import http_listener

                    http = await listeners.enter_async_context(
                        http_listener(node, config.http, configured.hosts, tls, configured.http_origins)
                    )
                if config.ws is not None:
                    from tailrace_server.serving.tailing import ws_listener

                    most = config.limits.websocket_connections_max
                    ws = await listeners.enter_async_context(
                        ws_listener(node.handle, node, config.ws, configured.origins, configured.hosts, tls, most)
                    )
                _announce(Listening(_listening(node), http, ws))
                tell_service_manager(READY)
                reload = reload_of(node)
                async for number in signals:
                    # A terminal that is closed sends SIGHUP, too: no user could stop the node any more.
                    if number == signal.SIGHUP and not (had_terminal and not sys.stdin.isatty()):
                        reload()
                        await _reload_tls(node)
                        continue
                    tell_service_manager(STOPPING)
                    log.info("stopping: %s", signal.Signals(number).name)
                    break


async def _reload_tls(node: Node) -> None:
    """Reads the certificates again."""
    if node.host.tls is not None:
        await node.host.workers.in_thread(node.host.tls.reload)


def _listening(node: Node) -> tuple[str, int]:
    assert node.listening is not None, "open_node has an address before its body begins"
    return node.listening


def _announce(listening: Listening) -> None:
    # The parent may have closed the pipe by now: no reason not to serve.
    with contextlib.suppress(OSError):
        print(f"tailrace: ready, {listening}", flush=True)


@contextlib.contextmanager
def _sigterm_as_sigint() -> Iterator[None]:
    """Makes SIGTERM act as Ctrl-C until the node is ready: trio raises it at a checkpoint, so it breaks nothing.

    SIGHUP, after which a node reads its settings again, has nothing to do before. SIGINT gets its handler back, which a
    shell takes from background processes.
    """
    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        (signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))),
        (signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN)),
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
