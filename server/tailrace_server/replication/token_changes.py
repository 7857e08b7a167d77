"""Creates and revokes tokens: rows of ``_feeds``, which the leader of the feeds writes (feeds/token_rows.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.block import KEY_BYTES_MAX
from tailrace.errors import Overloaded, ProtocolError, TailraceError
from tailrace.model import TokenInfo
from tailrace.model.certificates import certificate_name
from tailrace.model.tokens import (
    HASH_BYTES,
    LIMITED_ROLES,
    ROLES,
    TOKEN_FEEDS_MAX,
    TOKEN_ID_BYTES,
    check_token_name,
)
from tailrace.wire.bodies import field, hex_field
from tailrace_server.feeds.feed import AGE_S_MAX, FEED_NAME
from tailrace_server.feeds.token_rows import TokenRecord, TokenRows, row_key, row_value

if TYPE_CHECKING:
    from tailrace_server.upkeep.storage import Storage

# The tokens of a cluster. Each takes some 500 bytes in memory, and is read at a start.
TOKENS_MAX = 10_000
_US = 1_000_000
# In place of a hash in the rows of certificates: no secret is known that has it.
NO_SECRET = bytes(HASH_BYTES)


class TokenChanges:
    """The changes of the tokens, on the node that leads ``_feeds``. The caller has checked that it does."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._feeds = storage.feeds
        self._clock = storage.host.clock

    def create(self, record: TokenRecord) -> TokenInfo:
        """Creates a token, or finds it if the same request has come before.

        Raises TailraceError (there is another one of this name), Overloaded, NoSpace, NotDurable.
        """
        tokens, info = self._feeds.tokens(), record.info
        known = tokens.find(info.token_id)
        if known is not None and known.info.name == info.name and known.secret_hash == record.secret_hash:
            return known.info
        if known is not None or tokens.named(info.name) is not None:
            raise TailraceError(f"there is a token {info.name!r} already: revoke it first, or take another name")
        if info.certificate and (other := tokens.of_certificate((info.certificate,))) is not None:
            raise TailraceError(
                f"{info.certificate!r:.200} has the rights of {other.info.name!r} already: revoke these"
            )
        if len(tokens) >= TOKENS_MAX:
            raise Overloaded(f"there are {len(tokens)} tokens, and at most {TOKENS_MAX}: revoke some")
        self._write(info.token_id, row_value(record))
        return info

    def revoke(self, token_id: bytes) -> TokenInfo | None:
        """Revokes a token. Returns it; None if there is none, since the request may come again. NoSpace, NotDurable."""
        known = self._feeds.tokens().find(token_id)
        if known is None:
            return None
        self._write(token_id, None)
        return known.info

    def tokens(self) -> TokenRows:
        """Returns the tokens. May read segments; SegmentDamaged."""
        return self._feeds.tokens()

    def _write(self, token_id: bytes, value: bytes | None) -> None:
        [partition], clock = self._feeds.system.partitions, self._clock
        rows = {row_key(token_id): value}
        self._feeds.write_rows(rows, self._storage.journal, now_us=clock.wall_us(), now=clock.monotonic())
        self._storage.committer.note(partition)
        self._storage.flusher.note(partition)


def record_of_request(value: dict[str, Any], now_us: int) -> TokenRecord:
    """Returns the token of a CREATE_TOKEN. Raises ProtocolError (missing fields), TailraceError (invalid ones)."""
    what = "CREATE_TOKEN"
    name, role = field(value, "name", str, what), field(value, "role", str, what)
    token_id = hex_field(value, "token_id", TOKEN_ID_BYTES, what)
    certificate = _certificate(value, what)
    secret_hash = NO_SECRET if certificate else hex_field(value, "secret_hash", HASH_BYTES, what)
    feeds, key_prefix = field(value, "feeds", list, what, []), _key_prefix(value, what)
    try:
        check_token_name(name)
    except ValueError as error:
        raise TailraceError(str(error)) from None
    if role not in ROLES:
        raise TailraceError(f"role {role!r:.100} is not known here; {', '.join(ROLES)} are")
    if len(feeds) > TOKEN_FEEDS_MAX:
        raise TailraceError(f"{len(feeds)} feeds; a token names at most {TOKEN_FEEDS_MAX}")
    for feed in feeds:
        if not isinstance(feed, str) or not FEED_NAME.fullmatch(feed):
            raise TailraceError(f"{feed!r:.200} cannot be the name of a feed")
    if (feeds or key_prefix) and role not in LIMITED_ROLES:
        raise TailraceError(f"a token of role {role} cannot be limited to feeds or keys; read and write can")
    expires_at = _expires_at(value, now_us, what)
    info = TokenInfo(name, role, tuple(feeds), key_prefix, now_us, expires_at, token_id, certificate)
    return TokenRecord(info, secret_hash)


def _certificate(value: dict[str, Any], what: str) -> str:
    text = field(value, "certificate", str, what, "")
    try:
        return certificate_name(text) if text else ""
    except ValueError as error:
        raise TailraceError(str(error)) from None


def _key_prefix(value: dict[str, Any], what: str) -> bytes:
    text = field(value, "key_prefix", str, what, "")
    try:
        prefix = bytes.fromhex(text)
    except ValueError:
        raise ProtocolError(f"{what}: field 'key_prefix' is {text!r:.60}, not bytes in hex") from None
    if len(prefix) > KEY_BYTES_MAX:
        raise TailraceError(f"key_prefix has {len(prefix)} bytes, a key at most {KEY_BYTES_MAX}")
    return prefix


def _expires_at(value: dict[str, Any], now_us: int, what: str) -> int | None:
    expires_s = value.get("expires_s")
    if expires_s is None:
        return None
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float) or not 0 < expires_s <= AGE_S_MAX:
        raise TailraceError(f"{what}: expires_s is {expires_s!r:.60}, and has to be a number from 0 to {AGE_S_MAX}")
    return min(now_us + int(expires_s * _US), AGE_S_MAX * _US)
