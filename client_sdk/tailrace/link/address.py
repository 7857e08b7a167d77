"""Addresses of nodes, and the URLs that ``connect`` takes. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

DEFAULT_PORT = 4700
SCHEMES = ("tailrace", "tailraces")
CLUSTER_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,99}")


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NodeUrl(NamedTuple):
    """The addresses of nodes, each once, the required name of their cluster ("": any), and whether they speak TLS."""

    addresses: tuple[Address, ...]
    cluster: str = ""
    secure: bool = False


def parse_url(url: str) -> NodeUrl:
    """Parses ``tailrace://HOST[:PORT][,HOST[:PORT]...][/CLUSTER]``; the port is 4700 if none is given.

    ``tailraces://`` is the same over TLS.

    Raises:
        ValueError: The text is not such a URL. The message names the wrong part.
    """
    if not isinstance(url, str):
        raise TypeError(f"a URL is a str, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ValueError(
            f"{url!r} is no URL of a node: write tailrace://HOST:PORT[,HOST:PORT...][/CLUSTER], or tailraces:// for TLS"
        )
    hosts, _, cluster = rest.partition("/")
    addresses = tuple(parse_address(part) for part in hosts.split(","))
    return NodeUrl(
        tuple(dict.fromkeys(addresses)), check_cluster_name(cluster) if cluster else "", scheme == SCHEMES[1]
    )


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
