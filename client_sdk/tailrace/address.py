"""Where nodes are: the URLs that ``connect`` takes. Pure."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

DEFAULT_PORT = 4700
SCHEMES = ("tailrace",)


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> tuple[Address, ...]:
    """The addresses in ``tailrace://HOST[:PORT][,HOST[:PORT]...]``; the port is 4700 where none is given.

    Raises ValueError that says what is wrong with the URL.
    """
    if not isinstance(url, str):
        raise TypeError(f"a URL is a str, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ValueError(f"{url!r} is no URL of a node: write tailrace://HOST:PORT[,HOST:PORT...]")
    addresses = tuple(parse_address(part) for part in rest.rstrip("/").split(","))
    return tuple(dict.fromkeys(addresses))


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """The address in ``HOST[:PORT]`` or ``[IPV6][:PORT]``. Raises ValueError."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no address: {error}; write HOST:PORT") from None
    more = parts.path or parts.query or parts.fragment or parts.username is not None
    if not host or more or any(map(str.isspace, text)):
        raise ValueError(f"{text!r} is no address; write HOST:PORT")
    return Address(host, default_port if port is None else port)
