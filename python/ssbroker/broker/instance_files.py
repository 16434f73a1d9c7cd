"""Creates, opens and removes the database files in an instance folder, including msdb."""

from __future__ import annotations

import logging
import os
import random as randomness
import re
import shlex
from collections.abc import Callable
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Final

from ssbroker._arguments import is_utf8_text, path_argument
from ssbroker.broker import object_ddl
from ssbroker.broker.context import InstanceContext, random_guid
from ssbroker.exceptions import BrokerError, LockTimeoutError, OptionError, StorageError
from ssbroker.protocol.broker_errors import refusal
from ssbroker.store import database_registry, file_ownership
from ssbroker.store import object_changes as changes
from ssbroker.store import objects as stored
from ssbroker.store.database_file import SHARED_MEMORY_SUFFIX, DatabaseFile
from ssbroker.store.schema import DATABASE
from ssbroker.store.sqlite import Connection, FileNotEmptyError, is_missing

_LOGGER: Final = logging.getLogger("ssbroker.broker")
_ESCAPED: Final = re.compile(r"[^\w -]", re.ASCII)
NO_INSTANCE: Final = "is not an instance folder"
"""The problem of a folder in which no instance was created."""
_NAME_BYTES_MAX: Final = 200  # file systems allow 255, and SQLite appends a suffix


def resolve_path(path: str | os.PathLike[str], *, name: str) -> Path:
    """Returns the absolute path; raises `OptionError` or `StorageError` if it is not valid."""
    given = path_argument(path, name=name)
    try:
        absolute = given.resolve()
        str(absolute).encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"{os.fsencode(path)!r}: the path cannot be encoded as UTF-8", file=repr(path)) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(f"{os.fspath(path)!r}: the path is not valid: {error}", file=repr(path)) from error
    return absolute


def create_msdb(
    path: Path, *, name: str, random: randomness.Random, lock_timeout: float, vfs: str | None
) -> DatabaseFile:
    """Creates the msdb file with the registry, which initially lists only msdb."""
    if not is_utf8_text(name):
        raise OptionError(f"name: expected a string that can be encoded as UTF-8, got {name!r:.80}")
    existed = os.path.exists(path)  # noqa: PTH110  # pathlib raises if access is denied
    if _is_lost(path) and (problem := lost_msdb_problem(path, lock_timeout=lock_timeout, vfs=vfs)) is not None:
        raise refusal(f"{path.parent}: {problem}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path.parent}: the folder cannot be created: {error.strerror or error}", file=str(path), errno=error.errno
        ) from error
    guid = random_guid(random).bytes
    instance_id = random_guid(random).bytes

    def fill(connection: Connection) -> None:
        database_registry.create_instance_row(connection, name=name, instance_id=instance_id)
        _fill(connection, path, service_broker_guid=guid, owner_id=instance_id)
        database_registry.add(
            connection,
            name=database_registry.MSDB_NAME,
            file=path.name,
            service_broker_guid=guid,
            is_broker_enabled=True,
        )

    try:
        return DatabaseFile.create(
            path, database_registry.MSDB_MIGRATIONS, fill=fill, lock_timeout=lock_timeout, vfs=vfs
        )
    except LockTimeoutError:
        raise
    except StorageError as error:
        if existed or isinstance(error, FileNotEmptyError):
            raise refusal(
                f"{path.parent} already contains an instance; use Instance.open, or Instance.open(folder, create=True) to create the instance only if it does not exist"
            ) from error
        raise


def lost_msdb_problem(path: Path, *, lock_timeout: float, vfs: str | None) -> str | None:
    """Returns what to do if the folder contains databases of an instance whose msdb is missing; otherwise None."""
    try:
        others = sorted(each.name for each in path.parent.iterdir() if each.suffix == ".sqlite" and each != path)
    except OSError:  # the folder is missing or inaccessible; creating msdb reports the latter
        return None
    attached = [name for name in others if _is_attached(path.with_name(name), lock_timeout=lock_timeout, vfs=vfs)]
    if not attached or not _is_lost(path):  # another process may have created the instance meanwhile
        return None
    return (
        f"contains databases of an instance ({', '.join(attached)}), but no {path.name}; restore {path.name} from a backup. "
        "To start a new instance with these databases, move their files away, create the instance, and attach copies of the files"
    )


def _is_lost(path: Path) -> bool:
    """Returns whether a file is missing or empty; False if its folder is not accessible."""
    try:
        return path.stat().st_size == 0
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _is_attached(path: Path, *, lock_timeout: float, vfs: str | None) -> bool:
    try:
        file = DatabaseFile.open(path, DATABASE, lock_timeout=lock_timeout, vfs=vfs)
    except StorageError:
        return False
    try:
        with file.read() as connection:
            owner = file_ownership.read_owner(connection)
    finally:
        file.close()
    is_owned = owner.attached_to not in (None, file_ownership.DROPPED)
    return is_owned and owner.identity == file_ownership.stored_file_identity(path)


