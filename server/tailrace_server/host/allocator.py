"""How the C library keeps freed memory."""

from __future__ import annotations

import ctypes

# Parameters of glibc's mallopt (malloc.h). Other C libraries have none of it.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The bytes of freed memory that are kept at the end of a heap.
KEPT_BYTES = 64 << 20
# A larger piece is a mapping of its own, given back when it is freed. Frames and chunks of segments are smaller.
MAPPED_BYTES_MIN = 32 << 20


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory for later buffers. Returns False if the C library cannot do that.

    A node reads and receives into buffers of about 1 MiB, each of which lives for a moment. By default
    the system gets their memory back at once. Zeroed pages for the next buffer then take as long as reading 1 MiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN))
