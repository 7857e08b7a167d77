"""The settings of ``tailrace serve`` that belong to one node, and all its groups of settings. Pure.

To add a setting, add a field here, or to a group in config.py: nothing else has to list it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tailrace_server.config import Failover, Limits, Replication, StorageConfig
from tailrace_server.setting import Flag, setting

# A node of one machine has these ports, and the ones by which its --listen is above 4700.
LISTEN_PORT, HTTP_PORT, WS_PORT = 4700, 4780, 4790


class LogFormat(enum.StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The levels of log lines on stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of a node that no group has, as a user writes them. Each has an option."""

    #: The data directory. It is made if it does not exist.
    data: str = setting("", flag=Flag("--data", "DIR", "The data directory. It is made if it does not exist."))
    #: The address for clients and other nodes. Port 0 takes any free port.
    listen: str = setting(
        f"127.0.0.1:{LISTEN_PORT}",
        flag=Flag("--listen", "HOST:PORT", "The address for clients and other nodes. Port 0: any free one."),
    )
    #: The address of feeds over HTTP, health, status and console; ``off`` for none. Without one it is 127.0.0.1, with
    #: the port of ``listen`` and 80, so that nodes of one machine do not collide.
    http: str | None = setting(
        None,
        flag=Flag(
            "--http",
            "HOST:PORT",
            "The address of feeds over HTTP, health, status and console; 'off' for none.",
            default="127.0.0.1, port of --listen + 80",
        ),
    )
    #: The address for tailing over WebSocket; ``off`` for none. Without one it is 127.0.0.1, with the port of
    #: ``listen`` and 90.
    ws: str | None = setting(
        None,
        flag=Flag(
            "--ws",
            "HOST:PORT",
            "The address for tailing over WebSocket; 'off' for none.",
            default="127.0.0.1, port of --listen + 90",
        ),
    )
    #: Pages of these origins may use the WebSocket; ``*``: all. Pages of the node's own address always may.
    ws_origin: tuple[str, ...] = setting(
        (),
        flag=Flag(
            "--ws-origin",
            "ORIGIN",
            "Pages of this origin (https://app.example.org) may use the WebSocket; '*': all. Can be repeated. "
            "Pages of the node's own address always may.",
        ),
    )
    #: Pages of these origins may use the feeds over HTTP; ``*``: all. Pages of the node's own address always may.
    http_origin: tuple[str, ...] = setting(
        (),
        flag=Flag(
            "--http-origin",
            "ORIGIN",
            "Pages of this origin (https://app.example.org) may use the feeds over HTTP; '*': all. Can be repeated. "
            "Pages of the node's own address always may.",
        ),
    )
    #: Browsers and proxies may name these hosts when they ask over HTTP or WebSocket; ``*``: any. The node's address
    #: and the names in ``listen``, ``http`` and ``ws`` always may be named.
    allow_host: tuple[str, ...] = setting(
        (),
        flag=Flag(
            "--allow-host",
            "HOST",
            "Browsers and proxies may name this host when they ask over HTTP or WebSocket; '*': any. Can be "
            "repeated. The node's address and the names in --listen, --http and --ws always may be named.",
        ),
    )
    #: The data directory is a copy of another node's directory or volume. It belongs to the copy's first start.
    restored: bool = setting(
        False,
        flag=Flag(
            "--restored",
            "",
            "DIR is a copy of another node's directory or volume. Give this option at the first start of the copy.",
            only=True,
        ),
    )
    #: The node is one of this set. All members have the same list in the same order, with the ``listen`` of each.
    members: tuple[str, ...] = setting(
        (),
        flag=Flag(
            "--members",
            "HOST:PORT,...",
            "The node is one of this set. Give all members the same list in the same order; it has the --listen of "
            "each.",
        ),
    )
    #: The node follows this one, without a vote on who leads.
    replica_of: str = setting(
        "", flag=Flag("--replica-of", "HOST:PORT", "Follow this node, without a vote on who leads.")
    )
    #: The node is one of the set whose members etcd has, below /tailrace/NAME of ``cluster``.
    cluster_store: str = setting(
        "",
        flag=Flag(
            "--cluster-store",
            "URL",
            "The node is one of the set whose members etcd has, below /tailrace/NAME of --cluster: "
            "etcd://HOST:PORT,... or etcds:// for TLS, with ?ca=FILE&cert=FILE&key=FILE, and "
            "USER@HOST:PORT?password_file=FILE.",
        ),
    )
    #: With ``cluster_store``: how many nodes found the set. A founded set stays as it is. Without it three.
    voters: int | None = setting(
        None,
        least=2,
        most=101,
        flag=Flag(
            "--voters",
            "N",
            "With --cluster-store: how many nodes found the set. A founded set stays as it is.",
            default="3",
        ),
    )
    #: In a set: whether the members choose another leader by themselves if the leader is gone (``auto``), or an
    #: operator has to promote one (``manual``).
    failover: Failover | None = setting(
        None,
        flag=Flag(
            "--failover",
            "",
            "In a set: whether the members choose another leader by themselves if the leader is gone (auto), or an "
            "operator has to promote one (manual).",
            default="auto",
        ),
    )
    #: The name of the cluster. A client whose URL has another name does not use this node.
    cluster: str = setting(
        "",
        flag=Flag(
            "--cluster",
            "NAME",
            "The name of the cluster. A client whose URL has another name does not use this node.",
        ),
    )
    #: Whether clients and other nodes have to present a token. The first start makes an admin token in DIR/admin.token.
    auth: bool = setting(
        False,
        flag=Flag(
            "--auth",
            "",
            "Require tokens of clients and other nodes. The first start makes an admin token in DIR/admin.token.",
        ),
    )
    #: Whether the node may listen where other machines reach it without TLS and tokens: only trusted programs reach the
    #: network.
    insecure: bool = setting(
        False,
        flag=Flag(
            "--insecure",
            "",
            "Listen beyond this machine without TLS and tokens: only trusted programs reach the network.",
        ),
    )
    #: The file with the secret by which the nodes of a set know each other, the same in each node's file: 32 to 1,024
    #: characters; or a token of role replica.
    peer_token_file: str = setting(
        "",
        flag=Flag(
            "--peer-token-file",
            "FILE",
            "The secret by which the nodes of a set know each other, the same in each node's file: "
            "32 or more characters; or a token of role replica.",
        ),
    )
    #: Whether the log has lines of text, or JSON objects, one a line.
    log_format: LogFormat = setting(
        LogFormat.TEXT,
        reloads=True,
        flag=Flag("--log-format", "", "Whether the log has lines of text, or JSON objects, one a line."),
    )
    #: The node's certificate in PEM, with those between it and its authority. With it all listeners speak TLS.
    tls_cert: str = setting(
        "",
        flag=Flag(
            "--tls-cert",
            "FILE",
            "Speak TLS on all listeners, with this certificate in PEM. Plain clients are refused.",
        ),
    )
    #: The private key of ``tls_cert``, not encrypted. Without it the key is in the same file.
    tls_key: str = setting(
        "",
        flag=Flag(
            "--tls-key", "FILE", "The private key of --tls-cert, not encrypted; by default it is in the same file."
        ),
    )
    #: The authorities of clients' certificates. Other nodes have to show one, and clients may.
    tls_client_ca: str = setting(
        "",
        flag=Flag(
            "--tls-client-ca",
            "FILE",
            "The authorities of clients' certificates. Other nodes have to show one, and clients may.",
        ),
    )
    #: Whether each client has to show a certificate.
    tls_require_client_cert: bool = setting(
        False, flag=Flag("--tls-require-client-cert", "", "Refuse clients that show no certificate.", only=True)
    )
    #: The authorities of other nodes' certificates, if they are not those of ``tls_client_ca``.
    tls_peer_ca: str = setting(
        "",
        flag=Flag(
            "--tls-peer-ca",
            "FILE",
            "The authorities of other nodes' certificates, if they are not those of --tls-client-ca.",
        ),
    )
    #: The least level that is logged to stderr.
    log_level: LogLevel = setting(
        LogLevel.INFO, reloads=True, flag=Flag("--log-level", "", "The least level that is logged to stderr.")
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a node: those of the top level of a file, and one group for each table."""

    serve: ServeSettings = field(default_factory=ServeSettings)
    limits: Limits = field(default_factory=Limits)
    storage: StorageConfig = field(default_factory=StorageConfig)
    replication: Replication = field(default_factory=Replication)


# The tables of a file. ``serve`` has the settings above them.
GROUPS: dict[str, type] = {"limits": Limits, "storage": StorageConfig, "replication": Replication}
