"""The index keeps the contract that a follower relies on."""

from json_index import JsonIndex

from tailrace.testing import IndexContract


class TestJsonIndex(IndexContract):
    keeps_rings = False
    checks_feed = False

    def make_index(self, path):
        return JsonIndex(path / "index.json")

    def rows(self, index):
        return {key: value for key, (value, _, _) in index.rows.items()}
