"""Makes the files of an instance: msdb, and one for each database."""

from __future__ import annotations

import logging
import os
import random as randomness
import re
import uuid
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ssbroker import options
from ssbroker.broker.objects import defaults
from ssbroker.broker.objects.refusals import refusal
from ssbroker.exceptions import LockTimeoutError, OptionError, StorageError
from ssbroker.store import object_changes as changes
from ssbroker.store import objects as stored
from ssbroker.store import registry
from ssbroker.store.file import DatabaseFile
from ssbroker.store.opening import NotBlankError
from ssbroker.store.schema import DATABASE
from ssbroker.store.sqlite import Connection, is_missing

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance

_log: Final = logging.getLogger("ssbroker.broker")
_ESCAPED: Final = re.compile(r"[^\w -]", re.ASCII)
_NAME_BYTES_MAX: Final = 200  # file systems allow 255, SQLite appends


def resolved(path: str | os.PathLike[str]) -> Path:
    """Where a path leads.

    Raises:
        StorageError: Nowhere: it goes in a circle, or SQLite cannot be told of it.
    """
    try:
        place = Path(path).resolve()
        str(place).encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"{os.fsencode(path)!r}: is no path that UTF-8 can write", file=repr(path)) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(f"{os.fspath(path)!r}: leads nowhere: {error}", file=repr(path)) from error
    return place


def create_msdb(
    path: Path, *, name: str, random: randomness.Random, lock_timeout: float, vfs: str | None
) -> DatabaseFile:
    """Makes the file of msdb with the list, on which msdb itself stands first."""
    if not options.is_text(name):
        raise OptionError(f"name: expected text that UTF-8 can write; got {name!r:.80}")
    existed = os.path.exists(path)  # noqa: PTH110 - pathlib raises where it may not look
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path.parent}: cannot be made: {error.strerror or error}", file=str(path)) from error
    guid = random_guid(random).bytes
    instance_id = random_guid(random).bytes

    def fill(connection: Connection) -> None:
        registry.create_instance_row(connection, name=name, instance_id=instance_id)
        _fill(connection, path, service_broker_guid=guid, attached_to=instance_id)
        registry.add(
            connection, name=registry.MSDB_NAME, file=path.name, service_broker_guid=guid, is_broker_enabled=True
        )

    try:
        return DatabaseFile.create(path, registry.MSDB_MIGRATIONS, fill=fill, lock_timeout=lock_timeout, vfs=vfs)
    except LockTimeoutError:
        raise
    except StorageError as error:
        if existed or isinstance(error, NotBlankError):
            raise refusal(f"{path.parent} holds an instance") from error
        raise


def open_msdb(path: Path, *, lock_timeout: float, vfs: str | None) -> DatabaseFile:
    """Opens the file of msdb; without one, a folder is not that of an instance."""
    try:
        return DatabaseFile.open(path, registry.MSDB_MIGRATIONS, lock_timeout=lock_timeout, vfs=vfs)
    except StorageError as error:
        if not is_missing(path):
            raise
        raise StorageError(
            f"{path.parent}: is not the folder of an instance, since it has no {path.name}; "
            "`ssbroker sql FOLDER --create SCRIPT` or Instance.create makes one",
            file=str(path),
        ) from error


def create_database(instance: Instance, listing: Connection, *, name: str, service_broker_guid: bytes) -> DatabaseFile:
    """Makes the file of a database, beside msdb's."""
    listed = {row.file for row in registry.load(listing)}
    with instance.msdb.file.read() as committed:  # what this change drops stands there until it is committed
        listed |= {row.file for row in registry.load(committed)}
    path = next(
        instance.folder / candidate
        for number in count(1)
        if (candidate := file_name(name, number=number)) not in listed  # a database of another name may have it
    )
    existed = path.exists()
    if existed and _is_leftover(instance, path):
        remove_files(path)
    try:
        return DatabaseFile.create(
            path,
            DATABASE,
            fill=lambda connection: _fill(
                connection, path, service_broker_guid=service_broker_guid, attached_to=instance.instance_id
            ),
            lock_timeout=instance.lock_timeout,
            vfs=instance.vfs,
        )
    except StorageError as error:
        if isinstance(error, NotBlankError) or (existed and not isinstance(error, LockTimeoutError)):
            raise refusal(f"{path} stands there already: attach it, or move it away", 5170) from error
        if not existed:
            remove_files(path)
        raise


def file_name(name: str, *, number: int = 1) -> str:
    """The name of a database's file: its own name, with what file systems dislike written as in a URL.

    Examples:
        >>> file_name("Sales"), file_name("Sales", number=2), file_name("a/b")
        ('Sales.sqlite', 'Sales.2.sqlite', 'a%2Fb.sqlite')
    """
    escaped = _ESCAPED.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)
    if len(escaped) > _NAME_BYTES_MAX:
        escaped = f"{escaped[:_NAME_BYTES_MAX]}-{sha256(name.encode()).hexdigest()[:16]}"
    return f"{escaped}.sqlite" if number == 1 else f"{escaped}.{number}.sqlite"


def remove_files(path: Path) -> None:
    """Removes a database file with what SQLite keeps beside it."""
    for beside in ("-wal", "-shm", ""):
        Path(f"{path}{beside}").unlink(missing_ok=True)


def remove_dropped(instance: Instance, msdb: DatabaseFile, path: Path) -> None:
    """Removes the file of a dropped database, unless a new one stands at its place already.

    Where it cannot be removed now, whoever makes a database of that name does it.
    """
    try:
        with msdb.write() as listing:
            if all(instance.folder / row.file != path for row in registry.load(listing)):
                remove_files(path)
    except OSError as error:
        _log.warning("%s: is dropped, and could not be removed: %s", path, error)


def _is_leftover(instance: Instance, path: Path) -> bool:
    """Whether a file that is not on the list may go: it is dropped, or what a crash left of making it, with nothing in it."""
    try:
        file = DatabaseFile.open(path, DATABASE, lock_timeout=instance.lock_timeout, vfs=instance.vfs)
    except StorageError:
        return False
    try:
        with file.read() as connection:
            note = registry.note_of(connection)
            return note.attached_to == registry.DROPPED or (
                note == registry.Note(instance.instance_id, registry.identity_of(path))
                and not stored.load(connection).queues
                and registry.holds_nothing_else(connection)
            )
    finally:
        file.close()


def _fill(connection: Connection, path: Path, *, service_broker_guid: bytes, attached_to: bytes) -> None:
    changes.create_database_row(
        connection, service_broker_guid=service_broker_guid, attached_to=attached_to, is_broker_enabled=True
    )
    registry.note(connection, attached_to=attached_to, identity=registry.identity_of(path))
    defaults.create(connection)


def random_guid(random: randomness.Random) -> uuid.UUID:
    """A random id (B6).

    Args:
        random: Where it comes from.

    Returns:
        An id of version 4.

    Examples:
        >>> random_guid(randomness.Random(7)).version
        4
    """
    return uuid.UUID(int=random.getrandbits(128), version=4)
