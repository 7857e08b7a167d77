from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException

from pyspark_tailrace import local_session
from pyspark_tailrace.session import (
    JVM_OPTIONS,
    LOG_SETTINGS,
    SOCKET_FOLDER,
    SOCKETS,
    register,
    session_settings,
    socket_folder,
)


def test_settings_of_the_user_win():
    settings = session_settings({"spark.ui.enabled": True, "spark.sql.shuffle.partitions": 3})
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.ui.showConsoleProgress"] == "false"


def test_java_options_of_the_user_come_after_ours():
    ours, theirs = session_settings({JVM_OPTIONS: "-Dx=y"})[JVM_OPTIONS].split()
    assert ours.endswith("/pyspark_tailrace/log4j2.properties")
    assert theirs == "-Dx=y"


@pytest.mark.parametrize(
    ("master", "folder", "platform", "found"),
    [
        ("local[2]", "/tmp", "linux", "/tmp"),
        ("local-cluster[2,1,1024]", "/" + 63 * "x", "linux", "/" + 63 * "x"),
        ("local[*]", "/" + 64 * "x", "linux", None),
        ("local[*]", "/tmp", "darwin", None),
        ("spark://host:7077", "/tmp", "linux", None),
    ],
)
def test_workers_of_this_machine_get_unix_domain_sockets_if_their_paths_fit(
    monkeypatch, master, folder, platform, found
):
    monkeypatch.setattr("tempfile.tempdir", folder)
    monkeypatch.setattr("sys.platform", platform)
    assert socket_folder(master) == found


def test_unix_domain_sockets_are_a_setting_that_the_user_can_change(monkeypatch):
    monkeypatch.delenv("PYSPARK_UDS_MODE", raising=False)
    assert SOCKETS not in session_settings({})
    ours = session_settings({}, "/tmp")
    assert (ours[SOCKETS], ours[SOCKET_FOLDER]) == ("true", "/tmp")
    assert session_settings({SOCKETS: False}, "/tmp")[SOCKETS] == "false"
    monkeypatch.setenv("PYSPARK_UDS_MODE", "false")
    assert SOCKETS not in session_settings({}, "/tmp")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep TCP")
def test_workers_have_no_connection_by_tcp(spark):
    """Those of Spark 4.0 have."""

    def families(_):
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3, 32) if os.path.exists(f"/proc/self/fd/{fd}")]
        with open("/proc/net/unix") as table:
            unix = {line.split()[6] for line in table if line.split()[6].isdigit()}
        return [link[8:-1] in unix for link in links if link.startswith("socket:")]

    if spark.version.startswith("4.0."):
        pytest.skip("Spark 4.0 has TCP only")
    [found] = spark.sparkContext.parallelize([0], 1).map(families).collect()
    assert found
    assert all(found)


def test_log_settings_are_shipped():
    assert LOG_SETTINGS.is_file()


def test_workers_are_this_python(spark):
    [executable] = spark.range(1).rdd.map(lambda _: sys.executable).collect()
    assert os.path.realpath(executable) == os.path.realpath(sys.executable)


def test_source_is_registered(spark):
    # A name that is not registered is "not found"; here the source itself answers.
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("tailrace").load()
    assert "DATA_SOURCE_NOT_FOUND" not in str(caught.value)


def test_source_is_found_in_a_thread_that_has_registered_it(spark, tmp_path):
    """Spark looks in the active session of the calling thread, and another thread has none."""

    def start_and_stop():
        register(spark)
        stream = spark.readStream.format("rate").load().writeStream.format("tailrace")
        query = stream.option("checkpointLocation", str(tmp_path)).start()
        query.stop()
        return query

    with ThreadPoolExecutor(1) as thread:
        assert not thread.submit(start_and_stop).result().isActive


def test_active_session_is_taken(spark):
    again = local_session(config={"spark.sql.shuffle.partitions": 4})
    assert again.sparkContext is spark.sparkContext


@pytest.mark.parametrize("version", ["2.4.8", "3.5.1", "3.9.0.dev3"])
def test_a_spark_that_is_too_old_is_refused_and_told(version, monkeypatch):
    with pytest.raises(ImportError, match=rf"the session's Spark is version {version}, .* 4\.0 or newer: pip install"):
        register(SimpleNamespace(version=version))
    monkeypatch.setattr("pyspark.__version__", version)
    for call in (local_session, lambda: register(None)):
        with pytest.raises(ImportError, match=rf"pyspark is version {version}, .* 4\.0 or newer: pip install"):
            call()


@pytest.mark.slow
def test_without_pyspark_the_error_says_what_to_install():
    code = "import sys; sys.modules['pyspark'] = None; import pyspark_tailrace; pyspark_tailrace.local_session()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (
        "ImportError: Spark is not installed here. Install it with: pip install 'tailrace[spark-local]'" in done.stderr
    )
