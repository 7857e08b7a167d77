"""A file that was rewritten before its collection is found by pytest, and not rewritten again."""

from __future__ import annotations

from _pytest.assertion import rewrite
from tests.rewriting import rewrite_file


def kept_for(path):
    return rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"


def test_pytest_finds_what_was_rewritten(tmp_path, request):
    path = tmp_path / "test_some.py"
    path.write_text("def test():\n    one = 1\n    assert one == 2\n")
    assert rewrite._read_pyc(path, kept_for(path)) is None
    rewrite_file(path, request.config)
    code = rewrite._read_pyc(path, kept_for(path))
    assert "@pytest_ar" in code.co_names


def test_what_is_kept_is_left_as_it_is(tmp_path, request):
    path = tmp_path / "test_some.py"
    path.write_text("")
    kept = kept_for(path)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"kept")
    rewrite_file(path, request.config)
    assert kept.read_bytes() == b"kept"


def test_a_file_of_other_lines_is_rewritten_by_pytest(tmp_path, request):
    path = tmp_path / "test_some.py"
    path.write_text("")
    rewrite_file(path, request.config)
    path.write_text("assert True\n")
    assert rewrite._read_pyc(path, kept_for(path)) is None
