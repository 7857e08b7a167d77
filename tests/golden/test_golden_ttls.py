"""Directories with ttls that releases wrote: this program finds their ttls and expiries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden.archive import HERE, releases, unpack
from tests.golden.make_ttls import rows_of
from tests.golden.test_golden import served

from tailrace.block.header import TTL_S_MAX
from tailrace_server.host.disk import RealDisk
from tailrace_server.offline.verify import verify

pytestmark = pytest.mark.slow

WITH_TTLS = [release for release in releases() if (HERE / release / "ttls.json").exists()]


def test_the_first_release_with_ttls_has_some():
    assert WITH_TTLS[0] == "0.2"


@pytest.mark.parametrize("release", WITH_TTLS)
async def test_ttls_and_expiries_are_found(release, tmp_path):
    told = json.loads((HERE / release / "ttls.json").read_text())
    data = unpack(release, "ttls", tmp_path / "ttls")
    report = verify(RealDisk(), str(data))
    assert report.problems == []
    newest = {Path(file.path).suffix for file in report.files if file.version == 2}
    assert newest >= {".seg", ".log"}, "both have blocks with ttls"
    async with served(data) as client:
        [info] = await client.feeds()
        assert (info.name, info.ttl_s) == ("sessions", TTL_S_MAX)
        rows = await rows_of(client.feed("sessions"))
    assert [row for row in rows if row in told["rows"]] == told["rows"]
    assert [row[2] for row in told["rows"] if row[5]] == ["108", "208"]
    assert {row[4] for row in rows} >= {0, 1, TTL_S_MAX - 100, TTL_S_MAX - 204}
