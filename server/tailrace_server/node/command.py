"""``tailrace serve``: runs a node until it is told to stop.

The ready line on stdout is the last thing of the start: every listener answers by then, and the line has the real
ports. SIGTERM and SIGINT end the process with exit code 0 at any moment. Before the ready line they abandon the start,
after it they stop the node cleanly. A second signal changes nothing. A node is built to survive SIGKILL.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import logging
import resource
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import trio
import typer

from tailrace.cli.errors import CommandFailed, WrongUsage, alone
from tailrace.link.address import Address, parse_address
from tailrace_server.config import Config, Failover, Limits, Replication, StorageConfig
from tailrace_server.coordination.store_url import StoreUrl, parse_store_url
from tailrace_server.host.allocator import keep_freed_memory
from tailrace_server.host.disk import is_no_space
from tailrace_server.journal import JournalDamaged
from tailrace_server.node.node import Node
from tailrace_server.node.service_manager import READY, STOPPING, tell_service_manager
from tailrace_server.node.start import open_node
from tailrace_server.serving.listeners import parse_listen_address, show_listen_address

# The number of nodes that found a set, unless --voters says another one.
VOTERS = 3
# Hosts that name no machine.
WILDCARDS = frozenset({"0.0.0.0", "::", ""})
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ADDRESS_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)
# A descriptor for each of Limits.connections_max, as many again for the other listeners, and a quarter for segments.
DESCRIPTORS_WANTED = 12_000
# The divisors for connections and for segments if fewer are permitted. The rest is for files that are being written,
# for stages and for the compaction; the journal keeps its own.
CONNECTIONS_SHARE = 2
# The length of the secret of nodes: too long to be guessed, and short enough for a HELLO.
_PEER_TOKEN_CHARS_MIN = 32
_PEER_TOKEN_CHARS_MAX = 1_024
SEGMENTS_SHARE = 4


class LogLevel(enum.StrEnum):
    """The levels of log lines on stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Listening(NamedTuple):
    """The addresses of a node's listeners, with the real ports; None without a listener."""

    frames: tuple[str, int]
    http: tuple[str, int] | None
    ws: tuple[str, int] | None

    def __str__(self) -> str:
        frames, http, ws = map(show_listen_address, (self.frames, self.http, self.ws))
        return f"frames on {frames}, http on {http}, ws on {ws}"


# The options of ``tailrace serve``.
_Data = Annotated[
    str, typer.Option("--data", metavar="DIR", help="The data directory. It is made if it does not exist.")
]
_Listen = Annotated[
    str,
    typer.Option(
        "--listen", metavar="HOST:PORT", help="The address for clients and other nodes. Port 0: any free one."
    ),
]
_Http = Annotated[
    str,
    typer.Option("--http", metavar="HOST:PORT", help="The address of health, status and console; 'off' for none."),
]
_Ws = Annotated[
    str, typer.Option("--ws", metavar="HOST:PORT", help="The address for tailing over WebSocket; 'off' for none.")
]
_WsOrigin = Annotated[
    list[str] | None,
    typer.Option(
        "--ws-origin",
        metavar="ORIGIN",
        help="Pages of this origin (https://app.example.org) may use the WebSocket; '*': all. Can be repeated. "
        "Pages of the node's own address always may.",
    ),
]
_AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="HOST",
        help="Browsers and proxies may name this host when they ask over HTTP or WebSocket; '*': any. Can be "
        "repeated. The node's address and the names in --listen, --http and --ws always may be named.",
    ),
]
_Restored = Annotated[
    bool,
    typer.Option(
        "--restored",
        help="DIR is a copy of another node's directory or volume. Give this option at the first start of the copy.",
    ),
]
_Members = Annotated[
    str | None,
    typer.Option(
        "--members",
        metavar="HOST:PORT,...",
        help="The node is one of this set. Give all members the same list in the same order; it has the --listen of "
        "each.",
    ),
]
_ReplicaOf = Annotated[
    str | None,
    typer.Option("--replica-of", metavar="HOST:PORT", help="Follow this node, without a vote on who leads."),
]
_Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="The name of the cluster. A client whose URL has another name does not use this node.",
    ),
]
_ClusterStore = Annotated[
    str | None,
    typer.Option(
        "--cluster-store",
        metavar="URL",
        help="The node is one of the set whose members etcd has, below /tailrace/NAME of --cluster: "
        "etcd://HOST:PORT,... or etcds:// for TLS, with ?ca=FILE&cert=FILE&key=FILE, and "
        "USER@HOST:PORT?password_file=FILE.",
    ),
]
_Voters = Annotated[
    int | None,
    typer.Option(
        "--voters",
        metavar="N",
        min=2,
        max=101,
        help="With --cluster-store: how many nodes found the set, by default 3. A founded set stays as it is.",
    ),
]
_Failover = Annotated[
    Failover | None,
    typer.Option(
        "--failover",
        help="In a set: whether the members choose another leader by themselves if the leader is gone (auto), or an "
        "operator has to promote one (manual). By default auto.",
    ),
]
_Auth = Annotated[
    bool,
    typer.Option(
        "--auth",
        help="Require tokens of clients and other nodes. The first start makes an admin token in DIR/admin.token.",
    ),
]
_PeerTokenFile = Annotated[
    str | None,
    typer.Option(
        "--peer-token-file",
        metavar="FILE",
        help="The secret by which the nodes of a set know each other, the same in each node's file: "
        "32 or more characters; or a token of role replica.",
    ),
]
_LogLevel = Annotated[LogLevel, typer.Option("--log-level", help="The least level that is logged to stderr.")]


