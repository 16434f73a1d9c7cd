"""New files are created completely, or not at all."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from ssbroker import _files


def test_an_interrupted_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int, mode: str) -> None:
        with open(descriptor, mode) as opened:
            opened.write(b"sec")
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fdopen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _files.create_file(tmp_path / "key", b"secret", mode=0o600)
    assert list(tmp_path.iterdir()) == []


def test_existing_files_and_links_are_not_overwritten(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    _files.create_file(tmp_path / "key", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    for path in (tmp_path / "key", link):
        with pytest.raises(FileExistsError):
            _files.create_file(path, b"other", mode=0o600)
    assert (tmp_path / "key").read_bytes() == b"secret"
    assert not target.exists()


def test_file_systems_without_hard_links_are_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    _files.create_file(tmp_path / "key", b"secret", mode=0o600)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("key", b"secret")]
    with pytest.raises(FileExistsError):
        _files.create_file(tmp_path / "key", b"other", mode=0o600)
    assert (tmp_path / "key").read_bytes() == b"secret"


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _files.create_file(tmp_path / "missing" / "key", b"secret", mode=0o600)
