"""A process that commits a message and is killed before delivery. Arguments: the folder of the instance."""

from __future__ import annotations

import os
import signal
import sys

from ssbroker.broker import local_delivery
from ssbroker.broker.instance import Instance
from tests.broker.sample_databases import send


def die(*_args: object, **_named: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    setattr(local_delivery, sys.argv[2], die)
    with Instance.open(sys.argv[1], background=False) as instance:
        send(instance.database("Sales"), b"one", b"two")
