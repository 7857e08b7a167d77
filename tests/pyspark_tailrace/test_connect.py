"""Spark Connect: a server in a process of its own, and a client that has no Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest
from tests.pyspark_tailrace.connect_job import ROWS

from pyspark_tailrace.java import find_java
from pyspark_tailrace.session import session_settings
from tailrace.testing.ports import free_port

SUBMIT = Path(pyspark.__file__).with_name("bin") / "spark-submit"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
JOB = Path(__file__).with_name("connect_job.py")


def python_path(**more):
    """An environment whose Python finds what this one finds."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


@pytest.fixture
def connect_server(tmp_path):
    """The address of a server, which may not accept calls yet."""
    port = free_port()
    settings = session_settings(
        {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": port,
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.warehouse.dir": (tmp_path / "warehouse").as_uri(),
            "spark.driver.memory": "768m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
    )
    command = [SUBMIT, "--master", "local[2]", "--class", SERVER]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environ = python_path(JAVA_HOME=str(find_java().home), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen([*command, "spark-internal"], env=environ, cwd=tmp_path, stdout=log, stderr=log)
        yield f"127.0.0.1:{port}"
        server.terminate()
        server.wait()


@pytest.mark.long
def test_what_works_over_connect(connect_server, node_process, contents, tmp_path):
    without_java = python_path(JAVA_HOME=str(tmp_path / "none"))
    command = [sys.executable, JOB, connect_server, node_process.url, tmp_path / "checkpoints"]
    done = subprocess.run(command, env=without_java, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + (tmp_path / "server.log").read_text()
    said = json.loads(done.stdout)

    wanted = {b"%d" % number: [b'{"n":%d}' % number] for number in range(ROWS)}
    assert contents(node_process.url, "rows").history() == wanted
    assert (said["rows"], said["total"], said["filtered"]) == (ROWS, sum(range(ROWS)), 1)

    assert said["copying"] == ["", ""]
    assert contents(node_process.url, "copy").history() == wanted, "a micro-batch was published twice, or not at all"

    assert said["counting"] == ""
    digits = Counter(str(number)[0] for number in range(ROWS))
    counted = contents(node_process.url, "counts").history()
    assert counted == {digit.encode(): [b"%d" % count] for digit, count in digits.items()}
    assert "ValueError: Spark does not tell the query's id here" in said["counting without a name"]
