"""Decides who a connection is by its token, and ends connections whose token was revoked or has expired.

    HELLO ── token ──> identify ──> Access of the connection
    ``_feeds`` has new rows, or a token's time has come ──> check ──> Connection.expel

Rows of ``_feeds`` come to every node of a set, so each ends its own connections.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import trio

from tailrace.errors import Forbidden, TailraceError
from tailrace.model.tokens import HASH_BYTES, TOKEN_ID_BYTES, ParsedToken, parse_token
from tailrace_server.feeds.token_rows import live_ids
from tailrace_server.serving.access import Access
from tailrace_server.serving.addresses import WrongTokens, host_of
from tailrace_server.state.principal import OPEN, Principal

if TYPE_CHECKING:
    from tailrace_server.config import Config
    from tailrace_server.feeds.catalog import Catalog
    from tailrace_server.host.clock import Clock

log = logging.getLogger("tailrace.server")

# How often revocations and expiries are looked for. It costs two comparisons if there are none.
CHECK_SECONDS = 0.25
# The identity of nodes that present the secret of --peer-token-file.
PEER = Principal("peer", "replica")
# A text that is no token is looked up as this one, which does not exist.
_NO_TOKEN = ParsedToken(bytes(TOKEN_ID_BYTES), bytes(HASH_BYTES))
REFUSED = "the token is unknown here, expired or revoked: ask the operator for another one (`tailrace token create`)"
MISSING = "this node requires a token: give one with token=, --token or TAILRACE_TOKEN"


class Expellable(Protocol):
    """A connection, as far as authority ends it."""

    access: Access

    def expel(self, message: str) -> None:
        """Ends all streams and the connection."""


class Authority:
    """The tokens of a node. Without ``config.auth`` every connection may do everything."""

    def __init__(self, config: Config, feeds: Catalog, clock: Clock) -> None:
        self.is_required = config.auth
        self._feeds = feeds
        self._clock = clock
        self._open = Access(OPEN, feeds)
        self._peer = Access(PEER, feeds)
        self._peer_hash = None if config.peer_token is None else _hash(config.peer_token)
        self._seen = feeds.version()
        self._wrong = WrongTokens()
        self._next_expiry_us: float = math.inf

    def identify(self, token: str | None, peer: str) -> Access:
        """Returns what the bearer of ``token`` may do. ``peer`` is its address, for the log.

        Raises Forbidden, with the same words for every token that does not count; SegmentDamaged.
        """
        if not self.is_required:
            return self._open
        if token is None:
            raise Forbidden(MISSING)
        if self._peer_hash is not None and hmac.compare_digest(self._peer_hash, _hash(token)):
            return self._peer
        presented = parse_token(token) or _NO_TOKEN
        tokens = self._feeds.tokens()
        why = tokens.why_refused(presented, self._clock.wall_us())
        record = tokens.find(presented.token_id)
        if why or record is None:
            log.warning("a token of %s was refused, id %s: %s", peer, presented.token_id.hex(), why)
            raise Forbidden(REFUSED)
        principal = record.principal()
        if principal.expires_us is not None:
            self._next_expiry_us = min(self._next_expiry_us, principal.expires_us)
        return Access(principal, self._feeds)

    def pause_s(self, peer: str) -> float:
        """Counts a refusal of ``peer``, and returns the seconds after which it is to be told."""
        return self._wrong.pause_s(host_of(peer), self._clock.monotonic())

    async def run(self, connections: Iterable[Expellable]) -> None:
        """Ends the connections of tokens that do not count any more, until cancelled."""
        while self.is_required:
            await trio.sleep(CHECK_SECONDS)
            try:
                self.check(connections)
            except TailraceError as error:
                log.error("tokens cannot be read, and revoked ones still count: %s", error)

    def check(self, connections: Iterable[Expellable]) -> None:
        """Ends the connections whose token was revoked or has expired. SegmentDamaged."""
        version, now_us = self._feeds.version(), self._clock.wall_us()
        if version == self._seen and now_us < self._next_expiry_us:
            return
        tokens = self._feeds.tokens()
        by_token = [(each.access.principal, each) for each in connections if each.access.principal.token_id]
        live = live_ids(tokens, {principal.token_id for principal, _ in by_token}, now_us)
        for principal, connection in by_token:
            if principal.token_id not in live:
                log.info("token %r was revoked or has expired: its connection ends", principal.name)
                connection.expel(f"token {principal.name!r} was revoked or has expired")
        expiries = (p.expires_us for p, _ in by_token if p.expires_us is not None and p.token_id in live)
        self._seen, self._next_expiry_us = version, min(expiries, default=math.inf)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
