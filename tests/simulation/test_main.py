"""The options of `make simulate`."""

import logging

import pytest
from tests.processes.violation import Violation

from . import __main__ as program
from .plan import ANY_SET
from .report import Report
from .stories.table import STORIES


class Runs:
    """A fake of the simulator, which notes its arguments."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.seeds = []
        self.worlds = []
        self.copies = []
        self.ways = []
        self.groups = []
        self.fails_at = None

    def __call__(self, **options):
        """Runs the program with these options; returns its exit code."""
        self._monkeypatch.setattr(program, "simulate", self._simulate)
        for name in (*program.NUMBERS, "SEGMENTS", "STORY"):
            self._monkeypatch.setenv(name, str(options.get(name, "")))
        return program.main()

    def _simulate(self, seed, *, nodes, story, copies, way, groups, trace):
        self.seeds.append(seed)
        self.groups.append(groups)
        self.ways.append(way)
        self.copies.append(copies)
        self.worlds.append((nodes, story))
        if seed == self.fails_at:
            raise Violation("something is lost")
        return Report()


@pytest.fixture
def runs(monkeypatch):
    yield Runs(monkeypatch)
    logging.disable(logging.NOTSET)


def test_one_seed(runs):
    assert runs(SEED=17) == 0
    assert runs.seeds == [17]
    assert runs.worlds == [(1, None)]


def test_a_group(runs):
    assert runs(SEED=17, GROUP=1) == 0
    assert runs.groups == [True]


def test_a_number_of_seeds(runs):
    assert runs(SEEDS=3, FIRST=5) == 0
    assert runs.seeds == [5, 6, 7]


@pytest.mark.slow
def test_as_many_as_the_time_allows(runs):
    assert runs(SECONDS=1) == 0
    assert runs.seeds == list(range(len(runs.seeds)))
    assert len(runs.seeds) > 1


def test_a_failure_names_its_seed(runs, capsys):
    runs.fails_at = 2
    assert runs(SEEDS=10) == 1
    assert runs.seeds == [0, 1, 2]
    assert "make simulate SEED=2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "world", "command"),
    [
        ({"NODES": 3}, (3, None), "make simulate NODES=3 SEED=1"),
        ({"COPIES": 1}, (1, None), "make simulate COPIES=1 SEED=1"),
        ({"SEGMENTS": "push"}, (1, None), "SEGMENTS=push SEED=1"),
        ({"STORY": "dead_tail"}, (1, STORIES["dead_tail"]), "make simulate STORY=dead_tail SEED=1"),
    ],
)
def test_nodes_and_stories(runs, capsys, options, world, command):
    runs.fails_at = 1
    assert runs(SEEDS=2, **options) == 1
    assert runs.worlds == [world, world]
    assert runs.copies == ["COPIES" in options] * 2
    assert runs.ways == [options.get("SEGMENTS", "")] * 2
    assert command in capsys.readouterr().err


def test_the_seed_chooses_the_size_of_a_set(runs, capsys):
    runs.fails_at = 1
    assert runs(SETS=1, SEEDS=2) == 1
    assert runs.worlds == [(ANY_SET, None)] * 2
    assert "make simulate NODES=" in capsys.readouterr().err


def test_a_story_that_does_not_exist(runs, capsys):
    assert runs(STORY="no_story") == 2
    assert "no_story" in capsys.readouterr().err


def test_a_way_of_segments_that_does_not_exist(runs, capsys):
    assert runs(SEGMENTS="mail") == 2
    assert "mail" in capsys.readouterr().err
