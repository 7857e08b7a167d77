"""What `make simulate` runs."""

import logging

import pytest
from tests.processes.violation import Violation

from . import __main__ as program
from .report import Report


@pytest.fixture
def run(monkeypatch):
    """Runs the program with a fake of the simulator and these options; the seeds that were run, and the exit code."""

    def run(fails_at=None, **options):
        seeds = []

        def simulate(seed, *, trace):
            seeds.append(seed)
            if seed == fails_at:
                raise Violation("something is lost")
            return Report()

        monkeypatch.setattr(program, "simulate_set" if options.get("SETS") else "simulate", simulate)
        for name in ("SEED", "SEEDS", "SECONDS", "FIRST", "TRACE", "SETS"):
            monkeypatch.setenv(name, str(options.get(name, "")))
        return seeds, program.main()

    yield run
    logging.disable(logging.NOTSET)


def test_one_seed(run):
    assert run(SEED=17) == ([17], 0)


def test_so_many_seeds(run):
    assert run(SEEDS=3, FIRST=5) == ([5, 6, 7], 0)


def test_as_many_as_the_time_allows(run):
    seeds, code = run(SECONDS=1)
    assert code == 0
    assert seeds == list(range(len(seeds)))
    assert len(seeds) > 1


def test_what_goes_wrong_names_its_seed(run, capsys):
    assert run(SEEDS=10, fails_at=2) == ([0, 1, 2], 1)
    assert "make simulate SEED=2" in capsys.readouterr().err


def test_sets_have_a_world_of_their_own(run, capsys):
    assert run(SETS=1, SEEDS=2, fails_at=1) == ([0, 1], 1)
    assert "make simulate SETS=1 SEED=1" in capsys.readouterr().err
