"""How the C library keeps the memory of freed blocks."""

from __future__ import annotations

# Blocks and what is made for them have about 1 MiB. A client may keep twice this amount at the end of its heap.
KEPT_PIECE_BYTES = 8 << 20


def keep_freed_memory() -> None:
    """Has the C library keep the memory of freed blocks for the next ones.

    glibc gives a large piece back to the system as soon as it is freed, and zeroed pages for the next one take longer
    than all else that a block needs. It keeps pieces as large as the largest one of its own that was freed. So this
    frees one. Its pages are never touched, so the system gives none for it. Other C libraries take no notice.
    """
    bytes(KEPT_PIECE_BYTES)
