"""JSON as an answer, and the address of a client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tailrace.link.address import Address
from tailrace_server.serving.http.headers import HEADERS


def peer_of(request: Request) -> str:
    """Returns the address of the client."""
    return "unknown" if request.client is None else str(Address(request.client.host, request.client.port))


def json_answer(value: dict[str, Any], code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns an answer that no cache keeps."""
    body = json.dumps(value, separators=(",", ":")).encode()
    more = {} if headers is None else headers
    return Response(body, status_code=code, media_type="application/json", headers={**HEADERS, **more})
