from __future__ import annotations

import decimal
import json
import random
import threading
import time
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from tests.tiers import first_in_test

import tailrace
from pyspark_tailrace import connections
from pyspark_tailrace.options import SortColumn, sink_options
from pyspark_tailrace.sink import check_schema, with_columns, write_batches
from tailrace.block import FLAG_COMPRESSED, VALUE_BYTES_MAX
from tailrace.model.hashing import key_hash, partition_of_hash

pytestmark = pytest.mark.usefixtures("no_connections")


@pytest.fixture
def write(shared_node, feed_name, contents):
    """Writes batches in one task; gives what the feed has been through."""

    def write(*batches, url=shared_node.url, **options):
        defaults = {"url": url, "feed": feed_name, "create_feed": "true", "retry_for": "30"}
        written = write_batches(sink_options(defaults | options), iter(batches))
        assert written.rows == sum(batch.num_rows for batch in batches)
        found = contents(shared_node.url, feed_name)
        assert written.blocks <= len(found.blocks)
        return found

    return write


BINARY = pa.binary()


def batch_of(rows, key=BINARY, value=BINARY, **columns):
    arrays = {"key": pa.array([row[0] for row in rows], key), "value": pa.array([row[1] for row in rows], value)}
    return pa.record_batch(arrays | {name: pa.array(column) for name, column in columns.items()})


# Columns


@pytest.mark.parametrize("key", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("value", [pa.binary(), pa.string(), pa.large_string()])
def test_keys_and_values_are_binary_or_strings(write, key, value):
    def of(kind, data):
        return data.decode() if kind in (pa.string(), pa.large_string()) else data

    rows = [(b"a", b"1"), ("\u00fc".encode(), b""), (b"a", "\u65e5".encode())]
    found = write(batch_of([(of(key, k), of(value, v)) for k, v in rows], key, value))
    assert found.history() == {b"a": [b"1", "\u65e5".encode()], "\u00fc".encode(): [b""]}


def test_null_value_is_a_deletion(write):
    found = write(batch_of([(b"a", b"1"), (b"a", None), (b"b", None)]))
    assert found.history() == {b"a": [b"1", None], b"b": [None]}


def test_column_deleted(write):
    rows = [(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"d", None)]
    found = write(batch_of(rows, deleted=[False, True, None, False]))
    assert found.history() == {b"a": [b"1"], b"b": [None], b"c": [b"1"], b"d": [None]}


def test_columns_of_other_names(write):
    batch = pa.record_batch({"k": ["a", "b"], "v": ["1", "2"], "gone": [True, False]})
    assert write(batch, key="k", value="v", deleted="gone").history() == {b"a": [None], b"b": [b"2"]}


def test_order(write):
    rows = [(b"k", b"%d" % n) for n in range(6)]
    batches = [
        batch_of(rows[:3], day=[2, 1, None], hour=[1.0, 5.0, 0.0]),
        batch_of(rows[3:], day=[2, 1, 2], hour=[2.0, 5.0, 1.0]),
    ]
    assert write(*batches, order_by="day, hour desc").history() == {b"k": [b"2", b"1", b"4", b"3", b"0", b"5"]}


def test_columns_for_the_order_may_be_those_of_the_rows(write):
    batch = batch_of([(b"k", b"2"), (b"k", b"1"), (b"k", None)], deleted=[False, True, False])
    assert write(batch, order_by="value").history() == {b"k": [None, None, b"2"]}


def test_order_of_rows_with_nested_values(write):
    """Columns of types that have no length of their own, and a row that is larger than a piece of what comes out."""
    batches = [
        pa.record_batch(
            {
                "key": pa.array(["k"] * 2),
                "n": pa.array(numbers),
                "tags": pa.array([["a", None], None]),
                "place": pa.array([{"city": "Oslo", "at": [1.5]}, None]),
                "counts": pa.array([[("x", 1)], []], pa.map_(pa.string(), pa.int64())),
                "price": pa.array([decimal.Decimal("1.10"), None]),
                "nothing": pa.nulls(2),
            }
        )
        for numbers in ([3, 1], [2, 4])
    ]
    history = write(*batches, value_format="json", order_by="n").history()[b"k"]
    values = [json.loads(value) for value in history]
    full = {"tags": ["a", None], "place": {"city": "Oslo", "at": [1.5]}, "counts": {"x": 1}, "price": "1.10"}
    assert values == [{"n": 1, "counts": {}}, {"n": 2} | full, {"n": 3} | full, {"n": 4, "counts": {}}]


def test_partition_column(write):
    keys = [b"%d" % n for n in range(100)]
    numbers = [partition_of_hash(key_hash(key), 16) for key in keys]
    found = write(batch_of([(key, key) for key in keys], p=numbers), partition_column="p")
    assert found.state() == {key: key for key in keys}


def test_wrong_partition_column_writes_nothing(write, shared_node, feed_name, contents):
    keys = [b"%d" % n for n in range(100)]
    numbers = [partition_of_hash(key_hash(key), 15) for key in keys]
    with pytest.raises(ValueError, match=r"the partition column says .*partition_of\(<the key column>, 16\)"):
        write(batch_of([(key, key) for key in keys], p=numbers), partition_column="p")
    assert contents(shared_node.url, feed_name).rows == []


def test_null_key(write):
    with pytest.raises(ValueError, match="1 of 2 rows have a null key"):
        write(batch_of([(b"a", b""), (None, b"")]))


def schema_of(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


GOOD = {"key": StringType(), "value": BinaryType()}
JSON_COLUMNS = {"key": StringType(), "city": StringType(), "Deleted": BooleanType()}
JSON = {"value_format": "json"}


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (GOOD, {}),
        ({"value": StringType(), "key": BinaryType(), "deleted": BooleanType()}, {}),
        (GOOD | {"p": IntegerType()}, {"partition_column": "p"}),
        (GOOD | {"p": LongType(), "t": TimestampType()}, {"partition_column": "p", "order_by": "t desc, p"}),
        (GOOD | {"a": DateType(), "b": DecimalType(), "c": DoubleType()}, {"order_by": "a, b, c, key, value"}),
        ({"id": StringType(), "j": StringType(), "d": BooleanType()}, {"key": "id", "value": "j", "deleted": "d"}),
        (JSON_COLUMNS, JSON | {"deleted": "Deleted"}),
        (JSON_COLUMNS, JSON),
        ({"Key": StringType(), "VALUE": StringType(), "At": DateType(), "P": LongType()}, {"order_by": "at, p desc"}),
        ({"KEY": StringType(), "value": StringType(), "P": LongType()}, {"partition_column": "p"}),
    ],
)
def test_columns_that_the_sink_takes(columns, options):
    check(columns, options)


