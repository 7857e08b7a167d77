"""A seed is a run: byte for byte, whatever process it runs in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from .plan import ANY_SET
from .scheduling import seeded
from .world import simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from tests.simulation.world import simulate
print(simulate(int(sys.argv[1])).digest)
"""


def digest_elsewhere(seed, hash_seed):
    """The digest of a run in another process, in which sets of strings have another order."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(seed)], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return process.stdout.strip()


def test_a_seed_replays_in_another_process_and_another_seed_is_another_run():
    digest = simulate(1).digest
    assert digest_elsewhere(1, "4711") == digest
    assert simulate(2).digest != digest


@pytest.mark.long
def test_a_seed_of_sets_replays():
    assert simulate(2, nodes=ANY_SET).digest == simulate(2, nodes=ANY_SET).digest


def test_a_seed_with_copies_replays():
    assert simulate(1, copies=True).digest == simulate(1, copies=True).digest


@pytest.mark.long
def test_a_seed_with_segments_between_nodes_replays():
    assert simulate(2, way="push").digest == simulate(2, way="push").digest


def order_of_tasks(seed):
    """The order in which trio runs ten tasks that are ready at once, ten times."""
    order = []

    async def task(number):
        for _ in range(10):
            order.append(number)
            await trio.lowlevel.checkpoint()

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(task, number)

    with seeded(seed):
        trio.run(main)
    return order


def test_tasks_are_scheduled_by_the_seed():
    """The private names of trio are there, and do what scheduling.py says."""
    assert order_of_tasks(1) == order_of_tasks(1)
    assert order_of_tasks(1) != order_of_tasks(2)
