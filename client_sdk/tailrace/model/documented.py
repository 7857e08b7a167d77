"""Gives the calls of the shells the documentation of the core, so that it is written once. Pure."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_SECTION = re.compile(r"^(?:Args|Returns|Raises):$", re.MULTILINE)
_COLUMNS = 112  # as long as the lines of a method's docstring
_ARGS = re.compile(r"^Args:\n(?:    .*\n|\n(?=    ))+", re.MULTILINE)


def documented(source: Callable[..., Any], *paragraphs: str, **arguments: str) -> Callable[[_F], _F]:
    """Returns a decorator that gives a function the docstring of ``source``.

    Args:
        source: The function of the core that has the docstring.
        paragraphs: Text of this shell, added before the first section.
        arguments: Descriptions of arguments that only this shell has, added at the end of ``Args``.

    Returns:
        The decorator. It returns the function itself.
    """

    def decorate(function: _F) -> _F:
        if source.__doc__ is not None:  # python -OO has none
            function.__doc__ = _joined(inspect.cleandoc(source.__doc__), paragraphs, arguments)
        return function

    return decorate


def _joined(text: str, paragraphs: tuple[str, ...], arguments: dict[str, str]) -> str:
    text += "\n"
    added = "".join(_argument(name, words) for name, words in arguments.items())
    found = _ARGS.search(text)
    if added and found is not None:
        text = text[: found.end()] + added + text[found.end() :]
    elif added:
        text = _before_sections(text, f"Args:\n{added}")
    for paragraph in paragraphs:
        text = _before_sections(text, "\n".join(textwrap.wrap(paragraph, _COLUMNS)) + "\n")
    return text.strip()


def _argument(name: str, words: str) -> str:
    lines = textwrap.wrap(f"{name}: {words}", _COLUMNS, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return "\n".join(lines) + "\n"


def _before_sections(text: str, block: str) -> str:
    found = _SECTION.search(text)
    if found is None:
        return f"{text}\n{block}"
    return f"{text[: found.start()]}{block}\n{text[found.start() :]}"
