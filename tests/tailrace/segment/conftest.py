from __future__ import annotations

from tests.segment_fixtures import block_of, identity_of, one_file, small_pages

__all__ = ["block_of", "identity_of", "one_file", "small_pages"]
