"""`ssbroker doctor`: checks the installation, and the files of an instance, or whether a folder can hold one."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ssbroker import _core
from ssbroker._compat import MINIMUMS, is_older
from ssbroker._text import count_of, shortened_list
from ssbroker.catalog.instance_folder import MSDB_FILE, is_instance_folder
from ssbroker.exceptions import SsbrokerError, StorageError

if TYPE_CHECKING:
    from ssbroker.store.database_file import DatabaseFile

EXAMPLES = """Examples:

Check the installation on this machine:

  ssbroker doctor

Check the files of an instance, or whether a folder can hold one:

  ssbroker doctor shop/
"""
_LIBRARIES: Final = {
    "pyarrow": ("the library", "ssbroker"),
    "typer": ("the command line", "ssbroker[cli]"),
    "rich": ("the command line", "ssbroker[cli]"),
    "prompt_toolkit": ("the shell of ssbroker sql", "ssbroker[cli]"),
    "duckdb": ("queries of ssbroker sql", "duckdb"),
    "apsw": ("an instance", "ssbroker[broker]"),
    "cryptography": ("an instance", "ssbroker[broker]"),
    "prometheus-client": ("the metrics of ssbroker serve", "ssbroker[broker]"),
    "starlette": ("ssbroker serve --http", "ssbroker[http]"),
    "uvicorn": ("ssbroker serve --http", "ssbroker[http]"),
    "anyio": ("asyncio and Trio", "ssbroker[asyncio]"),
    "opentelemetry-api": ("traces", "opentelemetry-api"),
    "pyspark": ("Spark", "ssbroker[local-spark]"),
    "pandas": ("streams in Spark", "ssbroker[local-spark]"),
}
"""Libraries, each with the feature that needs it and the package to install."""
_OF_INSTANCES: Final = ("apsw", "cryptography")
_SHOWN_DATABASES_MAX: Final = 10
_CPU_FEATURES: Final = ("avx512f", "avx512bw", "avx512vbmi", "avx2", "sse2", "asimd")
"""Vector instructions that the native module uses where the processor has them."""


def doctor(
    *,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Instance folder, or the folder in which to create an instance."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as a JSON object.")] = False,
) -> None:
    """Check the installation, and the files of an instance.

    Shows the versions of the libraries and what needs them, the vector instructions of the processor, Java and Spark. If the folder holds no instance, shows whether it can hold one. Otherwise, each database is read completely (PRAGMA quick_check), which takes seconds for each gigabyte; the instance can be used at the same time.

    Exit status: 0 if no folder is specified, or if the folder holds an undamaged instance or can hold one, 1 otherwise, 2 after an error.
    """
    problem = None if folder is None else _problem(folder)
    databases = None
    if folder is not None and problem is None and is_instance_folder(folder):
        databases, problem = _check_databases(folder)
    found: dict[str, Any] = {
        "ssbroker": version("ssbroker"),
        "native module": _core.build_profile,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "vector instructions": ", ".join(_vector_instructions()) or "not known on this system",
        "java": _java(),
        "spark": os.environ.get("SPARK_HOME") or _of_library("pyspark"),
        "libraries": {
            name: {"version": _of_library(name), "needed_for": what, "install": package}
            for name, (what, package) in _LIBRARIES.items()
        },
        "folder": None if folder is None else {"path": str(folder), "problem": problem, "databases": databases},
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(_lines(found)))
    if problem is not None:
        raise typer.Exit(1)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, str | None) and name != "folder":
            yield f"{name:<20} {value or 'not found'}"
    yield ""
    for name, library in found["libraries"].items():
        needed = f"not installed; needed for {library['needed_for']}: pip install '{library['install']}'"
        yield f"{name:<20} {library['version'] or needed}"
    if found["folder"] is not None:
        yield ""
        yield from _folder_lines(**found["folder"])


def _folder_lines(*, path: str, problem: str | None, databases: list[dict[str, Any]] | None) -> Iterator[str]:
    if problem is None and databases is None:
        problem = "can hold an instance"
    elif problem is None:
        names = shortened_list([database["name"] for database in databases or ()], _SHOWN_DATABASES_MAX)
        problem = f"holds an instance; no damage was found in {', '.join(names)}"
    yield f"folder {path}: {problem}"
    for database in databases or ():
        if database["problem"] is not None:
            yield f"database {database['name']}: {database['problem']}"


def _check_databases(folder: Path) -> tuple[list[dict[str, Any]] | None, str | None]:
    """Returns the databases of an instance, each with its damage if any, and the problem of the instance, if any."""
    from ssbroker.broker.instance import Instance, instance_context  # noqa: PLC0415 - may not be installed

    try:
        with _without_warnings(), Instance.open(folder, background=False) as instance:
            listed = instance_context(instance).databases_list
            problems: dict[str, str | None] = {
                database.name: _damage(database.file) for database in listed.all().values()
            }
            problems |= {name: str(error) for name, error in listed.unavailable().items()}
    except SsbrokerError as error:
        return None, f"holds an instance that cannot be opened: {error}"
    damaged = sum(problem is not None for problem in problems.values())
    whole = f"holds an instance; damaged or unusable: {damaged:,} of {count_of(len(problems), 'database')}"
    return [{"name": name, "problem": problem} for name, problem in problems.items()], whole if damaged else None


def _damage(file: DatabaseFile) -> str | None:
    try:
        return file.damage()
    except StorageError as error:
        return str(error)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppresses log records about unavailable databases, because the result reports them."""
    logger = logging.getLogger("ssbroker.broker")
    logger.addFilter(_refuse)
    try:
        yield
    finally:
        logger.removeFilter(_refuse)


