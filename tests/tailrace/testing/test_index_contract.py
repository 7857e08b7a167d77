"""The contract accepts sound indexes of several kinds, and finds what is wrong with others."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

JSON_INDEX = Path(__file__).parents[3] / "docs" / "examples" / "testing" / "json_index.py"
INDEXES = """
    import pytest
    from json_index import Checkpoint, JsonIndex
    from tailrace.testing import IndexContract

    class Contract(IndexContract):
        keeps_rings = False
        checks_feed = False
        kind = JsonIndex

        def make_index(self, path):
            return self.kind(path / "index.json")

        def rows(self, index):
            return {key: value for key, (value, _, _) in index.rows.items()}

    class TestSound(Contract):
        pass

    class TestVersionsAreCompared(Contract):
        def versions(self, index):
            return {key: (partition, seq, 0) for key, (_, partition, seq) in index.rows.items()}

    class TestOlderMutationsAreApplied(Contract):
        class kind(JsonIndex):
            def apply(self, mutations, checkpoint):
                mutations = list(mutations)
                self.rows = {key: (row[0], row[1], 0) for key, row in self.rows.items()}
                super().apply(mutations, checkpoint)

    class TestRowsAboveARollbackKeepTheirSeqs(Contract):
        class kind(JsonIndex):
            def rollback(self, partition, seq):
                return None

    class TestRowsAboveARollbackAreDropped(Contract):
        class kind(JsonIndex):
            def rollback(self, partition, seq):
                rows = {key: row for key, row in self.rows.items() if row[1] != partition or row[2] <= seq}
                self._store(rows, self._positions)

    class TestTheCheckpointIsStoredFirst(Contract):
        class kind(JsonIndex):
            def apply(self, mutations, checkpoint):
                self._store(self.rows, checkpoint.positions)
                super().apply(mutations, checkpoint)

    class TestRowsAreStoredOneByOne(Contract):
        class kind(JsonIndex):
            def apply(self, mutations, checkpoint):
                for mutation in mutations:
                    super().apply([mutation], checkpoint)
                super().apply([], checkpoint)

    class TestNothingIsStored(Contract):
        class kind(JsonIndex):
            def _store(self, rows, positions):
                self.rows, self._positions = rows, positions

    class TestClearLeavesThePosition(Contract):
        class kind(JsonIndex):
            def clear(self, partition):
                rows = {key: row for key, row in self.rows.items() if row[1] != partition}
                self._store(rows, self._positions)

    class TestPositionsAreMerged(Contract):
        class kind(JsonIndex):
            def apply(self, mutations, checkpoint):
                kept = self._positions
                super().apply(mutations, checkpoint if checkpoint.positions or not kept else Checkpoint(kept))

    class TestAPointThatIsNoneIsFound(Contract):
        class kind(JsonIndex):
            def rollback(self, partition, seq):
                return seq + 1

    class TestItIsNotCompared(IndexContract):
        pass
"""
SOUND = {"TestSound"}


def test_each_broken_index_fails_and_the_sound_one_passes(run_pytest):
    files = {"json_index.py": JSON_INDEX.read_text(), "test_indexes.py": INDEXES}
    run = run_pytest(files, "-p", "no:trio")
    assert run.wait() == pytest.ExitCode.TESTS_FAILED
    classes = {line.split()[1].partition("(")[0] for line in INDEXES.splitlines() if line.startswith("    class Test")}
    assert run.failed_classes() | {name for name in classes if f"ERROR test_indexes.py::{name}::" in run.out} == (
        classes - SOUND
    )


def test_a_prepared_index_and_one_that_goes_back_by_itself(run_pytest):
    text = """
        from json_index import Checkpoint, JsonIndex
        from tailrace.testing import IndexContract

        class Sound(IndexContract):
            keeps_rings = False
            checks_feed = False

            def make_index(self, path):
                return self.kind(path / "index.json")

            def rows(self, index):
                return {key: value for key, (value, _, _) in index.rows.items()}

        class TestPrepared(Sound):
            class kind(JsonIndex):
                def prepare(self, checkpoint):
                    self._store(self.rows, checkpoint.positions)

        class TestGoesBackToTheBeginning(Sound):
            class kind(JsonIndex):
                def rollback(self, partition, seq):
                    return 0
    """
    run = run_pytest({"json_index.py": JSON_INDEX.read_text(), "test_indexes.py": text}, "-p", "no:trio")
    assert run.passed()
    assert "test_prepare_stores_the_checkpoint_and_changes_no_row PASSED" in run.out
