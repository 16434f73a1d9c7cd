"""Results of many tasks that appear complete or not at all."""

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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MANIFEST: Final = "_manifest.json"
_LOCK: Final = "lock"
_PARTS: Final = ("attempts", "done", "result")


class Staging:
    """The place in which a job gathers its files, beside the folder that they will be.

    Each try of a task writes into a folder of its own. `commit` takes the files of the tries that count, and makes them the result by
    one rename; what other tries wrote, or still write, never gets there. What a driver left that was killed is removed by the next job
    with the same target.

    Args:
        target: The folder that the result will be; nothing stands there yet.

    Raises:
        OutputError: Something stands there, or the place cannot be written.

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
            is_there = self.target.exists()
        except OSError as error:  # no name can be so long
            raise OutputError(f"{target}: cannot be written: {error.strerror}") from error
        if is_there:
            raise OutputError(f"{target}: is there already; expected a folder that is yet to be made")
        self._sweep()
        self._place: Final = self.target.parent / f"{self._prefix}{uuid.uuid4().hex}"
        self.attempts: Final = self._place / "attempts"
        self.done: Final = self._place / "done"
        try:
            self._place.mkdir(parents=True)
            self._lock: Final = (self._place / _LOCK).open("wb")
            if not _files.try_lock(self._lock.fileno()):  # somebody took the place for one that was left
                raise BlockingIOError("another job with this target began at the same moment")
            self.attempts.mkdir()
            self.done.mkdir()
        except OSError as error:
            raise OutputError(f"{target}: cannot be written: {error}") from error

    def commit(self, files: Mapping[Path, str], manifest: Mapping[str, Any]) -> None:
        """Makes files the result.

        Args:
            files: The files, and their names in the result.
            manifest: What is told of the result, in `_manifest.json`.

        Raises:
            OutputError: It could not be written, or something stands at the target by now; then there is no result.
        """
        result = self._place / "result"
        try:
            result.mkdir()
            for file, name in files.items():
                place = result / name
                place.parent.mkdir(parents=True, exist_ok=True)
                file.rename(place)
            _write(result / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n")
            _write(result / "_SUCCESS", b"")
            for folder, _, _ in os.walk(result):
                _files.sync_to_disk(Path(folder))
            if self.target.exists():  # a rename would take the place of an empty folder
                raise FileExistsError("it was made by somebody else meanwhile")
            result.rename(self.target)
            _files.sync_to_disk(self.target.parent)
        except OSError as error:
            raise OutputError(f"{self.target}: cannot be written: {error}") from error

    def close(self) -> None:
        """Removes what did not become the result."""
        _remove(self._place, self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sweep(self) -> None:
        """Removes the places of drivers that are no more; one without a lock is what was left of a place that was being removed."""
        if not self.target.parent.is_dir():
            return
        for place in self.target.parent.glob(f"{glob.escape(self._prefix)}*"):
            try:
                with (place / _LOCK).open("r+b") as lock:
                    if _files.try_lock(lock.fileno()):
                        _remove(place, lock)
            except FileNotFoundError:
                shutil.rmtree(place, ignore_errors=True)
            except OSError:  # it is somebody else's
                continue


def new_attempt(attempts: Path) -> Path:
    """The folder of one try of a task, in a worker.

    Args:
        attempts: Where the tries of the job stand.

    Returns:
        A new folder.

    Raises:
        OSError: The job is over, or the place cannot be written.
    """
    attempt = attempts / uuid.uuid4().hex
    attempt.mkdir()
    return attempt


def complete(files: Sequence[Path]) -> None:
    """Has files of a try on the disk before it is told of.

    Args:
        files: The files.
    """
    for file in files:
        _files.sync_to_disk(file)


def _remove(place: Path, lock: IO[bytes]) -> None:
    """Removes a place for good, though tries of tasks may go on for a while: under another name they do not find it, and make nothing in it.

    The lock goes last, so that of what is left by a driver that is killed meanwhile nobody thinks that it is in use.
    """
    with suppress(OSError):
        place = place.rename(place.with_name(f"{place.name}-over"))
    for name in _PARTS:
        shutil.rmtree(place / name, ignore_errors=True)
    lock.close()
    shutil.rmtree(place, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _files.sync_to_disk(path)


_LOOK_EVERY: Final = 0.5


def run(spark: SparkSession, count: int, work: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Has each number worked on by a task of its own.

    Args:
        spark: The session, classic or Spark Connect.
        count: How many tasks there are.
        work: What a worker does with a number; what it returns can be written as JSON.

    Returns:
        What each came to, in the order of the numbers. Where Spark ran a task several times, it is what one of the runs came to.
    """
    if not count:
        return []

    def worked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _keep_imports()
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            told = pa.array([json.dumps(work(number)) for number in numbers], pa.string())
            yield pa.RecordBatch.from_arrays([batch.column(0), told], names=["number", "told"])

    table = spark.range(0, count, 1, count).mapInArrow(worked, "number bigint, told string").toArrow()
    told = dict(zip(table["number"].to_pylist(), table["told"].to_pylist(), strict=True))
    return [json.loads(str(told[number])) for number in range(count)]


@functools.cache
def _keep_imports() -> None:
    """Has the garbage collection of a worker, which Spark calls for after each task, pass over what is imported: it took as long as a small task."""
    gc.freeze()


class ProgressWatch:
    """Tells how far a job is, for as long as the block runs: each task leaves a file when it is done.

    Args:
        done: The folder of these files.
        count: How many there will be.
        progress: Called with both numbers about twice a second, in a thread of its own, and at the end; None is not called.
    """

    def __init__(self, done: Path, count: int, progress: Callable[[int, int], None] | None) -> None:
        self._done: Final = done
        self._count: Final = count
        self._progress: Final = progress
        self._is_over: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._progress is not None:
            self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over and self._progress is not None:
            is_over = self._is_over.wait(_LOOK_EVERY)
            self._progress(sum(1 for _ in self._done.iterdir()), self._count)
