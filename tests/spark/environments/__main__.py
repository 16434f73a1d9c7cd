"""Runs all checks of an environment: `python -m tests.spark.environments NAME FOLDER`, where NAME is `cluster` or `connect`.

Each environment runs in its own process, because a process has sessions of one kind only. All checks share one session, because starting it takes
longer than most of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.guards.repository import ROOT

if __name__ == "__main__":
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT))

    from tests.spark.environments import cluster, connect, source, stream
    from tests.spark.environments.sessions import session

    environment, folder = sys.argv[1], Path(sys.argv[2])
    checks = {"cluster": (cluster.check, stream.check), "connect": (connect.check, stream.check, source.check)}
    with session(environment, folder / environment) as spark:
        for check in checks[environment]:
            check(spark, folder / check.__module__)
            print(check.__module__, "passed")
