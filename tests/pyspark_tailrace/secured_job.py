"""A query into nodes that speak TLS and require tokens, reads of its feed, and all that Spark tells of them.

Run as a program: its argument is JSON (``run_job`` of test_secured.py). Spark's log goes to stderr. The event log, the
plans, the progress, the pages of the UI and the errors of wrong secrets go to files in ``told``.
"""

from __future__ import annotations

import json
import sys
import traceback
import urllib.request
from pathlib import Path

SETTINGS = {
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": 2,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
}
# What the REST interface of the UI has, and its page of SQL, which shows descriptions.
PAGES = ("sql?details=true&planDescription=true", "jobs", "stages?details=true", "environment", "executors")


def plans(frame):
    """The plans of a batch, as EXPLAIN tells them."""
    return "\n".join(frame._jdf.queryExecution().explainString(mode) for mode in modes(frame))


def modes(frame):
    explain = frame.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode
    return [explain.fromString(name) for name in ("extended", "formatted", "cost", "codegen")]


def failing(work):
    """The traceback of a job that cannot succeed."""
    try:
        work()
    except Exception:
        return traceback.format_exc()
    raise AssertionError("it has succeeded")


def main(spec):
    folder, options = Path(spec["folder"]), spec["options"]
    told = folder / "told"
    (told / "events").mkdir(parents=True)
    from pyspark_tailrace import local_session

    spark = local_session(
        master="local[2]", app_name="secured", config=SETTINGS | {"spark.eventLog.dir": (told / "events").as_uri()}
    )
    spark.sparkContext.setLogLevel("INFO")
    stream = spark.readStream.schema("key BINARY, value BINARY").option("maxFilesPerTrigger", 1)
    rows = stream.parquet(str(folder / "in")).repartition(2)
    writer = rows.writeStream.format("tailrace").options(create_feed="true", partitions="4", **options)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    (folder / "started").touch()
    query.awaitTermination()
    (told / "progress").write_text("\n".join(map(str, query.recentProgress)))
    (told / "query plan").write_text(query._jsq.explainInternal(True))
    read = spark.read.format("tailrace").options(**options).load()
    (told / "plans").write_text(plans(read))
    (folder / "keys").write_text(json.dumps([bytes(row.key).decode() for row in read.select("key").collect()]))
    follow = spark.readStream.format("tailrace").options(**options).load()
    copied = follow.writeStream.format("memory").queryName("copied").trigger(availableNow=True).start()
    copied.awaitTermination()
    (told / "stream plan").write_text(copied._jsq.explainInternal(True))
    (folder / "count").write_text(str(spark.sql("SELECT count(*) FROM copied").collect()[0][0]))
    for name, changed in spec["wrong"].items():
        wrong = spark.read.format("tailrace").options(**options | {"retry_for": "1"} | changed)
        (told / f"wrong {name}").write_text(failing(lambda wrong=wrong: wrong.load().collect()))
        frame = spark.createDataFrame([(b"k", b"v")], "key BINARY, value BINARY")
        sink = frame.write.format("tailrace").mode("append").options(**options | {"retry_for": "1"} | changed)
        (told / f"wrong sink {name}").write_text(failing(sink.save))
    ui = f"{spark.sparkContext.uiWebUrl}/"
    address = f"{ui}api/v1/applications/{spark.sparkContext.applicationId}/"
    for number, page in enumerate([*(address + page for page in PAGES), ui + "SQL/", ui + "StreamingQuery/"]):
        with urllib.request.urlopen(page, timeout=60) as answer:
            (told / f"page {number}").write_bytes(answer.read())
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
