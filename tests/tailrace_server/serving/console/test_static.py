"""The files of the console's page."""

import pytest
from tests.tailrace_server.serving.console.test_app import FakeNode, get

from tailrace_server.serving.console.static import is_current, read_files


async def test_the_page_is_served_and_not_sent_again():
    code, headers, body = await get(FakeNode(), "/")
    assert (code, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<title>Tailrace" in body
    assert headers["cache-control"] == "no-cache"
    asked = [(b"if-none-match", headers["etag"].encode())]
    code, again, body = await get(FakeNode(), "/", headers=asked)
    assert (code, again["etag"], body) == (304, headers["etag"], b"")


async def test_the_page_runs_nothing_but_its_own_files():
    _, headers, _ = await get(FakeNode(), "/")
    policy = headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path", ["/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/vendor/../../app.py", "/page/x"]
)
async def test_nothing_else_is_served(path):
    assert (await get(FakeNode(), path))[0] == 404


def test_only_files_of_known_types_are_read(tmp_path):
    (tmp_path / "vendor").mkdir()
    for name in (
        "index.html",
        "app.js",
        "vendor/lib.mjs",
        "vendor/LICENSE.txt",
        "notes.py",
        ".hidden.js",
        "bad name.js",
    ):
        (tmp_path / name).write_text(name)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "deep.js").write_text("")
    files = read_files(tmp_path)
    assert sorted(files) == ["app.js", "index.html", "vendor/LICENSE.txt", "vendor/lib.mjs"]
    assert files["app.js"].data == b"app.js"
    assert files["app.js"].content_type == "text/javascript; charset=utf-8"


def test_a_tag_changes_with_the_file(tmp_path):
    (tmp_path / "app.js").write_text("1")
    before = read_files(tmp_path)["app.js"]
    (tmp_path / "app.js").write_text("2")
    after = read_files(tmp_path)["app.js"]
    assert is_current(before, f'"other", W/{before.etag}')
    assert not is_current(after, before.etag)
    assert not is_current(after, "")
