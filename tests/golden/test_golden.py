"""This program reads the data of every release since 0.2: it opens, verifies, serves, follows, restores and resumes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio
from tests.golden.archive import HERE, releases, unpack
from tests.golden.found import applied, found_in, rows_of, sinks_of, state_of
from tests.golden.make import COLUMNS, STORAGE, cluster_in
from tests.golden.meaning import to_json
from tests.golden.replay import differences
from tests.tailrace_server.replication.made_set import MadeNode, MadeSet, free_addresses, make_config

import tailrace
from tailrace.model.position import Positions
from tailrace.requests.staging import SealedStage
from tailrace_server.directory.identity import load
from tailrace_server.directory.lost import good_lines
from tailrace_server.host.disk import RealDisk
from tailrace_server.host.randomness import SystemRandomness
from tailrace_server.journal.clean import decode_mark
from tailrace_server.journal.format import RecordKind
from tailrace_server.journal.reader import RawRecord
from tailrace_server.offline.format_versions import FORMATS, files_with_format, format_of, newer_files, version_of
from tailrace_server.offline.journal_walk import journal_files
from tailrace_server.offline.repairing_mark import RepairingMark
from tailrace_server.offline.restore import restore
from tailrace_server.offline.verify import verify
from tailrace_server.upkeep.ahead_file import AheadFile

DISK = RealDisk()
DIRECTORIES = ("node", "backup", "repaired", "member0", "member1", "member2")
MEMBERS = ("member0", "member1", "member2")
# Kinds of records that programs before 0.2 wrote; no release does.
UNWRITTEN = {RecordKind.FLUSHED, RecordKind.TERM_PROMISED}

pytestmark = pytest.mark.slow


@pytest.fixture(params=releases())
def release(request):
    return request.param


@pytest.fixture
def told(release):
    return json.loads((HERE / release / "told.json").read_text())


@pytest.fixture
def unpacked(release, tmp_path):
    """A function that unpacks one of the release's archives."""
    return lambda name: unpack(release, name, tmp_path / name)


@asynccontextmanager
async def served(data, **changes):
    """A client of a node that serves the directory."""
    [address] = free_addresses(1)
    async with trio.open_nursery() as nursery:
        node = MadeNode(make_config(data, address, storage=STORAGE, **changes), nursery)
        await node.start()
        async with tailrace.connect(node.url, retry_for=60) as client:
            yield client
        await node.stop()


def without_logs(found):
    return {name: {**feed, "logs": None} for name, feed in found.items()}


def values_in(told, feed="orders"):
    return {key: value for *_, key, value in told["node"]["feeds"][feed]["rows"]}


def check_logs(found, told):
    """Each failover log goes on from the one that was told: the newest entries may be new."""
    for name, feed in told.items():
        for log, before in zip(found[name]["logs"], feed["logs"], strict=True):
            assert log[len(log) - len(before) :] == before, name


def contents_of(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "LOCK"}


def test_the_golden_data_of_the_first_release_are_here():
    assert releases()[0] == "0.2"


def test_every_format_and_kind_of_record_is_in_the_newest_golden_data(tmp_path):
    """A new format needs golden data: see tests/README.md."""
    formats, kinds = set(), set()
    for name in (*DIRECTORIES, "files"):
        data = unpack(releases()[-1], name, tmp_path / name)
        formats |= {format_of(path) for path in files_with_format(DISK, str(data))}
        for file in journal_files(DISK, str(data / "journal")) if (data / "journal").exists() else []:
            kinds |= {item.header.kind for item in file.items() if isinstance(item, RawRecord)}
    assert formats == set(FORMATS)
    assert set(RecordKind) - kinds == UNWRITTEN


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_has_no_problem_and_is_not_changed(unpacked, name):
    data = unpacked(name)
    before = contents_of(data)
    report = verify(DISK, str(data))
    assert report.problems == []
    assert newer_files(DISK, str(data)) == []
    assert contents_of(data) == before
    for file in report.files:
        format = format_of(file.path)
        assert format is None or format.oldest <= file.version <= format.version


async def test_a_node_serves_what_was_written(unpacked, told):
    async with served(unpacked("node")) as client:
        found = await found_in(client)
        assert without_logs(found) == without_logs(told["node"]["feeds"])
        check_logs(found, told["node"]["feeds"])
        tokens = {token.name: token for token in await client.tokens()}
        assert tokens["reader"].feeds == ("orders",)
        assert tokens["reader"].key_prefix == b"key "
        await client.feed("orders").put(b"after", b"1")
        assert (await client.feed("orders").get(b"after")).value == b"1"