def check(columns, options):
    schema = schema_of(**columns)
    check_schema(schema, with_columns(sink_options({"url": "tailrace://a", "feed": "f"} | options), schema))


def test_names_of_columns_are_taken_as_the_schema_spells_them():
    given = sink_options({"url": "tailrace://a", "feed": "f", "order_by": "at desc, N", "partition_column": "p"})
    kinds = {name: StringType() for name in ("KEY", "Value", "value", "dELETED", "At", "n", "P")}
    options = with_columns(given, schema_of(**kinds))
    assert (options.key, options.value, options.deleted, options.partition_column) == ("KEY", "value", "dELETED", "P")
    assert options.order_by == (SortColumn("At", True, True), SortColumn("n"))


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (
            {"value": StringType()},
            {},
            r"no column 'key'; the columns are value\. Rename one, or name them by the options",
        ),
        ({"key": StringType(), "Val": StringType()}, {}, r"no column 'value'; the columns are key, Val"),
        (GOOD, {"key": "id"}, r"no column 'id'"),
        (GOOD | {"key": LongType()}, {}, r"column 'key' is bigint, but must be binary or string: cast it"),
        (GOOD | {"value": schema_of(a=StringType())}, {}, r"column 'value' is struct<a:string>.*to_json"),
        (GOOD | {"value": NullType()}, {}, r"column 'value' is void, but must be binary or string"),
        (GOOD | {"deleted": IntegerType()}, {}, r"column 'deleted' is int, but must be boolean"),
        (GOOD, {"deleted": "gone"}, r"no column 'gone'"),
        (GOOD, {"deleted": "deleted"}, r"no column 'deleted'"),
        (GOOD | {"gone": StringType()}, {"deleted": "gone"}, r"column 'gone' is string, but must be boolean"),
        (JSON_COLUMNS, JSON | {"deleted": "removed"}, r"no column 'removed'; the columns are key, city, Deleted"),
        (
            JSON_COLUMNS | {"deleted": BooleanType()},
            JSON,
            r"column 'Deleted' is not 'deleted': give \.option\('deleted', 'Deleted'\)",
        ),
        (GOOD, {"partition_column": "p"}, r"no column 'p'"),
        (GOOD | {"p": StringType()}, {"partition_column": "p"}, r"column 'p' is string, but must be .*integer"),
        (GOOD, {"order_by": "t"}, r"no column 't'"),
        (GOOD | {"t": ArrayType(LongType())}, {"order_by": "t"}, r"column 't' is array<bigint>, .*'order_by'"),
        (GOOD | {"t": MapType(LongType(), LongType())}, {"order_by": "t desc"}, r"column 't' is map<"),
        (
            GOOD | {"a": LongType(), "b": LongType()},
            {},
            r"does not use the columns a, b: put them into 'value'.*to_json",
        ),
    ],
)
def test_columns_that_the_sink_refuses(columns, options, text):
    with pytest.raises(ValueError, match=text):
        check(columns, options)


def test_two_columns_of_one_name_are_refused():
    schema = StructType([*schema_of(**GOOD).fields, StructField("value", BinaryType())])
    with pytest.raises(ValueError, match=r"several columns 'value': drop all but one"):
        check_schema(schema, sink_options({"url": "tailrace://a", "feed": "f"}))


