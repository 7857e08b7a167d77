"""How the C library keeps freed memory."""

from __future__ import annotations

import ctypes

# Parameters of glibc's mallopt (malloc.h). Other C libraries have none of it.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Of freed memory at the end of a heap so much is kept.
KEPT_BYTES = 64 << 20
# A larger piece is a mapping of its own, given back when it is freed: what frames and chunks of segments have is below.
MAPPED_BYTES_MIN = 32 << 20


def keep_freed_memory() -> bool:
    """Lets this process use the memory of one buffer for the next; False where the C library cannot be told.

    A node reads and receives into buffers of about 1 MiB, each of which lives for a moment. As a rule the system gets
    them back at once and gives zeroed pages anew for the next, which takes as long as reading 1 MiB itself.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN))
