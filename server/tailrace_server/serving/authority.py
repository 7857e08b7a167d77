"""Decides who a connection is by its token or certificate, and ends those whose rights were revoked or have expired.

    HELLO ── token, or else certificate ──> identify ──> Access of the connection
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
from tailrace_server.feeds.token_rows import is_expired, live_ids
from tailrace_server.host.line_limit import LineLimit
from tailrace_server.serving.access import Access
from tailrace_server.serving.addresses import WrongTokens, host_of
from tailrace_server.state.principal import OPEN, Principal

if TYPE_CHECKING:
    from tailrace.tls.engine import PeerIdentity
    from tailrace_server.config import Config
    from tailrace_server.feeds.catalog import Catalog
    from tailrace_server.host.clock import Clock
    from tailrace_server.host.tls import NodeTls

log = logging.getLogger("tailrace.server")

# How often revocations and expiries are looked for. It costs two comparisons if there are none.
CHECK_SECONDS = 0.25
# The identity of nodes that present the secret of --peer-token-file.
PEER = Principal("peer", "replica")
# A text that is no token is looked up as this one, which does not exist.
_NO_TOKEN = ParsedToken(bytes(TOKEN_ID_BYTES), bytes(HASH_BYTES))
REFUSED = "the token is unknown here, expired or revoked: ask the operator for another one (`tailrace token create`)"
MISSING = "this node requires a token: give one with token=, --token or TAILRACE_TOKEN"

NO_RIGHTS = (
    "the certificate {} has no rights here, or had some that expired: ask the operator for them "
    "(`tailrace token create NAME --certificate ...`), or give a token"
)
EXPIRED = "the certificate {} has expired since this connection began: connect anew with another one"
# The characters of a certificate's subject that a line of the log shows.
_SHOWN = 300


class Expellable(Protocol):
    """A connection, as far as authority ends it."""

    access: Access

    def expel(self, message: str) -> None:
        """Ends all streams and the connection."""


class Authority:
    """The tokens of a node. Without ``config.auth`` every connection may do everything."""

    def __init__(self, config: Config, feeds: Catalog, clock: Clock, tls: NodeTls | None = None) -> None:
        self.is_required = config.auth
        self._tls = tls
        self._feeds = feeds
        self._clock = clock
        self._open = Access(OPEN, feeds)
        self._peer = Access(PEER, feeds)
        self._peer_hash = None if config.peer_token is None else _hash(config.peer_token)
        self._seen = feeds.version()
        self._wrong = WrongTokens()
        self._lines = LineLimit()  # of refusals, by the address of the peer
        self._next_expiry_us: float = math.inf

    def identify(self, token: str | None, peer: str, certificate: PeerIdentity | None = None) -> Access:
        """Returns what the bearer of ``token`` may do. ``peer`` is its address, for the log.

        The certificate counts only without a token. So a program can be given a token of fewer rights.

        Raises Forbidden, with the same words for every token that does not count; SegmentDamaged.
        """
        if not self.is_required:
            return self._open
        if token is None and certificate is not None and self._is_client(certificate):
            return self._of_certificate(certificate, peer)
        if token is None:
            raise Forbidden(MISSING)
        if self._peer_hash is not None and hmac.compare_digest(self._peer_hash, _hash(token)):
            return self._peer
        presented = parse_token(token) or _NO_TOKEN
        tokens = self._feeds.tokens()
        why = tokens.why_refused(presented, self._clock.wall_us())
        record = tokens.find(presented.token_id)
        if why or record is None:
            if self._may_log(peer):
                log.warning("a token of %s was refused, id %s: %s", peer, presented.token_id.hex(), why)
            raise Forbidden(REFUSED)
        return self._granted(record.principal())

    def _is_client(self, certificate: PeerIdentity) -> bool:
        return self._tls is not None and self._tls.is_client(certificate)

    def _of_certificate(self, certificate: PeerIdentity, peer: str) -> Access:
        record, now_us = self._feeds.tokens().of_certificate(certificate.claims), self._clock.wall_us()
        # A connection of HTTP may outlive the certificate that it began with.
        if is_expired(certificate.expires_us, now_us):
            raise Forbidden(EXPIRED.format(str(certificate)[:_SHOWN]))
        if record is None or is_expired(record.info.expires_at, now_us):
            why = "has no rights" if record is None else f"had the rights of {record.info.name!r}, which have expired"
            if self._may_log(peer):
                log.warning("a certificate of %s was refused: %s %s", peer, ascii(str(certificate))[:_SHOWN], why)
            raise Forbidden(NO_RIGHTS.format(str(certificate)[:_SHOWN]))
        ends = (record.info.expires_at, certificate.expires_us)
        return self._granted(record.principal()._replace(expires_us=min(each for each in ends if each is not None)))

    def _may_log(self, peer: str) -> bool:
        return self._lines.permits(host_of(peer), self._clock.monotonic())

    def _granted(self, principal: Principal) -> Access:
        if principal.expires_us is not None:
            self._next_expiry_us = min(self._next_expiry_us, principal.expires_us)
        return Access(principal, self._feeds)

    def pause_s(self, peer: str, token: str | None) -> float:
        """Counts the refused ``token`` of ``peer``, and returns the seconds after which that is to be told.

        Without a token nothing was guessed: a page of the console and a probe begin that way.
        """
        if token is None:
            return 0.0
        return self._wrong.pause_s(host_of(peer), self._clock.monotonic())

    async def run(self, connections: Iterable[Expellable]) -> None:
        """Ends the connections of tokens that do not count any more, until cancelled."""
        while self.is_required:
            await trio.sleep(CHECK_SECONDS)
            for host, count in self._lines.ended(self._clock.monotonic()):
                log.warning("%d more tokens or certificates of %s were refused", count, host)
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
            if principal.token_id not in live or is_expired(principal.expires_us, now_us):
                log.info("%s %r was revoked or has expired: its connection ends", principal.kind, principal.name)
                connection.expel(f"{principal.kind} {principal.name!r} was revoked or has expired")
        expiries = (p.expires_us for p, _ in by_token if not is_expired(p.expires_us, now_us) and p.expires_us)
        self._seen, self._next_expiry_us = version, min(expiries, default=math.inf)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
