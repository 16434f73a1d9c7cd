"""The program of one process of a fleet: serves an instance, runs the application of its role, and reports on standard output.

`python -m tests.system.node ROLE FOLDER HOST PLAN OPTIONS`: the role is initiator, target or forwarder; the plan and the options of `serve` are JSON
files.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from ssbroker import Instance
from tests.system import applications
from tests.system.applications import Initiator, Target
from tests.system.serve_options import serve_arguments
from tests.system.traffic import Plan

FAILED: Final = 3
ROWS_KIB: Final = "rows_kib"
"""Name of the report on peak memory of rows."""
_LOOK_SECONDS: Final = 0.25


def main(role: str, folder: str, host: str, plan: str, options: str) -> int:
    """Runs until SIGTERM; returns 0 if nothing failed."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    failures: list[str] = []
    with Instance.open(folder) as instance:
        given = serve_arguments(json.loads(Path(options).read_text(encoding="utf-8")))
        with instance.serve(host=host, port=0, **given) as server:
            threads = [
                threading.Thread(target=_guarded, args=(loop, stopped, failures))
                for loop in _loops(role, instance, Plan.read(Path(plan)))
            ]
            report("ready", server.port)
            for thread in threads:
                thread.start()
            while not stopped.wait(_LOOK_SECONDS):
                report(ROWS_KIB, (pa.default_memory_pool().max_memory() or 0) >> 10)
                report("waiting", sum(applications.waiting(each) for each in instance.databases))
            for thread in threads:
                thread.join()
    sys.stderr.write("".join(failures))
    return FAILED if failures else 0


def report(*words: object) -> None:
    """Reports something in one write, so that a report before a kill is complete."""
    os.write(sys.stdout.fileno(), (" ".join(str(word) for word in words) + "\n").encode())


def _loops(role: str, instance: Instance, plan: Plan) -> list[Callable[[threading.Event], None]]:
    if role == "forwarder":
        return []
    application = Initiator(instance, plan, report) if role == "initiator" else Target(instance, plan, report)
    return [*application.loops()]


def _guarded(loop: Callable[[threading.Event], None], stopped: threading.Event, failures: list[str]) -> None:
    try:
        loop(stopped)
    except BaseException:  # noqa: BLE001  # an error in an application ends its process, and is reported
        failures.append(traceback.format_exc())
        stopped.set()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
