"""A principal: the identity of a connection, and what it may do. Pure.

It comes from a token, from a certificate, or from the secret that nodes share. A node that requires no tokens gives
every connection `OPEN`.
"""

from __future__ import annotations

from typing import NamedTuple


class Principal(NamedTuple):
    """The name and the rights of a connection.

    ``role`` is one of `tailrace.model.tokens.ROLES`, or "open". ``feeds`` are names, and empty for all feeds.
    ``key_prefix`` begins all keys that may be used. ``expires_us`` is in microseconds since 1970 UTC; None: never.
    ``token_id`` names the token, for a revocation; b"" if the identity is from elsewhere. ``kind``: "token" or
    "certificate".
    """

    name: str
    role: str
    feeds: frozenset[str] = frozenset()
    key_prefix: bytes = b""
    expires_us: int | None = None
    token_id: bytes = b""
    kind: str = "token"

    def __str__(self) -> str:
        limits = [f"feeds {', '.join(sorted(self.feeds))}"] if self.feeds else []
        limits += [f"key prefix {self.key_prefix!r:.100}"] if self.key_prefix else []
        return f"{self.kind} {self.name!r} (role {'; '.join([self.role, *limits])})"


# Every right, for a node that requires no tokens.
OPEN = Principal("", "open")
# No right, for a connection before its HELLO.
WITHOUT_HELLO = Principal("", "none")
