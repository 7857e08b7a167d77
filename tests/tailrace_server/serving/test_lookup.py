import random

from tailrace.block import encode_block
from tailrace.model import Level
from tailrace.model.failover import FailoverEntry
from tailrace_server.partition.partition import Partition
from tailrace_server.serving import lookup as module
from tailrace_server.serving.lookup import Lookup


def partition_of(blocks, id=0):
    """A partition that holds ``blocks``, each a list of (key, value)."""
    made = Partition(b"f" * 16, id, 0, 2**64 - 1)
    made.log = made.log.with_entry(FailoverEntry(b"u" * 16, 1, 0))
    for rows in blocks:
        block = encode_block([key for key, _ in rows], [value for _, value in rows], partition=id)
        made.append(block.stamped(made.high_seq + 1, 1000), made.log.branch, 1, 0.0)
    return made


def never():
    return False


def looked_up(lookup):
    return [None if item is None else (item[0].seq, item[2]) for item in lookup.items]


def test_keys_are_answered_in_their_order():
    partitions = [partition_of([[(b"a", b"1"), (b"b", b"2")], [(b"a", None)]]), partition_of([[(b"c", b"3")]], 1)]
    keys = [b"c", b"b", b"a", b"x", b"b"]
    lookup = Lookup(keys, [partitions[key == b"c"] for key in keys])
    assert lookup.step(never)
    assert looked_up(lookup) == [(1, b"3"), (2, b"2"), None, None, (2, b"2")]
    assert {item[0].partition for item in lookup.items if item} == {0, 1}


def test_it_goes_in_slices_while_the_partition_grows():
    rnd = random.Random(1)
    blocks = [[(b"key %d" % rnd.randrange(200), rnd.randbytes(3) * 30) for _ in range(100)] for _ in range(6)]
    partition = partition_of(blocks[:3])
    keys = [b"key %d" % number for number in range(220)]
    lookup, turns = Lookup(keys, [partition] * len(keys)), 0
    while not lookup.step(lambda: True):
        turns += 1
        if turns % 40 == 0 and len(blocks) > 3:
            rows = blocks.pop()
            block = encode_block([key for key, _ in rows], [value for _, value in rows], partition=0)
            partition.append(block.stamped(partition.high_seq + 1, 1000), partition.log.branch, 1, 0.0)
    assert turns >= len(keys) - 1
    again = Lookup(keys, [partition] * len(keys))
    assert again.step(never)
    newest = looked_up(again)
    for found, latest in zip(looked_up(lookup), newest, strict=True):
        assert (found is None) or found[0] <= latest[0], "what was found was there, and was the newest then"


def test_an_answer_has_room_for_so_much(monkeypatch):
    monkeypatch.setattr(module, "VALUE_BYTES_MAX", 100)
    partition = partition_of([[(b"%d" % number, bytes(40)) for number in range(10)]])
    keys = [b"%d" % number for number in range(10)]
    answered = 0
    while answered < len(keys):
        lookup = Lookup(keys[answered:], [partition] * (len(keys) - answered))
        assert lookup.step(never)
        assert 1 <= len(lookup.items) <= 3
        answered += len(lookup.items)


def test_what_is_in_flight():
    partition = partition_of([[(b"a", b"1")]])
    lookup = Lookup([b"a"], [partition])
    assert lookup.in_flight(Level.MEMORY) == []
    assert lookup.in_flight(Level.DISK) == [(partition, 1)]
    partition.durable_through(1)
    assert lookup.in_flight(Level.DISK) == []
    assert lookup.in_flight(Level.QUORUM) == [(partition, 1)]
