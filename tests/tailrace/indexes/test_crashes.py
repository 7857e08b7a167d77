"""Indexes in databases that die before each of their steps, while nodes lose their ends, fail over and come back."""

import contextlib
import itertools
import random
import uuid

import psycopg
import pytest
from tests.crashing_indexes import CrashingSQLiteIndex, CrashingTables, Steps
from tests.tailrace.consuming.rollback_model import World
from tests.tailrace.consuming.test_rollback_model import random_operations

from tailrace.indexes import DuckDBIndex, ParquetIndex, PostgresIndex

pytestmark = pytest.mark.slow

SEEDS = range(3)
A, B, NO_A = ("write", b"a", False), ("write", b"b", False), ("write", b"a", True)
# A leader is lost with rows that the index has, deletions too; the index dies at a step of the rollback.
FORK = [A, B, ("replicate", 1), A, NO_A, B, ("replicate", 2), ("consume", 0, None, None), ("fail_over", 1), A, B]
STEPS_MAX = 40


class CrashingDuckDBIndex(CrashingTables, DuckDBIndex):
    pass


class CrashingPostgresIndex(CrashingTables, PostgresIndex):
    pass


class CrashingParquetIndex(ParquetIndex):
    """Dies before each write, commit, move and removal of a file."""

    def __init__(self, path):
        super().__init__(path, keep_replaced_s=0.0)
        self.steps = Steps()

    def _write_part(self, *arguments):
        self.steps.step()
        super()._write_part(*arguments)

    def _write_rings(self, *arguments):
        self.steps.step()
        super()._write_rings(*arguments)

    def _commit(self, state):
        self.steps.step()
        super()._commit(state)

    def _place(self, state):
        self.steps.step()
        super()._place(state)

    def _remove(self, path):
        self.steps.step()
        super()._remove(path)

    @property
    def state(self):
        return {key: value for key, (_, value) in self.held().items()}

    def held(self):
        columns = [self.read()[name].to_pylist() for name in ("key", "seq", "value")]
        return {key: (seq, value) for key, seq, value in zip(*columns, strict=True)}


@pytest.fixture
def make_index(request, tmp_path):
    """A function that makes an index of a kind."""

    def make(kind):
        made = next(numbers)
        if kind is not CrashingPostgresIndex:
            return kind(tmp_path / f"index-{made}")
        server = request.getfixturevalue("postgres")
        schema = f"s{uuid.uuid4().hex}"
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        return kind(server.conninfo, schema=schema)

    numbers = itertools.count()
    return make


@pytest.mark.parametrize(
    "kind", [CrashingSQLiteIndex, CrashingDuckDBIndex, CrashingParquetIndex, CrashingPostgresIndex]
)
class TestCrashes:
    def test_it_may_die_at_every_step_of_a_rollback(self, kind, make_index):
        for step in range(STEPS_MAX):
            with contextlib.closing(make_index(kind)) as index:
                if not World(lambda index=index: index, step).run([*FORK, ("consume", 0, None, step)]).deaths:
                    break
        assert 3 < step < STEPS_MAX - 1, "there is more than one step to die at"

    @pytest.mark.parametrize("seed", SEEDS)
    def test_it_equals_the_node_after_a_random_life(self, kind, make_index, seed):
        with contextlib.closing(make_index(kind)) as index:
            World(lambda: index, seed, (100, 100, 2)[seed % 3]).run(random_operations(random.Random(seed)))