async def test_a_token_counts(unpacked, told):
    [address] = free_addresses(1)
    async with trio.open_nursery() as nursery:
        node = MadeNode(make_config(unpacked("node"), address, storage=STORAGE, auth=True), nursery)
        await node.start()
        async with tailrace.connect(node.url, token=told["node"]["token"], retry_for=60) as client:
            assert {feed.name for feed in await client.feeds()} == told["node"]["feeds"].keys()
        with pytest.raises(tailrace.Forbidden):
            async with tailrace.connect(node.url, token=told["node"]["token"][:-1] + "x", retry_for=60) as client:
                await client.feeds()
        await node.stop()


@pytest.mark.parametrize(
    ("positions", "state"), [("positions_before", "state_before"), ("positions_middle", "followed")]
)
async def test_a_consumer_resumes_from_its_positions(unpacked, told, positions, state):
    before = dict(told["node"][state])
    since = Positions.parse(told["node"][positions])
    async with served(unpacked("node")) as client, client.feed("orders").consume(since, until="now") as stream:
        assert await applied(stream, before) > 0
        assert await stream_has_not_rolled_back(stream)
    assert before == values_in(told)


async def stream_has_not_rolled_back(stream):
    return all(position.seq > 0 for position in stream.positions.values())


async def test_a_consumer_resumes_inside_a_snapshot(unpacked, told):
    found = {}
    async with served(unpacked("node")) as client:
        feed = client.feed("orders")
        async with feed.consume(Positions.parse(told["node"]["positions_inside"]), until="now") as stream:
            async for event in stream:
                assert not isinstance(event, tailrace.Rollback)
                if isinstance(event, tailrace.Mutations):
                    found.update({row.key.decode(): row.value for row in event})
        state = await state_of(feed)
        assert state == values_in(told)
    assert {key for key, value in found.items() if value is None} & state.keys() == set()


def test_positions_are_read_and_written_again(told):
    texts = [
        text for part in told.values() if isinstance(part, dict) for name, text in part.items() if "positions" in name
    ]
    assert len(texts) == 4
    for text in texts:
        assert str(Positions.parse(text)) == text


def test_an_offset_of_spark_is_read(told):
    pytest.importorskip("pyspark")
    from pyspark_tailrace.reading.offsets import from_offset

    text = told["node"]["positions_middle"]
    assert str(from_offset({"positions": text})) == text


def sealed(value):
    return SealedStage(
        **{**value, "stage_id": bytes.fromhex(value["stage_id"]), "partitions": tuple(value["partitions"])}
    )


async def test_a_batch_is_published_once_and_a_sealed_stage_still_can_be(unpacked, told):
    async with served(unpacked("node")) as client:
        feed = client.feed("orders")
        again = await feed.publish("golden-job", 1, [sealed(each) for each in told["node"]["published"]])
        assert again.written == {}
        await feed.publish("golden-job", 2, [sealed(each) for each in told["node"]["sealed"]])
        state = await state_of(feed)
    new = {key for key in state if key not in values_in(told)}
    assert new == {f"staged {number}" for number in range(200, 210)}


async def test_the_last_batches_of_sinks_are_read(unpacked, told):
    assert await sinks_read(unpacked("node")) == told["node"]["sinks"]


async def sinks_read(data):
    """The last batches of sinks that a node reads from a directory."""
    [address] = free_addresses(1)
    async with trio.open_nursery() as nursery:
        node = MadeNode(make_config(data, address, storage=STORAGE), nursery)
        await node.start()
        found = sinks_of(node.node)
        await node.stop()
    return found


async def test_a_backup_is_restored(unpacked, told, tmp_path):
    target = tmp_path / "restored"
    restore(DISK, str(unpacked("backup")), str(target), SystemRandomness())
    assert verify(DISK, str(target)).problems == []
    async with served(target) as client:
        found = await found_in(client)
        assert without_logs(found) == without_logs(told["node"]["feeds"])
        check_logs(found, told["node"]["feeds"])


async def test_a_repaired_directory_serves_all_but_what_is_lost(unpacked, told):
    data = unpacked("repaired")
    async with served(data) as client:
        found = await found_in(client)
    assert without_logs(found)["log"] == without_logs(told["node"]["feeds"])["log"]
    for row in found["orders"]["rows"]:
        assert row in told["node"]["feeds"]["orders"]["rows"]


