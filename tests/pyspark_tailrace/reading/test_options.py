from __future__ import annotations

import datetime
import pickle
import re
from pathlib import Path

import pytest
from pyspark.cloudpickle import dumps

from pyspark_tailrace import options as sink
from pyspark_tailrace.options import RETRY_FOR_S
from pyspark_tailrace.reading.options import NAMES, ReadOptions, batch_options, read_options, stream_options
from tailrace import Positions
from tailrace.model import Level

LEAST = {"url": "tailrace://127.0.0.1:4700", "feed": "orders"}


def test_defaults():
    assert read_options(LEAST) == ReadOptions(
        url="tailrace://127.0.0.1:4700",
        feed="orders",
        token=None,
        retry_for_s=RETRY_FOR_S,
        level=Level.DISK,
        start="earliest",
        end="latest",
        fail_on_data_loss=True,
        on_rollback="fail",
        max_rows=None,
        max_bytes=None,
        min_partitions=None,
        read="state",
        partition_ids=None,
        key_prefix=b"",
        catch_up="auto",
    )


def test_everything_in_the_letters_that_spark_makes_of_it():
    given = {
        "token": "t",
        "retry_for": "1.5",
        "visibility": "memory",
        "startingOffsets": " Latest ",
        "read": "mutations",
    }
    given |= {"failOnDataLoss": "False", "on_rollback": "follow", "maxRowsPerTrigger": "10", "maxBytesPerTrigger": "20"}
    given |= {"minPartitions": "4", "partition_ids": "3, 0", "key_prefix": "é/", "catch_up": "Segments"}
    options = read_options({name.lower(): value for name, value in (LEAST | given).items()})
    assert (options.token, options.retry_for_s, options.level, options.start) == ("t", 1.5, Level.MEMORY, "latest")
    assert (options.fail_on_data_loss, options.on_rollback, options.read) == (False, "follow", "mutations")
    assert (options.max_rows, options.max_bytes, options.min_partitions) == (10, 20, 4)
    assert (options.partition_ids, options.key_prefix) == ({0, 3}, "é/".encode())
    assert options.catch_up == "segments"


def test_beginnings():
    positions = str(Positions(b"c" * 16, b"f" * 16))
    assert read_options(LEAST | {"startingOffsets": positions}).start == positions
    assert read_options(LEAST | {"startingOffsets": "1970-01-01T00:00:01Z"}).start == 1_000_000
    ago = read_options(LEAST | {"startingOffsets": "-1h"}).start
    assert abs(datetime.datetime.now().timestamp() - 3600 - ago / 1e6) < 60


def test_a_micro_batch_is_streamed():
    assert stream_options(LEAST).catch_up == "stream"


