"""The rows of tokens in ``_feeds``, so that members, promotions, backups and restores keep them like feeds.

key      ``token/`` and the token's id of 8 bytes; a feed's key is its id of 16 bytes alone
value    JSON: name, role, feeds, key_prefix, created_at, expires_at, certificate, and the hash of the secret;
         a deletion: revoked
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tailrace.model import TokenInfo
from tailrace.model.tokens import HASH_BYTES, TOKEN_ID_BYTES, ParsedToken
from tailrace_server.state.principal import Principal

_KEY_PREFIX = b"token/"
_KEY_BYTES = len(_KEY_PREFIX) + TOKEN_ID_BYTES
# A secret is compared with this if the token is unknown, so that the answer takes as long.
_NO_HASH = bytes(HASH_BYTES)
# The revoked tokens that are told from unknown ones in the log.
REVOKED_MAX = 10_000


class TokenRecord(NamedTuple):
    """A token, and the SHA-256 of its secret: zeros, which no secret has, for the rights of a certificate."""

    info: TokenInfo
    secret_hash: bytes

    def principal(self) -> Principal:
        """Returns the identity of a connection with this token."""
        info = self.info
        feeds, kind = frozenset(info.feeds), "certificate" if info.certificate else "token"
        return Principal(info.name, info.role, feeds, info.key_prefix, info.expires_at, info.token_id, kind)


def row_key(token_id: bytes) -> bytes:
    """Returns the key of a token's row."""
    return _KEY_PREFIX + token_id


def info_to_json(info: TokenInfo) -> dict[str, Any]:
    """Returns the JSON of a token without its secret."""
    return {**info._asdict(), "key_prefix": info.key_prefix.hex(), "token_id": info.token_id.hex()}


def row_value(record: TokenRecord) -> bytes:
    """Returns the value of a token's row."""
    return json.dumps({**info_to_json(record.info), "secret_hash": record.secret_hash.hex()}).encode()


def _record(value: bytes) -> TokenRecord:
    told = json.loads(value)
    secret_hash = bytes.fromhex(told["secret_hash"])
    key_prefix, token_id = bytes.fromhex(told["key_prefix"]), bytes.fromhex(told["token_id"])
    fields = {name: told[name] for name in TokenInfo._fields if name != "certificate"}
    fields |= {"feeds": tuple(told["feeds"]), "key_prefix": key_prefix, "token_id": token_id}
    fields["certificate"] = told.get("certificate", "")  # rows of earlier versions have none
    return TokenRecord(TokenInfo(**fields), secret_hash)


class TokenRows:
    """The tokens by the rows of ``_feeds`` that were read. `feed_rows.FeedRows` owns it, and gives it the rows."""

    def __init__(self) -> None:
        self._records: dict[bytes, TokenRecord] = {}
        self._by_certificate: dict[str, bytes] = {}  # the ids of those that are for certificates
        self._revoked: set[bytes] = set()  # ids whose deletion ``_feeds`` still has

    def __iter__(self) -> Iterator[TokenInfo]:
        return iter(sorted((record.info for record in self._records.values()), key=lambda info: info.name))

    def __len__(self) -> int:
        return len(self._records)

    def take(self, key: bytes, value: bytes | None) -> None:
        """Takes a row that is no feed's. Rows of kinds that this version does not know are left alone."""
        if len(key) != _KEY_BYTES or not key.startswith(_KEY_PREFIX):
            return
        token_id = key[len(_KEY_PREFIX) :]
        self._forget(token_id)
        if value is None:
            if len(self._revoked) < REVOKED_MAX:
                self._revoked.add(token_id)
        else:
            record = self._records[token_id] = _record(value)
            if record.info.certificate:
                self._by_certificate[record.info.certificate] = token_id
            self._revoked.discard(token_id)

    def _forget(self, token_id: bytes) -> None:
        record = self._records.pop(token_id, None)
        if record is not None and self._by_certificate.get(record.info.certificate) == token_id:
            del self._by_certificate[record.info.certificate]

    def clear(self) -> None:
        """Forgets all rows; they are read again."""
        self._records.clear()
        self._by_certificate.clear()
        self._revoked.clear()

    def find(self, token_id: bytes) -> TokenRecord | None:
        """Returns the token of this id, expired or not; None if there is none."""
        return self._records.get(token_id)

    def named(self, name: str) -> TokenRecord | None:
        """Returns the token of this name, or None."""
        return next((record for record in self._records.values() if record.info.name == name), None)

    def of_certificate(self, claims: Iterable[str]) -> TokenRecord | None:
        """Returns the rights of a certificate with these names: those of the first name that has any, or None."""
        ids = (self._by_certificate.get(claim) for claim in claims)
        return next((self._records[token_id] for token_id in ids if token_id is not None), None)

    def has_role(self, role: str) -> bool:
        """Returns whether any token has this role."""
        return any(record.info.role == role for record in self._records.values())

    def why_refused(self, presented: ParsedToken, now_us: int) -> str:
        """Returns for the node's log why a token does not count; "" if it does.

        It does the same work for all tokens. A peer must not learn from the time which of the reasons it is.
        """
        record = self._records.get(presented.token_id)
        secret_hash = _NO_HASH if record is None else record.secret_hash
        is_equal = hmac.compare_digest(secret_hash, presented.secret_hash)
        if record is None:
            return "it was revoked" if presented.token_id in self._revoked else "its id is unknown"
        if record.info.certificate:
            return f"{record.info.name!r} are the rights of a certificate, and no token"
        if not is_equal:
            return f"its secret is not that of token {record.info.name!r}"
        return f"token {record.info.name!r} has expired" if is_expired(record.info.expires_at, now_us) else ""


def is_expired(expires_us: int | None, now_us: int) -> bool:
    """Returns whether this time has come, in microseconds since 1970 UTC."""
    return expires_us is not None and expires_us <= now_us


def live_ids(tokens: TokenRows, ids: Iterable[bytes], now_us: int) -> set[bytes]:
    """Returns the ids of tokens that exist and have not expired."""
    found = ((token_id, tokens.find(token_id)) for token_id in ids)
    return {id for id, record in found if record is not None and not is_expired(record.info.expires_at, now_us)}
