"""Parses the request of a WebSocket client, and checks the origin of its page. Pure.

``/feeds/NAME?since=beginning|now|message|POSITIONS|TIME&key_prefix=BYTES&keys_only=true|false&token=message``,
percent-encoded. A token itself is never in it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from tailrace.block import KEY_BYTES_MAX
from tailrace.model.position import Positions
from tailrace.model.times import looks_like_time, parse_time
from tailrace_server.serving.bearer import TOKEN_SUBPROTOCOL
from tailrace_server.serving.board.pages import BadRequest

SUBPROTOCOL = "tailrace.json.v1"
# The value of ``since`` that says: it is in the first message.
IN_MESSAGE = "message"
ANY_ORIGIN = "*"
# A client sends it before it has shown a token.
TOKEN_MESSAGE_BYTES_MAX = 4 * 1024

PARAMETERS = ("since", "key_prefix", "keys_only", "token")
_PATH_PREFIX = "/feeds/"
_LAST = re.compile("last:[0-9]{1,18}")
# Python's decoder would leave it as it stands: another prefix than the one that was meant.
_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


class TailRequest(NamedTuple):
    """A feed to tail. ``since``: "beginning", "now", "message", positions or a time.

    "message": a message has it. ``token_in_message``: the first message has the token, and comes before that one.
    ``partitions``: None for all. ``ends``: the tail ends with all that is there when it begins.
    """

    feed: str
    since: str | Positions | datetime
    key_prefix: bytes
    keys_only: bool = False
    token_in_message: bool = False
    partitions: frozenset[int] | None = None
    ends: bool = False


def parse_target(target: str) -> TailRequest:
    """Returns the request in a handshake's path and query. Raises BadRequest, BadPosition."""
    path, _, query = target.partition("?")
    feed = unescape_text("the path", path.removeprefix(_PATH_PREFIX))
    if not path.startswith(_PATH_PREFIX) or not feed or "/" in feed:
        raise BadRequest(f"there is nothing at {path!r}: a feed is tailed at /feeds/NAME")
    parameters = parse_query(query, PARAMETERS)
    since = unescape_text("since", parameters.get("since", "beginning"))
    prefix, keys_only = parse_filter(parameters)
    token = parameters.get("token", "")
    if token not in ("", IN_MESSAGE):
        raise BadRequest("a token in the URL does not count: with token=message the first message has it")
    begin = since if since == IN_MESSAGE else parse_since(since)
    return TailRequest(feed, begin, prefix, keys_only, token == IN_MESSAGE)


def parse_filter(parameters: Mapping[str, str]) -> tuple[bytes, bool]:
    """Returns the key prefix and whether only keys are wanted, from escaped parameters. Raises BadRequest."""
    prefix = unescape("key_prefix", parameters.get("key_prefix", "").replace("+", " "))
    if len(prefix) > KEY_BYTES_MAX:
        raise BadRequest(f"key_prefix has {len(prefix)} bytes, a key at most {KEY_BYTES_MAX}")
    keys_only = unescape_text("keys_only", parameters.get("keys_only", "false"))
    if keys_only not in ("true", "false"):
        raise BadRequest(f"keys_only is {keys_only!r}, neither true nor false")
    return prefix, keys_only == "true"


def announces_token(target: str) -> bool:
    """Returns whether a request says that its first message has the token. It may be wrong otherwise."""
    _, _, query = target.partition("?")
    return f"token={IN_MESSAGE}" in query.split("&")


def parse_query(query: str, known: Collection[str]) -> dict[str, str]:
    """Returns the parameters of a query, still escaped. Raises BadRequest unless each is known, and there once."""
    parameters: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name not in known:
            raise BadRequest(f"there is no parameter {name!r}: {', '.join(known)} are known")
        if name in parameters:
            raise BadRequest(f"the parameter {name!r} was given twice")
        parameters[name] = value
    return parameters


def unescape(what: str, escaped: str) -> bytes:
    """Returns the bytes that percent-encoded text stands for. Raises BadRequest for a % without two hex digits."""
    broken = _BROKEN_ESCAPE.search(escaped)
    if broken is not None:
        begin = broken.start()
        raise BadRequest(
            f"{what} has {escaped[begin : begin + 3]!r}, which is no percent-encoded byte: write % and two "
            "hexadecimal digits, %25 for the character % itself"
        )
    return unquote_to_bytes(escaped)


def unescape_text(what: str, escaped: str) -> str:
    """Returns the text that percent-encoded UTF-8 stands for. Raises BadRequest."""
    found = unescape(what, escaped)
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{what} is no UTF-8 once it is decoded: {found[:100]!r}") from None


def parse_since(text: str) -> str | Positions | datetime:
    """ "beginning", "now", "last:N", a time, or the positions of a ``positions`` message. BadRequest, BadPosition."""
    if text in ("beginning", "now") or _LAST.fullmatch(text):
        return text
    if not text:
        raise BadRequest("since is empty: beginning, now, last:N, message, a time, or positions")
    if not looks_like_time(text):
        return Positions.parse(text)
    try:
        return parse_time(text)
    except ValueError as error:
        raise BadRequest(f"since: {error}") from None


def parse_first_message(message: str | bytes) -> str | Positions | datetime:
    """Returns the start that a client's first message names: ``{"since": "..."}``. Raises BadRequest, BadPosition."""
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or value.keys() != {"since"} or not isinstance(value["since"], str):
        raise BadRequest('the first message has to be {"since": "..."}, with beginning, now, a time or positions')
    return parse_since(value["since"])


def parse_token_message(message: str | bytes) -> str:
    """Returns the token in a first message: ``{"token": "..."}``. Raises BadRequest, which does not tell it."""
    value = None
    if len(message) <= TOKEN_MESSAGE_BYTES_MAX:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(message)
    if not isinstance(value, dict) or value.keys() != {"token"} or not isinstance(value["token"], str):
        raise BadRequest(f'the first message has to be {{"token": "..."}}, of {TOKEN_MESSAGE_BYTES_MAX} bytes at most')
    token: str = value["token"]
    return token


def choose_subprotocol(proposed: Collection[str]) -> str | None:
    """Returns the subprotocol to answer with; None if the client named none. Raises BadRequest."""
    if not proposed:
        return None
    if SUBPROTOCOL not in proposed:
        others = [name for name in proposed if not name.startswith(TOKEN_SUBPROTOCOL)]
        raise BadRequest(f"none of the subprotocols {', '.join(others)} is spoken here; {SUBPROTOCOL} is")
    return SUBPROTOCOL


def origin_allowed(origin: str | None, local_host: str, listen_host: str, allowed: Collection[str]) -> bool:
    """Returns whether a handshake with this ``Origin`` may go on; None: there was none, so it is no browser's.

    A browser lets every page of the web open a WebSocket to every address, this one included, and nothing but this
    check keeps it from reading the feeds. Permitted are the origins in ``allowed`` ("*": all), and pages whose host is
    the address that the connection came in at (``local_host``), the name that was configured (``listen_host``), or,
    both being loopback, any loopback name. A name that merely resolves to the address is not enough: its owner can
    let it resolve to anything.
    """
    if origin is None or ANY_ORIGIN in allowed or origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
        host = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not host:
        return False
    if _is_loopback(host):
        return _is_loopback(local_host)
    return _same_host(host, local_host) or host == listen_host.lower()


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _same_host(host: str, local_host: str) -> bool:
    address = _address(host)
    return address is not None and address == _address(local_host)
