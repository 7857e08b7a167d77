import ctypes
import subprocess
import sys

import pytest

from tailrace_server.host import allocator

pytestmark = pytest.mark.slow

PROGRAM = """
import resource, sys
from tailrace_server.host.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(10):
    bytes(1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    held = [bytes(1 << 20) for _ in range(4)]
    held.clear()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how):
    return int(subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_a_buffer_has_the_memory_of_the_one_before():
    assert page_faults("keep") < page_faults("as a rule") / 10


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert allocator.keep_freed_memory() is False
