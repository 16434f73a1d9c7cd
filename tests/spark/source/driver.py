"""A driver of an endless stream from files into an instance, for tests that kill it.

Run: `python -m tests.spark.source.driver FOLDER`, where FOLDER contains `rows` and `shop`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.guards.repository import ROOT
from tests.spark.frames import session_builder
from tests.spark.source.instances import TO_ORDERS


def main(folder: Path) -> None:
    """Runs the query until it is killed."""
    spark = session_builder().getOrCreate()
    rows = spark.readStream.schema("message_body binary, position bigint").option("maxFilesPerTrigger", 1)
    writer = rows.parquet(str(folder / "rows")).writeStream.format("ssbroker").options(**TO_ORDERS)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="100 milliseconds")
    writer.start(str(folder / "shop")).awaitTermination()


if __name__ == "__main__":
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT))
    main(Path(sys.argv[1]))
