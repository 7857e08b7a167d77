"""Checks the numbers that programs give as options; the same for both clients. Pure.

NaN passes each comparison with a bound, so that a time-out of it never ends, and a bool is an int to Python. So every
option that is a number goes through one of these functions before anything is done.
"""

from __future__ import annotations

import sys
from numbers import Integral, Real


def seconds(name: str, value: float) -> float:
    """Returns the number of seconds of the option ``name``, 0 or more.

    Raises:
        ValueError: It is NaN, infinite, negative or a bool. The message has the name and the value.
        TypeError: It is no number.
    """
    if not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}: a number of seconds is needed")
    if isinstance(value, bool) or not 0 <= value <= sys.float_info.max:  # an integer may be larger
        raise ValueError(f"{name} is {value!r}: a finite number of seconds is needed, 0 or more")
    return float(value)


def count(name: str, value: int, least: int = 0, most: int | None = None) -> int:
    """Returns the integer of the option ``name``, from ``least`` to ``most``, both included; None: no bound.

    Raises:
        ValueError: It is outside of its bounds, a bool or no integer. The message has the name and the value.
        TypeError: It is no number.
    """
    if not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}: an integer is needed")
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        needed = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} is {value!r}: an integer {needed} is needed")
    return int(value)
