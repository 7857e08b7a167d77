"""Starts a Spark session on this machine, and registers the source in any session."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_tailrace.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
JVM_OPTIONS = "spark.driver.extraJavaOptions"
# Spark 4.1 and newer: the sockets between Java and its Python workers, and the folder of their names.
SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"
# Linux takes 107 bytes of a socket's path; the name that Spark adds to the folder has 43.
SOCKET_FOLDER_BYTES_MAX = 107 - 43
NO_PYSPARK = "Spark is not installed here. Install it with: pip install 'tailrace[spark-local]'"


def local_session(
    *, master: str = "local[*]", app_name: str = "tailrace", config: Mapping[str, object] = {}
) -> SparkSession:
    """Starts Spark on this machine, ready for ``format("tailrace")``.

    It finds a Java (``pyspark_tailrace.java``), makes Spark's workers run this Python, leaves the web interface off and
    logs errors only. On Linux, Java and the workers talk by Unix domain sockets (Spark 4.1 and newer). If a session is
    active already, it registers the source there, and applies the settings that can still be changed.

    It sets JAVA_HOME, PYSPARK_PYTHON and, unless it is set, SPARK_LOCAL_IP in ``os.environ``, because Spark reads them
    only there. The caller stops the session with ``stop()``.

    Args:
        master: Spark's master.
        app_name: The name of the application.
        config: Spark's settings, which win over those of this function. True is written as ``true``. Settings of the
            Java machine, such as ``spark.driver.memory``, count only for the first session of a process.

    Returns:
        The session.

    Raises:
        JavaNotFound: There is no Java that runs this Spark. The message says what to install.
        ImportError: PySpark is missing or too old. The message says what to install.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(NO_PYSPARK) from error
    from pyspark_tailrace.versions import check_version, java_version_max

    check_version("pyspark", pyspark.__version__)
    if SparkSession.getActiveSession() is None:
        _prepare_environment(master, java_version_max(pyspark.__version__))
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in session_settings(config, socket_folder(master)).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Registers ``format("tailrace")`` in a session, and makes it the active session of the calling thread.

    A session that ``newSession()`` made needs its own call. So does each thread that starts a query, because Spark
    looks for sources written in Python in the active session of the thread.

    Names of columns, in ``.schema()`` and in options, are matched by case if ``spark.sql.caseSensitive`` is true now.
    After a change of that setting call this again, because Spark does not tell it to sources.

    Args:
        spark: The session.

    Raises:
        ImportError: PySpark, or the Spark of the session, is too old.
    """
    import pyspark

    from pyspark_tailrace.versions import check_version, register_source

    check_version("pyspark", pyspark.__version__)
    check_version("the session's Spark", spark.version)
    from pyspark_tailrace.source import source_for

    register_source(spark, source_for(spark.conf.get("spark.sql.caseSensitive", "false")))
    # Of PySpark's public calls, this one alone makes a session active in a thread that did not start it.
    spark.createDataFrame([], "unused int")


def socket_folder(master: str) -> str | None:
    """Returns the folder for Unix domain sockets between Java and its Python workers; None if they talk by TCP.

    Over TCP a worker waits 40 ms for about every second task: Java sends a task in several small pieces, and the system
    holds the second one back until the first is acknowledged.
    """
    folder = tempfile.gettempdir()
    fits = len(os.fsencode(folder)) <= SOCKET_FOLDER_BYTES_MAX
    return folder if sys.platform == "linux" and master.startswith("local") and fits else None


def session_settings(config: Mapping[str, object], sockets: str | None = None) -> dict[str, str]:
    """Returns Spark's settings for a local session: ours, overridden by those of ``config``.

    ``sockets`` is the folder for Unix domain sockets, if there are some. PYSPARK_UDS_MODE in the environment wins.
    """
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Java options are split at blanks; a URI has none.
        JVM_OPTIONS: f"-Dlog4j2.configurationFile={LOG_SETTINGS.resolve().as_uri()}",
    }
    if sockets is not None and "PYSPARK_UDS_MODE" not in os.environ:
        settings |= {SOCKETS: "true", SOCKET_FOLDER: sockets}
    for name, value in config.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        settings[name] = f"{settings[name]} {text}" if name == JVM_OPTIONS else text
    return settings


def _prepare_environment(master: str, java_version_max: int | None) -> None:
    os.environ["JAVA_HOME"] = str(find_java(version_max=java_version_max).home)
    # Otherwise the workers run the first `python3` on the PATH, which may lack pyarrow and this package.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if master.startswith("local"):
        # A local Spark needs no other address. Without this, Spark looks up the host's own name, which may not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
