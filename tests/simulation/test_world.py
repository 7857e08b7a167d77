"""Parts of the world."""

from types import SimpleNamespace

import pytest

from tailrace.errors import BadSegment, ProtocolError

from .report import Report
from .world import World

DAMAGE = BadSegment("the segment /data/1.seg is damaged at offset 0: it cannot be opened: Input/output error")


def survive(error):
    """Raises an error where a program survives damage. Returns how often the report counts damage."""
    report = Report()
    with World.damage(SimpleNamespace(report=report)):
        raise error
    return report.operations["answer that a segment is damaged"]


@pytest.mark.parametrize("error", [DAMAGE, ExceptionGroup("a nursery", [DAMAGE, ExceptionGroup("another", [DAMAGE])])])
def test_a_program_survives_damage(error):
    assert survive(error) == 1


@pytest.mark.parametrize(
    "error", [ProtocolError("another"), ExceptionGroup("both", [DAMAGE, ProtocolError("another")])]
)
def test_a_program_survives_no_other_error(error):
    with pytest.raises(type(error), match=str(error)[:4]):
        survive(error)
