"""Makes the environments of docs/reference/compatibility.md, runs the matrix in each, and checks the table: `python -m tests.compat.lanes WHEEL`.

Each lane is an environment with the libraries of a Spark runtime. The wheel is installed into it as a user would, which must not change any
package that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.compat import upgrades
from tests.logged_process import logged_process

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "compatibility.md"


@dataclass(frozen=True)
class Lane:
    """An environment.

    Attributes:
        name: Its name, and the heading of its column in the table; a lane without Spark has no column.
        packages: The packages that are installed before ssbroker.
        broker: How the libraries of the broker are installed.
        refused: The features that do not work, and a part of the error message.
        python: The command of its Python, if it is installed; otherwise that which runs the lanes.
        server: The lane whose Spark serves this one by Spark Connect; None if the lane has its own.
    """

    name: str
    packages: Sequence[str]
    broker: Sequence[str] = ("apsw", "cryptography")
    refused: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    server: str | None = None

    @property
    def has_spark(self) -> bool:
        """Whether PySpark is installed."""
        return any(package.startswith("pyspark") for package in self.packages)


_NO_STREAMS: Final = ("spark.stream", "spark.stream_state", "spark.route_stream")
_NO_SOURCE: Final = dict.fromkeys(("spark.data_source", "spark.data_source_stream"), "ssbroker")


def lowest(*extras: str) -> tuple[str, ...]:
    """Returns the lowest versions of what ssbroker and some of its extras require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [*project["dependencies"], *(each for name in extras for each in project["optional-dependencies"][name])]
    return tuple(each.replace(">=", "==") for each in required)


