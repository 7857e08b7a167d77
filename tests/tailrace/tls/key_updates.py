"""Records of a TLS 1.3 client that no library sends: any number of KeyUpdates, which the secrets of a key log allow."""

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

_APPLICATION_DATA, _HANDSHAKE = 23, 22
# The hash, the cipher and the bytes of its key, by the name of the suite.
_SUITES = {
    "TLS_AES_128_GCM_SHA256": (hashes.SHA256(), AESGCM, 16),
    "TLS_AES_256_GCM_SHA384": (hashes.SHA384(), AESGCM, 32),
    "TLS_CHACHA20_POLY1305_SHA256": (hashes.SHA256(), ChaCha20Poly1305, 32),
}


def log_keys(context, path):
    """Has ``context`` write the secrets of its connections to a file."""
    context.keylog_filename = str(path)
    return context


class ClientRecords:
    """Encrypts in place of a client whose handshake is complete, and which has sent nothing since."""

    def __init__(self, suite, path):
        lines = [line.split() for line in path.read_text().splitlines()]
        [secret] = [line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        self._hash, self._cipher, self._key_bytes = _SUITES[suite]
        self._take(bytes.fromhex(secret))

    def _expand(self, label, nbytes):
        label = b"tls13 " + label
        info = nbytes.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
        return HKDFExpand(self._hash, nbytes, info).derive(self._secret)

    def _take(self, secret):
        self._secret, self._number = secret, 0
        self._aead = self._cipher(self._expand(b"key", self._key_bytes))
        self._iv = int.from_bytes(self._expand(b"iv", 12), "big")

    def _record(self, kind, data):
        inner = data + bytes([kind])
        head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        nonce = (self._iv ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._aead.encrypt(nonce, inner, head)

    def data(self, plain):
        """A record with data of the application."""
        return self._record(_APPLICATION_DATA, plain)

    def key_update(self):
        """A KeyUpdate that asks the other side for one."""
        record = self._record(_HANDSHAKE, b"\x18\x00\x00\x01\x01")
        self._take(self._expand(b"traffic upd", self._hash.digest_size))
        return record
