"""Tokens: the secrets by which a node recognises a client. Pure, but for the randomness of `new_token`.

    tr1_5f0c1a9e77d24b3c_<64 hex digits>
    |   |                |
    |   |                the secret: 32 random bytes
    |   the id: 8 random bytes, by which a node looks the token up
    the prefix: the version of the format, for people and for programs that search for secrets

A node keeps a hash of the secret, never the secret. A plain SHA-256 is enough: the secret is random, so it cannot
be guessed, and a slow hash would only cost the node time.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

TOKEN_PREFIX = "tr1_"
TOKEN_ID_BYTES = 8
SECRET_BYTES = 32
HASH_BYTES = 32
# The roles of tokens, those with fewer rights first.
ROLES = ("read", "write", "admin", "replica")
# Roles whose tokens can be limited to feeds and to a key prefix. The others could widen their own rights.
LIMITED_ROLES = ("read", "write")
TOKEN_FEEDS_MAX = 100
_TOKEN = re.compile(r"tr1_([0-9a-f]{16})_([0-9a-f]{64})")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class ParsedToken(NamedTuple):
    """The id of a token, and the hash of its secret."""

    token_id: bytes
    secret_hash: bytes


class NewToken(NamedTuple):
    """A token that was just made. ``text`` is the secret: it is shown once."""

    text: str
    token_id: bytes
    secret_hash: bytes

    def __repr__(self) -> str:
        return f"NewToken(text='{TOKEN_PREFIX}...', token_id={self.token_id!r})"


def new_token() -> NewToken:
    """Makes a token of 256 random bits."""
    token_id, secret = secrets.token_bytes(TOKEN_ID_BYTES), secrets.token_bytes(SECRET_BYTES)
    return NewToken(f"{TOKEN_PREFIX}{token_id.hex()}_{secret.hex()}", token_id, hashlib.sha256(secret).digest())


def parse_token(text: str) -> ParsedToken | None:
    """Returns the parts of a token; None if the text is no token."""
    found = _TOKEN.fullmatch(text)
    if found is None:
        return None
    return ParsedToken(bytes.fromhex(found[1]), hashlib.sha256(bytes.fromhex(found[2])).digest())


def check_token_name(name: str) -> None:
    """Raises ValueError for a text that cannot be the name of a token."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r:.200} cannot be the name of a token: 1 to 100 of a-z, 0-9, '.', '_', '-', and a letter or digit "
            "first"
        )
