"""Runs numbered Spark tasks, and publishes the files of all tasks atomically."""

from __future__ import annotations

import functools
import gc
import glob
import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from ssbroker import _files
from ssbroker.exceptions import OutputError
from ssbroker.spark.worker_version_check import on_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MANIFEST: Final = "_manifest.json"
_LOCK: Final = "lock"
_SUBFOLDERS: Final = ("attempts", "done", "result")


class Staging:
    """The temporary folder in which a job collects its files, in the same folder as the target.

    Each attempt of a task writes into a separate folder. `commit` moves the files of the successful attempts into the
    result, and publishes it with one rename; files of other attempts never become part of the result. A job removes
    temporary folders that a killed driver with the same target left behind.

    Args:
        target: The folder of the result; it must not exist yet.

    Raises:
        OutputError: The target exists, or the temporary folder cannot be created.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Staging(Path(folder, "result")) as staging:
        ...         attempt = new_attempt(staging.attempts)
        ...         _ = Path(attempt, "one.parquet").write_bytes(b"rows")
        ...         staging.commit({Path(attempt, "one.parquet"): "one.parquet"}, {"rows": 1})
        ...     sorted(path.name for path in Path(folder, "result").iterdir()), len(list(Path(folder).iterdir()))
        (['_SUCCESS', '_manifest.json', 'one.parquet'], 1)
    """

    def __init__(self, target: Path) -> None:
        self.target: Final = Path(os.path.realpath(target))
        self._prefix: Final = f".{self.target.name}-staging-"
        try:
            exists = self.target.exists()
        except OSError as error:  # such as a name that is too long
            raise OutputError(f"{target}: cannot be written: {error.strerror}") from error
        if exists:
            raise OutputError(f"{target}: already exists; expected a folder that does not exist yet")
        self._remove_abandoned()
        self._folder: Final = self.target.parent / f"{self._prefix}{uuid.uuid4().hex}"
        self.attempts: Final = self._folder / "attempts"
        self.done: Final = self._folder / "done"
        try:
            self._folder.mkdir(parents=True)
            self._lock: Final = (self._folder / _LOCK).open("wb")
            if not _files.try_lock(self._lock.fileno()):  # another job has mistaken the folder for an abandoned one
                raise BlockingIOError("another job with the same target started at the same time")
            self.attempts.mkdir()
            self.done.mkdir()
        except OSError as error:
            raise OutputError(f"{target}: cannot be written: {error.strerror or error}") from error

    def commit(self, files: Mapping[Path, str], manifest: Mapping[str, Any]) -> None:
        """Publishes files as the result.

        Args:
            files: The files, and their names in the result.
            manifest: The content of `_manifest.json`.

        Raises:
            OutputError: The result cannot be written, or the target now exists. Nothing is published.
        """
        result = self._folder / "result"
        try:
            result.mkdir()
            for file, name in files.items():
                path = result / name
                path.parent.mkdir(parents=True, exist_ok=True)
                file.rename(path)
            _write_synced(result / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n")
            _write_synced(result / "_SUCCESS", b"")
            for folder, _, _ in os.walk(result):
                _files.sync_to_disk(Path(folder))
            if self.target.exists():  # a rename would replace an empty folder
                raise FileExistsError("another process has created this path")
            result.rename(self.target)
            _files.sync_to_disk(self.target.parent)
        except OSError as error:
            raise OutputError(f"{self.target}: cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Removes the temporary folder."""
        _remove_folder(self._folder, self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remove_abandoned(self) -> None:
        """Removes the folders of drivers that have ended; a folder without a lock file is left over from an interrupted removal."""
        if not self.target.parent.is_dir():
            return
        for folder in self.target.parent.glob(f"{glob.escape(self._prefix)}*"):
            try:
                with (folder / _LOCK).open("r+b") as lock:
                    if _files.try_lock(lock.fileno()):
                        _remove_folder(folder, lock)
            except FileNotFoundError:
                shutil.rmtree(folder, ignore_errors=True)
            except OSError:  # the folder belongs to another user
                continue


def new_attempt(attempts: Path) -> Path:
    """Creates the folder of one attempt of a task, in a worker; raises `OSError` if the job has ended."""
    attempt = attempts / uuid.uuid4().hex
    attempt.mkdir()
    return attempt


def sync_files(files: Sequence[Path]) -> None:
    """Flushes the files of an attempt to disk before they are reported."""
    for file in files:
        _files.sync_to_disk(file)


def _remove_folder(folder: Path, lock: IO[bytes]) -> None:
    """Removes a temporary folder even if attempts are still running: it is renamed first, so that they cannot write into it.

    The lock is held until the subfolders are removed. If the driver is killed before, the next job with the same target
    removes the remaining files.
    """
    with suppress(OSError):
        folder = folder.rename(folder.with_name(f"{folder.name}-over"))
    for name in _SUBFOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    lock.close()
    shutil.rmtree(folder, ignore_errors=True)


def _write_synced(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _files.sync_to_disk(path)


_POLL_SECONDS: Final = 0.5


def run_tasks(spark: SparkSession, count: int, work: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs `work` in a Spark task for each number below `count`; returns the results in order, one for each number even if a task ran twice."""
    if not count:
        return []

    def run_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _freeze_imports()
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            results = pa.array([json.dumps(work(number)) for number in numbers], pa.string())
            yield pa.RecordBatch.from_arrays([batch.column(0), results], names=["number", "result"])

    rows = spark.range(0, count, 1, count).mapInArrow(on_workers(run_batch), "number bigint, result string").collect()
    results = {row["number"]: row["result"] for row in rows}
    return [json.loads(str(results[number])) for number in range(count)]


@functools.cache
def _freeze_imports() -> None:
    """Excludes imported modules from garbage collection: Spark runs it after each task, and it would take as long as a small task."""
    gc.freeze()


class ProgressWatch:
    """Reports the progress of a job while the block runs. Each task creates a file when it is done.

    Args:
        done: The folder in which tasks create these files.
        count: The number of tasks.
        progress: A function that is called with the number of completed tasks and of all tasks, about twice a second in a
            separate thread, and at the end; None for no calls.
    """

    def __init__(self, done: Path, count: int, progress: Callable[[int, int], None] | None) -> None:
        self._done: Final = done
        self._count: Final = count
        self._progress: Final = progress
        self._has_ended: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        if self._progress is not None:
            self._thread.join()

    def _watch(self) -> None:
        has_ended = False
        while not has_ended and self._progress is not None:
            has_ended = self._has_ended.wait(_POLL_SECONDS)
            self._progress(sum(1 for _ in self._done.iterdir()), self._count)
