"""Bounds so small that a few rows rotate, allocate, and make a journal file too large to be replaced."""

from __future__ import annotations

import logging
from unittest import mock

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_bounds():
    with (
        mock.patch("tailrace_server.journal.recovery.REPLACE_BYTES_MAX", 800),
        mock.patch("tailrace_server.journal.space.ALLOCATE_BYTES", 300),
        mock.patch("tailrace_server.feeds.recovery.TOGETHER_MIN", 1),
    ):
        yield


@pytest.fixture(scope="module", autouse=True)
def quiet_log():
    """Thousands of crashes are each worth a warning."""
    log = logging.getLogger("tailrace.server")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    yield
    log.setLevel(level)
