"""The sessions of the environments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.guards.repository import ROOT
from tests.spark.environments.standalone import standalone_cluster
from tests.spark.frames import QUIET, session_builder

SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


@contextmanager
def session(environment: str, folder: Path) -> Iterator[SparkSession]:
    """Yields the session of an environment, configured for streams."""
    with ExitStack() as servers:
        if environment == "connect":
            builder = SparkSession.builder.remote("local[2]")
            settings = QUIET
        else:
            builder = session_builder().master(servers.enter_context(standalone_cluster(folder)))
            settings = {
                "spark.executor.memory": "1g",
                "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
                "spark.executorEnv.PYTHONPATH": str(ROOT),
            }
        for name, value in {**settings, **SETTINGS}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        yield spark
        spark.stop()
