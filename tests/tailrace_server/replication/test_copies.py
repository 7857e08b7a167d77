"""Whose directory is a copy."""

from tailrace_server.replication.copies import why_copy

ME, OTHER, THIRD = b"m" * 16, b"o" * 16, b"t" * 16


def test_who_has_a_disk_of_its_own_is_heard():
    assert why_copy(ME, "b:1", OTHER, {}) == ""
    assert why_copy(ME, "b:1", OTHER, {"b:1": OTHER, "c:1": THIRD}) == ""
    assert why_copy(ME, "b:1", OTHER, {"b:1": THIRD}) == ""  # its disk was replaced


def test_who_has_the_disk_of_this_node_or_of_another_member_is_not():
    assert "b:1 has the placement id of this node" in why_copy(ME, "b:1", ME, {"b:1": OTHER})
    assert "c:1 has the placement id of b:1" in why_copy(ME, "c:1", OTHER, {"b:1": OTHER})
