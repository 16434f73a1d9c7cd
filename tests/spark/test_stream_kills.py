"""Streams whose drivers and workers are killed with SIGKILL; many more by `python -m tests.spark.stream_storm`."""

from __future__ import annotations

from pathlib import Path

from tests.spark.stream_storm import storm


def test_a_stream_that_is_killed_gives_what_the_batch_functions_give(tmp_path: Path) -> None:
    """Each message once, in order, with its decision, though a route comes late; each rejection once."""
    outcome = storm(tmp_path, drivers=1, workers=1, files=6, messages=600, seed=1)
    assert not outcome.problems
    assert outcome.kills == {"driver": 1, "worker": 1}
