"""Creates, attaches, detaches and renames databases, and changes their broker ids."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

from ssbroker._arguments import is_utf8_text
from ssbroker.broker import instance_files
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.dialogs.dialog_lifecycle import end_all_conversations
from ssbroker.broker.dynamic_routing import forget_route_requests
from ssbroker.broker.instance_transaction import InstanceTransaction
from ssbroker.broker.object_names import check_object_name
from ssbroker.ddl import refusal_texts
from ssbroker.ddl.statements import BrokerOption
from ssbroker.ddl.system_objects import SYSTEM_DATABASES, canonical_name, taken_name_text
from ssbroker.exceptions import BrokerError, BrokerWarning, LockTimeoutError, OptionError, StorageError
from ssbroker.protocol.broker_errors import refusal
from ssbroker.store import database_registry, file_ownership
from ssbroker.store import object_changes as changes
from ssbroker.store import objects as stored
from ssbroker.store.database_file import DatabaseFile
from ssbroker.store.schema import DATABASE
from ssbroker.store.sqlite import Connection, is_missing


def create(instance: InstanceContext, transaction: InstanceTransaction, name: str) -> DatabaseContext:
    """Creates a database in its own file, with a new broker id (I1)."""
    listing = transaction.listing()
    _check_free(transaction, name)
    guid = instance.new_guid().bytes
    file = instance_files.create_database(instance, listing, name=name, service_broker_guid=guid)
    with ExitStack() as undo:
        undo.callback(instance_files.remove_files, file.path)
        undo.callback(file.close)
        database_id = database_registry.add(
            listing, name=name, file=file.path.name, service_broker_guid=guid, is_broker_enabled=True
        )
        undo.pop_all()
    database = DatabaseContext(instance, database_id=database_id, name=name, file=file)
    transaction.add(database, created=True)
    return database


def attach(
    instance: InstanceContext, transaction: InstanceTransaction, name: str, path: Path, option: BrokerOption | None
) -> DatabaseContext:
    """Attaches a database file, which keeps its broker id (I8), and applies the option. Disables the broker if another database is enabled with the same id (I7)."""
    if option is not None:
        _check_option(option)
    listing = transaction.listing()
    _check_free(transaction, name)
    _check_not_listed(instance, listing, path)
    file = _open(instance, path)
    with ExitStack() as undo:
        undo.callback(file.close)
        with file.read() as connection:
            broker = stored.load(connection).broker
        database_id = database_registry.add(
            listing,
            name=name,
            file=_registry_path(instance, path),
            service_broker_guid=broker.service_broker_guid,
            is_broker_enabled=False,
        )
        undo.pop_all()
    database = DatabaseContext(instance, database_id=database_id, name=name, file=file)
    transaction.add(database, created=False)
    connection = transaction.connection(database)
    _check_not_attached(instance, connection, path)
    file_ownership.record_owner(connection, instance.ownership.owner(path))
    changes.set_honor_broker_priority(connection, is_on=False)
    forget_route_requests(transaction.work(database))
    effective = option or ("ENABLE_BROKER" if broker.is_broker_enabled else "DISABLE_BROKER")
    duplicate = database_registry.find_enabled_duplicate(
        listing, service_broker_guid=broker.service_broker_guid, name=name
    )
    if duplicate is not None and effective in ("ENABLE_BROKER", "ERROR_BROKER_CONVERSATIONS"):
        warnings.warn(
            f"9773: the broker of {name!r} was disabled, because {duplicate!r} is enabled with the same broker id; "
            "use NEW_BROKER to set a new broker id",
            BrokerWarning,
            stacklevel=3,
        )
        effective = "DISABLE_BROKER"
    set_broker(instance, transaction, database, effective)
    return database


def detach(transaction: InstanceTransaction, name: str, *, is_dropped: bool = False) -> None:
    """Detaches a database, or drops it with its file."""
    if is_utf8_text(name) and canonical_name(name) in SYSTEM_DATABASES:
        raise _system_database_error(name, 3708 if is_dropped else 7940)
    if name in transaction.unavailable:
        transaction.remove_unavailable(name, is_dropped=is_dropped)
        return
    database = transaction.database(name)
    connection = transaction.connection(database)
    transaction.objects(database)  # raises if another process has detached it meanwhile
    owner = file_ownership.DROPPED if is_dropped else None
    file_ownership.record_owner(connection, file_ownership.FileOwner(owner, identity=None))
    database_registry.remove(transaction.listing(), name=transaction.row(database).name)
    transaction.remove(database, is_dropped=is_dropped)


def rename(transaction: InstanceTransaction, name: str, new: str) -> None:
    """Renames a database; its broker id and file stay the same."""
    if canonical_name(name) in SYSTEM_DATABASES:
        raise _system_database_error(name, 3708)
    database = transaction.database(name)
    _check_free(transaction, new)
    database_registry.rename(transaction.listing(), name=transaction.row(database).name, new_name=new)
    transaction.renamed(database, new)


def set_broker(
    instance: InstanceContext, transaction: InstanceTransaction, database: DatabaseContext, option: BrokerOption
) -> None:
    """Enables, disables or resets the broker of a database (I4, I5, I6)."""
    _check_option(option)
    connection = transaction.connection(database)
    broker = transaction.objects(database).broker
    listing = transaction.listing()
    name = transaction.row(database).name
    is_new, is_enabled = option == "NEW_BROKER", option != "DISABLE_BROKER"
    if is_new and broker.mirroring_role == "mirror":
        raise refusal(f"the database {name!r} is a mirror; only the principal can get a new broker id", 9778)
    guid = instance.new_guid().bytes if is_new else broker.service_broker_guid
    if is_enabled:
        _check_no_duplicate(listing, name, guid)
        transaction.commit_after_registry(database)
    else:
        transaction.commit_before_registry(database)
    if option in ("NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"):
        end_all_conversations(transaction.work(database), notify_remote=not is_new)
    changes.set_broker(connection, is_broker_enabled=is_enabled, service_broker_guid=guid)
    database_registry.set_broker(listing, name=name, service_broker_guid=guid, is_broker_enabled=is_enabled)


def set_guid(transaction: InstanceTransaction, database: DatabaseContext, guid: bytes) -> None:
    """Sets a given broker id on a database that has no conversations yet."""
    connection = transaction.connection(database)
    broker = transaction.objects(database).broker
    if broker.service_broker_guid == guid:
        return
    if changes.has_conversations(connection):
        raise refusal(
            f"the broker id of the database {database.name!r} cannot be changed, because the database has conversations; "
            "end these conversations first"
        )
    listing = transaction.listing()
    name = transaction.row(database).name
    if broker.is_broker_enabled:
        _check_no_duplicate(listing, name, guid)
        transaction.commit_after_registry(database)
    changes.set_broker(connection, is_broker_enabled=broker.is_broker_enabled, service_broker_guid=guid)
    database_registry.set_broker(
        listing, name=name, service_broker_guid=guid, is_broker_enabled=broker.is_broker_enabled
    )


def _system_database_error(name: str, number: int) -> BrokerError:
    return refusal(refusal_texts.system_database(name, "detached, dropped or renamed"), number)


def _check_no_duplicate(listing: Connection, name: str, guid: bytes) -> None:
    """Raises an error if another database of the instance is enabled with the broker id (I7)."""
    duplicate = database_registry.find_enabled_duplicate(listing, service_broker_guid=guid, name=name)
    if duplicate is not None:
        raise refusal(refusal_texts.same_broker_id(name, duplicate), 9772)


def _check_option(option: object) -> None:
    options = get_args(BrokerOption)
    if option not in options:
        raise OptionError(f"option: expected one of {', '.join(options)}, got {option!r}")


def _check_free(transaction: InstanceTransaction, name: str) -> None:
    check_object_name(name)
    is_registered = database_registry.by_name(transaction.listing(), name) is not None
    if is_registered and name in transaction.unavailable:
        raise refusal(f"{taken_name_text(name)}, but cannot be used: {transaction.unavailable[name]}", 1801)
    if canonical_name(name) in SYSTEM_DATABASES or is_registered:
        raise refusal(taken_name_text(name), 1801)


def _check_not_listed(instance: InstanceContext, listing: Connection, path: Path) -> None:
    """Raises an error if the instance already lists the file, under any path."""
    identity = file_ownership.stored_file_identity(path)
    for row in database_registry.load(listing):
        listed = instance.folder / row.file
        if listed == path or (identity is not None and file_ownership.stored_file_identity(listed) == identity):
            raise refusal(f"{path} is already attached as the database {row.name!r}", 5120)


def _check_not_attached(instance: InstanceContext, connection: Connection, path: Path) -> None:
    """Raises an error if the file is attached to another instance; a copy of that file may be attached."""
    if instance.ownership.is_foreign(path, file_ownership.read_owner(connection)):
        raise refusal(
            f"{path} is attached to another instance, possibly the one from which this instance was copied; detach it there, or attach a backup of the file",
            5120,
        )


def _open(instance: InstanceContext, path: Path) -> DatabaseFile:
    if is_missing(path):
        raise StorageError(f"{path}: no such file", file=str(path))
    try:
        file = DatabaseFile.open(path, DATABASE, lock_timeout=instance.lock_timeout, vfs=instance.vfs)
    except LockTimeoutError:
        raise
    except StorageError as error:
        raise refusal(
            f"{path} is not a database file that can be attached: {str(error).removeprefix(f'{path}: ')}; "
            "to use the tables of another SQLite file, create a database, and copy them into it",
            5171,
        ) from error
    with ExitStack() as undo:
        undo.callback(file.close)
        with file.read() as connection:
            if database_registry.is_msdb(connection):
                raise refusal(f"{path} is the msdb of an instance, which cannot be attached", 5171)
        undo.pop_all()
    return file


def _registry_path(instance: InstanceContext, path: Path) -> str:
    """Returns the path for the registry: relative within the instance folder, so that the folder can be moved."""
    return str(path.relative_to(instance.folder) if path.is_relative_to(instance.folder) else path)
