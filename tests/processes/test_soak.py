"""Sets of processes under all faults, for as long as ``TAILRACE_SOAK_SECONDS`` says: one seed after the other."""

from __future__ import annotations

import math
import os
import shutil

import pytest

from .acts import Acts, ActsScenario
from .run import run, seed_of

pytestmark = [pytest.mark.slow, pytest.mark.soak]

SECONDS = float(os.environ.get("TAILRACE_SOAK_SECONDS", "120"))
# The faults of one run last so long at most; then all is healed and compared.
RUN_S_MAX = 240.0
RUNS = max(2, math.ceil(SECONDS / RUN_S_MAX))


@pytest.mark.parametrize("number", range(RUNS))
def test_a_set_keeps_its_promises_under_all_faults(number, tmp_path):
    """Every other set has its members in etcd, if there is one."""
    stores = ["static", "etcd"] if shutil.which("etcd") else ["static"]
    store = stores[number % len(stores)]
    scenario = ActsScenario(seed_of(1) + number, tmp_path, seconds=SECONDS / RUNS, store=store)
    assert run(lambda: Acts(scenario)).history.answers > 100
    for folder in tmp_path.iterdir():  # hours of runs would fill the disk
        if folder.is_dir():
            shutil.rmtree(folder)
