"""Fixtures of the same names as trio's, with clients for asyncio."""

from __future__ import annotations

import gc

import pytest
from tests.conftest import ANSWER_SECONDS_MAX
from tests.tailrace.asyncio.bridge import Loop

import tailrace.asyncio


@pytest.fixture
async def bridge():
    """An event loop of asyncio in a thread. At its end it must have nothing to complain about."""
    loop = Loop()
    loop.start()
    yield loop
    await loop.stop()
    gc.collect()
    assert loop.reports == []


@pytest.fixture
async def client(running, bridge):
    """A client for asyncio, for tests that are written for trio."""
    made = bridge.call(tailrace.asyncio.connect, running.url, retry_for=ANSWER_SECONDS_MAX)
    async with made as connected:
        yield connected
