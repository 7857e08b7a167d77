"""Files that are written can be read again, in each format, and appear when they are whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import Delete, Mutation, Put
from tailrace.cli.load import _records
from tailrace.cli.rowfiles.fields import Fields
from tailrace.cli.rowfiles.formats import Format
from tailrace.cli.rowfiles.sources import Source
from tailrace.cli.rowfiles.targets import Row, Target

BYTES = st.one_of(st.binary(max_size=20), st.text(max_size=10).map(lambda text: text.encode(errors="replace")))
CHANGES = st.lists(
    st.one_of(st.builds(Put, BYTES.filter(len), BYTES, st.none()), st.builds(Delete, BYTES.filter(len))),
    max_size=12,
)


def rows_of(changes):
    return [
        Row(
            n % 3,
            Mutation(
                change.key, getattr(change, "value", None), n + 1, 1_700_000_000_000_000 + n, isinstance(change, Delete)
            ),
        )
        for n, change in enumerate(changes)
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.arrow", "a.jsonl.gz", "a.csv.gz"])
@given(changes=CHANGES)
def test_what_is_exported_can_be_imported(tmp_path_factory, name, changes):
    path = tmp_path_factory.getbasetemp() / name
    format = Format(name.split(".")[1])
    rows = rows_of(changes)
    with Target(str(path), format) as writer:
        writer.write(rows[:5])
        writer.write(rows[5:])
    fields = Fields.named(None, None, None)
    with Source(str(path)) as source:
        assert [fields.change(record) for record in _records(source, format, fields, ",")] == changes


def test_a_file_that_is_half_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("old")
    target = Target(str(path), Format.JSONL)
    target.__enter__().write(rows_of([Put(b"k", b"v")]))
    error = RuntimeError()
    target.__exit__(RuntimeError, error, None)
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["a.jsonl"]
