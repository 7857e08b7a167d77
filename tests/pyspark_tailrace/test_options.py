from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from pyspark.cloudpickle import dumps

from pyspark_tailrace.options import (
    NAMES,
    RESTAGE_BYTES,
    RETRY_FOR_S,
    SINK_ID_CHARS_MAX,
    SinkOptions,
    SortColumn,
    check_job_options,
    check_stream_options,
    context_of,
    sink_options,
)
from pyspark_tailrace.reading.options import read_options
from pyspark_tailrace.sink import job_name
from tailrace.tls import TlsFiles

JOB_ID = "0" * 32
LEAST = {"url": "tailrace://127.0.0.1:4700", "feed": "orders"}


def test_defaults():
    assert sink_options(LEAST) == SinkOptions(
        url="tailrace://127.0.0.1:4700",
        feed="orders",
        token=None,
        key="key",
        value="value",
        deleted="deleted",
        order_by=(),
        partition_column=None,
        create_feed=False,
        partitions=None,
        retry_for_s=RETRY_FOR_S,
        level=None,
    )


def test_everything():
    options = sink_options(
        LEAST
        | {"token": "t", "key": "k", "value": "v", "deleted": "d", "order_by": "a, b desc ,c ASC", "retry_for": "1.5"}
        | {
            "partition_column": "p",
            "create_feed": " True ",
            "partitions": "4",
            "delivery": "at_least_once",
            "level": "Quorum",
        }
    )
    assert options.order_by == (SortColumn("a"), SortColumn("b", True, True), SortColumn("c"))
    assert (options.partition_column, options.create_feed, options.partitions) == ("p", True, 4)
    assert (options.retry_for_s, options.level) == (1.5, "quorum")
    assert (options.token, options.key, options.value, options.deleted) == ("t", "k", "v", "d")
    assert options.delivery == "at_least_once"
    numbered = sink_options(LEAST | {"sink_id": "s", "first_batch": "7", "batch_id": "9", "origin": "o"})
    assert (numbered.sink_id, numbered.first_batch, numbered.batch_id, numbered.origin) == ("s", 7, 9, "o")
    assert sink_options(LEAST | {"value_format": "json"}).is_json
    assert [sink_options(LEAST | {"restage_bytes": text}).restage_bytes for text in ("0", "77")] == [0, 77]
    assert sink_options(LEAST).restage_bytes == RESTAGE_BYTES


@pytest.mark.parametrize(
    ("text", "is_descending", "has_nulls_last"),
    [
        ("a", False, False),
        ("a NULLS FIRST", False, False),
        ("a asc nulls last", False, True),
        ("a nulls  last", False, True),
        ("a desc", True, True),
        ("a DESC Nulls Last", True, True),
        ("a desc nulls first", True, False),
    ],
)
def test_where_nulls_go(text, is_descending, has_nulls_last):
    options = sink_options(LEAST | {"order_by": f"b, {text}"})
    assert options.order_by == (SortColumn("b"), SortColumn("a", is_descending, has_nulls_last))


@pytest.mark.parametrize("module", [pickle, None])
def test_options_travel_to_tasks_and_identify_a_connection(module):
    options = sink_options(LEAST | {"order_by": "a"})
    copy = pickle.loads(module.dumps(options) if module else dumps(options))
    assert copy == options
    assert hash(copy) == hash(options)


TLS = {"url": "tailraces://127.0.0.1:4700", "tls_ca": "ca.pem", "tls_cert": "cert.pem", "tls_key": "secret key"}


def test_tls_files():
    options = sink_options(LEAST | TLS)
    assert options.tls == TlsFiles("ca.pem", "cert.pem", "secret key")
    assert read_options(LEAST | TLS).tls == options.tls
    for shown in (repr(options), repr(read_options(LEAST | TLS))):
        assert "secret" not in shown
    with pytest.raises(ValueError, match="need a 'url' that begins with tailraces://"):
        sink_options(LEAST | {"tls_ca": "ca.pem"})
    assert context_of(LEAST["url"], options.tls) is None
    with pytest.raises(ValueError, match=r"options 'tls_ca'.*ca\.pem: No such file"):
        context_of(TLS["url"], options.tls)


