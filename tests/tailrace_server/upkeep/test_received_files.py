"""Files that are received: verified, continued, and removed if no chain takes them."""

import errno
import os

import pytest
import trio

from tailrace.copies.compare import Part
from tailrace.copies.layout import SegmentCopy
from tailrace.errors import BadSegment, NoSpace
from tailrace_server.partition.chain import Chain
from tailrace_server.segment import Segment
from tailrace_server.upkeep.incoming_segments import PushedFile
from tailrace_server.upkeep.installer import ReceivedEnd
from tailrace_server.upkeep.received_chain import prepare_to_receive


@pytest.fixture
async def sent(make_engine):
    """A segment as a node tells it, its bytes, and the engine and partition that receive it."""
    leader, replica = make_engine(), make_engine()
    source = leader.create()
    leader.put(source, (b"a", b"1"), (b"b", b"2"))
    segment = await leader.flusher.flush(source)
    data = bytes(leader.disk.content(segment.path))
    told = SegmentCopy(segment.identity.segment_id, len(data), segment.read_checksum(), 1, 2)
    partition = replica.create()
    await prepare_to_receive(replica.node.storage, partition)
    return told, data, replica, partition


def part(told, data, begin, end):
    return Part(told, begin, end - begin), memoryview(data)[begin:end]


async def test_a_file_comes_in_parts_and_has_its_name_at_the_end(sent):
    told, data, replica, partition = sent
    files = replica.node.storage.received.of(partition)
    await files.store_parts([part(told, data, 0, 100)])
    assert files.offset(told) == 100
    files.close()  # the connection has ended
    assert replica.segments(partition) == []
    files = replica.node.storage.received.of(partition)
    await files.store_parts([part(told, data, 100, 200), part(told, data, 200, len(data))])
    assert replica.segments(partition) == [told.file_name]
    path = replica.node.storage.store.segment_path(partition.feed_id, partition.id, told.id)
    assert bytes(replica.disk.content(path)) == data


@pytest.mark.parametrize("place", [10, 500, -30, -10, -1])
async def test_a_flipped_byte_is_found_and_the_file_begins_anew(sent, place):
    told, data, replica, partition = sent
    files = replica.node.storage.received.of(partition)
    wrong = bytearray(data)
    wrong[place] ^= 1
    with pytest.raises(BadSegment):
        await files.store_parts([part(told, bytes(wrong), 0, len(data))])
    assert files.offset(told) == 0
    assert replica.segments(partition) == []
    await files.store_parts([part(told, data, 0, len(data))])
    assert replica.segments(partition) == [told.file_name]


@pytest.mark.parametrize("nbytes", [1, 24, 87, 88])
async def test_a_segment_of_a_few_bytes_is_none(sent, nbytes):
    told, data, replica, partition = sent
    files = replica.node.storage.received.of(partition)
    with pytest.raises(BadSegment):
        await files.store_parts([part(told._replace(nbytes=nbytes), data[-nbytes:], 0, nbytes)])
    assert replica.segments(partition) == []


async def test_a_full_disk_keeps_what_has_come(sent):
    told, data, replica, partition = sent
    files = replica.node.storage.received.of(partition)
    await files.store_parts([part(told, data, 0, 100)])
    replica.fail("write_at", ".seg", errno.ENOSPC)
    with pytest.raises(NoSpace):
        await files.store_parts([part(told, data, 100, len(data))])
    assert files.offset(told) == 100
    await files.store_parts([part(told, data, 100, len(data))])
    assert replica.segments(partition) == [told.file_name]


async def test_a_file_that_could_not_be_made_durable_begins_anew(sent):
    """It is whole and has no name: nothing of it would be asked for, and nothing could be installed."""
    told, data, replica, partition = sent
    files = replica.node.storage.received.of(partition)
    replica.fail("sync", ".seg", errno.EIO)
    with pytest.raises(OSError, match="rror"):
        await files.store_parts([part(told, data, 0, len(data))])
    assert files.offset(told) == 0
    await files.store_parts([part(told, data, 0, len(data))])
    assert replica.segments(partition) == [told.file_name]


async def test_a_file_that_can_be_neither_made_durable_nor_removed_begins_anew(sent):
    told, data, replica, partition = sent
    files = replica.node.storage.received.of(partition)

    def before(name, path):
        if name in ("sync", "remove") and ".seg" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    replica.disk.before = before
    with pytest.raises(OSError, match="rror"):
        await files.store_parts([part(told, data, 0, len(data))])
    replica.disk.before = None
    assert files.offset(told) == 0
    await files.store_parts([part(told, data, 0, len(data))])
    assert replica.segments(partition) == [told.file_name]
    path = replica.node.storage.store.segment_path(partition.feed_id, partition.id, told.id)
    assert bytes(replica.disk.content(path)) == data


async def test_a_copy_and_a_push_of_the_same_segment_do_not_write_one_file(sent):
    """The mode of the feed has changed twice. Each checks the bytes that it has written, not those of the file."""
    told, data, replica, partition = sent
    storage = replica.node.storage
    files = storage.received.of(partition)
    await files.store_parts([part(told, data, 0, 400)])
    files.close()
    pushed = storage.incoming.begin(partition, PushedFile(told.id, told.nbytes, told.checksum))
    pushed.add(data[:100])
    storage.incoming.interrupt(partition)
    await files.store_parts([part(told, data, 400, len(data))])
    path = storage.store.segment_path(partition.feed_id, partition.id, told.id)
    assert bytes(replica.disk.content(path)) == data
    storage.incoming.close()


