"""Runs git: to its end, or as a pipe that is read while it works; reads blobs from one process."""

from __future__ import annotations

import codecs
import os
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from pyspark_tailrace.demo.changes import TEXT_BYTES_MAX, Content, beginning_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIPE_BYTES = 64 * 1024  # the size of a pipe on Linux
READ_BYTES = 1 << 20  # of a large blob at once
COMPLAINT_CHARACTERS = 500  # of the end of git's stderr, as the reason comes last

# Git maps whole packs into memory: 1.7 GB resident with 1.4 GB of text. With these settings its two processes take 0.06
# to 0.13 GB together, and the same time.
MEMORY_SETTINGS = (
    *("-c", "core.packedGitWindowSize=4m"),
    *("-c", "core.packedGitLimit=32m"),
    *("-c", "core.deltaBaseCacheLimit=32m"),
)

# These point git to another repository than its arguments. They are set if a git hook calls us.
REDIRECTING = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
)


class GitFailed(RuntimeError):
    """Git has failed. The message has git's own error."""


def run_git(repo: Path, *arguments: str) -> bytes:
    """Returns git's output. Raises GitFailed if git fails."""
    done = subprocess.run(
        _command(repo, arguments), env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-COMPLAINT_CHARACTERS:]
        raise GitFailed(_failure(repo, arguments, done.returncode, said))
    return done.stdout


@contextmanager
def git_pipe(repo: Path, *arguments: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Runs git during the block, which gets its standard input and output, and reads the output to its end.

    The end of the block closes both and waits for git, and raises GitFailed if git failed. If the block raises, git is
    killed, and its error output is added to a GitFailed.
    """
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            _command(repo, arguments),
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            bufsize=PIPE_BYTES,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            try:
                yield process.stdin, process.stdout
                process.stdin.close()
            except BaseException as error:
                said = _end(process, complaints)
                if isinstance(error, (GitFailed, BrokenPipeError)) and said:
                    raise GitFailed(f"{error}: {said}") from error
                raise
        if process.returncode != 0:
            raise GitFailed(_failure(repo, arguments, process.returncode, _said(complaints)))


def _end(process: subprocess.Popen[bytes], complaints: IO[bytes]) -> str:
    """Ends the process, if it has not ended by itself, and returns its error output."""
    process.kill()
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # the buffer may have a request that could not be sent
            process.stdin.close()
    process.wait()
    return _said(complaints)


def _said(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    return complaints.read().decode(errors="replace").strip()[-COMPLAINT_CHARACTERS:]


def split_at_nul(stream: IO[bytes]) -> Iterator[bytes]:
    """Yields the stream's pieces between NUL bytes, as they arrive."""
    rest = b""
    while data := stream.read(PIPE_BYTES):
        *whole, rest = (rest + data).split(b"\0")
        yield from whole
    if rest:
        raise GitFailed(f"git's output ends within an entry: {rest[:80]!r}")


class BlobReader:
    """Reads blobs from one ``git cat-file --batch``, in the order of the requests.

    Ask for a few blobs before you read the first: git then works on the next one at the same time. The open requests
    must fit into the pipe to git; otherwise both sides would wait for each other.
    """

    OPEN_MAX = 32  # of at most 65 bytes each: half of the smallest pipe that POSIX permits

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests = requests
        self._answers = answers

    def ask(self, blob: str) -> None:
        """Requests the blob with this id."""
        self._requests.write(f"{blob}\n".encode())
        self._requests.flush()

    def read(self) -> Content:
        """Returns the blob of the oldest open request. Raises GitFailed if the repository does not have it."""
        header = self._answers.readline().split()
        if len(header) != 3 or header[1] != b"blob":
            found = b" ".join(header).decode(errors="replace")
            raise GitFailed(
                f"git has no such blob: {found or 'its output ended'}. The clone is damaged (check with git fsck) or "
                "partial (repair with git fetch --refetch)"
            )
        size = int(header[2])
        text = text_of(self._take(size)) if size <= TEXT_BYTES_MAX else self._long_text(size)
        self._take(1)  # the line feed after each answer
        return Content(size, text)

    def _long_text(self, size: int) -> str | None:
        """Returns the text as ``text_of``, but reads in pieces, because a blob can be larger than the memory."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        beginning, is_text, left = b"", True, size
        while left:
            piece = self._take(min(left, READ_BYTES))
            left -= len(piece)
            beginning = beginning or piece[:TEXT_BYTES_MAX]
            is_text = is_text and b"\0" not in piece and _decodes(decoder, piece, final=not left)
        return beginning_of(beginning) if is_text else None

    def _take(self, size: int) -> bytes:
        data = self._answers.read(size)
        if len(data) != size:
            raise GitFailed("git cat-file ended within a blob")
        return data


def _decodes(decoder: codecs.IncrementalDecoder, piece: bytes, *, final: bool) -> bool:
    try:
        decoder.decode(piece, final)
    except UnicodeDecodeError:
        return False
    return True


def _command(repo: Path, arguments: tuple[str, ...]) -> list[str]:
    # With replaced objects (git replace) the history would be another than the ids name.
    return ["git", "--no-replace-objects", "-C", str(repo), *MEMORY_SETTINGS, *arguments]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in REDIRECTING}
    return kept | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


def _failure(repo: Path, arguments: tuple[str, ...], code: int, said: str) -> str:
    subcommand = next(argument for argument in arguments if not argument.startswith("-") and "=" not in argument)
    return f"git {subcommand} failed in {repo}: {said or f'exit code {code}'}"
