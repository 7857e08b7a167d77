"""The examples of the guide of HTTP run as they stand, by curl, and print what the guide says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace.testing
from tailrace.testing.ports import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "http.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "--- end of a block ---"
_ADDRESS = "127.0.0.1:4780"


def examples():
    """Each example of the guide, with the output that follows it; None without one."""
    blocks = [found.groups() for found in _BLOCK.finditer(GUIDE.read_text())]
    for place, (kind, text) in enumerate(blocks):
        if kind == "sh":
            follows = blocks[place + 1] if place + 1 < len(blocks) else ("sh", "")
            yield text, None if follows[0] == "sh" else follows[1]


def as_pattern(expected):
    """The pattern of an output: ``...`` stands for any text, and line ends for any blanks."""
    words = [re.escape(word).replace(re.escape("..."), ".*?") for word in expected.split()]
    # A word that is nothing but dots may stand for no text at all.
    text = r"\s+".join(words).replace(r"\s+.*?\s+", r"\s+(?:.*?\s+)?")
    return re.compile(rf"\s*{text}\s*", re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: apt-get install curl")
def test_the_examples_print_what_the_guide_says(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    with tailrace.testing.node(tmp_path, http=address) as node:
        script = "".join(f"{text}\necho; echo '{_END}'\n" for text, _ in examples()).replace(_ADDRESS, address)
        commands = os.path.dirname(sys.executable)
        run = subprocess.run(
            ["bash", "-eu", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "TAILRACE_URL": node.url},
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert run.returncode == 0, run.stderr
    outputs = run.stdout.split(f"\n{_END}\n")
    assert len(outputs) == len(list(examples())) + 1
    for (text, expected), output in zip(examples(), outputs, strict=False):
        if expected is not None:
            assert as_pattern(expected).fullmatch(output), (text, output)
