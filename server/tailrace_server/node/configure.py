"""Makes a node's configuration of its settings."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.link.address import Address, parse_address
from tailrace_server.config import Config, TlsConfig
from tailrace_server.coordination.store_url import StoreUrl, parse_store_url
from tailrace_server.node.serve_settings import HTTP_PORT, LISTEN_PORT, WS_PORT, ServeSettings, Settings
from tailrace_server.node.settings import Loaded, Values, WrongSettings, load
from tailrace_server.serving.exposure import why_exposed
from tailrace_server.serving.listeners import parse_listen_address

# The number of nodes that found a set, unless --voters says another one.
VOTERS = 3
# Hosts that name no machine.
WILDCARDS = frozenset({"0.0.0.0", "::", ""})
_PORT_MAX = 65_535
# The length of the secret of nodes: too long to be guessed, and short enough for a HELLO.
_PEER_TOKEN_CHARS_MIN = 32
_PEER_TOKEN_CHARS_MAX = 1_024


class Configured(NamedTuple):
    """What ``tailrace serve`` makes of its settings.

    Attributes:
        config: The configuration of the node.
        store: The coordinator of a set, if it has one.
        voters: The number of nodes that found the set of ``store``.
        origins: The further origins whose pages may use the WebSocket.
        http_origins: The further origins whose pages may use the feeds over HTTP.
        hosts: The names that the node may be reached by, besides its addresses.
    """

    config: Config
    store: StoreUrl | None
    voters: int
    origins: frozenset[str]
    http_origins: frozenset[str]
    hosts: frozenset[str]


def load_settings(file: str | None, flags: Values) -> Loaded:
    """Returns the settings in force, as `settings.load`. Raises WrongUsage for wrong ones, CommandFailed."""
    try:
        return load(file, flags)
    except WrongSettings as error:
        raise WrongUsage("\ntailrace: ".join(map(str, error.problems))) from None
    except OSError as error:
        raise CommandFailed(f"--config {file}: {error.strerror or error}") from None


def configure(settings: Settings) -> Configured:
    """Returns the configuration that settings mean. Raises WrongUsage if one is wrong, or two contradict each other."""
    serve = settings.serve
    listen = _listen(serve.listen)
    http = _address_or_off("--http", serve.http, _port_beside(listen, HTTP_PORT))
    ws = _address_or_off("--ws", serve.ws, _port_beside(listen, WS_PORT))
    try:
        store = _cluster_store(serve, listen) if serve.cluster_store else None
        if serve.voters is not None and store is None:
            raise WrongUsage("--voters is for sets of --cluster-store")
        if serve.failover is not None and store is None and not serve.members:
            raise WrongUsage("--failover is for sets: give --members or --cluster-store")
        if serve.auth and (serve.members or serve.cluster_store) and not serve.peer_token_file:
            raise WrongUsage(
                "--auth in a set needs --peer-token-file: the members would refuse each other. Give all of them the "
                "same secret; `openssl rand -hex 32 > FILE` makes one"
            )
        replication = settings.replication
        if serve.failover is not None:
            replication = dataclasses.replace(replication, failover=serve.failover)
        config = Config(
            serve.data,
            listen,
            http,
            ws,
            limits=settings.limits,
            storage=settings.storage,
            restored=serve.restored,
            members=tuple(_address("--members", part) for part in serve.members),
            replica_of=_address("--replica-of", serve.replica_of) if serve.replica_of else None,
            cluster=serve.cluster,
            auth=serve.auth,
            peer_token=_peer_token(serve.peer_token_file) if serve.peer_token_file else None,
            tls=_tls(serve),
            replication=replication,
        )
    except ValueError as error:
        raise WrongUsage(str(error)) from None
    why = why_exposed(
        (listen, http, ws), has_tls=_tls(serve) is not None, has_tokens=serve.auth, insecure=serve.insecure
    )
    if why:
        raise WrongUsage(why)
    named = (*serve.allow_host, *(address[0] for address in (listen, http, ws) if address is not None))
    hosts = frozenset(name.lower() for name in named)
    origins, http_origins = frozenset(serve.ws_origin), frozenset(serve.http_origin)
    return Configured(config, store, serve.voters or VOTERS, origins, http_origins, hosts)


def _listen(text: str) -> tuple[str, int]:
    address = _address_or_off("--listen", text, LISTEN_PORT)
    if address is None:
        raise WrongUsage("--listen cannot be off: clients and other nodes connect there")
    return address


def _port_beside(listen: tuple[str, int], usual: int) -> int:
    """Returns the port of another listener, as far from its usual one as ``--listen`` is; 0: any port."""
    port = listen[1] - LISTEN_PORT + usual
    return port if listen[1] and port <= _PORT_MAX else 0


def _address_or_off(option: str, text: str | None, default_port: int) -> tuple[str, int] | None:
    try:
        return parse_listen_address("127.0.0.1" if text is None else text, default_port)
    except ValueError as error:
        raise WrongUsage(f"{option}: {error}") from None


def _address(option: str, text: str) -> Address:
    try:
        return parse_address(text.strip())
    except ValueError as error:
        raise WrongUsage(f"{option}: {error}") from None


def _tls(serve: ServeSettings) -> TlsConfig | None:
    given = serve.tls_cert, serve.tls_key, serve.tls_client_ca, serve.tls_require_client_cert, serve.tls_peer_ca
    return TlsConfig(*given) if any(given) else None


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


def _cluster_store(serve: ServeSettings, listen: tuple[str, int]) -> StoreUrl:
    if serve.members or serve.replica_of:
        raise WrongUsage("--cluster-store has the members: leave out --members and --replica-of")
    host, port = listen
    if port == 0 or host in WILDCARDS:
        raise WrongUsage(
            f"--listen {Address(*listen)}: with --cluster-store other nodes connect to it, so name one address"
        )
    return parse_store_url(serve.cluster_store)
