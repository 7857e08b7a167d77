"""The text of versions in headers and queries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import Version
from tailrace.model.failover import SEQ_MAX
from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.web.versions import etag, parse_version, version_text


@given(st.builds(Version, st.integers(0, 999), st.binary(min_size=16, max_size=16), st.integers(0, SEQ_MAX)))
def test_a_version_is_read_as_it_was_written(version):
    assert parse_version("v", version_text(version)) == version
    assert etag(version) == f'"{version_text(version)}"'


@pytest.mark.parametrize(
    "text",
    ["", "1-2", "-1-" + "0" * 32 + "-1", "1-" + "0" * 31 + "-1", "1-" + "G" * 32 + "-1", f"1-{'0' * 32}-{2**63}"],
)
def test_other_texts_are_refused(text):
    with pytest.raises(BadRequest, match="if_version is"):
        parse_version("if_version", text)