def pinned_groups(*names: str) -> tuple[str, ...]:
    """Returns the entries of the dependency groups for some libraries."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    found = {each: re.split(r"[^\w-]", each, maxsplit=1)[0] for group in groups.values() for each in group}
    return tuple(dict.fromkeys(entry for entry, library in found.items() if library in names))


_TEST_LIBRARIES: Final = pinned_groups(
    "apsw",
    "cloudpickle",
    "cryptography",
    "duckdb",
    "hypothesis",
    "polars",
    "prometheus-client",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "scipy",
)

NEWEST: Final = "Spark 4.3.0"
LANES: Final = {
    lane.name: lane
    for lane in (
        Lane(
            "Spark 3.5.1",
            ("pyspark==3.5.1", "pyarrow==14.0.2", "pandas==2.1.4", "numpy==1.26.4", "protobuf==3.20.3", "rich==13.3.5"),
            refused={**dict.fromkeys(_NO_STREAMS, "needs PySpark 4.0 or newer, and 3.5.1 is installed"), **_NO_SOURCE},
        ),
        Lane(
            "Spark 4.0.1",
            ("pyspark==4.0.1", "pyarrow==18.1.0", "pandas==2.2.3", "numpy==1.26.4", "protobuf==5.28.3", "rich==13.9.4"),
        ),
        Lane(
            "Spark 4.1.1",
            (
                "pyspark==4.1.1",
                "pyarrow==24.0.0",
                "pandas==2.3.3",
                "numpy==2.4.1",
                "protobuf==5.29.6",
                "rich==15.0.0",
                "typer==0.26.8",
            ),
            refused={
                "spark.stream": "needs the version of protobuf that this PySpark was built with",
                "spark.route_stream": "needs the version of protobuf that this PySpark was built with",
                "spark.stream_state": "no micro-batch has been committed",
            },
        ),
        Lane(NEWEST, ("pyspark[connect,sql]==4.3.0", "pandas<3", "protobuf>=6.33.5")),
        Lane("Connect client 4.2.0", ("pyspark-client==4.2.0", "pandas<3"), server=NEWEST),
        Lane("lowest extras", (*lowest("cli", "broker", "http"), "numpy<2"), broker=()),
    )
}
DECIDED: Final = re.compile(r"^ {2,}[\d,]+  ")
"""A row of the tables of the demo."""
RUNTIMES: Final = {
    "Fabric 1.3": LANES["Spark 3.5.1"],
    "Synapse 3.5": Lane(
        "Synapse 3.5",
        ("pyspark==3.5.5", "pyarrow==19.0.0", "pandas==2.2.3", "numpy==1.26.4", "protobuf==4.25.3", "rich==13.9.4"),
    ),
    "Fabric 2.0": Lane("Fabric 2.0", LANES["Spark 4.1.1"].packages, python="python3.13"),
}
"""Managed Sparks, with the versions that are published."""

TESTS: Final = {
    "oldest": (
        Lane("tests on pyarrow 14", ("pyarrow==14.0.2", "pandas==2.1.4", "numpy==1.26.4", *_TEST_LIBRARIES), broker=()),
        ("base", "boundary", "catalog", "property", "reassembly", "routing"),
    ),
    "streams": (
        Lane("tests on Spark 4.0", (*LANES["Spark 4.0.1"].packages, *_TEST_LIBRARIES), broker=()),
        ("spark/streams",),
    ),
}
"""Environments in which tests run, and the folders of the tests."""

UPGRADES: Final = (
    Lane(
        "tests on Spark 4.1",
        (
            *(each for each in LANES["Spark 4.1.1"].packages if not each.startswith("protobuf")),
            "protobuf==6.33.5",
            *_TEST_LIBRARIES,
        ),
        broker=(),
    ),
    Lane("tests on the newest Spark", (*LANES[NEWEST].packages, *_TEST_LIBRARIES), broker=()),
)
"""Environments in which the streams of Spark 4.0 continue; the last one is the newest."""

ROWS: Final = {
    "`Router.route`, `reassemble`, `md5`, `explain`, `lint`, an instance": (
        "route",
        "reassemble",
        "md5",
        "explain",
        "lint",
        "broker",
    ),
    "`spark.route`": ("spark.route", "spark.route_invalid_text"),
    '`spark.route` with `engine="native"`': ("spark.route_native",),
    "`spark.route_udf`": ("spark.route_udf",),
    "`spark.compare`": ("spark.compare",),
    "`spark.reassemble`": ("spark.reassemble",),
    "`spark.pipeline`": ("spark.pipeline",),
    "`spark.route_files`, `spark.reassemble_files`": ("spark.route_files", "spark.reassemble_files"),
    "`mapInArrow` and pandas UDFs that call ssbroker": ("spark.own_map_in_arrow", "spark.own_pandas_udf"),
    "`spark.route` on a stream, `spark.pipeline` in `foreachBatch`": (
        "spark.route_of_a_stream",
        "spark.pipeline_in_foreach_batch",
    ),
    "`spark.stream`, `spark.stream_state`, `spark.route_stream`": _NO_STREAMS,
    "data source": ("spark.data_source", "spark.data_source_stream"),
}
"""The rows of the table, and the features of the matrix that each row summarizes."""


def _interpreter(lane: Lane) -> str:
    """Returns the Python of a lane if it runs: a version manager may have a command for a Python that is not active."""
    found = shutil.which(lane.python)
    if found is not None and subprocess.run([found, "-V"], capture_output=True, check=False).returncode == 0:
        return found
    if lane.python:
        print(f"{lane.name}: {lane.python} does not run here; uses Python {sys.version.split()[0]}", file=sys.stderr)
    return sys.executable


def environment(lane: Lane, folder: Path) -> Path:
    """Makes the environment of a lane, unless it is there; returns its Python."""
    home = folder / lane.name.replace(" ", "-").lower()
    made, python = home / "made", home / "bin" / "python"
    if made.exists() and made.read_text() == " ".join(lane.packages):
        return python
    shutil.rmtree(home, ignore_errors=True)
    # One pip serves all environments. Compiling all modules of Spark and pandas takes longer than what is imported of them.
    subprocess.run([_interpreter(lane), "-m", "venv", "--without-pip", home], check=True)
    _pip(python, "install", "--no-compile", *lane.packages)
    made.write_text(" ".join(lane.packages))
    return python


def installed(python: Path) -> dict[str, str]:
    """Returns the packages of an environment and their versions."""
    listed = json.loads(_pip(python, "list", "--format=json"))
    return {package["name"].lower(): package["version"] for package in listed}


def install(python: Path, wheel: Path, extra: Sequence[str]) -> list[str]:
    """Installs the wheel as a user does; returns the packages that were there before and have changed."""
    _pip(python, "uninstall", "--yes", "ssbroker")
    before = installed(python)
    _pip(python, "install", "--no-compile", str(wheel))
    after = installed(python)
    changed = [
        f"{name} {version} -> {after.get(name)}" for name, version in before.items() if after.get(name) != version
    ]
    if "pyarrow" in before:
        changed += [f"{name} was added" for name in set(after) - set(before) - {"ssbroker"}]
    if extra:
        _pip(python, "install", "--no-compile", *extra)
    return changed


def run_matrix(python: Path, features: Iterable[str], server: Path | None = None) -> dict[str, Any]:
    """Runs the matrix in an environment, from a folder without the sources; `server` is the Python of the environment whose Spark serves it."""
    matrix = ROOT / "tests" / "compat" / "matrix.py"
    with ExitStack() as servers:
        variables = _variables(python)
        if server is not None:
            variables["SPARK_REMOTE"] = servers.enter_context(connect_server(server))
        done = subprocess.run(
            [python, matrix, *features],
            cwd=python.parents[1],
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            stderr=subprocess.DEVNULL,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_tests(python: Path, folders: Sequence[str]) -> int:
    """Runs the tests of some folders in an environment, as `make test` runs all."""
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-n2", *(f"tests/{name}" for name in folders)]
    return subprocess.run(command, cwd=ROOT, env=_variables(python), check=False).returncode


def run_stream_driver(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the driver of a stream in an environment."""
    command: list[str | Path] = [python, "-m", "tests.spark.streams.driver", *arguments]
    return subprocess.run(command, cwd=ROOT, env=_variables(python), capture_output=True, text=True, check=False)


