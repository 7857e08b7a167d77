"""Starts a Spark session on this machine, and registers the source in any session."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_tailrace.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
JVM_OPTIONS = "spark.driver.extraJavaOptions"
NO_PYSPARK = "Spark is not installed here. Install it with: pip install 'tailrace[spark-local]'"


def local_session(
    *, master: str = "local[*]", app_name: str = "tailrace", config: Mapping[str, object] = {}
) -> SparkSession:
    """Starts Spark on this machine, ready for ``format("tailrace")``.

    It finds a Java (``pyspark_tailrace.java``), makes Spark's workers run this Python, leaves the web interface off and
    logs errors only. If a session is active already, it registers the source there, and applies the settings that can
    still be changed.

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
    for name, value in session_settings(config).items():
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


def session_settings(config: Mapping[str, object]) -> dict[str, str]:
    """Returns Spark's settings for a local session: ours, overridden by those of ``config``."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Java options are split at blanks; a URI has none.
        JVM_OPTIONS: f"-Dlog4j2.configurationFile={LOG_SETTINGS.resolve().as_uri()}",
    }
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
