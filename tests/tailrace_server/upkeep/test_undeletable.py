"""Files that cannot be removed: everything else is, the journal too, and a start goes on without."""

import errno
import os

import pytest

ROW = (b"k", bytes(900))


@pytest.fixture
def undeletable(engine):
    """Names of files that cannot be removed, as with an attribute of the file system."""
    parts = []

    def before(name, path):
        if name == "remove" and any(part in path for part in parts):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)

    engine.disk.before = before
    return parts


async def folded(engine, name="orders"):
    """A partition; the names of segments that a fold has replaced."""
    partition = engine.create(name)
    for _ in range(4):
        engine.put(partition, ROW)
        await engine.flusher.flush(partition)
    replaced = engine.segments(partition)
    info = engine.node.feeds.of_id(partition.feed_id).info
    assert await engine.node.storage.compactor.compact(partition, info)
    return partition, replaced


@pytest.mark.parametrize("stuck", [0, 1, 3])
async def test_a_replaced_segment_keeps_neither_the_others_nor_the_journal(engine, undeletable, stuck):
    partition, replaced = await folded(engine)
    undeletable.append(replaced[stuck])
    files = len(engine.journal_files)
    for _ in range(3):
        await engine.flusher.pass_once()
        assert "Operation not permitted" in engine.flusher.failure
    assert len(engine.journal_files) == 1 < files
    left = {os.path.basename(segment.path) for segment in partition.chain.segments} | {replaced[stuck]}
    assert set(engine.segments(partition)) == left
    engine.put(partition, ROW)
    engine.kill()
    engine.check_rows(engine.partition())
    undeletable.clear()
    engine.kill()
    assert len(engine.segments(engine.partition())) == 1
    engine.check_rows(engine.partition())


@pytest.mark.parametrize("stuck", [".seg", "MANIFEST", "FEED.dropped"])
async def test_a_dropped_feed_keeps_neither_another_one_nor_the_journal(engine, undeletable, stuck):
    partition, _ = await folded(engine, "stuck")
    other, _ = await folded(engine, "other")
    kept = engine.create("kept")
    for _ in range(3):
        engine.put(kept, ROW)
    await engine.flusher.pass_once()
    undeletable.append(stuck)
    directory = engine.node.storage.store.feed_directory(partition.feed_id)
    undeletable[0] = directory if stuck == ".seg" else f"{directory}{'/0' * (stuck == 'MANIFEST')}/{stuck}"
    for name in ("stuck", "other"):
        engine.drop(name)
    for _ in range(3):
        engine.put(kept, ROW)
    await engine.flusher.pass_once()
    assert "Operation not permitted" in engine.flusher.failure
    assert not engine.disk.exists(engine.node.storage.store.feed_directory(other.feed_id))
    assert len(engine.journal_files) == 1
    for _ in range(2):
        engine.kill()
        assert [feed.info.name for feed in engine.node.feeds] == ["kept"]
        engine.check_rows(engine.partition("kept"))
    undeletable.clear()
    engine.kill()
    await engine.flusher.pass_once()
    assert not engine.disk.exists(directory)
    assert engine.flusher.failure == ""
