import pytest

from tailrace.indexes.schema import Schema

TITLE = {"title": "$.title"}


@pytest.mark.parametrize(
    ("table", "columns", "full_text", "says"),
    [
        ('items"; DROP TABLE x; --', {}, (), "the table name"),
        ("sqlite_items", {}, (), "reserved"),
        ("Tailrace_index", {}, (), "reserved"),
        ("items", {'a", evil': "$.a"}, (), "the column name"),
        ("items", {"Key": "$.key"}, (), "is taken"),
        ("items", {"rowid": "$.id"}, (), "is taken"),
        ("items", {"a": "$.a", "A": "$.b"}, (), "is taken"),
        ("items", {"a": "a"}, (), "is no JSON path"),
        ("items", TITLE, ("text",), "not one of the columns"),
        ("items", TITLE, ("title", "title"), "twice"),
        ("items", TITLE, "title", "has to be a sequence"),
        ("items", {"rank": "$.rank"}, ("rank",), "FTS5 uses"),
        ("items", {"items_fts": "$.x"}, ("items_fts",), "FTS5 uses"),
    ],
)
def test_what_cannot_be_is_refused(table, columns, full_text, says):
    with pytest.raises(ValueError, match=says):
        Schema(table, columns, full_text)


def test_words_of_sql_are_good_names():
    schema = Schema("order", {"group": "$.a", "select": "$.b"}, ("select",))
    assert 'INSERT INTO "order"' in schema.upsert_statement()


def test_the_description_does_not_depend_on_order():
    one = Schema("items", {"a": "$.a", "b": "$.b"}, ("a", "b"))
    assert one.describe() == Schema("items", {"b": "$.b", "a": "$.a"}, ("b", "a")).describe()
    assert one.describe() != Schema("items", {"a": "$.a", "b": "$.b"}, ("a",)).describe()