def test_options_travel_to_tasks():
    options = read_options(LEAST | {"token": "secret"})
    assert pickle.loads(dumps(options)) == options
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"url": ""}, "'url' is missing"),
        ({"feed": ""}, "'feed' is missing"),
        ({"startingOffsets": "newest"}, "'startingOffsets' is 'newest', but must be 'earliest', 'latest', a time"),
        ({"startingOffsets": "2026-01-01"}, "'startingOffsets': '2026-01-01' has no time zone"),
        ({"startingOffsets": "trp1.x"}, "'startingOffsets': this positions string"),
        ({"startingOffsets": '{"0": 5}'}, "'startingOffsets' is '{"),
        ({"failOnDataLoss": "no"}, "'failOnDataLoss' is 'no', neither"),
        ({"on_rollback": "ignore"}, "'on_rollback' is 'ignore', but must be one of 'fail', 'follow'"),
        ({"visibility": "best"}, "'visibility' is 'best', but must be one of"),
        ({"level": "quorum"}, "'level' is for writing; 'visibility'"),
        ({"read": "all"}, "'read' is 'all', but must be one of 'state', 'mutations'"),
        ({"maxRowsPerTrigger": "0"}, "'maxRowsPerTrigger' is '0', but must be a whole number from 1"),
        ({"maxBytesPerTrigger": "1g"}, "'maxBytesPerTrigger' is '1g'"),
        ({"minPartitions": "-1"}, "'minPartitions' is '-1'"),
        ({"catch_up": "files"}, "'catch_up' is 'files', but must be one of 'auto', 'segments', 'stream'"),
        ({"catchUp": "auto"}, "'catchup' is not known: 'catch_up' is"),
        ({"pushdown": "true"}, "Spark 4 keeps filters .*'partition_ids' and 'key_prefix'"),
        ({"partition_ids": "0-3"}, "'partition_ids' is '0-3', but must be numbers"),
        ({"partition_ids": "\u0663"}, "'partition_ids' is .*, but must be numbers"),
        ({"partition_ids": ""}, "'partition_ids' is ''"),
        ({"key_prefix": "k" * 4097}, "'key_prefix' has 4097 bytes"),
        ({"value_schema": "a INT"}, r"pyspark_tailrace\.decode\(df, schema\)"),
        ({"valueSchema": "a INT"}, r"pyspark_tailrace\.decode\(df, schema\)"),
        ({"endingOffsets": "earliest"}, "'endingOffsets' is 'earliest', but must be 'latest', a time"),
        ({"startingTimestamp": "-1h"}, "'startingtimestamp' is not known: 'startingOffsets' is"),
        ({"timestampAsOf": "-1h"}, "'timestampasof' is not known: 'endingOffsets' is"),
        ({"mergeSchema": "true"}, "'mergeschema' is not known. The options: url, feed"),
        ({"topic": "orders"}, "'topic' is not known: 'feed' is"),
        ({"starting_offset": "latest"}, "'starting_offset' is not known: 'startingOffsets' is"),
        ({"maxRowPerTrigger": "5"}, "'maxrowpertrigger' is not known: 'maxRowsPerTrigger' is"),
        ({"onRollback": "follow"}, "'onrollback' is not known: 'on_rollback' is"),
    ],
)
def test_what_cannot_be_had(option, text):
    with pytest.raises(ValueError, match=text):
        read_options(LEAST | option)


@pytest.mark.parametrize(
    ("read", "option", "text"),
    [
        (stream_options, {"endingOffsets": "-1h"}, "'endingOffsets' is for batch reads: Trigger.AvailableNow"),
        (stream_options, {"read": "state"}, "'read' is for batch reads"),
        (stream_options, {"partition_ids": "0"}, "'partition_ids' is for batch reads"),
        (stream_options, {"key_prefix": "k"}, "'key_prefix' is for batch reads"),
        (stream_options, {"catch_up": "segments"}, "'catch_up' is for batch reads"),
        (batch_options, {"maxRowsPerTrigger": "5"}, "'maxRowsPerTrigger' is for streams"),
        (batch_options, {"maxBytesPerTrigger": "5"}, "'maxBytesPerTrigger' is for streams"),
        (batch_options, {"on_rollback": "follow"}, "'on_rollback' is for streams"),
        (batch_options, {"startingOffsets": "-1h"}, "'startingOffsets' is for read 'mutations'"),
    ],
)
def test_what_the_other_kind_of_job_would_ignore(read, option, text):
    with pytest.raises(ValueError, match=text):
        read(LEAST | option)


@pytest.mark.parametrize("name", ["checkpointLocation", "path", "queryName", *sink.NAMES])
def test_options_of_spark_and_of_the_sink_are_no_slips(name):
    if name != "level":
        read_options({name: "1"} | LEAST | ({"url": "tailraces://a"} if name.startswith("tls_") else {}))


def test_guide_lists_every_option():
    text = (Path(__file__).parents[3] / "docs" / "guides" / "spark.md").read_text()
    section = text.partition("\n## Options for reading\n")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(NAMES)
