import gc
import random
from itertools import pairwise

import pytest
import trio

import tailrace
from tailrace import Delete, Put, VersionConflict
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace_server.partition.branching import with_branch

LEVELS = ["memory", "disk"]


def partition_of(key):
    return partition_of_hash(key_hash(key), 4)


def keys_of(partition, count):
    """Keys of one partition of four."""
    found = (b"key %d" % number for number in range(100_000))
    return [key for key, _ in zip((k for k in found if partition_of(k) == partition), range(count), strict=False)]


@pytest.mark.parametrize("level", LEVELS)
async def test_put_get_delete(feed, level):
    assert await feed.get(b"k", level=level) is None
    first = await feed.put(b"k", b"1", level=level)
    assert (first.partition, first.seq) == (partition_of(b"k"), 1)
    item = await feed.get(b"k", level=level)
    assert (item.key, item.value, item.version) == (b"k", b"1", first)
    second = await feed.put(b"k", b"2", level=level)
    assert second == first._replace(seq=2)
    later = await feed.get(b"k", level=level)
    assert later.value == b"2"
    assert later.timestamp >= item.timestamp
    assert await feed.delete(b"k", level=level) == first._replace(seq=3)
    assert await feed.get(b"k", level=level) is None


async def test_an_empty_value_is_a_value(feed):
    await feed.put(b"k", b"")
    assert (await feed.get(b"k")).value == b""


async def test_get_answers_with_what_its_level_shows(feed, node, monkeypatch):
    """A get at level disk waits until what it tells is durable; one at level memory does not."""
    gate = trio.Event()
    sync = node.storage.committer.commit

    async def commit():
        await gate.wait()
        await sync()

    monkeypatch.setattr(node.storage.committer, "commit", commit)
    monkeypatch.setattr(node.storage.committer, "turn_ended", lambda _: node.storage.committer._wanted.set())
    version = await feed.put(b"k", b"v", level="memory")
    assert (await feed.get(b"k", level="memory")).version == version
    results = {}

    async def get(name, key):
        results[name] = await feed.get(key)

    partition = node.feeds.named("orders").partitions[version.partition]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, "present", b"k")
        nursery.start_soon(get, "absent", keys_of(version.partition, 1)[0])
        await feed.get(b"k", level="memory")  # the two others have been received
        assert partition.durable_seq == 0
        assert not results
        gate.set()
    assert results["present"].version == version
    assert results["absent"] is None
    assert partition.durable_seq == 1


async def test_conditions_on_versions(feed):
    first = await feed.put(b"k", b"1", if_absent=True)
    with pytest.raises(VersionConflict, match="is there already") as caught:
        await feed.put(b"k", b"x", if_absent=True)
    assert caught.value.current == first
    second = await feed.put(b"k", b"2", if_version=first)
    for write in (feed.put(b"k", b"x", if_version=first), feed.delete(b"k", if_version=first)):
        with pytest.raises(VersionConflict) as caught:
            await write
        assert caught.value.current == second
    third = await feed.delete(b"k", if_version=second)
    with pytest.raises(VersionConflict) as caught:
        await feed.put(b"k", b"x", if_version=third)
    assert caught.value.current is None, "a deletion leaves nothing that a condition could name"
    fourth = await feed.put(b"k", b"4", if_absent=True)
    assert fourth.seq == 4, "what was refused has used up nothing"


async def test_delete_if_present(feed):
    assert await feed.delete_if_present(b"k") is None
    version = await feed.put(b"k", b"v")
    assert await feed.delete_if_present(b"k") == version._replace(seq=2)
    assert await feed.delete_if_present(b"k") is None
    assert (await feed.put(b"k", b"v")).seq == 3


async def test_of_many_that_put_where_there_is_nothing_one_succeeds(feed):
    outcomes = []

    async def put(number):
        try:
            outcomes.append(await feed.put(b"k", b"%d" % number, if_absent=True))
        except VersionConflict as error:
            outcomes.append(error)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(put, number)
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, tailrace.Version)]
    assert all(outcome.current == winner for outcome in outcomes if isinstance(outcome, VersionConflict))


async def test_a_counter_of_many_clients_loses_nothing(running, feed):
    """Compare and set in a loop, from clients of their own: hazard 18."""
    await feed.put(b"counter", b"0")

    async def count():
        async with tailrace.connect(running.url) as client:
            mine = client.feed("orders")
            for _ in range(10):
                while True:
                    item = await mine.get(b"counter")
                    try:
                        await mine.put(b"counter", b"%d" % (int(item.value) + 1), if_version=item.version)
                        break
                    except VersionConflict:
                        continue

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(count)
    assert (await feed.get(b"counter")).value == b"40"


