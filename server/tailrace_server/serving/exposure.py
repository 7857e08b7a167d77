"""Decides whether a node may listen where other machines reach it. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from tailrace.link.address import Address


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches ``host``. A name other than localhost may be any address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def why_exposed(
    addresses: Iterable[tuple[str, int] | None], *, has_tls: bool, has_tokens: bool, insecure: bool
) -> str | None:
    """Returns why the node must not listen at these addresses, and what to do; None if it may.

    Args:
        addresses: Those of all listeners; None for a listener that is off.
        has_tls: Whether all listeners speak TLS.
        has_tokens: Whether clients have to present a token, or a certificate.
        insecure: Whether the operator has said that the network is trusted.
    """
    if insecure or (has_tls and has_tokens):
        return None
    exposed = [address for address in addresses if address is not None and not is_loopback(address[0])]
    if not exposed:
        return None
    lacks = [] if has_tokens else ["without tokens everyone there may read, write and drop feeds"]
    lacks += [] if has_tls else ["without TLS everyone on the way can read tokens and data"]
    where = " and ".join(str(Address(*address)) for address in exposed)
    return (
        f"other machines reach {where}, and {'; '.join(lacks)}. Listen on 127.0.0.1, require both tokens (--auth) and "
        "TLS, or give --insecure if only trusted programs reach the network"
    )