def serve(
    data: _Data,
    listen: _Listen = "127.0.0.1:4700",
    http: _Http = "127.0.0.1:4780",
    ws: _Ws = "127.0.0.1:4790",
    ws_origin: _WsOrigin = None,
    allow_host: _AllowHost = None,
    restored: _Restored = False,
    members: _Members = None,
    replica_of: _ReplicaOf = None,
    cluster_store: _ClusterStore = None,
    voters: _Voters = None,
    failover: _Failover = None,
    cluster: _Cluster = "",
    auth: _Auth = False,
    peer_token_file: _PeerTokenFile = None,
    log_level: _LogLevel = LogLevel.INFO,
) -> None:
    """Serve a node over a data directory until SIGTERM or Ctrl-C.

    When every listener answers, one line on stdout has the addresses:
    "tailrace: ready, frames on ..., http on ..., ws on ...".
    """
    addresses = _frames(listen), _address_or_off("--http", http, 4780), _address_or_off("--ws", ws, 4790)
    descriptors = _raise_descriptor_limit()
    try:
        store = None if cluster_store is None else _cluster_store(cluster_store, members, replica_of, addresses[0])
        if voters is not None and store is None:
            raise WrongUsage("--voters is for sets of --cluster-store")
        if failover is not None and store is None and not members:
            raise WrongUsage("--failover is for sets: give --members or --cluster-store")
        config = Config(
            data,
            *addresses,
            limits=_limits(descriptors),
            storage=_storage(descriptors),
            restored=restored,
            members=tuple(_address("--members", part) for part in members.split(",")) if members else (),
            replica_of=None if replica_of is None else _address("--replica-of", replica_of),
            cluster=cluster,
            auth=auth,
            peer_token=None if peer_token_file is None else _peer_token(peer_token_file),
            replication=Replication() if failover is None else Replication(failover=failover),
        )
    except ValueError as error:
        raise WrongUsage(str(error)) from None
    _set_up_logging(log_level)
    keep_freed_memory()
    try:
        with _sigterm_as_sigint():
            opened = open_node(config) if store is None else _open_clustered(config, store, voters or VOTERS)
            trio.run(_serve, config, opened, frozenset(ws_origin or ()), _hosts(config, allow_host or ()))
    except* KeyboardInterrupt:
        print("tailrace: stopped before it was ready", file=sys.stderr)
    except* JournalDamaged as group:
        failure = alone(group)
        failure.add_note(f"look at all of it with `tailrace verify {data}`; `tailrace repair {data}` saves the rest")
        raise
    except* OSError as group:
        raise CommandFailed(f"cannot serve: {_explain(group, listen, data)}") from group


def _frames(text: str) -> tuple[str, int]:
    address = _address_or_off("--listen", text, 4700)
    if address is None:
        raise WrongUsage("--listen cannot be off: clients and other nodes connect there")
    return address


def _address_or_off(option: str, text: str, default_port: int) -> tuple[str, int] | None:
    try:
        return parse_listen_address(text, default_port)
    except ValueError as error:
        raise WrongUsage(f"{option}: {error}") from None