async def test_single_writes_of_one_task_stay_in_order_though_some_are_refused(feed):
    """Refused ones free their numbers, under the feet of those that are sent after them."""
    key = b"k"
    others = keys_of(partition_of(key), 60)
    await feed.put(key, b"0")
    outcomes = {}

    async def put(number, other):
        try:
            if number % 3:
                outcomes[number] = await feed.put(other, b"%d" % number)
            else:
                outcomes[number] = await feed.put(key, b"x", if_absent=True)
        except VersionConflict:
            outcomes[number] = None

    async with trio.open_nursery() as nursery:
        for number, other in enumerate(others):
            nursery.start_soon(put, number, other)
    assert all((outcomes[number] is None) == (number % 3 == 0) for number in range(60))
    seqs = [version.seq for version in outcomes.values() if version is not None]
    assert sorted(seqs) == list(range(2, 42))


async def test_write_is_atomic_in_each_partition(feed):
    changes = [Put(b"key %d" % number, b"%d" % number) for number in range(100)]
    changes += [Delete(b"key 7"), Put(b"key 8", b"again")]
    written = await feed.write(changes)
    assert sorted(written) == [0, 1, 2, 3]
    assert sum(versions.last_seq - versions.first_seq + 1 for versions in written.values()) == 102
    found = await feed.get_many([change.key for change in changes[:100]])
    assert found[7] is None
    assert found[8].value == b"again"
    assert [item.value for item in found[9:]] == [change.value for change in changes[9:100]]
    assert await feed.write([]) == {}


async def test_a_batch_that_does_not_fit_is_refused_whole(feed):
    big = [Put(key, bytes(1 << 24)) for key in keys_of(1, 3)]
    with pytest.raises(tailrace.TooLarge, match="write less at once"):
        await feed.write([*big, Put(keys_of(0, 1)[0], b"v")])
    assert {info.high_seq for info in await feed.partitions()} == {0}


async def test_bad_rows_are_refused_before_anything_is_sent(feed):
    for write, error, match in (
        (lambda: feed.put("k", b"v"), TypeError, r"a key is bytes, not str; use \.encode\(\)"),
        (lambda: feed.put(b"k", "v"), TypeError, r"a value is bytes, not str; use \.encode\(\)"),
        (lambda: feed.put(b"k", None), TypeError, "delete"),
        (lambda: feed.put(b"", b"v"), ValueError, "at least one byte"),
        (lambda: feed.put(bytes(4097), b"v"), tailrace.TooLarge, "4097"),
        (lambda: feed.put(b"k", bytes((1 << 24) + 1)), tailrace.TooLarge, "16777217"),
        (lambda: feed.put(b"k", b"v", level="paper"), ValueError, "'paper'"),
        (lambda: feed.put(b"k", b"v", level="quorum"), tailrace.NotDurable, "quorum"),
        (lambda: feed.write([(b"k",)]), TypeError, "Put or a Delete"),
        (lambda: feed.write([b"k"]), TypeError, "Put or a Delete"),
        (lambda: feed.get("k"), TypeError, "encode"),
        (lambda: feed.delete(7), TypeError, "int"),
    ):
        with pytest.raises(error, match=match):
            await write()
    assert {info.high_seq for info in await feed.partitions()} == {0}


async def test_a_condition_names_a_version_of_the_keys_partition(feed):
    version = await feed.put(b"k", b"v")
    with pytest.raises(ValueError, match="is in partition"):
        await feed.put(b"k", b"v", if_version=version._replace(partition=(version.partition + 1) % 4))
    with pytest.raises(ValueError, match="contradict"):
        await feed.put(b"k", b"v", if_version=version, if_absent=True)


async def test_get_names_a_version_that_is_lost(feed, node):
    version = await feed.put(b"k", b"1")
    assert (await feed.get(b"k", at_least=version)).version == version
    partition = node.feeds.named(feed.name).partitions[version.partition]
    partition.log = with_branch(partition.log, b"w" * 16, partition.high_seq)
    with pytest.raises(tailrace.VersionLost):
        await feed.get(b"k", at_least=version._replace(seq=2))
    assert (await feed.get(b"k", at_least=version)).version == version
    with pytest.raises(ValueError, match="the version is of"):
        await feed.get(b"k", at_least=version._replace(partition=version.partition ^ 1))


async def test_get_many(feed):
    keys = [b"key %d" % number for number in range(5000)]
    await feed.write([Put(key, key) for key in keys[::2]])
    found = await feed.get_many([*keys, keys[0]])
    assert [item and item.value for item in found] == [
        key if number % 2 == 0 else None for number, key in enumerate(keys)
    ] + [keys[0]]
    assert await feed.get_many([]) == []


