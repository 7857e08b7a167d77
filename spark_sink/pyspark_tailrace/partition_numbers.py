"""Checks the partition of each row, if a job has computed it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_numbers(numbers: Any, partitions: int, keys: Any, found: NDArray[np.int64]) -> None:
    """Raises ValueError if a job's partition numbers are not those of the feed.

    ``numbers`` is an Arrow array of integers, ``keys`` one of binary; ``found`` has the right numbers.
    """
    advice = f"fill the partition column by partition_of(<the key column>, {partitions}), the feed's count"
    if numbers.null_count:
        raise ValueError(f"the partition column is null in {numbers.null_count} of {len(numbers)} rows: {advice}")
    given = numbers.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(given != found)
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"the partition column says {given[row]} for the key {keys[row].as_py()[:80]!r}, which belongs to "
            f"partition {found[row]}; it is wrong in {len(wrong)} of {len(given)} rows: {advice}"
        )
