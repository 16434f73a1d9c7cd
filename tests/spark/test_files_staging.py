"""What stands beside the target of `route_files` and `reassemble_files` while they run, and that it goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ssbroker import InputError, OutputError
from ssbroker.spark.files.parquet import list_files
from ssbroker.spark.files.staging import Staging, new_attempt


def test_what_was_left_beside_a_target_goes_whatever_its_name(tmp_path: Path) -> None:
    for name in ("day[1]", "day1"):
        left = tmp_path / f".{name}-staging-0"
        left.mkdir()
        (left / "lock").touch()
    with Staging(tmp_path / "day[1]"):
        assert not (tmp_path / ".day[1]-staging-0").exists()
        assert (tmp_path / ".day1-staging-0").exists()


def test_a_try_that_goes_on_when_the_job_is_over_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two tries at once, or a task of a job that failed, still writes while its files are removed."""
    staging, remove, refused = Staging(tmp_path / "day"), os.rmdir, []

    def goes_on(path: Any, **options: Any) -> None:
        try:
            new_attempt(staging.attempts)
        except FileNotFoundError:
            refused.append(path)
        remove(path, **options)

    with staging:
        (new_attempt(staging.attempts) / "0.arrow").touch()
        monkeypatch.setattr(os, "rmdir", goes_on)
    assert refused
    assert list(tmp_path.iterdir()) == []


def test_what_a_driver_left_that_was_killed_while_it_removed_it_goes(tmp_path: Path) -> None:
    left = tmp_path / ".day-staging-0" / "attempts"
    left.mkdir(parents=True)
    with Staging(tmp_path / "day"):
        assert not left.exists()


def test_the_place_of_a_job_that_runs_stays(tmp_path: Path) -> None:
    with Staging(tmp_path / "day") as runs:
        with Staging(tmp_path / "day"):
            pass
        assert runs.attempts.is_dir()


def test_a_name_that_no_folder_can_have_is_told_in_our_words(tmp_path: Path) -> None:
    too_long = tmp_path / ("x" * 300)
    with pytest.raises(OutputError, match="cannot be written: File name too long"):
        Staging(too_long)
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        list_files(too_long)