async def test_get_many_of_more_than_fits_into_a_frame(feed, node):
    """The answer comes in parts."""
    value = bytes(15 << 20)
    keys = [b"large %d" % number for number in range(4)]
    for key in keys:
        await feed.put(key, value + key)
    assert len(keys) * len(value) > node.config.limits.frame_body_bytes_max
    found = await feed.get_many([keys[0], b"absent", *keys, keys[0]])
    expected = [keys[0], None, *keys, keys[0]]
    assert [item and item.value[len(value) :] for item in found] == expected


async def test_items_are_the_latest_state(feed):
    rnd = random.Random(2)
    state = {}
    for _ in range(10):
        changes = []
        for _ in range(50):
            key = b"key %d" % rnd.randrange(60)
            changes.append(Delete(key) if rnd.random() < 0.3 else Put(key, rnd.randbytes(4)))
            state[key] = None if isinstance(changes[-1], Delete) else changes[-1].value
        await feed.write(changes, level=rnd.choice(LEVELS))
    state = {key: value for key, value in state.items() if value is not None}
    items = [item async for item in feed.items()]
    assert {item.key: item.value for item in items} == state
    assert len(items) == len(state)
    assert items == await feed.get_many([item.key for item in items])
    assert {item.key async for item in feed.items(key_prefix=b"key 1")} == {k for k in state if k.startswith(b"key 1")}


async def test_items_of_an_empty_feed(feed):
    assert [item async for item in feed.items()] == []


async def test_items_can_be_left_early(feed):
    await feed.write([Put(b"key %d" % number, b"v") for number in range(100)])
    async for item in feed.items():
        assert item.value == b"v"
        break
    gc.collect()


async def test_partitions_own_the_hashes(feed, running):
    await feed.put(b"k", b"v")
    infos = await feed.partitions()
    assert [info.id for info in infos] == [0, 1, 2, 3]
    assert infos[0].hash_first == 0
    assert infos[-1].hash_last == 2**64 - 1
    assert all(low.hash_last + 1 == high.hash_first for low, high in pairwise(infos))
    (owner,) = [info for info in infos if info.hash_first <= key_hash(b"k") <= info.hash_last]
    assert (owner.high_seq, owner.durable_seq, owner.term, owner.state) == (1, 1, 1, "leader")
    assert owner.leader == running.url.removeprefix("tailrace://")
    assert [(entry.term, entry.base) for entry in owner.log] == [(1, 0)]


async def test_a_feed_that_is_not_there(client):
    feed = client.feed("nobody")
    for use in (
        lambda: feed.put(b"k", b"v"),
        lambda: feed.get(b"k"),
        lambda: feed.partitions(),
        lambda: feed.consume().__aenter__(),
        lambda: feed.writer().__aenter__(),
        lambda: feed.items().__anext__(),
    ):
        with pytest.raises(tailrace.UnknownFeed, match="there is no feed 'nobody'"):
            await use()


async def test_a_feed_that_is_dropped_and_made_again(client, feed):
    await feed.put(b"k", b"v")
    await client.drop_feed("orders")
    with pytest.raises(tailrace.UnknownFeed):
        await feed.put(b"k", b"v")
    with pytest.raises(tailrace.UnknownFeed):
        await feed.get(b"k")
    await client.create_feed("orders", partitions=2)
    assert await feed.get(b"k") is None
    assert (await feed.put(b"k", b"v")).seq == 1


def test_arguments_of_consume_and_writer(feed_without_a_node):
    feed = feed_without_a_node
    for since in ("yesterday", "", None, 7):
        with pytest.raises(ValueError, match="since is"):
            feed.consume(since)
    for until in ("beginning", "", 7):
        with pytest.raises(ValueError, match="until is"):
            feed.consume(until=until)
    with pytest.raises(ValueError, match="on_rollback"):
        feed.consume(on_rollback="ignore")
    with pytest.raises(ValueError, match="window_bytes"):
        feed.consume(window_bytes=0)
    with pytest.raises(ValueError, match="partitions is empty"):
        feed.consume(partitions=[])
    for options in (
        {"batch_bytes": 0},
        {"batch_bytes": 1 << 40},
        {"batch_rows": 0},
        {"batch_rows": 65_537},
        {"linger_s": -1},
        {"in_flight_bytes": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            feed.writer(**options)


@pytest.fixture
def feed_without_a_node():
    return tailrace.connect("tailrace://127.0.0.1:1").feed("orders")


async def test_a_second_body_of_a_stage_is_refused_by_name(feed):
    async with feed.stage() as stage:
        await stage.put(b"k", b"v")
        with pytest.raises(RuntimeError, match="this stage was entered before"):
            await stage.__aenter__()
        assert (await stage.seal()).rows == 1
