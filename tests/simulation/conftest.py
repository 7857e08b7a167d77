"""Runs of the simulators write no logs."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _no_logs():
    """Disables logs: nodes log every fault, and a record has the time of the wall clock, which is not part of a run."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
