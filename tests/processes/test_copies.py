"""Copies of a feed are compared by rows and by logs."""

from __future__ import annotations

import pytest

from tailrace.model.failover import FailoverLog

from .copies import Copy, compare
from .history import Row
from .violation import Violation

OLD, NEW = b"o" * 16, b"n" * 16


def copy_of(*values):
    log = FailoverLog([(NEW, 2, 2), (OLD, 1, 0)])
    return Copy({0: [Row(b"k", value, seq) for seq, value in enumerate(values, 1)]}, {0: []}, {0: log})


def test_copies_are_compared():
    compare("a", copy_of(b"v"), "b", copy_of(b"v"))
    with pytest.raises(Violation, match="1 rows"):
        compare("a", copy_of(b"v"), "b", copy_of(b"v", b"w"))
    with pytest.raises(Violation, match="first that differs is 1"):
        compare("a", copy_of(b"x"), "b", copy_of(b"v"))
    with pytest.raises(Violation, match="logs"):
        compare("a", copy_of(b"v")._replace(logs={0: FailoverLog([(OLD, 1, 0)])}), "b", copy_of(b"v"))
