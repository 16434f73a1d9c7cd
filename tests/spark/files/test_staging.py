"""The temporary folder beside the target of `route_files` and `reassemble_files`, and its removal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ssbroker import InputError, OutputError
from ssbroker.spark.files.parquet import list_files
from ssbroker.spark.files.staging import Staging, new_attempt


def test_abandoned_folders_are_removed_for_this_target_only(tmp_path: Path) -> None:
    for name in ("day[1]", "day1"):
        abandoned = tmp_path / f".{name}-staging-0"
        abandoned.mkdir()
        (abandoned / "lock").touch()
    with Staging(tmp_path / "day[1]"):
        assert not (tmp_path / ".day[1]-staging-0").exists()
        assert (tmp_path / ".day1-staging-0").exists()


def test_late_attempts_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A concurrent attempt, or a task of a failed job, may still write while the files are removed."""
    staging, rmdir, refused = Staging(tmp_path / "day"), os.rmdir, []

    def remove_while_attempts_start(path: Any, **options: Any) -> None:
        try:
            new_attempt(staging.attempts)
        except FileNotFoundError:
            refused.append(path)
        rmdir(path, **options)

    with staging:
        (new_attempt(staging.attempts) / "0.arrow").touch()
        monkeypatch.setattr(os, "rmdir", remove_while_attempts_start)
    assert refused
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_removal_is_completed(tmp_path: Path) -> None:
    abandoned = tmp_path / ".day-staging-0" / "attempts"
    abandoned.mkdir(parents=True)
    with Staging(tmp_path / "day"):
        assert not abandoned.exists()


def test_folders_of_running_jobs_are_kept(tmp_path: Path) -> None:
    with Staging(tmp_path / "day") as runs:
        with Staging(tmp_path / "day"):
            pass
        assert runs.attempts.is_dir()


def test_names_too_long_for_a_folder_are_reported(tmp_path: Path) -> None:
    too_long = tmp_path / ("x" * 300)
    with pytest.raises(OutputError, match="cannot be written: File name too long"):
        Staging(too_long)
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        list_files(too_long)
