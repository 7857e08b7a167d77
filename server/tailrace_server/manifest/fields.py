"""The kinds of values in FEED and MANIFEST: writes them as JSON, and reads them with all bounds checked. Pure.

Ids and 64-bit hashes are hexadecimal text, since many readers of JSON keep only 53 bits of a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tailrace.block.header import PARTITION_MAX, SEQ_MAX, TIMESTAMP_MAX
from tailrace.model.failover import FailoverLog
from tailrace_server.directory.sealed import UnknownVersion, unseal
from tailrace_server.manifest.errors import ManifestDamaged

ID_BYTES = 16
_BYTES_MAX = 2**63 - 1


class Kind(NamedTuple):
    """A kind of value. ``read`` raises ValueError with the expected and the found value."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def write_members(kinds: Mapping[str, Kind], value: NamedTuple) -> dict[str, Any]:
    """Returns the members of a tuple as JSON values, in the order of ``kinds``."""
    return {name: kind.write(getattr(value, name)) for name, kind in kinds.items()}


def read_members(
    kinds: Mapping[str, Kind], members: Any, where: str = "", added: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Returns the values that ``write_members`` was given. ValueError names the member, behind ``where``.

    ``added`` are JSON values of members that may be missing.
    """
    if not isinstance(members, dict):
        raise ValueError(f"{where or 'it'} must be an object, not {members!r:.60}")
    members = {**added, **members}
    prefix = f"{where}." if where else ""
    if members.keys() != kinds.keys():
        differing = ", ".join(f"{prefix}{name}" for name in sorted(members.keys() ^ kinds.keys())[:5])
        raise ValueError(f"it has members that are missing or not known: {differing:.300}")
    values = {}
    for name, kind in kinds.items():
        try:
            values[name] = kind.read(members[name])
        except ValueError as error:
            raise ValueError(f"{prefix}{name}: {error}") from None
    return values


def read_sealed(
    data: bytes,
    path: str,
    format: str,
    version: int,
    kinds: Mapping[str, Kind],
    added: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the values in a sealed file; those of ``added`` if they are missing.

    Raises ManifestDamaged, with ``path`` and the fault."""
    try:
        return read_members(kinds, unseal(data, format, version), added=added)
    except UnknownVersion as error:
        raise ManifestDamaged(path, str(error), "start the Tailrace that wrote it") from None
    except ValueError as error:
        raise ManifestDamaged(path, str(error)) from None


def read_id(value: Any, nbytes: int = ID_BYTES) -> bytes:
    """Returns the bytes of a text in lower-case hexadecimal. ValueError."""
    if isinstance(value, str) and len(value) == 2 * nbytes and not set(value) - set("0123456789abcdef"):
        return bytes.fromhex(value)
    raise ValueError(f"{2 * nbytes} hexadecimal digits are needed, not {value!r:.60}")


def read_integer(value: Any, least: int, greatest: int) -> int:
    """Returns an integer from ``least`` to ``greatest``. ValueError."""
    if type(value) is not int or not least <= value <= greatest:
        raise ValueError(f"an integer from {least} to {greatest} is needed, not {value!r:.60}")
    return value


def read_list(value: Any, count_max: int) -> list[Any]:
    """Returns a list of at most ``count_max`` items. ValueError."""
    if not isinstance(value, list) or len(value) > count_max:
        found = f"{len(value)}" if isinstance(value, list) else f"{value!r:.60}"
        raise ValueError(f"a list of at most {count_max} is needed, not {found}")
    return value


def read_number(value: Any) -> float:
    """Returns a finite number, not below 0. ValueError."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"a number, 0 or more, is needed, not {value!r:.60}")
    return value  # type: ignore[no-any-return]  # an int stays one


def _read_hash(value: Any) -> int:
    return int.from_bytes(read_id(value, 8), "big")


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"true or false is needed, not {value!r:.60}")
    return value


def _same(value: Any) -> Any:
    return value


def integer(least: int, greatest: int) -> Kind:
    """Integers of these bounds."""
    return Kind(_same, lambda value: read_integer(value, least, greatest))


def ids(count_max: int) -> Kind:
    """Tuples of ids."""
    return Kind(
        lambda value: [id_.hex() for id_ in value],
        lambda value: tuple(read_id(item) for item in read_list(value, count_max)),
    )


def one_of(*choices: str) -> Kind:
    """One of some words."""

    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"{' or '.join(map(repr, choices))} is needed, not {value!r:.60}")
        return str(value)

    return Kind(_same, read)


def text(length_max: int) -> Kind:
    """Text that is not empty."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= length_max:
            raise ValueError(f"a text of 1 to {length_max} characters is needed, not {value!r:.60}")
        return value

    return Kind(_same, read)


def optional(kind: Kind) -> Kind:
    """``kind``, or null."""
    return Kind(
        lambda value: None if value is None else kind.write(value),
        lambda value: None if value is None else kind.read(value),
    )


ID = Kind(bytes.hex, read_id)
HASH = Kind(lambda value: f"{value:016x}", _read_hash)
FLAG = Kind(_same, _read_flag)
SEQ = integer(0, SEQ_MAX)
TIMESTAMP = integer(0, TIMESTAMP_MAX)
PARTITION = integer(0, PARTITION_MAX)
COUNT = integer(0, _BYTES_MAX)
NUMBER = Kind(_same, read_number)
LOG = Kind(FailoverLog.to_json, FailoverLog.from_json)
