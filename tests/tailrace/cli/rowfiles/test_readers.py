"""Lines and rows of files become records, and what is none is named by its line."""

from __future__ import annotations

import gzip
import io

import pyarrow
import pytest
from pyarrow import ipc, parquet

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.rowfiles import sources
from tailrace.cli.rowfiles.arrow_files import arrow_records
from tailrace.cli.rowfiles.delimited import csv_records
from tailrace.cli.rowfiles.formats import Format, format_of
from tailrace.cli.rowfiles.json_lines import json_records
from tailrace.cli.rowfiles.records import BadRecord
from tailrace.cli.rowfiles.sources import Source


def test_json_lines_keep_their_numbers_and_text():
    records = list(json_records([b'{"a": 1}\n', b"\n", b"  \r\n", b' {"b": 2.50} \r\n']))
    assert [(r.place, r.fields, r.text) for r in records] == [
        ("line 1", {"a": 1}, b'{"a": 1}'),
        ("line 4", {"b": 2.5}, b'{"b": 2.50}'),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "this is not JSON: Expecting property name enclosed in double quotes, at character 2"),
        (b"[1]", "an object is needed"),
        (b'{"a": NaN}', "this is not JSON: JSON has no NaN"),
        (b'{"a": "\xff"}', "this is not UTF-8: byte 8"),
        (b'{"a":' * 100_000, "the JSON is nested too deeply"),
        (b'{"a":' + b"9" * 5_000 + b"}", "this is not JSON: Exceeds the limit"),
    ],
)
def test_a_line_that_is_no_object_is_named(line, why):
    with pytest.raises(BadRecord) as caught:
        list(json_records([b"{}\n", line]))
    assert str(caught.value).startswith(f"line 2: {why}")


def test_csv_has_names_and_places():
    records = list(csv_records([b"key,value\n", b'a,"1\n', b'2"\n', b"\n", "b,ö\n".encode()], ","))
    assert [(r.place, r.fields) for r in records] == [
        ("line 3", {"key": "a", "value": "1\n2"}),
        ("line 5", {"key": "b", "value": "ö"}),
    ]
    assert next(csv_records([b"a\tb\n", b"1\t2\n"], "\t")).fields == {"a": "1", "b": "2"}
    assert list(csv_records([], ",")) == []


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([b"a,b\n", b"1\n"], "line 2: 1 fields, and the first line names 2 columns"),
        ([b"a,b\n", b"1,2,3\n"], "line 2: 3 fields, and the first line names 2 columns"),
        ([b"a,a\n"], "line 1: the column 'a' is named twice"),
        ([b"a,b\n", b"1,\xff\n"], "line 2: this is not UTF-8: byte 3"),
        ([b"a,b\n", b'1,"2" 3\n'], "line 2: this is not CSV: "),
        ([b"a,b\n", b'1,"2\n'], "line 2: this is not CSV: "),
    ],
)
def test_a_row_that_is_none_is_named(lines, why):
    with pytest.raises(BadRecord) as caught:
        list(csv_records(lines, ","))
    assert str(caught.value).startswith(why)


TABLE = pyarrow.table({"key": [b"a", b"b", b"c"], "n": [1, 2, 3]})


def file_of(format, table=TABLE, *, is_stream=False):
    file = io.BytesIO()
    if format is Format.PARQUET:
        parquet.write_table(table, file)
    else:
        with (ipc.new_stream if is_stream else ipc.new_file)(file, table.schema) as writer:
            writer.write_table(table)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("format", "is_stream"), [(Format.PARQUET, False), (Format.ARROW, False), (Format.ARROW, True)]
)
def test_parquet_and_arrow_give_the_columns_that_are_asked_for(format, is_stream):
    read = []
    records = arrow_records(
        file_of(format, is_stream=is_stream), format, lambda names: names[:1], lambda *r: read.append(r)
    )
    assert [(r.place, r.fields) for r in records] == [
        ("row 1", {"key": b"a"}),
        ("row 2", {"key": b"b"}),
        ("row 3", {"key": b"c"}),
    ]
    assert read == ([(3, 3)] if format is Format.PARQUET else [])


@pytest.mark.parametrize("format", [Format.PARQUET, Format.ARROW])
def test_a_file_that_is_damaged_or_of_another_format_is_refused(format):
    whole = file_of(format).getvalue()
    for data in (b"", b"no file", whole[: len(whole) // 2]):
        with pytest.raises(CommandFailed, match=f"this is no {format} file, or it is damaged"):
            list(arrow_records(io.BytesIO(data), format, list, lambda *r: None))


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("a.jsonl", Format.JSONL),
        ("A.NDJSON", Format.JSONL),
        ("a.b/c.csv.gz", Format.CSV),
        ("a.parquet", Format.PARQUET),
        ("a.arrow", Format.ARROW),
        ("-", Format.JSONL),
    ],
)
def test_the_name_tells_the_format(path, format):
    assert format_of(path, None) is format
    assert format_of(path if format.is_text else "a", Format.CSV) is Format.CSV


def test_a_name_that_tells_none_asks_for_it():
    with pytest.raises(WrongUsage, match=r"data.txt: the name tells no format; add --format jsonl, csv"):
        format_of("data.txt", None)
    with pytest.raises(WrongUsage, match="parquet compresses by itself"):
        format_of("a.parquet.gz", None)


def test_a_source_counts_what_it_has_read_and_sees_a_change(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo")
    with Source(str(path)) as source:
        assert list(source.lines()) == [b"one\n", b"two"]
        assert source.total_units == 10
        assert source.read_units
        assert not source.has_changed()
        path.write_bytes(b"other")
        assert source.has_changed()
    with pytest.raises(WrongUsage, match="No such file"), Source(str(tmp_path / "none")):
        pass


def test_a_compressed_file_that_is_cut_short_is_named(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    whole = gzip.compress(b"one\n" * 1000)
    path.write_bytes(whole)
    with Source(str(path)) as source:
        assert len(list(source.lines())) == 1000
    path.write_bytes(whole[:-12])
    with Source(str(path)) as source, pytest.raises(BadRecord, match="cannot be read"):
        list(source.lines())
    path.write_bytes(b"plain")
    with Source(str(path)) as source, pytest.raises(BadRecord, match="line 1: this cannot be read"):
        list(source.lines())


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LINE_BYTES_MAX", 100)
    path = tmp_path / "rows"
    path.write_bytes(b"a" * 99 + b"\n" + b"b" * 101)
    with Source(str(path)) as source, pytest.raises(BadRecord, match="line 2: longer than 100 bytes"):
        list(source.lines())
