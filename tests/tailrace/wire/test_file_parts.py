"""The bounds of a part of a file."""

import pytest

from tailrace.errors import ProtocolError
from tailrace.wire.file_parts import PART_BYTES_MAX, check_part


@pytest.mark.parametrize("nbytes", [1, PART_BYTES_MAX])
def test_a_part_within_the_bounds(nbytes):
    check_part(nbytes, "STAGE_FETCH")


@pytest.mark.parametrize("nbytes", [0, PART_BYTES_MAX + 1])
def test_a_part_out_of_the_bounds_is_refused(nbytes):
    with pytest.raises(ProtocolError, match=f"STAGE_FETCH: a part of {nbytes} bytes; a part has 1 to 1048576"):
        check_part(nbytes, "STAGE_FETCH")
