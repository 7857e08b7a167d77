"""Runs a page of the documentation from top to bottom, as its reader does: its programs, and its commands in a shell.

A program is a fenced block of Python. A command is an indented line that begins with ``$``. The indented lines behind
either are what it prints; ``...`` stands for any lines. ``tailrace serve`` goes on in the background. A tail without an
end is given one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tailrace.testing.ports import free_port

_DOCS = Path(__file__).parents[2] / "docs"
# A page takes seconds, and some ten for each start of Spark. This ends a command that hangs.
PAGE_SECONDS_MAX = 900
# For a Java that does not live long, as that of a page's Spark.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What is changed in a program for trio.
_FOR_ASYNCIO = {
    "import trio\n": "import asyncio\n",
    "tailrace.connect(": "tailrace.asyncio.connect(",
    "trio.run(main)": "asyncio.run(main())",
}
_MARK = "--- the end of a step"
_BLOCKS = re.compile(r"^```python\n(?P<program>(?:.*\n)*?)```$|(?P<indented>(?:^    .*\n(?:\n(?=    ))?)+)", re.M)


@dataclass
class Step:
    """A program or a command, and the lines that it prints; None: the page does not show them."""

    kind: str
    text: str
    printed: list[str] | None = None


def steps(text: str) -> list[Step]:
    """Returns the steps of a page in their order."""
    found: list[Step] = []
    end = 0
    for match in _BLOCKS.finditer(text):
        is_next = not text[end : match.start()].strip()
        end = match.end()
        if match["program"] is not None:
            found.append(Step("program", match["program"]))
            continue
        lines = [line[4:] for line in match["indented"].splitlines() if line]
        if found and found[-1].kind == "program" and is_next and not lines[0].startswith("$ "):
            found[-1].printed = lines
            continue
        for line in lines:
            if line.startswith("$ "):
                found.append(Step("command", line[2:], []))
            elif lines[0].startswith("$ ") and line != "^C" and not line.startswith("tailrace:"):
                found[-1].printed.append(line)
    return found


def under_asyncio(program: str) -> str:
    """Returns a program for asyncio, of one for trio: with the changes that docs/guides/asyncio.md names."""
    for trio, asyncio in _FOR_ASYNCIO.items():
        program = program.replace(trio, asyncio)
    assert "trio" not in program, f"it needs more changes than the guide names: {program}"
    return program


class Reader:
    """A reader with one folder and one node, who keeps to the pages. ``uses_asyncio``: and has asyncio, not trio."""

    def __init__(self, folder: Path, *, uses_asyncio: bool = False) -> None:
        self._folder = folder
        self._uses_asyncio = uses_asyncio
        self._ports: dict[str, int] = {}
        self._ran = 0
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        self._environ["JAVA_TOOL_OPTIONS"] = _QUICK_JAVA
        self._environ["TAILRACE_URL"] = self._here("tailrace://127.0.0.1:4700")
        examples = folder / "docs" / "examples"  # a clone of the repository has them
        examples.mkdir(parents=True)
        for program in (_DOCS / "examples").glob("*.py"):
            (examples / program.name).write_text(self._here(program.read_text()))
        self._serve("tailrace serve --data data")

    def read(self, page: Path) -> None:
        """Runs the steps of a page. AssertionError if one fails, or prints other lines than the page shows."""
        self.take(steps(page.read_text()), page.name)

    def take(self, steps: list[Step], page: str = "") -> None:
        """Runs these steps, as ``read``."""
        shell = subprocess.Popen(
            ["bash"], cwd=self._folder, env=self._environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        watch = threading.Timer(PAGE_SECONDS_MAX, shell.kill)
        watch.start()
        try:
            for step in steps:
                self._take(shell, step, page)
        finally:
            watch.cancel()
            shell.stdin.close()
            shell.wait()
            shell.stdout.close()

    def leave(self) -> None:
        """Stops every node that was started in the folder."""
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            node.wait()

    def _take(self, shell: subprocess.Popen[str], step: Step, page: str) -> None:
        text = self._here(step.text)
        if step.kind == "program":
            self._ran += 1
            if self._uses_asyncio:
                text = under_asyncio(text)
            (self._folder / f"program_{self._ran}.py").write_text(text)
            text = f"python program_{self._ran}.py"
        elif text.startswith("tailrace serve"):
            self._serve(text)
            return
        elif text.startswith("tailrace tail") and "--until" not in text:
            text += " --until now"
        shell.stdin.write(f"{text}\ncode=$?; echo; echo '{_MARK}' $code\n")
        shell.stdin.flush()
        lines: list[str] = []
        for line in shell.stdout:
            if line.startswith(_MARK):
                break
            lines.append(line.rstrip("\n"))
        else:
            raise AssertionError(f"{page}: the shell has ended at: {step.text}")
        if not lines[-1]:  # what was printed has ended with a newline
            lines.pop()
        code = line.removeprefix(_MARK).strip()
        assert code == "0", f"{page}: exit code {code} of: {step.text}\n" + "\n".join(lines)
        if step.printed is not None:
            shown = [self._here(line) for line in step.printed]
            assert _matches(lines, shown), f"{page}: {step.text}\nprints {lines}\nand the page shows {shown}"

    def _here(self, text: str) -> str:
        """Returns the text with ports of this test in place of Tailrace's usual ones."""
        return re.sub(r"\b47\d\d\b", lambda match: str(self._ports.setdefault(match[0], free_port())), text)

    def _serve(self, command: str) -> None:
        if "--listen" not in command:
            command += self._here(" --listen 127.0.0.1:4700 --http off --ws off")
        node = subprocess.Popen(command.split(), cwd=self._folder, env=self._environ, stdout=subprocess.PIPE)
        self._nodes.append(node)
        with node.stdout:
            assert b"ready" in node.stdout.readline(), f"it has ended: {command}"


def _matches(lines: list[str], shown: list[str]) -> bool:
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in shown)
    # The segments of a copy may have been compacted, or not yet.
    pattern = re.sub(r"[\d,]+\\ bytes;\\ [\d,]+\\ bytes\\ fetched", r"[\\d,]+ bytes; [\\d,]+ bytes fetched", pattern)
    return re.fullmatch(pattern, "".join(line + "\n" for line in lines if line)) is not None
