"""Runs of the simulators write no logs."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _no_logs():
    """Nodes say a lot about what is done to them here. A record has the wall's time, and is nothing of the run's."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
