"""Addresses of nodes, and the URLs that ``connect`` takes. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

DEFAULT_PORT = 4700
SCHEMES = ("tailrace", "tailraces")
# The same frames through WebSocket. The ports are those of the web, since the URL may be that of a reverse proxy.
TUNNEL_PORTS = {"ws": 80, "wss": 443}
_TUNNELS = tuple(TUNNEL_PORTS)
# The characters of a path in a URL. A longer path is refused: it goes into a line of a request.
_PATH = re.compile(r"[A-Za-z0-9/._~!$&'()*+;=:@%-]{0,1000}")
CLUSTER_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,99}")


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NodeUrl(NamedTuple):
    """The nodes of a URL.

    Attributes:
        addresses: The addresses, each once.
        cluster: The required name of their cluster; "": any.
        secure: Whether they speak TLS.
        tunnel: The path before those of the node, as ``/tailrace``, if frames go through WebSocket; else None.
    """

    addresses: tuple[Address, ...]
    cluster: str = ""
    secure: bool = False
    tunnel: str | None = None

    def __str__(self) -> str:
        """Returns a URL that `parse_url` reads."""
        hosts = ",".join(map(str, self.addresses))
        if self.tunnel is None:
            path = f"/{self.cluster}" if self.cluster else ""
            return f"{SCHEMES[self.secure]}://{hosts}{path}"
        query = f"?cluster={self.cluster}" if self.cluster else ""
        return f"{_TUNNELS[self.secure]}://{hosts}{self.tunnel}{query}"

    @property
    def default_port(self) -> int:
        """The port of an address that names none."""
        return DEFAULT_PORT if self.tunnel is None else TUNNEL_PORTS[_TUNNELS[self.secure]]


def parse_url(url: str) -> NodeUrl:
    """Parses ``tailrace://HOST[:PORT][,HOST[:PORT]...][/CLUSTER]``; the port is 4700 if none is given.

    ``tailraces://`` is the same over TLS. ``ws://HOST[:PORT][,HOST[:PORT]...][/PATH][?cluster=CLUSTER]`` is the same
    through WebSocket, and ``wss://`` through WebSocket over TLS.

    Raises:
        ValueError: The text is not such a URL. The message names the wrong part.
    """
    if not isinstance(url, str):
        raise TypeError(f"a URL is a str, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if separator and scheme in _TUNNELS:
        return _parse_tunnel(scheme, rest)
    if not separator or scheme not in SCHEMES:
        raise ValueError(
            f"{url!r} is no URL of a node: write tailrace://HOST:PORT[,HOST:PORT...][/CLUSTER], or tailraces:// for "
            "TLS; ws:// or wss:// through WebSocket"
        )
    hosts, _, cluster = rest.partition("/")
    return NodeUrl(
        _addresses(hosts, DEFAULT_PORT), check_cluster_name(cluster) if cluster else "", scheme == SCHEMES[1]
    )


def _parse_tunnel(scheme: str, rest: str) -> NodeUrl:
    before, question, query = rest.partition("?")
    hosts, slash, path = before.partition("/")
    tunnel = (slash + path).rstrip("/")
    if not _PATH.fullmatch(tunnel):
        raise ValueError(
            f"{tunnel!r} is no path of a URL: write {scheme}://HOST:PORT/PATH, with at most 1,000 characters"
        )
    given = parse_qsl(query, keep_blank_values=True)
    if question and [name for name, _ in given] != ["cluster"]:
        raise ValueError(f"the query {query!r} is none of {scheme}://: write ?cluster=NAME, or nothing")
    cluster = check_cluster_name(given[0][1]) if given else ""
    return NodeUrl(_addresses(hosts, TUNNEL_PORTS[scheme]), cluster, scheme == "wss", tunnel)


def _addresses(hosts: str, default_port: int) -> tuple[Address, ...]:
    return tuple(dict.fromkeys(parse_address(part, default_port) for part in hosts.split(",")))


def check_cluster_name(text: str) -> str:
    """Returns the name of a cluster. Raises ValueError if it cannot be one."""
    if not CLUSTER_NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} cannot be the name of a cluster: write 1 to 100 of a-z, 0-9, '.', '_', '-', beginning with a "
            "letter or digit"
        )
    return text


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Parses ``HOST[:PORT]`` or ``[IPV6][:PORT]``. Raises ValueError."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no address: {error}; write HOST:PORT") from None
    more = parts.path or parts.query or parts.fragment or parts.username is not None
    if not host or more or any(map(str.isspace, text)):
        raise ValueError(f"{text!r} is no address; write HOST:PORT")
    return Address(host, default_port if port is None else port)