async def test_another_segment_of_the_same_id_begins_anew(sent):
    told, data, replica, partition = sent
    files = replica.node.storage.received.of(partition)
    other = told._replace(nbytes=told.nbytes + 1)
    await files.store_parts([part(other, data, 0, 100)])
    assert files.offset(told) == 0
    await files.store_parts([part(told, data, 0, len(data))])
    assert replica.segments(partition) == [told.file_name]


async def test_unused_files_go_after_a_while(sent):
    told, data, replica, partition = sent
    received = replica.node.storage.received
    await received.of(partition).store_parts([part(told, data, 0, 100)])
    await received.expire()
    assert received.of(partition).offset(told) == 100
    replica.clock.advance(601)
    files = received.of(partition)  # in use again
    replica.clock.advance(601)
    files.in_use = True
    await received.expire()
    assert files.offset(told) == 100
    files.in_use = False
    await received.expire()
    directory = replica.node.storage.store.partition_directory(partition.feed_id, partition.id)
    assert replica.disk.names(directory) == ["MANIFEST"]


async def test_files_of_a_later_checkpoint_stay_and_the_others_go(sent):
    """The others take room. Half a file goes on where it ended."""
    told, data, replica, partition = sent
    files = replica.node.storage.received.of(partition)
    other = told._replace(id=b"h" * 16)
    await files.store_parts([part(told, data, 0, 100), part(other, data, 0, 100)])
    await files.remove(kept={told.id})
    assert (files.offset(told), files.offset(other)) == (100, 0)
    await files.store_parts([part(told, data, 100, len(data))])
    await files.remove(kept={told.id})
    assert files.offset(told) == len(data)
    assert replica.segments(partition) == [told.file_name]
    await files.remove()
    assert replica.segments(partition) == []


async def installed_another_way(replica, partition, told):
    """Installs a received file as a push of the same segment does: the received files do not hear of it."""
    storage = replica.node.storage
    segment = Segment.open(storage.store.segment_files, storage.store.segment_path(partition.feed_id, 0, told.id))
    async with storage.installer.holding(partition):
        end = ReceivedEnd(2, partition.log, partition.rollbacks + 1, 0, 0)
        await storage.installer.install_chain_held(partition, Chain([segment]), end)
    return segment


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_file_that_has_left_the_chain_stays_until_its_last_reader_has_ended(sent, is_read):
    """The reader opens it again by its name if too many files are open. Then the trimmer removes it."""
    told, data, replica, partition = sent
    storage = replica.node.storage
    files = storage.received.of(partition)
    await files.store_parts([part(told, data, 0, len(data))])
    segment = await installed_another_way(replica, partition, told)
    storage.pins.pin(segment)
    await storage.installer.drop_oldest(partition, 1)
    if not is_read:
        storage.pins.unpin(segment)
    await files.remove()
    assert replica.segments(partition) == [told.file_name]
    assert bytes(segment.read_part(0, told.nbytes)) == data
    if is_read:
        await replica.flusher.trim()
        assert replica.segments(partition) == [told.file_name]
        storage.pins.unpin(segment)
    await replica.flusher.trim()
    assert replica.segments(partition) == []


async def test_the_beginning_of_a_file_goes_although_the_chain_has_the_segment(sent):
    told, data, replica, partition = sent
    storage = replica.node.storage
    files = storage.received.of(partition)
    await files.store_parts([part(told, data, 0, len(data))])
    await installed_another_way(replica, partition, told)
    files.installed([told.id])
    await files.store_parts([part(told, data, 0, 100)])
    await files.remove()
    directory = storage.store.partition_directory(partition.feed_id, partition.id)
    assert sorted(replica.disk.names(directory)) == sorted(["MANIFEST", told.file_name])


async def test_files_that_come_again_while_unused_ones_go(sent, nursery):
    """A removal may take long. It takes no file that has come since."""
    told, data, replica, partition = sent
    received, begin = replica.node.storage.received, replica.workers.begin
    await received.of(partition).store_parts([part(told, data, 0, len(data))])
    replica.clock.advance(601)

    async def come_again():
        replica.workers.begin = begin
        nursery.start_soon(received.of(partition).store_parts, [part(told, data, 0, len(data))])
        await trio.testing.wait_all_tasks_blocked()

    replica.workers.begin = come_again
    await received.expire()
    await trio.testing.wait_all_tasks_blocked()
    assert received.of(partition).offset(told) == len(data)
    assert replica.segments(partition) == [told.file_name]


async def test_a_start_removes_files_that_no_manifest_names(sent):
    told, data, replica, partition = sent
    files = replica.node.storage.received.of(partition)
    await files.store_parts([part(told, data, 0, len(data))])
    await files.store_parts([part(told._replace(id=b"h" * 16), data, 0, 100)])
    replica.kill()
    directory = replica.node.storage.store.partition_directory(partition.feed_id, partition.id)
    assert replica.disk.names(directory) == ["MANIFEST"]
