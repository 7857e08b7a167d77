"""``python paced.py FILE RATE``: writes a file, again and again, as a compaction does, at RATE bytes a second."""

from __future__ import annotations

import os
import sys
import time

FILE_BYTES = 64 * 2**20
PIECE_BYTES = 2**20


def write_paced(path: str, rate: int) -> None:
    """A MiB at a time, and one fsync when the file is complete; for ever."""
    piece = os.urandom(PIECE_BYTES)
    begin, done = time.monotonic(), 0
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        for _ in range(FILE_BYTES // PIECE_BYTES):
            os.write(descriptor, piece)
            done += PIECE_BYTES
            time.sleep(max(0.0, begin + done / max(rate, 1) - time.monotonic()))
        os.fsync(descriptor)
        os.close(descriptor)


if __name__ == "__main__":
    write_paced(sys.argv[1], int(sys.argv[2]))
