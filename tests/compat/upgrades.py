"""A stream that Spark 4.0 started continues on later versions, and they run one of their own: no message is lost, and none is emitted twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Final

from tests.spark.streams import traffic
from tests.spark.streams.storm import differences

REFUSAL: Final = "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
OPTION: Final = "--spark-4-0-checkpoint"
_BATCHES_BEFORE: Final = 3

RunDriver = Callable[..., CompletedProcess[str]]
"""Runs `tests.spark.streams.driver` with a Python and arguments."""


def problems(run_driver: RunDriver, oldest: Path, later: Mapping[str, Path]) -> list[str]:
    """Returns what goes wrong with the Pythons of later versions, by name: with the stream of Spark 4.0, and with one of their own."""
    found = []
    with TemporaryDirectory() as top:
        folder, new, stopped, arriving = (Path(top, name) for name in ("stream", "new", "stopped", "arriving"))
        new.mkdir()
        arriving.mkdir()
        expected = traffic.write(new, files=2 * _BATCHES_BEFORE, conversations=24, messages=600, seed=1)
        for file in sorted((new / "fragments").iterdir())[_BATCHES_BEFORE:]:
            file.rename(arriving / file.name)

        def finish(python: Path, *options: str) -> Iterator[str]:
            shutil.copytree(arriving, folder / "fragments", dirs_exist_ok=True)
            traffic.set_catalog(folder, has_late_route=True)
            finished = run_driver(python, folder, "--available", *options)
            if finished.returncode:
                yield finished.stderr[-3000:]
            state = run_driver(python, folder, "--state")
            if state.returncode or state.stdout.split():
                yield f"messages still wait for {state.stdout!r}: {state.stderr[-3000:]}"
            messages, differing = differences(folder, expected)
            yield from differing
            print(f"{messages} messages", flush=True)
            shutil.rmtree(folder)

        shutil.copytree(new, folder)
        started = run_driver(oldest, folder, "--available")
        if started.returncode:
            return [f"the stream did not start: {started.stderr[-3000:]}"]
        _undo_last_commit(folder)
        state = run_driver(oldest, folder, "--state")
        if not {"fragment", "route"} <= set(state.stdout.split()):
            found.append(f"Spark 4.0: messages wait for {state.stdout!r} only: {state.stderr[-3000:]}")
        folder.rename(stopped)
        for name, python in later.items():
            print(f"{name} continues the stream of Spark 4.0:", end=" ", flush=True)
            shutil.copytree(stopped, folder)
            refused = run_driver(python, folder, "--available")
            if REFUSAL not in refused.stderr:
                found.append(f"{name}: without {OPTION}: expected {REFUSAL}, got {refused.stderr[-3000:]}")
            found += [f"{name}: {problem}" for problem in finish(python, OPTION)]
            print(f"{name} runs a stream of its own:", end=" ", flush=True)
            shutil.copytree(new, folder)
            run_driver(python, folder, "--available")
            found += [f"{name}, its own stream: {problem}" for problem in finish(python)]
    return found


def _undo_last_commit(folder: Path) -> None:
    """Removes the last micro-batch from the logs of the query and of the sink, as if the query had been killed during it."""
    last = _BATCHES_BEFORE - 1
    for log in (folder / "checkpoint" / "commits", folder / "out" / "_spark_metadata"):
        for name in (str(last), f".{last}.crc"):
            (log / name).unlink()
