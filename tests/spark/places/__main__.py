"""Tries everything that a place is for: `python -m tests.spark.places PLACE FOLDER`, where PLACE is `cluster` or `connect`.

In a process of its own, since one process has either sessions of the one kind or of the other. One session for all, for its start costs more
than most of what is tried.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.guards.repository import ROOT

if __name__ == "__main__":
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT))

    from tests.spark.places import cluster, connect, source, stream
    from tests.spark.places.sessions import session

    place, folder = sys.argv[1], Path(sys.argv[2])
    spark = session(place)
    checks = {"cluster": (cluster.check, stream.check), "connect": (connect.check, stream.check, source.check)}
    for check in checks[place]:
        check(spark, folder / check.__module__)
        print(check.__module__, "is well")
    spark.stop()