def create_msdb_if_missing(
    path: Path, *, name: str, random: randomness.Random, lock_timeout: float, vfs: str | None
) -> DatabaseFile | None:
    """Creates the msdb file as `create_msdb` does; returns None if the file exists. If several processes do so at the same time, one creates it."""
    try:
        return create_msdb(path, name=name, random=random, lock_timeout=lock_timeout, vfs=vfs)
    except BrokerError:
        if _is_lost(path):
            raise
        return None  # a damaged file is reported when it is opened


def open_msdb(path: Path, *, lock_timeout: float, vfs: str | None) -> DatabaseFile:
    """Opens the msdb file, or raises an error if the folder contains no instance."""
    try:
        return DatabaseFile.open(path, database_registry.MSDB_MIGRATIONS, lock_timeout=lock_timeout, vfs=vfs)
    except StorageError as error:
        problem = lost_msdb_problem(path, lock_timeout=lock_timeout, vfs=vfs)
        if problem is None:
            if not is_missing(path):
                raise
            problem = (
                f"{NO_INSTANCE}, because it has no {path.name}; "
                f"create one with Instance.open(folder, create=True), or `ssbroker sql {shlex.quote(str(path.parent))} --create SCRIPT`"
            )
        raise StorageError(f"{path.parent}: {problem}", file=str(path)) from error


def create_database(
    instance: InstanceContext, listing: Connection, *, name: str, service_broker_guid: bytes
) -> DatabaseFile:
    """Creates the file of a database in the instance folder."""
    listed = {row.file for row in database_registry.load(listing)}
    with instance.msdb.file.read() as committed:  # still lists databases that the transaction drops
        listed |= {row.file for row in database_registry.load(committed)}
    path = next(
        instance.folder / candidate
        for number in count(1)
        if (candidate := file_name(name, number=number)) not in listed  # another database may use the file name
    )
    existed = path.exists()
    if existed and _is_leftover(instance, path):
        remove_files(path)
    try:
        return DatabaseFile.create(
            path,
            DATABASE,
            fill=lambda connection: _fill(
                connection, path, service_broker_guid=service_broker_guid, owner_id=instance.ownership.owner_id(path)
            ),
            lock_timeout=instance.lock_timeout,
            vfs=instance.vfs,
        )
    except StorageError as error:
        if isinstance(error, FileNotEmptyError) or (existed and not isinstance(error, LockTimeoutError)):
            raise refusal(f"{path} already exists; attach it if it is a database, otherwise move it", 5170) from error
        if not existed:
            remove_files(path)
        raise


def file_name(name: str, *, number: int = 1) -> str:
    """Returns the file name of a database: its name with special characters percent-encoded."""
    escaped = _ESCAPED.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)
    if len(escaped) > _NAME_BYTES_MAX:
        escaped = f"{escaped[:_NAME_BYTES_MAX]}-{sha256(name.encode()).hexdigest()[:16]}"
    return f"{escaped}.sqlite" if number == 1 else f"{escaped}.{number}.sqlite"


def remove_files(path: Path) -> None:
    """Removes a database file with its `-wal`, `-shm` and `-notify` files."""
    remove_log(path)
    path.unlink(missing_ok=True)


def remove_log(path: Path) -> None:
    """Removes the `-wal`, `-shm` and `-notify` files of a database file."""
    for suffix in ("-wal", "-shm", SHARED_MEMORY_SUFFIX):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def remove_dropped(
    instance: InstanceContext, msdb: DatabaseFile, path: Path, *, remove: Callable[[Path], None] = remove_files
) -> None:
    """Removes the files of a dropped database, unless a new database uses them already.

    If the files cannot be removed now, the next CREATE DATABASE that uses this file name removes them.
    """
    try:
        with msdb.write() as listing:
            if all(instance.folder / row.file != path for row in database_registry.load(listing)):
                remove(path)
    except OSError as error:
        _LOGGER.warning(
            "%s: the database was dropped, but its files could not be removed; the next CREATE DATABASE that uses this file name removes them: %s",
            path,
            error,
        )


def _is_leftover(instance: InstanceContext, path: Path) -> bool:
    """Returns whether an unlisted file can be removed, because its database was dropped or a crash interrupted its creation."""
    try:
        file = DatabaseFile.open(path, DATABASE, lock_timeout=instance.lock_timeout, vfs=instance.vfs)
    except StorageError:
        return False
    try:
        with file.read() as connection:
            owner = file_ownership.read_owner(connection)
            return owner.attached_to == file_ownership.DROPPED or (
                owner == instance.ownership.owner(path)
                and not stored.load(connection).queues
                and database_registry.has_only_broker_tables(connection)
            )
    finally:
        file.close()


def _fill(connection: Connection, path: Path, *, service_broker_guid: bytes, owner_id: bytes) -> None:
    changes.create_database_row(
        connection, service_broker_guid=service_broker_guid, attached_to=owner_id, is_broker_enabled=True
    )
    owner = file_ownership.FileOwner(owner_id, file_ownership.stored_file_identity(path))
    file_ownership.record_owner(connection, owner)
    object_ddl.create_default_objects(connection)