def run_demo(python: Path) -> str:
    """Runs the job of the demo with few rows; returns the rows of its table."""
    with TemporaryDirectory() as folder:
        shutil.copytree(
            ROOT / "examples" / "route_a_day", Path(folder, "demo"), ignore=shutil.ignore_patterns(".cache")
        )
        command: list[str | Path] = [python, Path(folder, "demo", "main.py"), "--rows", "100000"]
        done = subprocess.run(command, cwd=folder, env=_variables(python), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return str(done.stdout)


def check_runtimes(wheel: Path, folder: Path) -> int:
    """Installs the wheel with the versions of managed Sparks, and runs the job of the demo there."""
    found = set()
    changed = []
    for name, lane in RUNTIMES.items():
        python = environment(lane, folder)
        changed += [f"{name}: the install changed {change}" for change in install(python, wheel, ())]
        decided = [line for line in run_demo(python).splitlines() if DECIDED.search(line)]
        found.add(tuple(decided))
        print(
            name,
            {each: installed(python).get(each) for each in ("pyspark", "pyarrow", "pandas", "numpy", "protobuf")},
            *decided,
            sep="\n",
            flush=True,
        )
    problems = changed + ([] if len(found) == 1 else ["the demos decided differently"])
    print(*problems, sep="\n")
    return min(len(problems), 1)


def check_upgrades(oldest: Path, wheel: Path, folder: Path, newest: Path | None) -> int:
    """Starts a stream with the Python of Spark 4.0, and continues it on later versions; returns the exit status."""
    later = {}
    for lane in UPGRADES:
        if newest is not None and lane is UPGRADES[-1]:
            later[lane.name] = newest
            continue
        later[lane.name] = environment(lane, folder)
        install(later[lane.name], wheel, lane.broker)
    found = upgrades.problems(run_stream_driver, oldest, later)
    print(*found, sep="\n")
    return min(len(found), 1)


def use_command(python: Path) -> None:
    """Uses the library and the command outside the sources, as `scripts/try-install` does."""
    wheel = ROOT / "tests" / "wheel"
    with TemporaryDirectory() as folder:
        for name in ("smoke.py", "routes.sql"):
            shutil.copy(wheel / name, folder)
        subprocess.run([python, "smoke.py"], cwd=folder, env=_variables(python), check=True)


@contextmanager
def connect_server(python: Path) -> Iterator[str]:
    """Starts a Spark Connect server with the Spark of an environment, and yields its address."""
    located = subprocess.run(
        [python, "-c", "import pyspark; print(pyspark.__path__[0])"], capture_output=True, text=True, check=True
    )
    settings = (
        "spark.connect.grpc.binding.address=127.0.0.1",
        "spark.connect.grpc.binding.port=0",
        "spark.ui.enabled=false",
    )
    submit: list[str | Path] = [Path(located.stdout.strip(), "bin", "spark-submit"), "--master", "local[1, 4]"]
    submit += [each for setting in settings for each in ("--conf", setting)]
    submit += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with (
        TemporaryDirectory() as folder,
        logged_process(
            submit,
            log=Path(folder, "log"),
            until=r"started at: .*:(\d+)",
            variables=_variables(python),
            folder=Path(folder),
        ) as started,
    ):
        yield f"sc://127.0.0.1:{started[1]}"


def _variables(python: Path) -> dict[str, str]:
    """Returns the environment variables of processes of a lane."""
    variables = {
        **os.environ,
        "PYSPARK_PYTHON": str(python),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "SPARK_HOME", "SPARK_SUBMIT_OPTS"):
        variables.pop(name, None)
    return variables


def problems(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the differences between lanes, and between a lane and what it refuses."""
    found = []
    expected: dict[str, str] = {}
    for lane, result in reversed(list(results.items())):
        for feature, outcome in result["results"].items():
            refusal = LANES[lane].refused.get(feature)
            if refusal is not None:
                if refusal not in outcome.get("all", ""):
                    found.append(f"{lane}: {feature}: expected an error with {refusal!r}, got {outcome}")
            elif "digest" not in outcome:
                found.append(f"{lane}: {feature}: {outcome['error']}\n{outcome['all']}")
            elif expected.setdefault(feature, outcome["digest"]) != outcome["digest"]:
                found.append(f"{lane}: {feature}: {outcome['digest']}, elsewhere {expected[feature]}")
    return found


def rows(lanes: Sequence[str]) -> list[list[str]]:
    """Returns the rows of the table for some lanes, from the definitions of the lanes."""
    return [
        [title, *("no" if any(name in LANES[lane].refused for name in features) else "yes" for lane in lanes)]
        for title, features in ROWS.items()
    ]


def page_rows() -> list[list[str]]:
    """Returns the rows of the table in the page."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def main() -> int:
    """Runs the lanes, prints the table and what is wrong; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv" / "lanes", help="where the environments are kept")
    parser.add_argument(
        "--newest", type=Path, help="the Python of an environment that has the newest of all, and the wheel"
    )
    parser.add_argument("--lane", action="append", choices=list(LANES), help="run only this lane")
    parser.add_argument("--feature", action="append", default=[], help="run only this feature")
    parser.add_argument("--tests", choices=list(TESTS), help="instead, run tests in an environment with old versions")
    parser.add_argument(
        "--runtimes", action="store_true", help="instead, install and run the demo as in managed Sparks"
    )
    options = parser.parse_args()
    if options.runtimes:
        return check_runtimes(options.wheel.resolve(), options.folder)
    if options.tests:
        lane, folders = TESTS[options.tests]
        python = environment(lane, options.folder)
        install(python, options.wheel.resolve(), lane.broker)
        status = run_tests(python, folders)
        if options.tests == "streams":
            status = check_upgrades(python, options.wheel.resolve(), options.folder, options.newest) or status
        return status
    lanes = options.lane or list(LANES)
    results: dict[str, Any] = {}
    wrong: list[str] = []

    def ready(lane: Lane) -> Path:
        """Returns the Python of a lane's environment, in which the wheel is installed."""
        if lane.name == NEWEST and options.newest:
            return Path(options.newest)
        python = environment(lane, options.folder)
        changed = install(python, options.wheel.resolve(), lane.broker)
        wrong.extend(f"{lane.name}: the install changed {change}" for change in changed)
        return python

    for name in lanes:
        lane = LANES[name]
        server = None if lane.server is None else ready(LANES[lane.server])
        python = ready(lane)
        began = time.monotonic()
        results[name] = run_matrix(python, options.feature, server)
        if not lane.has_spark:
            use_command(python)
        print(f"{name}: {time.monotonic() - began:.0f} s", results[name]["versions"], flush=True)
    wrong += problems(results)
    print(f"\n{'':24}" + "".join(f"{name:>22}" for name in lanes))
    for feature in dict.fromkeys(each for result in results.values() for each in result["results"]):
        cells = [results[name]["results"].get(feature, {"digest": ""}).get("digest", "refused") for name in lanes]
        print(f"{feature:34}" + "".join(f"{cell:>22}" for cell in cells))
    print(*wrong, sep="\n")
    return min(len(wrong), 1)


def _pip(python: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