# Sizes


def test_task_without_rows_asks_nothing_of_the_node():
    options = sink_options({"url": "tailrace://127.0.0.1:1", "feed": "none", "retry_for": "0.1", "order_by": "t"})
    empty = batch_of([], t=pa.array([], pa.int64()))
    assert write_batches(options, iter([])).blocks == 0
    assert write_batches(options, iter([empty, empty])).rows == 0


def test_large_values(write):
    rnd = random.Random(4700)
    sizes = [5 * 1024 * 1024, 0, 17, VALUE_BYTES_MAX, 1024 * 1024, 300_000, 1]
    rows = [(b"%d" % n, rnd.randbytes(size)) for n, size in enumerate(sizes)]
    found = write(batch_of(rows), batch_of(rows))
    assert found.history() == {key: [value, value] for key, value in rows}


def test_blocks_of_about_a_mebibyte(write):
    rnd = random.Random(4700)
    rows = [(b"%d" % rnd.randrange(1000), rnd.randbytes(rnd.randrange(3000))) for _ in range(8000)]
    blocks = write(*(batch_of(rows[start : start + 1000]) for start in range(0, 8000, 1000)), partitions="2").blocks
    last = {block.header.partition: block for block in blocks}
    assert len(blocks) > 10
    for block in blocks:
        assert block.header.raw_bytes < 1.1 * 1024 * 1024
        assert block.header.raw_bytes >= 1024 * 1024 or block is last[block.header.partition]


def test_blocks_are_compressed(write):
    [block] = write(batch_of([(b"a", b"x" * 10_000)])).blocks
    assert block.header.flags & FLAG_COMPRESSED


# Refusals


def test_error_of_the_node_ends_the_task(write, shared_node, feed_name):
    def dropping():
        yield batch_of([(b"a", b"1")])
        with tailrace.blocking.connect(shared_node.url) as client:
            client.drop_feed(feed_name)
        yield batch_of([(b"b", b"1")])

    options = sink_options({"url": shared_node.url, "feed": feed_name, "create_feed": "true", "retry_for": "30"})
    with pytest.raises(tailrace.UnknownFeed, match="it was dropped"):
        write_batches(options, dropping())
    assert write(batch_of([(b"a", b"2")])).history() == {b"a": [b"2"]}


def test_failure_of_the_job_closes_the_connection(shared_node, feed_name):
    def failing():
        yield batch_of([(b"a", b"1")])
        raise RuntimeError("of the job")

    options = sink_options({"url": shared_node.url, "feed": feed_name, "create_feed": "true"})
    with pytest.raises(RuntimeError, match="of the job"):
        write_batches(options, failing())
    assert not connections._connections


# Connections that break


def rows_once(found):
    return Counter((row.key, row.value) for row in found.rows)


@pytest.mark.parametrize("seed", first_in_test(range(4), 1))
def test_every_row_is_written_once_over_a_bad_network(write, shared_node, bad_network, seed):
    rnd = random.Random(seed)
    network = bad_network(shared_node.port, seed)
    rows = [(b"key-%d" % n, rnd.randbytes(rnd.randrange(2000))) for n in range(6000)]
    for task in range(3):
        batches = [batch_of(rows[start : start + 500]) for start in range(task * 2000, (task + 1) * 2000, 500)]
        found = write(*batches, url=network.url, partitions="4")
    assert network.cuts >= 3
    assert rows_once(found) == Counter(rows)


def slow_batches(rows, node, stopped_s):
    """Batches, and in their midst the node is killed, and started again after ``stopped_s`` seconds."""

    def restart():
        time.sleep(stopped_s)
        node.start()

    for start in range(0, len(rows), 100):
        if start == len(rows) // 2:
            node.kill()
            thread = threading.Thread(target=restart)
            thread.start()
        yield batch_of(rows[start : start + 100])
    thread.join()


@pytest.mark.parametrize("stopped_s", [1.0, pytest.param(30.0, marks=pytest.mark.soak)])
def test_restart_of_the_node_is_ridden_out(node_process, contents, stopped_s):
    rnd = random.Random(4700)
    rows = [(b"key-%d" % (n % 1000), rnd.randbytes(3000)) for n in range(4000)]
    options = sink_options({"url": node_process.url, "feed": "orders", "create_feed": "true", "partitions": "3"})
    assert write_batches(options, slow_batches(rows, node_process, stopped_s)).rows == 4000
    assert rows_once(contents(node_process.url)) == Counter(rows)


def test_node_that_does_not_come_back(node_process):
    options = sink_options({"url": node_process.url, "feed": "orders", "create_feed": "true", "retry_for": "3"})

    def batches():
        yield batch_of([(b"%d" % n, b"x" * 1000) for n in range(3000)])
        node_process.kill()
        yield batch_of([(b"%d" % n, b"x" * 1000) for n in range(3000)])

    with pytest.raises(tailrace.Unreachable, match=r"given up: .*refused"):
        write_batches(options, batches())
