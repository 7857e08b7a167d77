"""A step of each kind, crashed at every call: what was acknowledged is there, and everything holds together."""

from __future__ import annotations

import pytest

from .scenarios import SCENARIOS, crash_scenario

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SCENARIOS)
async def test_crash_at_every_call_in_one_way(name):
    starts = await crash_scenario(name, seed=1, power_cuts=1, in_turn=True)
    assert starts > 7, "there is little to crash in this step"


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
async def test_crash_at_every_call(name):
    starts = await crash_scenario(name, seed=1, power_cuts=1)
    assert starts > 20, "there is little to crash in this step"


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
async def test_crash_at_every_call_with_power_cuts_that_lose_some(name):
    starts = await crash_scenario(name, seed=1)
    assert starts > 30, "there is little to crash in this step"
