"""TLS as a machine of bytes: ciphertext in and plaintext out, and the reverse. It knows no socket, and never waits.

The peer's end of a connection without a close_notify counts as its end: frames tell their lengths, so the protocol
notices a connection that was cut.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from tailrace.model.certificates import ALTERNATIVE, COMMON_NAME, FINGERPRINT

# The plaintext of one record, by the standard.
RECORD_BYTES = 16 * 1024
# The bytes that are encrypted at a time: what grows OpenSSL's buffer further costs as much again as the encryption.
PIECE_BYTES = 64 * 1024
# The records that one call decrypts. A peer may put one byte into each, and 1 MiB of such ones would take 100 ms.
RECORDS_MAX = 64
# The plaintext of so many full ones.
SLICE_BYTES_MAX = RECORDS_MAX * RECORD_BYTES
# The most buffers that are kept for another call, in all threads: a frame of 1 MiB holds two, and its reader the next.
_BUFFERS_MAX = 4
# The most ciphertext that may come without data in it. A KeyUpdate has 27 bytes, costs 10 to 25 µs, and asks for an
# answer of the same length, which waits in memory while the peer does not read. A part of a record may take 17 KiB.
CONTROL_BYTES_MAX = 32 * 1024
# The most bytes that a record has around its data, without padding.
AROUND_RECORD_BYTES = 96
# The most bytes that a peer may send before the end of its handshake: chains of certificates have some KiB.
HANDSHAKE_BYTES_MAX = 256 * 1024
# Each record begins with its kind and with the major version, which is 3 in all versions of TLS.
_KINDS = (20, 21, 22, 23)
_MAJOR = 3


# Returns more ciphertext that has arrived; ``b""`` without any.
More: TypeAlias = Callable[[], bytes | memoryview]


class PeerIdentity(NamedTuple):
    """The verified certificate of a peer.

    Attributes:
        subject: The subject, as ``CN=orders,O=Example``.
        names: The alternative names: hosts, addresses, e-mail addresses and URIs.
        authority: The SHA-256 of the trusted certificate at the end of the chain, in hex.
        claims: Its names with their kinds, the surest first: the fingerprint, common names, alternative names.
        expires_us: When it expires, in microseconds since 1970 UTC.
    """

    subject: str
    names: tuple[str, ...]
    authority: str
    claims: tuple[str, ...]
    expires_us: int

    def __str__(self) -> str:
        return self.subject or ", ".join(self.names)


# Buffers to be used again once no view of them is left, the oldest first. New memory is cleared by the system, and by
# bytearray once more.
_buffers: collections.deque[bytearray] = collections.deque(maxlen=_BUFFERS_MAX)


def _free_buffer() -> bytearray:
    """Takes a buffer without views from ``_buffers``, or makes one. No other thread has it until it is back."""
    with contextlib.suppress(IndexError):  # another thread has taken the last one
        for _ in range(len(_buffers)):
            buffer = _buffers.popleft()
            try:
                buffer.append(buffer.pop())  # not while there is a view
            except BufferError:
                _buffers.append(buffer)
            else:
                return buffer
    return bytearray(SLICE_BYTES_MAX)


class TlsEngine:
    """One side of a TLS connection. After an ``ssl.SSLError``, send what ``take`` returns, and close."""

    def __init__(self, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        """``server_hostname``: the host that the peer's certificate has to name; None on the server's side.

        Raises ValueError for a host that cannot be in a certificate.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._shaken_bytes = 0
        self._is_shaken = False
        self._control_bytes = 0  # of ciphertext since the handshake, in which no data was found; never below 0
        self._failure: ssl.SSLError | None = None  # to be raised once the plaintext before it was handed over
        self.is_behind = False  # the last call has left records, to be decrypted in another turn
        self.is_ended = False  # the peer has said that no more bytes follow

    def feed(self, data: bytes | memoryview) -> None:
        """Takes ciphertext from the peer. After a failure it is dropped."""
        if self._failure is not None:
            return
        if self._is_shaken:
            self._control_bytes += len(data)
        else:
            self._shaken_bytes += len(data)
        self._incoming.write(data)

    def take(self) -> bytes:
        """Returns the ciphertext that is to be sent; ``b""`` without any."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def shake(self) -> bool:
        """Goes on with the handshake. Returns whether it is complete. Raises ssl.SSLError."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            if self._shaken_bytes > HANDSHAKE_BYTES_MAX:
                raise ssl.SSLError(f"no handshake within {HANDSHAKE_BYTES_MAX} bytes") from None
            return False
        self._is_shaken = True
        return True

    @property
    def has_data(self) -> bool:
        """Ciphertext has arrived that was not decrypted yet, perhaps a part of a record only."""
        return self._failure is not None or self._incoming.pending > 0 or self._object.pending() > 0

    def encrypt(self, data: bytes | memoryview) -> None:
        """Encrypts ``data`` for ``take``. The caller bounds its size. Raises ssl.SSLError."""
        self._object.write(data)

    def encrypted(self, data: bytes | memoryview) -> list[bytes]:
        """Encrypts ``data``, and returns all that is to be sent, in pieces. Raises ssl.SSLError."""
        if len(data) <= PIECE_BYTES:
            self._object.write(data)
            return [self.take()]
        view, pieces = memoryview(data), []
        for start in range(0, len(view), PIECE_BYTES):
            self._object.write(view[start : start + PIECE_BYTES])
            pieces.append(self.take())
        return pieces

    def decrypt(self, nbytes_max: int) -> bytes:
        """Returns about ``nbytes_max`` bytes of plaintext; ``b""`` without a whole record. Raises ssl.SSLError.

        Fewer bytes are all that there are, but for ``is_behind``: no whole record is left, for which a caller would
        wait at its socket. At most RECORDS_MAX records are read, and then ``is_behind`` is set.
        """
        return bytes(self.decrypt_view(nbytes_max))

    def decrypt_view(self, nbytes_max: int = SLICE_BYTES_MAX, more: More | None = None) -> bytes | memoryview:
        """Returns the same as ``decrypt``, without a copy of much: a view of bytes that do not change, or bytes.

        With ``more``, much more is expected: it is called when all is decrypted, up to SLICE_BYTES_MAX bytes.
        """
        if more is not None:
            return self._decrypt_much(more)
        pending = self._incoming.pending + self._object.pending()
        if pending > RECORD_BYTES:
            # An object for each record, joined later, would take more than twice the time. OpenSSL may hold the first
            # part of a record, which no count has.
            buffer = bytearray(min(nbytes_max, pending + RECORD_BYTES))
            return memoryview(buffer).toreadonly()[: self.decrypt_into((buffer,))]
        found: list[bytes] = []
        left = nbytes_max
        while left > 0 and len(found) < RECORDS_MAX:
            data = self._read(RECORD_BYTES, bool(found))
            if not data:
                break
            found.append(data)
            left -= len(data)
        self.is_behind = len(found) == RECORDS_MAX
        self._note_found(nbytes_max - left, len(found), bool(found))
        return found[0] if len(found) == 1 else b"".join(found)

    def _decrypt_much(self, more: More) -> bytes | memoryview:
        buffer = _free_buffer()
        try:
            with memoryview(buffer) as view:
                count = self._fill(view, False, more)
            if 2 * count < SLICE_BYTES_MAX:  # a view would keep much more in memory than its bytes
                return bytes(buffer[:count])
            return memoryview(buffer).toreadonly()[:count]
        finally:
            _buffers.append(buffer)

    def decrypt_into(self, buffers: Iterable[memoryview | bytearray], more: More | None = None) -> int:
        """Decrypts into ``buffers``, one after the other. Returns the count of bytes, as ``decrypt`` does.

        ``more`` is called when all is decrypted, and there is room.
        """
        total = 0
        for buffer in buffers:
            count = self._fill(memoryview(buffer), bool(total), more)
            total += count
            if count < len(buffer):
                break
        return total

    def _read(self, nbytes: int, has_found: bool) -> bytes:
        if not self._may_read(has_found):
            return b""
        try:
            data = self._object.read(nbytes)
        except ssl.SSLError as error:
            self._missed(error, has_found)
            return b""
        if not data:
            self.is_ended = True
        return data

    def _fill(self, view: memoryview, has_found: bool, more: More | None) -> int:
        """Decrypts into ``view``, a record in each pass: there are 16 of them in 256 KiB, or thousands."""
        self.is_behind = False
        if not view or not self._may_read(has_found):
            return 0
        read, incoming, has_pending = self._object.read, self._incoming, self._object.pending
        total, size, records = 0, len(view), 0
        try:
            for _ in range(RECORDS_MAX):
                try:
                    count: int = read(RECORD_BYTES, view[total:])  # type: ignore[assignment]
                except ssl.SSLWantReadError:
                    pass
                else:
                    if not count:
                        self.is_ended = True
                        break
                    records += 1
                    total += count
                    if total == size:
                        break
                    if incoming.pending or has_pending():
                        continue
                if more is None or self._around(total, records) > CONTROL_BYTES_MAX:
                    break
                data = more()
                if not data:
                    break
                self.feed(data)
            else:
                self.is_behind = True
        except ssl.SSLError as error:
            self._missed(error, has_found or total > 0)
        self._note_found(total, records, has_found)
        return total

    def _note_found(self, nbytes: int, records: int, has_found: bool) -> None:
        """Notes that ``nbytes`` of data were in ``records``. Raises ssl.SSLError if too much came without any."""
        around = self._around(nbytes, records)
        self._control_bytes = max(0, around)
        if around > CONTROL_BYTES_MAX and not self._incoming.pending:
            self._missed(ssl.SSLError(f"{around} bytes without data, as of key updates"), has_found or nbytes > 0)

    def _around(self, nbytes: int, records: int) -> int:
        """Returns the bytes of ciphertext without data, with ``nbytes`` more of data in so many ``records``."""
        return self._control_bytes - nbytes - records * AROUND_RECORD_BYTES

    def _may_read(self, has_found: bool) -> bool:
        if self._failure is not None:
            if has_found:
                return False
            raise self._failure
        # An exception of the library for each read that finds nothing would cost more than this.
        return not self.is_ended and (self._incoming.pending > 0 or self._object.pending() > 0)

    def _missed(self, error: ssl.SSLError, has_found: bool) -> None:
        if isinstance(error, ssl.SSLWantReadError):
            return
        self._failure = error
        if not has_found:
            raise error

    def end(self) -> None:
        """Tells the peer that no more bytes follow: a close_notify, for ``take``."""
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's own close_notify is not waited for
            self._object.unwrap()

    @property
    def version(self) -> str:
        """The version of TLS, as ``TLSv1.3``."""
        return self._object.version() or ""

    def peer_identity(self) -> PeerIdentity | None:
        """Returns the peer's verified certificate; None if the peer has shown none."""
        return identity_of(self._object)


