"""The filter of a stream, in a STREAM_REQUEST. Pure.

A node that does not know a member of a filter must not stream without it. So the names of such members are kept, and
the node refuses the request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tailrace.block.header import KEY_BYTES_MAX
from tailrace.errors import ProtocolError

_MEMBERS = ("key_prefix", "keys_only")
# The names of unknown members in an error: their number, and the length of each.
_UNKNOWN_MAX = 8
_NAME_CHARS_MAX = 40


class StreamFilter(NamedTuple):
    """Selects mutations.

    Attributes:
        key_prefix: Only mutations whose key begins with this are sent.
        keys_only: True if they are sent without values.
        unknown: The names of members that this version does not know. A node refuses a filter that has any.
    """

    key_prefix: bytes = b""
    keys_only: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def selects(self) -> bool:
        """True if the filter may leave mutations out."""
        return bool(self.key_prefix)

    def check(self) -> None:
        """Raises ValueError or TypeError for a filter that no node accepts."""
        if not isinstance(self.key_prefix, bytes):
            raise TypeError(f"key_prefix is {self.key_prefix!r}, but has to be bytes: use .encode() for text")
        if not isinstance(self.keys_only, bool):
            raise TypeError(f"keys_only is {self.keys_only!r}, but has to be True or False")
        if len(self.key_prefix) > KEY_BYTES_MAX:
            raise ValueError(f"key_prefix has {len(self.key_prefix)} bytes; but a key has at most {KEY_BYTES_MAX}")

    def to_json(self) -> dict[str, Any]:
        """Returns the filter as a JSON object."""
        return {"key_prefix": self.key_prefix.hex(), "keys_only": self.keys_only}

    @classmethod
    def from_json(cls, value: Any, what: str) -> StreamFilter:
        """Reads the result of ``to_json``. ProtocolError if it is not a filter; ``what`` names the message in it."""
        if value is None:
            return EVERYTHING
        if not isinstance(value, dict):
            raise ProtocolError(f"{what}: field 'filter' is not an object")
        keys_only = value.get("keys_only", False)
        if not isinstance(keys_only, bool):
            raise ProtocolError(f"{what}: field 'keys_only' of the filter is neither true nor false")
        unknown = [name[:_NAME_CHARS_MAX] for name in value if name not in _MEMBERS]
        return cls(_prefix(value.get("key_prefix", ""), what), keys_only, tuple(unknown[:_UNKNOWN_MAX]))


EVERYTHING = StreamFilter()


def _prefix(text: Any, what: str) -> bytes:
    try:
        prefix = bytes.fromhex(text) if isinstance(text, str) else None
    except ValueError:
        prefix = None
    if prefix is None:
        raise ProtocolError(f"{what}: field 'key_prefix' of the filter is not bytes in hex")
    if len(prefix) > KEY_BYTES_MAX:
        raise ProtocolError(f"{what}: the filter's key_prefix has {len(prefix)} bytes, a key at most {KEY_BYTES_MAX}")
    return prefix
