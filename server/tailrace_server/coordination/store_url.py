"""The URL of a coordinator: ``--cluster-store``. Pure.

etcd://[USER@]HOST:PORT[,HOST:PORT...][?password_file=FILE]
etcds://...                       the same over TLS, with [ca=FILE][&cert=FILE&key=FILE] as well
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from tailrace.link.address import Address, parse_address

SCHEMES = {"etcd": False, "etcds": True}
DEFAULT_PORT = 2379
ENDPOINTS_MAX = 16
_FORM = "write etcd://HOST:PORT[,HOST:PORT...], or etcds:// for TLS"


class StoreUrl(NamedTuple):
    """The endpoints of etcd, and how a node proves itself.

    Names of files: ``ca`` has the authorities that signed etcd's certificates, "" for those of the system; ``cert`` and
    ``key`` are the node's own certificate, "" for none; ``password_file`` has the password of ``user``.
    """

    endpoints: tuple[Address, ...]
    tls: bool = False
    user: str = ""
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __str__(self) -> str:
        scheme = next(name for name, tls in SCHEMES.items() if tls == self.tls)
        return f"{scheme}://{','.join(map(str, self.endpoints))}"


def parse_store_url(text: str) -> StoreUrl:
    """Returns the parts of the URL of a coordinator.

    Raises:
        ValueError: The text is not such a URL. The message names the wrong part.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ValueError(f"{text!r:.200} is no coordinator: {_FORM}")
    tls = SCHEMES[scheme]
    rest, _, query = rest.partition("?")
    user, at, hosts = rest.rpartition("@")
    if ":" in user:
        raise ValueError(
            "a password in the URL is shown by ps, and stays in logs: put it into a file, and write "
            f"{scheme}://USER@HOST:PORT?password_file=FILE"
        )
    hosts = hosts.removesuffix("/")
    if "/" in hosts:
        raise ValueError(f"{hosts!r:.200} has a path: the name of the cluster is that of --cluster; {_FORM}")
    endpoints = tuple(dict.fromkeys(parse_address(part, DEFAULT_PORT) for part in hosts.split(",")))
    if len(endpoints) > ENDPOINTS_MAX:
        raise ValueError(f"{len(endpoints)} endpoints of etcd are more than {ENDPOINTS_MAX}")
    files = _files(query, scheme, tls=tls)
    if bool(at) != ("password_file" in files):
        raise ValueError("a user needs a password, and a password a user: write USER@HOST:PORT?password_file=FILE")
    return StoreUrl(endpoints, tls, unquote(user), **files)


def _files(query: str, scheme: str, *, tls: bool) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, strict_parsing=True) if query else []
    except ValueError:
        raise ValueError(f"{query!r:.200} cannot be read: write ?NAME=FILE&NAME=FILE") from None
    files: dict[str, str] = {}
    names = ("ca", "cert", "key", "password_file") if tls else ("password_file",)
    for name, value in pairs:
        if name not in names:
            hint = " (TLS needs etcds://)" if name in ("ca", "cert", "key") else ""
            raise ValueError(f"{scheme}:// has no {name!r:.50}{hint}: it has {', '.join(names)}")
        if name in files:
            raise ValueError(f"{name} is given twice")
        files[name] = value
    if ("cert" in files) != ("key" in files):
        raise ValueError("a certificate needs its key, and a key its certificate: write cert=FILE&key=FILE")
    return files