def _address(option: str, text: str) -> Address:
    try:
        return parse_address(text.strip())
    except ValueError as error:
        raise WrongUsage(f"{option}: {error}") from None


def _peer_token(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_PEER_TOKEN_CHARS_MAX + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"--peer-token-file {path}: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    if not _PEER_TOKEN_CHARS_MIN <= len(text) <= _PEER_TOKEN_CHARS_MAX:
        raise WrongUsage(
            f"--peer-token-file {path}: it has {len(text)} characters; {_PEER_TOKEN_CHARS_MIN} to "
            f"{_PEER_TOKEN_CHARS_MAX} are needed. `openssl rand -hex 32 > FILE` makes one"
        )
    return text


def _hosts(config: Config, allowed: Iterable[str]) -> frozenset[str]:
    """The names that the node may be reached by, besides its addresses."""
    addresses = (config.listen, config.http, config.ws)
    return frozenset(name.lower() for name in (*allowed, *(address[0] for address in addresses if address is not None)))


def _explain(group: BaseExceptionGroup[OSError], listen: str, data: str) -> str:
    error = alone(group)
    assert isinstance(error, OSError)
    reason = error.strerror or str(error)
    if error.filename:
        return f"{error.filename}: {reason}"
    if is_no_space(error):
        return f"{data}: {reason}"
    if isinstance(error, socket.gaierror) or error.errno in ADDRESS_ERRORS:
        return reason if reason.startswith("--") else f"--listen {listen}: {reason}"
    return reason


def _cluster_store(text: str, members: str | None, replica_of: str | None, listen: tuple[str, int]) -> StoreUrl:
    if members is not None or replica_of is not None:
        raise WrongUsage("--cluster-store has the members: leave out --members and --replica-of")
    host, port = listen
    if port == 0 or host in WILDCARDS:
        raise WrongUsage(
            f"--listen {Address(*listen)}: with --cluster-store other nodes connect to it, so name one address"
        )
    return parse_store_url(text)


def _open_clustered(config: Config, url: StoreUrl, voters: int) -> contextlib.AbstractAsyncContextManager[Node]:
    # Not imported without the option: the client of HTTP would be a good part of the start, and need not be installed.
    try:
        from tailrace_server.node.clustered import ClusterStore, open_clustered
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        raise CommandFailed("--cluster-store needs httpx2: pip install 'tailrace[etcd]'") from None
    return open_clustered(config, ClusterStore(url, voters))


async def _serve(
    config: Config,
    opened: contextlib.AbstractAsyncContextManager[Node],
    origins: frozenset[str],
    hosts: frozenset[str],
) -> None:
    # The receiver outlives the node, so that no signal interrupts a stop that has begun.
    with contextlib.ExitStack() as until_stopped:
        async with opened as node:
            signals = until_stopped.enter_context(trio.open_signal_receiver(*SIGNALS))
            async with contextlib.AsyncExitStack() as listeners:
                http = ws = None
                # A listener that is off is not imported: that would be a good part of the start.
                if config.http is not None:
                    from tailrace_server.serving.console import http_listener

                    http = await listeners.enter_async_context(http_listener(node, config.http, hosts))
                if config.ws is not None:
                    from tailrace_server.serving.tailing import ws_listener

                    ws = await listeners.enter_async_context(
                        ws_listener(node.handle, node.identify, config.ws, origins, hosts)
                    )
                _announce(Listening(_listening(node), http, ws))
                tell_service_manager(READY)
                async for number in signals:
                    tell_service_manager(STOPPING)
                    logging.getLogger("tailrace.server").info("stopping: %s", signal.Signals(number).name)
                    break


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

    SIGINT gets its handler back, which a shell takes from background processes.
    """
    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        (signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))),
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _set_up_logging(level: LogLevel) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("tailrace").setLevel(level.name)


def _limits(descriptors: int) -> Limits:
    usual = Limits()
    return dataclasses.replace(
        usual, connections_max=max(1, min(usual.connections_max, descriptors // CONNECTIONS_SHARE))
    )


def _storage(descriptors: int) -> StorageConfig:
    usual = StorageConfig()
    return dataclasses.replace(usual, segments_open_max=min(usual.segments_open_max, descriptors // SEGMENTS_SHARE))


def _raise_descriptor_limit() -> int:
    """Let the process have as many descriptors as wanted and permitted; return how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a container may forbid it
        return soft
    return wanted
