"""A bug to plant: it breaks one rule of the product, and the simulator has to find it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Bug:
    """The wrong code, and the runs that find it.

    Attributes:
        patches: Owner, name and wrong value of each attribute of the product that is replaced. Some bugs need several,
            since each of two rules makes the loss of the other one harmless.
        stories: The stories that find the bug, each with the first seed to try.
        seed: If no story finds the bug, a seed of one node that does.
        copies: Or the number of nodes and the first seed of the runs with copies that find it.
        groups: Or the first seed of the runs with a group that find it.
    """

    patches: Sequence[tuple[Any, str, Any]]
    stories: Mapping[str, int] = field(default_factory=dict)
    seed: int | None = None
    copies: tuple[int, int] | None = None
    groups: int | None = None

    @property
    def found_by(self) -> list[str]:
        """What finds the bug, as the table of rules names it."""
        if self.copies is not None:
            return ["copies" if self.copies[0] == 1 else "copies of a set"]
        if self.groups is not None:
            return ["groups"]
        return list(self.stories) or ["one node"]

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Returns a context in which the product has this bug."""
        with contextlib.ExitStack() as stack:
            for owner, name, wrong in self.patches:
                stack.enter_context(mock.patch.object(owner, name, wrong))
            yield
