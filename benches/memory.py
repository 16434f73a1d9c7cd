"""Time and memory of building a router, routing and reassembly, each measured in a new process (Linux only).

The input is read from Arrow files that another process wrote, so that the memory freed by generating it cannot be reused.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import pyarrow as pa

import ssbroker
from benches import fragments, workload

_MEGA = 1e6
_CLEAR_PEAK = "5"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """Building a catalog and a router: wall time, CPU time and growth of the process. The peak covers both."""

    catalog_s: float
    router_s: float
    cpu_s: float
    catalog_mb: float
    router_mb: float
    peak_mb: float
    index_mb: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Route:
    """A call of `route`: the size of its input and output, and the peak beyond these and the index."""

    input_mb: float
    output_mb: float
    extra_mb: float
    rows: float

    @property
    def share(self) -> float:
        return self.extra_mb / self.input_mb


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reassembly:
    """A call of `reassemble`: the size of its input and output, and the peak, input included."""

    input_mb: float
    output_mb: float
    peak_mb: float
    messages: float

    @property
    def share(self) -> float:
        return self.peak_mb / self.input_mb


def build(routes: int) -> Build:
    """Measures building a router of `routes` routes."""
    return Build(**_in_process("build", routes=workload.routes(routes)))


def route(routes: int, conversations: int) -> Route:
    """Measures routing conversations."""
    tables = {"routes": workload.routes(routes), "conversations": workload.conversations(conversations, routes)}
    return Route(**_in_process("route", **tables))


def reassemble(shape: fragments.Shape) -> Reassembly:
    """Measures reassembling fragments of this shape."""
    return Reassembly(**_in_process("reassemble", fragments=fragments.traffic(shape).fragments))


def _in_process(step: str, **tables: pa.Table) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables.items():
            _write(pathlib.Path(folder, f"{name}.arrow"), table)
        command = [sys.executable, "-m", "benches.memory", step, folder]
        root = pathlib.Path(__file__).parents[1]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure_build(folder: pathlib.Path) -> dict[str, float]:
    table = _read(folder / "routes.arrow")
    start = _settle()
    cpu = time.process_time()
    times, sizes = [time.perf_counter()], [start]
    catalog = ssbroker.Catalog(table)
    times.append(time.perf_counter())
    cpu_of_catalog = time.process_time() - cpu
    peak = _status("VmHWM")
    sizes.append(_settle())
    cpu = time.process_time()
    between = time.perf_counter()
    router = ssbroker.Router(catalog, tie_break="hash")
    times.append(time.perf_counter())
    cpu_of_router = time.process_time() - cpu
    peak = max(peak, _status("VmHWM"))
    sizes.append(_settle())
    return {
        "catalog_s": times[1] - times[0],
        "router_s": times[2] - between,
        "cpu_s": cpu_of_catalog + cpu_of_router,
        "catalog_mb": sizes[1] - sizes[0],
        "router_mb": sizes[2] - sizes[1],
        "peak_mb": peak - start,
        "index_mb": router.nbytes / _MEGA,
    }


def _measure_route(folder: pathlib.Path) -> dict[str, float]:
    router = ssbroker.Router(ssbroker.Catalog(_read(folder / "routes.arrow")))
    conversations = _read(folder / "conversations.arrow")
    start = _settle()
    decisions = router.route(conversations, now=workload.NOW)
    peak = _status("VmHWM")
    # Pages that were never written, such as those of a column of nulls, use no memory.
    end = _settle()
    return {
        "input_mb": conversations.get_total_buffer_size() / _MEGA,
        "output_mb": end - start,
        "extra_mb": peak - end,
        "rows": decisions.num_rows,
    }


def _measure_reassemble(folder: pathlib.Path) -> dict[str, float]:
    # The memory that the first call loads and keeps does not count.
    few = fragments.Shape(messages=20, parts=2, part_bytes=16, conversations=5)
    ssbroker.reassemble(fragments.traffic(few).fragments)
    bare = _settle()
    given = _read(folder / "fragments.arrow")
    start = _settle()
    result = ssbroker.reassemble(given)
    peak = _status("VmHWM")
    end = _settle()
    return {
        "input_mb": given.get_total_buffer_size() / _MEGA,
        "output_mb": end - start,
        "peak_mb": peak - bare,
        "messages": result.messages.num_rows,
    }


def _settle() -> float:
    """Returns free memory to the system, resets the peak, and returns the memory in use in megabytes."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK)
    return _status("VmRSS")


def _status(name: str) -> float:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kilobytes) * 1024 / _MEGA


def _write(path: pathlib.Path, table: pa.Table) -> None:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def _read(path: pathlib.Path) -> pa.Table:
    with pa.OSFile(str(path), "rb") as source:
        return pa.ipc.open_file(source).read_all()


if __name__ == "__main__":
    steps = {"build": _measure_build, "route": _measure_route, "reassemble": _measure_reassemble}
    print(json.dumps(steps[sys.argv[1]](pathlib.Path(sys.argv[2]))))
