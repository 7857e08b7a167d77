"""The names by which a cluster recognises the certificates of clients. Pure.

    SHA256:5f0c...  the SHA-256 of one certificate, in hex
    CN=orders       the common name of its subject
    DNS:orders.example   URI:spiffe://example/orders   email:ops@example.org   IP:10.0.0.7      an alternative name

The kind is a part of the name. An authority may check common names, and not the alternative ones, or the reverse.
"""

from __future__ import annotations

import re

NAME_CHARS_MAX = 500
# The kinds of alternative names, as Python's ssl calls them.
ALTERNATIVE = {"DNS": "DNS:", "URI": "URI:", "email": "email:", "IP Address": "IP:"}
FINGERPRINT = "SHA256:"
COMMON_NAME = "CN="
_KINDS = (FINGERPRINT, COMMON_NAME, *ALTERNATIVE.values())
_HASH = re.compile("[0-9a-f]{64}")


def certificate_name(text: str) -> str:
    """Returns a name of a certificate as nodes compare it. Raises ValueError for a text that is none.

    The kind may be in any case, and a fingerprint may have colons, as openssl shows it.
    """
    kind = next((kind for kind in _KINDS if text.lower().startswith(kind.lower())), None)
    if kind is None:
        raise ValueError(f"certificate is {text!r:.200}; it begins with {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")
    value = text[len(kind) :]
    if len(text) > NAME_CHARS_MAX or not value or not value.isprintable():
        raise ValueError(f"certificate is {text!r:.200}; a name has 1 to {NAME_CHARS_MAX} printable characters")
    if kind == FINGERPRINT:
        value = value.replace(":", "").lower()
        if not _HASH.fullmatch(value):
            raise ValueError(f"certificate is {text!r:.200}; the SHA-256 of a certificate has 64 hexadecimal digits")
    return kind + (value.lower() if kind == ALTERNATIVE["DNS"] else value)
