"""Reads standard input and the files that arguments name, with a bound, since they may have no end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from tailrace.block import VALUE_BYTES_MAX
from tailrace.cli.errors import WrongUsage
from tailrace.errors import BadPosition, TooLarge
from tailrace.model.position import TEXT_CHARS_MAX, Positions

# Line ends and blanks around positions, as editors and shells leave them.
_BLANKS_MAX = 1024


def read_value() -> bytes:
    """Returns all bytes of standard input. Raises TooLarge if they are more than a value may have."""
    return _read(sys.stdin.buffer, VALUE_BYTES_MAX, "that a value may have", "the standard input")


def read_positions(argument: str, text: str, *, may_be_stdin: bool = False, hint: str = "") -> Positions:
    """Returns the positions in ``text``, or in the file FILE if it is ``@FILE``.

    Args:
        argument: The name of the argument or option, for errors.
        text: The value of the argument.
        may_be_stdin: True if ``-`` stands for standard input.
        hint: The other forms of the argument, for the error if the text is not positions.

    Raises:
        WrongUsage: There are no positions, or more than positions may have, or the file cannot be read.
    """
    try:
        if text == "-" and may_be_stdin:
            return _positions(sys.stdin.buffer, "the standard input")
        if text.startswith("@"):
            with Path(text[1:]).open("rb") as file:
                return _positions(file, text[1:])
        return Positions.parse(text)
    except OSError as error:
        raise WrongUsage(f"{argument}: {text[1:]}: {error.strerror or error}") from None
    except (BadPosition, TooLarge) as error:
        raise WrongUsage(f"{argument}: {error}{hint}") from None


def _positions(source: BinaryIO, name: str) -> Positions:
    data = _read(source, TEXT_CHARS_MAX + _BLANKS_MAX, "that positions may have", name)
    return Positions.parse(data.decode("ascii", errors="replace"))


def _read(source: BinaryIO, bytes_max: int, bound: str, name: str) -> bytes:
    data = source.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise TooLarge(f"{name} has more than the {bytes_max} bytes {bound}")
    return data
