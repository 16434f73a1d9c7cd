"""How Java runs for the Sparks of tests, each of which does little: `python -m tests.java` writes an archive of the classes that they load.

No Spark of a test runs for long enough that Java's second compiler would pay for itself: without it a page takes half the time. What Spark is made
of need not be verified at every start, which takes a fifth of it, nor be read from its jars again, which takes two fifths of the rest.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix, "spark.jsa")
"""Where the archive stands, if somebody has written one. Java does without it where it does not fit."""
_QUICK: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",
    "-Xlog:class+path=off",
)


def options() -> str:
    """The options, as `SPARK_SUBMIT_OPTS` takes them."""
    return " ".join([*_QUICK, f"-XX:SharedArchiveFile={ARCHIVE}"])


def write_archive() -> None:
    """Has a Spark do what tests do, and keeps the classes that it has loaded."""
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        written = Path(folder, ARCHIVE.name)
        os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*_QUICK, f"-XX:ArchiveClassesAtExit={written}"])
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        _work(Path(folder))
        written.rename(ARCHIVE)


def _work(folder: Path) -> None:
    import ssbroker.spark  # noqa: PLC0415 - only who writes the archive needs Spark
    from tests.spark.frames import frame, session_builder, world  # noqa: PLC0415 - the same
    from tests.worlds.universe import NOW  # noqa: PLC0415 - the same

    spark = session_builder().getOrCreate()
    catalog, table = world(3, conversations=60)
    routed = ssbroker.spark.route(frame(spark, table), catalog, now=NOW)
    routed.write.parquet(str(folder / "routed"))
    again = spark.read.parquet(str(folder / "routed"))
    again.join(routed, "row").groupBy("row").count().orderBy("row").toPandas()
    stream = spark.readStream.schema(again.schema).parquet(str(folder / "routed")).writeStream
    query = stream.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint"))
    query.format("parquet").start(str(folder / "streamed")).awaitTermination()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    # Java writes the archive as it ends, and would be killed with this process.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    write_archive()
