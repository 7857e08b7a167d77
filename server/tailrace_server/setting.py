"""What is known of a setting besides its name, type and default. Pure.

A setting is a field of a dataclass, made by `setting`. Everything else reads it from there: the file, the environment,
``--set`` and the options of ``tailrace serve``, ``tailrace config`` and the reference.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from tailrace.model.quantities import Unit

KIB, MIB, GIB = 1024, 1024**2, 1024**3

_KEY = "setting"


class Flag(NamedTuple):
    """An option of ``tailrace serve`` that sets a setting.

    Attributes:
        name: The option, such as ``--listen``.
        metavar: The name of its value in the help; "" for an option without a value, and for a choice.
        help: The text in the help.
        default: What the help shows as the default, if it is not the default itself.
        only: True if the setting can be set by the option alone, because it belongs to one start.
    """

    name: str
    metavar: str
    help: str
    default: str = ""
    only: bool = False


class Setting(NamedTuple):
    """How a setting can be set.

    Attributes:
        unit: The unit of a number.
        least: The smallest number.
        most: The largest number; None: there is none.
        reloads: True if SIGHUP sets it in a running node; otherwise it needs a restart.
        secret: True if its value must not be shown.
        flag: The option that sets it. All other settings are set by ``--set``.
    """

    unit: Unit = Unit.NONE
    least: float | None = None
    most: float | None = None
    reloads: bool = False
    secret: bool = False
    flag: Flag | None = None


def setting(
    default: Any,
    unit: Unit = Unit.NONE,
    *,
    least: float | None = None,
    most: float | None = None,
    reloads: bool = False,
    secret: bool = False,
    flag: Flag | None = None,
) -> Any:
    """Returns the field of a dataclass that a user can set. The arguments are those of `Setting`."""
    about = Setting(unit, least, most, reloads, secret, flag)
    return dataclasses.field(default=default, metadata={_KEY: about})


def settings_of(group: type) -> dict[str, Setting]:
    """Returns the settings of a dataclass, by the name of the field, in their order."""
    return {field.name: field.metadata[_KEY] for field in dataclasses.fields(group) if _KEY in field.metadata}


def adopt_reloaded(group: Any, new: Any) -> None:
    """Sets those settings of a dataclass that SIGHUP sets in a running node to the values of ``new``, another one."""
    for name, about in settings_of(type(group)).items():
        if about.reloads:
            setattr(group, name, getattr(new, name))
