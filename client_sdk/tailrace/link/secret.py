"""The secret by which a node recognises the connections of one session."""

from __future__ import annotations

import secrets


def new_session() -> str:
    """Returns a secret for `Hello`: 32 hex digits."""
    return secrets.token_hex(16)
