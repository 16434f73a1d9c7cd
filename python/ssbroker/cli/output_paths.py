"""Checks output files and folders, and replaces existing ones only with complete ones."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ssbroker import _files
from ssbroker.cli.app import STREAM_NAMES
from ssbroker.cli.errors import writing
from ssbroker.exceptions import OutputError


@contextmanager
def replacing_files(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yields new, empty files beside `paths`; moves them to `paths` at the end, or removes them after an error.

    First checks whether the paths can be written. The old files stay until all new files are complete and on disk; then
    the new files are moved in the given order.

    Raises:
        OutputError: A path cannot be written, or is not a regular file.
    """
    targets = [Path(os.path.realpath(path)) for path in paths]
    parts = [_part_path(target) for target in targets]
    try:
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                _create_part(path, target, part)
        yield parts
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                if target.exists():
                    shutil.copymode(target, part)
                _files.sync_to_disk(part)
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                part.replace(target)
                _files.sync_to_disk(target.parent)
    finally:
        for part in parts:
            with suppress(OSError):  # an error about the path has already been raised
                part.unlink()


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields the path of a folder to create beside `path`; moves the folder to `path` at the end, or removes it after an error.

    Raises:
        OutputError: The path cannot be written, is a file, or is a folder with files that Spark did not write.
    """
    target = Path(os.path.realpath(path))
    part = _part_path(target)
    with writing(path):
        if target.exists() and not target.is_dir():
            raise OutputError(f"{path}: cannot be written: Spark writes a folder, but this is a file")
        if target.exists() and (
            other := next((entry for entry in target.iterdir() if not _is_spark_output(entry)), None)
        ):
            raise OutputError(
                f"{path}: cannot be replaced: the folder contains a file that Spark did not write ({other.name})"
            )
        part.mkdir()
        part.rmdir()
    try:
        yield part
        with writing(path):
            _replace_folder(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def refuse_overwriting(paths: Sequence[Path], *, inputs: Sequence[Path], catalogs: Sequence[Path] = ()) -> None:
    """Checks that no output is an input, a file of a catalog, or another output.

    Raises:
        OutputError: An output would overwrite such a file.
    """
    targets: list[Path] = []
    for path in paths:
        target = Path(os.path.realpath(path))
        with writing(path):
            for file in inputs:
                source = Path(os.path.realpath(file))
                if _is_same_file(target, source):
                    raise OutputError(f"{path}: cannot be written: it is also an input ({file})")
                if source.is_relative_to(target):
                    raise OutputError(f"{path}: cannot be written: it contains the input {file}; choose another path")
            if any(_is_same_file(target, other) for other in targets):
                raise OutputError(f"{path}: cannot be written: it is specified for two outputs")
            for catalog in catalogs:
                _refuse_catalog(path, target, catalog)
        targets.append(target)


def check_writable(paths: Sequence[Path]) -> None:
    """Checks, before long work, that files which are written at its end can be written.

    Raises:
        OutputError: A path cannot be written, or is not a regular file.
    """
    for path in paths:
        target = Path(os.path.realpath(path))
        part = _part_path(target)
        with writing(path):
            _create_part(path, target, part)
            part.unlink()


def _refuse_catalog(path: Path, target: Path, catalog: Path) -> None:
    source = Path(os.path.realpath(catalog))
    is_part = target.parent == source and _is_catalog_file(target)
    if source != target and source.is_relative_to(target):
        raise OutputError(f"{path}: cannot be written: it contains the catalog {catalog}; choose another path")
    if _is_same_file(target, source) or is_part:
        raise OutputError(f"{path}: cannot be written: it is part of the catalog ({catalog})")


def _is_catalog_file(target: Path) -> bool:
    """Returns whether a catalog would load a file with this name from its folder: a table, a script, or a database of an instance."""
    tables = {"routes", "databases", "services", "instance"}
    return target.stem.lower() in tables or target.suffix.lower().startswith((".sql", ".sqlite"))


def _is_same_file(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and one.samefile(other))


def _create_part(path: Path, target: Path, part: Path) -> None:
    if path.exists() and not path.is_file():
        raise OutputError(f"{path}: cannot be written: it is {'a folder' if path.is_dir() else 'not a regular file'}")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: cannot be written: the existing file is read-only")
    for descriptor, name in STREAM_NAMES.items():
        if target.exists() and _is_open_as(descriptor, target):
            raise OutputError(f"{path}: cannot be written: it is also the {name} of this command")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def _is_open_as(descriptor: int, target: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), target.stat())
    except OSError:  # the stream is closed
        return False


def _part_path(target: Path) -> Path:
    return target.with_name(f".ssbroker-{secrets.token_hex(8)}.part")


def _is_spark_output(entry: Path) -> bool:
    return entry.is_file() and entry.name.lstrip(".").startswith(("part-", "_SUCCESS"))


def _replace_folder(part: Path, target: Path) -> None:
    """Replaces a folder with another in two renames, because no file system can do it in one."""
    old = part.with_suffix(".old")
    if target.exists():
        target.rename(old)
    try:
        part.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
