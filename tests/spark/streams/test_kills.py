"""Streams whose drivers and workers are killed with SIGKILL; `python -m tests.spark.streams.storm` runs many more kills."""

from __future__ import annotations

from pathlib import Path

from tests.spark.streams.storm import storm


def test_a_killed_stream_gives_the_rows_of_the_batch_functions(tmp_path: Path) -> None:
    """Each message is emitted once, in order, with its decision, although a route is added late; each rejection is emitted once."""
    outcome = storm(tmp_path, drivers=1, workers=1, files=6, messages=600, seed=1)
    assert not outcome.problems
    assert outcome.kills == {"driver": 1, "worker": 1}
