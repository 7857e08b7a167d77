"""What a consumer wants of a stream's mutations, as a STREAM_REQUEST says it. Pure.

A node that does not understand a filter must not stream without it: members that it does not know are kept by name, and
the request is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tailrace.block.header import KEY_BYTES_MAX
from tailrace.errors import ProtocolError

_MEMBERS = ("key_prefix", "keys_only")
# What an error tells of members that nobody knows: names, and the length of each.
_UNKNOWN_MAX = 8
_NAME_CHARS_MAX = 40


class StreamFilter(NamedTuple):
    """Only mutations whose key begins with ``key_prefix``; ``keys_only``: without their values.

    ``unknown``: members that this version does not know; whoever has any must not stream.
    """

    key_prefix: bytes = b""
    keys_only: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def selects(self) -> bool:
        """Some mutations may be left out."""
        return bool(self.key_prefix)

    def check(self) -> None:
        """ValueError and TypeError where no node would take it."""
        if not isinstance(self.key_prefix, bytes):
            raise TypeError(f"key_prefix is {self.key_prefix!r}, and has to be bytes: use .encode() for text")
        if not isinstance(self.keys_only, bool):
            raise TypeError(f"keys_only is {self.keys_only!r}, and has to be True or False")
        if len(self.key_prefix) > KEY_BYTES_MAX:
            raise ValueError(
                f"key_prefix has {len(self.key_prefix)} bytes; a key has at most {KEY_BYTES_MAX}, so none can begin so"
            )

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {"key_prefix": self.key_prefix.hex(), "keys_only": self.keys_only}

    @classmethod
    def from_json(cls, value: Any, what: str) -> StreamFilter:
        """The reverse of ``to_json``; ``what`` names the message in errors. ProtocolError for what is no filter."""
        if value is None:
            return EVERYTHING
        if not isinstance(value, dict):
            raise ProtocolError(f"{what}: field 'filter' is no object")
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
        raise ProtocolError(f"{what}: field 'key_prefix' of the filter is no bytes in hex")
    if len(prefix) > KEY_BYTES_MAX:
        raise ProtocolError(f"{what}: the filter's key_prefix has {len(prefix)} bytes, a key at most {KEY_BYTES_MAX}")
    return prefix
