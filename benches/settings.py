"""The sizes of the benchmarks, and their results for the tables at the end."""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path
from typing import Final


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """Numbers of rows and rounds. `digested` is in bytes; `shrunk` divides the number of messages; `queued` and `networked` are numbers of
    messages in queues and between processes; `instances` are numbers of instances; `streamed` is the number of fragments per batch of a stream.
    """

    routes: tuple[int, ...]
    spark_routes: tuple[int, ...]
    conversations: int
    rounds: int
    built_routes: int
    flood: int
    digested: int
    shrunk: int
    spark_shrunk: int
    queued: int
    networked: int
    instances: tuple[int, ...]
    streamed: int
    streamed_batches: int
    streamed_conversations: tuple[int, ...]
    streamed_rounds: int


SIZES: Final = {
    "short": Size(
        routes=(100, 10_000),
        spark_routes=(10_000,),
        conversations=100_000,
        rounds=1,
        built_routes=100_000,
        flood=4_000,
        digested=8 << 20,
        shrunk=40,
        spark_shrunk=200,
        queued=80,
        networked=400,
        instances=(2, 4),
        streamed=8_000,
        streamed_batches=2,
        streamed_conversations=(1_000,),
        streamed_rounds=1,
    ),
    "full": Size(
        routes=(100, 10_000, 1_000_000),
        spark_routes=(100, 10_000, 1_000_000),
        conversations=10_000_000,
        rounds=5,
        built_routes=1_000_000,
        flood=100_000,
        digested=128 << 20,
        shrunk=1,
        spark_shrunk=1,
        queued=3_000,
        networked=40_000,
        instances=(2, 4, 8),
        streamed=400_000,
        streamed_batches=5,
        streamed_conversations=(1_000, 10_000, 50_000),
        streamed_rounds=2,
    ),
}
# `make bench BENCH_SHORT=1` sets it through the environment.
SIZE: Final = SIZES[os.environ.get("SSBROKER_BENCH", "short" if os.environ.get("BENCH_SHORT") else "full")]

REPORT: Final[dict[str, list[str]]] = {}
"""Lines by heading; conftest.py prints them."""


def processor() -> str:
    """Returns the model of the processor, and the width of its vectors if Linux reports it."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    lines = (line.partition(":") for line in info.read_text(encoding="utf-8").splitlines())
    found = {name.strip(): value.strip() for name, _, value in lines}
    flags = found.get("flags", "").split()
    width = next((bits for flag, bits in (("avx512f", 512), ("avx2", 256)) if flag in flags), 128)
    return f"{found.get('model name', platform.machine())}, vectors of {width} bits"


def report(heading: str, line: str) -> None:
    """Adds a line to the report at the end."""
    REPORT.setdefault(heading, []).append(line)
