"""The headers of all answers over HTTP: nothing is kept, framed, sniffed or loaded from elsewhere."""

from __future__ import annotations

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
SECURITY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
}
HEADERS = {"cache-control": "no-store", **SECURITY}
CHALLENGE = {"www-authenticate": "Bearer"}