def test_token_is_not_shown():
    assert "secret" not in repr(sink_options(LEAST | {"token": "secret"}))


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"url": ""}, r"'url' is missing: .*tailrace://HOST:PORT"),
        ({"url": "localhost:4700"}, r"'url': 'localhost:4700' is no URL"),
        ({"url": "tailrace://a:b"}, r"'url': 'a:b' is no address"),
        ({"feed": ""}, r"'feed' is missing"),
        ({"create_feed": "yes"}, r"'create_feed' is 'yes', neither 'true' nor 'false'"),
        ({"partitions": "1.5"}, r"'partitions' is '1\.5', but must be a whole number"),
        ({"partitions": "0"}, r"'partitions' is '0'"),
        ({"partitions": "many"}, r"'partitions' is 'many'"),
        ({"restage_bytes": "-1"}, r"'restage_bytes' is '-1', but must be a whole number from 0"),
        ({"retry_for": "-1"}, r"'retry_for' is '-1', but must be a positive number"),
        ({"retry_for": "inf"}, r"'retry_for' is 'inf'"),
        ({"retry_for": "a minute"}, r"'retry_for' is 'a minute'"),
        ({"level": "memory"}, r"'level' is 'memory', but must be one of 'disk', 'quorum'"),
        ({"order_by": "a up"}, r"'order_by' has 'a up': each part is a column"),
        ({"order_by": "a desc nulls"}, r"'order_by' has 'a desc nulls': each part is a column"),
        ({"order_by": "a nulls last desc"}, r"'order_by' has 'a nulls last desc': .* and then with nulls first"),
        (
            {"delivery": "at_most_once"},
            r"'delivery' is 'at_most_once', but must be one of 'exactly_once', 'at_least_once'",
        ),
        ({"on_changed_batch": "take"}, r"'on_changed_batch' is 'take', but must be one of 'fail', 'skip'"),
        ({"value_format": "avro"}, r"'value_format' is 'avro', but must be one of 'binary', 'json'"),
        ({"value_format": "json", "value": "v"}, "option 'value' names one column"),
        ({"value_format": " JSON", "value": "v"}, "option 'value' names one column"),
        ({"sink_id": "job:1"}, "'sink_id' is 'job:1': names that begin with 'job:' are for jobs without a number"),
        ({"sink_id": "a\nb"}, "option 'sink_id' is .* must be 1 to 200 printable characters"),
        ({"sink_id": "s", "first_batch": "-1"}, "'first_batch' is '-1', but must be a whole number from 0"),
        ({"origin": "o"}, "'origin' numbers the batches of a sink: give option 'sink_id'"),
        ({"batch_id": "1"}, "give option 'sink_id'"),
        ({"origin": "o"}, "give option 'sink_id'"),
    ],
)
def test_what_cannot_be_had(option, text):
    with pytest.raises(ValueError, match=text):
        sink_options(LEAST | option)


@pytest.mark.parametrize(
    ("check", "option", "text"),
    [
        (check_stream_options, {"batch_id": "0"}, "option 'batch_id' is for batch jobs"),
        (check_stream_options, {"origin": "o"}, "option 'origin' is for batch jobs"),
        (check_job_options, {"first_batch": "1", "batch_id": "1"}, "option 'first_batch' is for streams"),
    ],
)
def test_numbers_that_would_be_ignored(check, option, text):
    with pytest.raises(ValueError, match=text):
        check(sink_options(LEAST | {"sink_id": "s"} | option))


def test_numbers_that_are_not_ignored():
    check_stream_options(sink_options(LEAST))
    check_stream_options(sink_options(LEAST | {"sink_id": "s", "first_batch": "1"}))
    check_job_options(sink_options(LEAST))
    check_job_options(sink_options(LEAST | {"sink_id": "s", "batch_id": "0", "origin": "o"}))
    check_job_options(sink_options(LEAST | {"sink_id": "s"}))


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("orderby", "order_by"),
        ("orderBy", "order_by"),
        ("order-by", "order_by"),
        ("partition", "partitions"),
        ("partitionColumn", "partition_column"),
        ("createFeed", "create_feed"),
        ("retryFor", "retry_for"),
        ("numPartitions", "partitions"),
        ("feeds", "feed"),
    ],
)
def test_slips_of_the_pen_are_not_ignored(slip, meant):
    with pytest.raises(ValueError, match=f"option '{slip}' is not known: '{meant}' is"):
        sink_options(LEAST | {slip: "true"})


@pytest.mark.parametrize("name", ["checkpointLocation", "path", "queryName", *NAMES])
def test_options_of_spark_and_ours_are_no_slips(name):
    least = LEAST | ({"url": TLS["url"]} if name.startswith("tls_") else {})
    value = {"url": LEAST["url"], "partitions": "3", "create_feed": "true", "retry_for": "1"}
    value |= {
        "delivery": "at_least_once",
        "level": "disk",
        "value_format": "binary",
        "on_changed_batch": "skip",
        "first_batch": "1",
        "batch_id": "1",
        "restage_bytes": "0",
    }
    sink_options(least | {"sink_id": "s"} | {name: value.get(name, "anything")})


def test_guide_lists_every_option():
    text = (Path(__file__).parents[2] / "docs" / "guides" / "spark.md").read_text()
    section = text.partition("\n## Options\n")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = re.findall(r"`(\w+)`", " ".join(first_cells))
    assert sorted(named) == sorted(NAMES)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("deletedColumn", ": 'deleted' is"),
        ("key_column", ": 'key' is"),
        ("sort_by", ": 'order_by' is"),
        ("checkpoint_location", ": 'checkpointLocation' is"),
        ("exactlyOnce", ": 'delivery' is"),
        ("mergeSchema", ". The options: url, feed, "),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(name, meant):
    with pytest.raises(ValueError, match=f"option '{name}' is not known{meant}"):
        sink_options(LEAST | {name: "x"})


def test_a_job_is_named_after_its_sink_for_tokens_of_a_key_prefix():
    assert job_name("", JOB_ID) == f"job:{JOB_ID}"
    assert job_name("eu/nightly", JOB_ID) == f"job:eu/nightly {JOB_ID}"
    longest = job_name("s" * SINK_ID_CHARS_MAX, JOB_ID)
    assert longest.endswith(f"s {JOB_ID}")
    assert len(longest) == SINK_ID_CHARS_MAX
