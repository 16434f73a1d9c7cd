"""The sessions of the environments."""

from __future__ import annotations

import os
from typing import Final

from pyspark.sql import SparkSession

from tests.guards.repository import ROOT
from tests.spark.frames import QUIET, session_builder

SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def session(environment: str) -> SparkSession:
    """Returns the session of an environment, configured for streams."""
    if environment == "connect":
        builder = SparkSession.builder.remote("local[2]")
        settings = QUIET
    else:
        builder = session_builder().master("local-cluster[2,1,1024]")
        settings = {
            "spark.executor.memory": "1g",
            "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
            "spark.executorEnv.PYTHONPATH": str(ROOT),
        }
    for name, value in {**settings, **SETTINGS}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
