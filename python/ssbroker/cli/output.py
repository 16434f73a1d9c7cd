"""Results that appear whole or not at all: written beside their places, then moved into them."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ssbroker import disk
from ssbroker.cli.errors import writing
from ssbroker.exceptions import OutputError


@contextmanager
def replacing_files(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Gives the names of new, empty files beside `paths`; moves them there at the end, removes them after an error.

    Whether the places can be written is seen at once. What stands at each stays until all new files are complete and on disk; then
    they are moved, in the order given.

    Args:
        paths: Where the results are to be.

    Yields:
        The files to write.

    Raises:
        OutputError: A place cannot be written, or is no regular file.
    """
    targets = [Path(os.path.realpath(path)) for path in paths]
    parts = [_sibling(target) for target in targets]
    try:
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                _begin(path, target, part)
        yield parts
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                if target.exists():
                    shutil.copymode(target, part)
                disk.sync(part)
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                part.replace(target)
                disk.sync(target.parent)
    finally:
        for part in parts:
            with suppress(OSError):  # of a place that cannot be written, something was told already
                part.unlink()


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Gives the name of a folder beside `path` that is yet to be made; moves it there at the end, removes it after an error.

    Args:
        path: Where the result is to be.

    Yields:
        The folder to make.

    Raises:
        OutputError: The place cannot be written, or is a file.
    """
    target = Path(os.path.realpath(path))
    part = _sibling(target)
    with writing(path):
        if target.exists() and not target.is_dir():
            raise OutputError(f"{path}: cannot be written: Spark writes a folder, and this is a file")
        if target.exists() and (other := next((entry for entry in target.iterdir() if not _of_spark(entry)), None)):
            raise OutputError(f"{path}: cannot be replaced: the folder holds what Spark did not write ({other.name})")
        part.mkdir()
        part.rmdir()
    try:
        yield part
        with writing(path):
            _swap(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def refuse_overwriting(paths: Sequence[Path], *, inputs: Sequence[Path], catalogs: Sequence[Path] = ()) -> None:
    """Refuses an output that is one of the files that are read, or another output.

    Args:
        paths: Where the results are to be.
        inputs: The files that are read.
        catalogs: The file or folder of each catalog that is read.

    Raises:
        OutputError: An output is an input, one of a catalog's files, or written twice.
    """
    targets: list[Path] = []
    for path in paths:
        target = Path(os.path.realpath(path))
        with writing(path):
            for file in inputs:
                real = Path(os.path.realpath(file))
                if _same(target, real) or real.is_relative_to(target):
                    raise OutputError(f"{path}: cannot be written: it is also an input ({file})")
            if any(_same(target, other) for other in targets):
                raise OutputError(f"{path}: cannot be written: it is given for two outputs")
            for catalog in catalogs:
                _refuse_catalog(path, target, catalog)
        targets.append(target)


def _refuse_catalog(path: Path, target: Path, catalog: Path) -> None:
    where = Path(os.path.realpath(catalog))
    is_within = target.parent == where and _may_be_loaded(target)
    if _same(target, where) or where.is_relative_to(target) or is_within:
        raise OutputError(f"{path}: cannot be written: it belongs to the catalog ({catalog})")


def _may_be_loaded(target: Path) -> bool:
    """Whether a file of this name in the folder of a catalog is part of it: a table, a script, a database of an instance."""
    tables = {"routes", "databases", "services", "instance"}
    return target.stem.lower() in tables or target.suffix.lower().startswith((".sql", ".sqlite"))


def _same(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and one.samefile(other))


def _begin(path: Path, target: Path, part: Path) -> None:
    if path.exists() and not path.is_file():
        raise OutputError(f"{path}: cannot be written: it is {'a folder' if path.is_dir() else 'no regular file'}")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: cannot be written: the file there is read-only")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def _sibling(target: Path) -> Path:
    return target.with_name(f".ssbroker-{secrets.token_hex(8)}.part")


def _of_spark(entry: Path) -> bool:
    return entry.is_file() and entry.name.lstrip(".").startswith(("part-", "_SUCCESS"))


def _swap(part: Path, target: Path) -> None:
    """Puts a folder in the place of another; two renames, as no file system does it in one."""
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