async def test_a_copy_is_read_and_brought_up_to_date(unpacked, told):
    pytest.importorskip("numpy")
    copy = unpacked("copy")
    reader = tailrace.SegmentReader(copy)
    reader.verify()
    state = {}
    for partition in reader.partitions:
        for event in reader.mutations(partition):
            state.update({row.key: row.value for row in event if not row.deleted})
    assert {key.decode() for key in state} == told["node"]["followed"].keys()
    async with served(unpacked("node")) as client:
        feed = client.feed("orders")
        info = next(info for info in await client.feeds() if info.name == "orders")
        await feed.fetch(copy)
        reader = tailrace.SegmentReader(copy)
        rows = await rows_of(feed, info)
    for _, seq, branch, timestamp, key, _ in rows:
        item = reader.get(key.encode())
        assert (item.version.seq, item.version.branch.hex(), item.timestamp) == (seq, branch, timestamp)


async def test_an_index_follows_on(unpacked, told):
    path = unpacked("index.db") / "index.db"
    assert keys_of(path) == told["node"]["followed"].keys()
    index = tailrace.indexes.SQLiteIndex(path, columns=COLUMNS, full_text=["city"])
    async with served(unpacked("node")) as client, client.feed("orders").follow(index) as follower:
        await follower.barrier()
    assert keys_of(path) == values_in(told).keys()
    with closing(sqlite3.connect(path)) as database:
        [(count,)] = database.execute("SELECT count(*) FROM items_fts WHERE items_fts MATCH 'city'").fetchall()
    assert count == len(values_in(told))


def keys_of(path):
    with closing(sqlite3.connect(path)) as database:
        return {key.decode() for (key,) in database.execute("SELECT key FROM items")}


async def test_a_set_goes_on(unpacked, told):
    addresses = tuple(free_addresses(3))
    async with trio.open_nursery() as nursery:
        configs = [
            make_config(unpacked(name), address, members=addresses, storage=STORAGE)
            for name, address in zip(MEMBERS, addresses, strict=True)
        ]
        nodes = MadeSet([MadeNode(config, nursery) for config in configs])
        await nodes.start()
        await nodes[0].promote()
        await nodes.settled()
        async with nodes.client() as client:
            feed = client.feed("orders")
            state = dict(told["set"]["rows"])
            assert await state_of(feed) == state
            await feed.put(b"after", b"1", level="quorum")
            async with feed.consume(Positions.parse(told["set"]["positions"]), until="now") as stream:
                assert await applied(stream, state) == 1
            assert state == await state_of(feed)
        await nodes.level("orders")
        for node in nodes:
            await node.stop()


def test_rows_ahead_are_read(unpacked, told):
    data = unpacked(MEMBERS[told["set"]["ahead"]])
    [path] = data.glob("feeds/*/*/AHEAD")
    feed_id, partition = path.parts[-3:-1]
    file = AheadFile.load(DISK, str(path), bytes.fromhex(feed_id), int(partition))
    assert file.last_seq == file.after_seq + 3
    rows = [row for event in file.events(0) if isinstance(event, tailrace.Mutations) for row in event]
    assert [(row.key, row.value) for row in rows] == [(b"ahead %d" % n, b"v%d" % n) for n in (1, 2, 3)]


def test_rows_that_were_rolled_back_are_listed(unpacked, told):
    data = unpacked(MEMBERS[told["set"]["rolled_back"]])
    [index] = data.glob("lost/*/index.jsonl")
    [line] = [json.loads(line) for line in good_lines(index.read_bytes())]
    assert line["lost"] == "exported"
    assert line["keys"] == ["only here"]
    block = tailrace.block.Block.parse((index.parent / line["file"]).read_bytes())
    assert list(block.open_columns().keys()) == [b"only here"]


def test_the_small_files_are_read(unpacked, told):
    data = str(unpacked("files"))
    assert version_of(DISK, data, "CLEAN") == 1
    assert decode_mark(Path(data, "CLEAN").read_bytes()).partitions
    assert RepairingMark.load(DISK, data) == RepairingMark("20260131-154500", bytes(range(16)), (3, 5))
    assert load(DISK, data).cluster_id
    assert differences(told["cluster"], to_json(cluster_in(data)), variable=()) == []
