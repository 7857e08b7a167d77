"""The body of a CREATE_TOKEN, and the secret that it is about. Pure, but for the secret's randomness."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tailrace.block import KEY_BYTES_MAX
from tailrace.model.arguments import seconds
from tailrace.model.certificates import certificate_name
from tailrace.model.tokens import LIMITED_ROLES, ROLES, TOKEN_FEEDS_MAX, check_token_name, new_token


def token_request(
    name: str, role: str, feeds: Iterable[str], key_prefix: bytes, expires_s: float | None, certificate: str | None
) -> tuple[str, dict[str, Any]]:
    """Returns a new token and the request that creates it; no token for a certificate.

    Raises ValueError or TypeError for a wrong argument.
    """
    if isinstance(feeds, str):
        raise TypeError(f"feeds is {feeds!r:.200}: a list of names is needed, [{feeds!r:.200}]")
    names = list(dict.fromkeys(feeds))
    check_token_name(name)
    if role not in ROLES:
        raise ValueError(f"role is {role!r:.200}; it is one of {', '.join(ROLES)}")
    if not isinstance(key_prefix, bytes):
        raise TypeError(f"key_prefix is {key_prefix!r:.200}, but has to be bytes: use .encode() for text")
    if len(key_prefix) > KEY_BYTES_MAX:
        raise ValueError(f"key_prefix has {len(key_prefix)} bytes; but a key has at most {KEY_BYTES_MAX}")
    if len(names) > TOKEN_FEEDS_MAX:
        raise ValueError(f"{len(names)} feeds; a token names at most {TOKEN_FEEDS_MAX}, and without any it has all")
    if (names or key_prefix) and role not in LIMITED_ROLES:
        raise ValueError(f"a token of role {role} cannot be limited to feeds or keys; read and write can")
    if expires_s is not None and seconds("expires_s", expires_s) == 0:
        raise ValueError("expires_s is 0: the token would have expired at once")
    token = new_token()
    value = {
        "name": name,
        "role": role,
        "feeds": names,
        "key_prefix": key_prefix.hex(),
        "expires_s": expires_s,
        "token_id": token.token_id.hex(),
    }
    if certificate is not None:
        return "", value | {"certificate": certificate_name(certificate)}
    return token.text, value | {"secret_hash": token.secret_hash.hex()}
