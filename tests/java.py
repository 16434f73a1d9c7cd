"""The Java options of the Spark sessions in tests, and a class archive that shortens their start: `python -m tests.java` writes it.

The sessions do little work, so Java's second compiler would cost more time than it saves, and so would verifying the bytecode of Spark and reading
its classes from the jars at every start.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix, "spark.jsa")
"""The path of the class archive. Java ignores an archive that is missing or of another version."""
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
    """Returns the options in the form of `SPARK_SUBMIT_OPTS`."""
    return " ".join([*_QUICK, f"-XX:SharedArchiveFile={ARCHIVE}"])


def write_archive() -> None:
    """Runs typical work of tests on Spark, and writes the classes that it loads to the archive."""
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        written = Path(folder, ARCHIVE.name)
        os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*_QUICK, f"-XX:ArchiveClassesAtExit={written}"])
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        _work(Path(folder))
        written.rename(ARCHIVE)


def _work(folder: Path) -> None:
    import ssbroker.spark  # noqa: PLC0415 - needed only to write the archive
    from tests.spark.frames import frame, session_builder, world  # noqa: PLC0415 - as above
    from tests.worlds.universe import NOW  # noqa: PLC0415 - as above

    spark = session_builder().getOrCreate()
    catalog, table = world(3, conversations=60)
    routed = ssbroker.spark.route(frame(spark, table), catalog, now=NOW)
    routed.write.parquet(str(folder / "routed"))
    ssbroker.spark.route(frame(spark, table), catalog, now=NOW, engine="arrow").collect()
    again = spark.read.parquet(str(folder / "routed"))
    again.join(routed, "row").groupBy("row").count().orderBy("row").toPandas()
    stream = spark.readStream.schema(again.schema).parquet(str(folder / "routed")).writeStream
    query = stream.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint"))
    query.format("parquet").start(str(folder / "streamed")).awaitTermination()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    # Java writes the archive when it ends; it would be killed if this process ended first.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    write_archive()