def _refuse(_record: logging.LogRecord) -> bool:
    return False


def _of_library(name: str) -> str | None:
    try:
        found = version(name)
    except PackageNotFoundError:
        return None
    unmet = (
        f"{feature} needs {minimum.version}"
        for feature, minimum in MINIMUMS.items()
        if minimum.library == name and is_older(found, minimum.version)
    )
    notes = ", ".join(unmet)
    return f"{found} ({notes})" if notes else found


def _vector_instructions() -> list[str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return []
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    flags = found[1].split() if found else []
    return [name for name in _CPU_FEATURES if name in flags]


def _java() -> str | None:
    """Returns the version and the path of Java as Spark finds it: in `JAVA_HOME` if it is set, otherwise in `PATH`; None if Java is not found."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if program is None:
        return None
    release = Path(program).resolve().parents[1] / "release"
    found = re.search(r'JAVA_VERSION="([^"]+)"', release.read_text(encoding="utf-8")) if release.is_file() else None
    return f"{found[1]} ({program})" if found else program


def _problem(folder: Path) -> str | None:
    """Returns why an instance cannot be opened or created in a folder; None if the instance can be opened or created."""
    from ssbroker.store.database_file import SHARED_MEMORY_SUFFIX  # noqa: PLC0415 - keeps --help fast

    missing = [name for name in _OF_INSTANCES if _of_library(name) is None]
    if missing:
        return f"an instance needs {' and '.join(missing)}: pip install '{_LIBRARIES[missing[0]][1]}'"
    place = folder.absolute()
    try:
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            return f"{place} is a file"
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        return f"cannot write to {place}: {error.strerror}"
    for existing in sorted(folder.glob("*.sqlite*")) if folder.is_dir() else ():
        # Without shared memory, an instance is only slower.
        if not existing.name.endswith(SHARED_MEMORY_SUFFIX) and not os.access(existing, os.R_OK | os.W_OK):
            return f"cannot read and write {existing}"
    if is_instance_folder(folder):
        return None
    from ssbroker.broker.instance_files import lost_msdb_problem  # noqa: PLC0415 - may not be installed
    from ssbroker.store.database_file import LOCK_TIMEOUT  # noqa: PLC0415

    return lost_msdb_problem(folder / MSDB_FILE, lock_timeout=LOCK_TIMEOUT, vfs=None)
