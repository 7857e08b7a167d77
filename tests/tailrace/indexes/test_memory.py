import threading

from tailrace.indexes import HeldVersion, MemoryIndex


def test_state_and_versions(make_checkpoint, put):
    index = MemoryIndex()
    index.apply([put(b"a", "one", 3, partition=1)], make_checkpoint({1: 3}))
    assert index.state == {b"a": b'{"title": "a", "text": "one"}'}
    assert index.versions == {b"a": HeldVersion(1, 3, 1_000_003)}


def test_it_outlives_close(make_checkpoint, put):
    index = MemoryIndex()
    index.apply([put(b"a", "one", 1)], make_checkpoint({0: 1}))
    index.close()
    assert index.open() == make_checkpoint({0: 1})
    assert index.state.keys() == {b"a"}


def test_a_snapshot_holds_whole_batches_only(make_checkpoint, put):
    index = MemoryIndex()
    keys = [b"%d" % number for number in range(200)]
    seen = []
    done = threading.Event()

    def look():
        while not done.is_set():
            seen.append(len(set(index.snapshot().values())))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for seq in range(1, 60):
            batch = [put(key, "", seq)._replace(value=b"%d" % seq) for key in keys]
            index.apply(batch, make_checkpoint({0: seq}))
    finally:
        done.set()
        looker.join()
    assert set(seen) <= {0, 1}
