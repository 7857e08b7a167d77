"""Small compactions in a thread of the node: as in a process of their own."""

import os

import pytest
from tests.tailrace_server.compaction.conftest import Chain, Row

from tailrace_server.compaction.process import Rate
from tailrace_server.host.disk import RealDisk, read_file
from tailrace_server.runtime.workers import ThreadWorkers
from tailrace_server.segment import SegmentDamaged

pytestmark = pytest.mark.slow


@pytest.fixture
def chain(tmp_path):
    chain = Chain(RealDisk(), str(tmp_path))
    for begin in range(1, 41, 10):
        chain.add([Row(seq, b"k%d" % (seq % 7), b"%d" % seq) for seq in range(begin, begin + 10)])
    return chain


async def test_a_thread_makes_the_same_segment_as_a_process(chain):
    task = chain.task()
    results, files = [], []
    for compact in (ThreadWorkers().compact_small, lambda task: ThreadWorkers().compact(task, Rate())):
        results.append(await compact(task))
        files.append(read_file(chain.disk, task.output))
        os.remove(task.output)
    assert results[0] == results[1]
    assert files[0] == files[1]


async def test_what_fails_in_a_thread_leaves_nothing(chain, tmp_path):
    before = sorted(os.listdir(tmp_path))
    file = chain.disk.open(chain.paths[1], writable=True)
    file.write_at(100, (b"\xff" * 8,), 8)
    file.close()
    with pytest.raises(SegmentDamaged):
        await ThreadWorkers().compact_small(chain.task())
    assert sorted(os.listdir(tmp_path)) == before