def identity_of(connection: ssl.SSLObject) -> PeerIdentity | None:
    """Returns the verified certificate at the other end of a connection; None if the peer has shown none."""
    found: dict[str, Any] = connection.getpeercert() or {}
    if not found:
        return None
    parts = [pair for part in found.get("subject", ()) for pair in part]
    subject = ",".join(f"{_SHORT.get(name, name)}={value}" for name, value in parts)
    alternative = found.get("subjectAltName", ())
    names = tuple(value for _, value in alternative)
    claims = [FINGERPRINT + hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()]
    claims += [COMMON_NAME + value for name, value in parts if name == "commonName"]
    claims += [_claim(kind, value) for kind, value in alternative if kind in ALTERNATIVE]
    expires_us = int(ssl.cert_time_to_seconds(found["notAfter"]) * 1_000_000)
    return PeerIdentity(subject, names, _authority(connection), tuple(claims), expires_us)


def _claim(kind: str, value: str) -> str:
    return ALTERNATIVE[kind] + (value.lower() if kind == "DNS" else value)


def _authority(connection: ssl.SSLObject) -> str:
    found: Any = connection
    if not hasattr(found, "get_verified_chain"):  # public from Python 3.13 on
        found = found._sslobj
    last = found.get_verified_chain()[-1]
    der = last if isinstance(last, bytes) else ssl.PEM_cert_to_DER_cert(last.public_bytes())
    return hashlib.sha256(der).hexdigest()


_SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
}


def looks_like_tls(data: bytes | memoryview) -> bool:
    """Tells whether the first bytes of a connection can be a record of TLS."""
    return bool(data) and data[0] in _KINDS and (len(data) < 2 or data[1] == _MAJOR)
