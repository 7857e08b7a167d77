"""The memory of freed blocks is used for the next ones. In processes of their own: the setting is of a process."""

import platform
import subprocess
import sys

import pytest

BLOCKS = 40
PROGRAM = f"""
import contextlib
import resource
import sys

import tailrace.blocking
from tailrace.block import encode_block

if sys.argv[1] == "client":
    with contextlib.suppress(tailrace.errors.Unreachable):
        tailrace.blocking.connect("tailrace://127.0.0.1:1", connect_timeout=0.1)
keys, values = [b"%08d" % number for number in range(9_000)], [bytes(100)] * 9_000
for number in range({BLOCKS}):
    encode_block(keys, values, partition=0, compress=False)
    if number == {BLOCKS} // 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(who):
    """The pages that the system gave a process for the second half of its blocks."""
    return int(subprocess.run([sys.executable, "-c", PROGRAM, who], check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives freed memory back at once")
def test_a_process_with_a_client_gets_no_new_pages_for_each_block():
    pages = (BLOCKS // 2) * (1 << 20) // 4096  # for a buffer of 1 MiB each
    assert faults("none") > pages, "nothing has to be mended here"
    assert faults("client") < pages / 20
