"""Tests that have another name in the tree than in the trailer ``Test:`` of the commit that brought them.

A trailer cannot be changed once it is on the main branch. `tests.reproduce` looks here for what it does not find.
"""

from __future__ import annotations

# The name in a trailer, and the name in the tree of that commit.
RENAMED = {
    "tests/tailrace_server/test_requests.py::test_a_resend_after_an_hour_overwrites_no_newer_value": (
        "tests/tailrace_server/test_requests.py::test_a_resend_after_an_hour_does_not_overwrite_a_newer_value"
    ),
}
