"""What is packed in one go against what the wire's messages make."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import BRANCH_BYTES, VersionRange
from tailrace.wire.frames import frame_header
from tailrace.wire.messages import Written
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import SnapshotStartMessage, encode_number, encode_seq
from tailrace_server.stream.frames import WRITTEN_FRAME_BYTES, SnapshotFrames, written

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
branches = st.binary(min_size=BRANCH_BYTES, max_size=BRANCH_BYTES)


@given(u32, branches, u64, u64, u32)
def test_written(partition, branch, first_seq, last_seq, id):
    found = written(VersionRange(partition, branch, first_seq, last_seq), id)
    assert found == Written(partition, branch, first_seq, last_seq).encode(id)
    assert len(found) == WRITTEN_FRAME_BYTES


@given(u32, u32, branches, u64, u64, u64, u32)
def test_before_the_block(stream_id, partition, branch, after_seq, last_seq, purge_seq, block_bytes):
    frames = SnapshotFrames(stream_id, partition)
    start = SnapshotStartMessage(partition, True, branch, after_seq, last_seq, purge_seq).encode(stream_id)
    for _ in range(2):
        found = frames.before_block(branch, after_seq, last_seq, purge_seq, block_bytes)
        assert found == start + frame_header(Opcode.BLOCK, block_bytes, stream_id)


@given(u32, u32, u64, u64)
def test_after_the_block(stream_id, partition, last_seq, round_number):
    end = encode_seq(Opcode.SNAPSHOT_END, partition, last_seq, stream_id)
    found = SnapshotFrames(stream_id, partition).after_block(last_seq, round_number)
    assert found == end + encode_number(Opcode.ROUND_COMPLETE, round_number)
