"""A standalone cluster of Spark on this machine: a master and two workers, each in its own process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

from tests.logged_process import logged_process

_SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
_ADDRESS: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Starts the cluster, and yields the address of its master; its logs, and the files of its executors, are in `folder`."""
    folder.mkdir(parents=True)
    with ExitStack() as processes:
        master = _process("master.Master", *_ADDRESS, log=folder / "master.log", until=r"master at (spark://\S+)")
        address = processes.enter_context(master)[1]
        for name in ("worker1", "worker2"):
            resources = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / name), address)
            log = folder / f"{name}.log"
            worker = _process(
                "worker.Worker", *_ADDRESS, *resources, log=log, until="Successfully registered with master"
            )
            processes.enter_context(worker)
        yield address


def _process(name: str, *arguments: str, log: Path, until: str) -> AbstractContextManager[re.Match[str]]:
    """Runs a class of Spark, as `logged_process` does."""
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Dspark.master.rest.enabled=false"
    variables = {**os.environ, "SPARK_DAEMON_JAVA_OPTS": options, "SPARK_DAEMON_MEMORY": "256m"}
    command: list[str | Path] = [_SPARK_CLASS, f"org.apache.spark.deploy.{name}", *arguments]
    return logged_process(command, log=log, until=until, variables=variables)
