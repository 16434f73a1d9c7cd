"""Creates, attaches, detaches, renames databases and changes their broker ids; the endpoint stored in msdb."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, get_args

from ssbroker._arguments import is_utf8_text
from ssbroker.broker import databases
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.databases import InstanceChange
from ssbroker.broker.dialogs.begin_end import end_all_with_error
from ssbroker.broker.dynamic_routing import forget_route_requests
from ssbroker.broker.validation import check_object_name, refusal
from ssbroker.ddl import statements
from ssbroker.ddl.interpreter import SYSTEM_DATABASES, canonical_name
from ssbroker.ddl.statements import BrokerOption, EndpointSettings
from ssbroker.exceptions import BrokerWarning, LockTimeoutError, OptionError, StorageError
from ssbroker.store import object_changes as changes
from ssbroker.store import objects as stored
from ssbroker.store import registry
from ssbroker.store.file import DatabaseFile
from ssbroker.store.objects import BrokerEndpoint
from ssbroker.store.registry import MSDB_NAME
from ssbroker.store.schema import DATABASE
from ssbroker.store.sqlite import Connection, is_missing

_MSDB_STAYS: Final = "msdb is a system database"


def create(instance: InstanceContext, alteration: InstanceChange, name: str) -> DatabaseContext:
    """Makes a database in a file of its own (I1)."""
    listing = alteration.listing()
    _check_free(listing, name)
    guid = instance.new_guid().bytes
    file = databases.create_database(instance, listing, name=name, service_broker_guid=guid)
    with ExitStack() as undo:
        undo.callback(databases.remove_files, file.path)
        undo.callback(file.close)
        number = registry.add(listing, name=name, file=file.path.name, service_broker_guid=guid, is_broker_enabled=True)
        undo.pop_all()
    database = DatabaseContext(instance, database_id=number, name=name, file=file)
    alteration.joined(database, created=True)
    return database


def attach(
    instance: InstanceContext, alteration: InstanceChange, name: str, path: Path, option: BrokerOption | None
) -> DatabaseContext:
    """Takes in a database file as it is (I8), but for I7 and the option."""
    if option is not None:
        _check_option(option)
    listing = alteration.listing()
    _check_free(listing, name)
    _refuse_listed(instance, listing, path)
    file = _open(instance, path)
    with ExitStack() as undo:
        undo.callback(file.close)
        with file.read() as connection:
            broker = stored.load(connection).broker
        number = registry.add(
            listing,
            name=name,
            file=_as_listed(instance, path),
            service_broker_guid=broker.service_broker_guid,
            is_broker_enabled=False,
        )
        undo.pop_all()
    database = DatabaseContext(instance, database_id=number, name=name, file=file)
    alteration.joined(database, created=False)
    connection = alteration.connection(database)
    _refuse_attached(instance, connection, path)
    registry.record_owner(connection, attached_to=instance.instance_id, identity=registry.file_identity(path))
    changes.set_honor_broker_priority(connection, is_on=False)  # fact 150
    forget_route_requests(alteration.work(database))
    wanted = option or ("ENABLE_BROKER" if broker.is_broker_enabled else "DISABLE_BROKER")
    twin = registry.find_enabled_duplicate(listing, service_broker_guid=broker.service_broker_guid, name=name)
    if twin is not None and wanted in ("ENABLE_BROKER", "ERROR_BROKER_CONVERSATIONS"):
        warnings.warn(
            f"9773: the broker of {name!r} is disabled, since {twin!r} is enabled under the same broker id; "
            "NEW_BROKER gives it one of its own",
            BrokerWarning,
            stacklevel=3,
        )
        wanted = "DISABLE_BROKER"
    set_broker(instance, alteration, database, wanted)
    return database


def detach(alteration: InstanceChange, name: str, *, is_dropped: bool = False) -> None:
    """Takes a database off the list; its file stays whole (B29), or goes too."""
    if is_utf8_text(name) and canonical_name(name) in SYSTEM_DATABASES:
        raise refusal(_MSDB_STAYS, 3708 if is_dropped else 7940)
    if name in alteration.lost:
        alteration.forget(name)
        return
    database = alteration.database(name)
    connection = alteration.connection(database)
    alteration.objects(database)  # refuses what another process took away meanwhile
    registry.record_owner(connection, attached_to=registry.DROPPED if is_dropped else None, identity=None)
    registry.remove(alteration.listing(), name=alteration.row(database).name)
    alteration.left(database, is_dropped=is_dropped)


def rename(alteration: InstanceChange, name: str, new: str) -> None:
    """Gives a database another name; its id and its file stay."""
    if canonical_name(name) in SYSTEM_DATABASES:
        raise refusal(_MSDB_STAYS, 3708)
    database = alteration.database(name)
    listing = alteration.listing()
    _check_free(listing, new)
    registry.rename(listing, name=alteration.row(database).name, new_name=new)
    alteration.renamed(database, new)


def set_broker(
    instance: InstanceContext, alteration: InstanceChange, database: DatabaseContext, option: BrokerOption
) -> None:
    """Enables or disables a database's broker, with a new id or the old one (I4, I5, I6)."""
    _check_option(option)
    connection = alteration.connection(database)
    broker = alteration.objects(database).broker
    listing = alteration.listing()
    name = alteration.row(database).name
    is_new, is_enabled = option == "NEW_BROKER", option != "DISABLE_BROKER"
    if is_new and broker.mirroring_role == "mirror":
        raise refusal(f"{name!r} is the mirror of a pair: only its principal gets a new broker id", 9778)
    guid = instance.new_guid().bytes if is_new else broker.service_broker_guid
    if is_enabled:
        _check_alone(listing, name, guid)
        alteration.gains(database)
    else:
        alteration.loses(database)
    if option in ("NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"):
        end_all_with_error(alteration.work(database), is_told=not is_new)
    changes.set_broker(connection, is_broker_enabled=is_enabled, service_broker_guid=guid)
    registry.set_broker(listing, name=name, service_broker_guid=guid, is_broker_enabled=is_enabled)


def set_guid(alteration: InstanceChange, database: DatabaseContext, guid: bytes) -> None:
    """Gives a database a broker id that is known from elsewhere, before it has conversations."""
    connection = alteration.connection(database)
    broker = alteration.objects(database).broker
    if broker.service_broker_guid == guid:
        return
    if changes.has_conversations(connection):
        raise refusal(f"the database {database.name!r} has conversations under its broker id")
    listing = alteration.listing()
    name = alteration.row(database).name
    if broker.is_broker_enabled:
        _check_alone(listing, name, guid)
        alteration.gains(database)
    changes.set_broker(connection, is_broker_enabled=broker.is_broker_enabled, service_broker_guid=guid)
    registry.set_broker(listing, name=name, service_broker_guid=guid, is_broker_enabled=broker.is_broker_enabled)


def _check_alone(listing: Connection, name: str, guid: bytes) -> None:
    """Refuses where another database of the instance is enabled under the id (I7)."""
    twin = registry.find_enabled_duplicate(listing, service_broker_guid=guid, name=name)
    if twin is not None:
        raise refusal(f"the broker id of {name!r} is that of {twin!r}, which is enabled", 9772)


def _check_option(option: object) -> None:
    options = get_args(BrokerOption)
    if option not in options:
        raise OptionError(f"option: expected one of {', '.join(options)}; got {option!r}")


def _check_free(listing: Connection, name: str) -> None:
    check_object_name(name)
    if canonical_name(name) in SYSTEM_DATABASES or name in {row.name for row in registry.load(listing)}:
        raise refusal(f"the database {name!r} exists", 1801)


def _refuse_listed(instance: InstanceContext, listing: Connection, path: Path) -> None:
    """Refuses a file that the instance has already, by whatever path (B26)."""
    identity = registry.file_identity(path)
    for row in registry.load(listing):
        there = instance.folder / row.file
        if there == path or (identity is not None and registry.file_identity(there) == identity):
            raise refusal(f"{path} is the file of the database {row.name!r}", 5120)


def _refuse_attached(instance: InstanceContext, connection: Connection, path: Path) -> None:
    """Refuses a file that another instance has: it notes itself, and a copy is another file (B26)."""
    note = registry.read_owner(connection)
    if note.attached_to not in (None, instance.instance_id) and note.identity == registry.file_identity(path):
        raise refusal(f"{path} is attached to another instance: detach it there, or attach a copy", 5120)


def _open(instance: InstanceContext, path: Path) -> DatabaseFile:
    if is_missing(path):
        raise StorageError(f"{path}: there is no such file", file=str(path))
    try:
        file = DatabaseFile.open(path, DATABASE, lock_timeout=instance.lock_timeout, vfs=instance.vfs)
    except LockTimeoutError:
        raise
    except StorageError as error:
        raise refusal(f"{path} is no file of a database that can be attached: {error}", 5171) from error
    with file.read() as connection:
        is_msdb = registry.is_msdb(connection)
    if is_msdb:
        file.close()
        raise refusal(f"{path} is the msdb of an instance", 5171)
    return file


def _as_listed(instance: InstanceContext, path: Path) -> str:
    """The path as the list has it: relative within the instance's folder, which may be moved as a whole."""
    return str(path.relative_to(instance.folder) if path.is_relative_to(instance.folder) else path)


FORWARDING_SIZE: Final = 10
"""The megabytes that forwarding may hold unless told otherwise (fact 68)."""
_NOT_OURS: Final = "skipped, it is no endpoint for Service Broker"


def run(
    alteration: InstanceChange,
    statement: statements.CreateEndpoint | statements.AlterEndpoint | statements.DropEndpoint,
    annotations: Mapping[str, str],
) -> str | None:
    """Runs a statement about an endpoint.

    Returns:
        What was left out of account, for a warning.

    Raises:
        BrokerError: The instance has an endpoint already (7862), or the endpoint is another (15151).
    """
    msdb = alteration.database(MSDB_NAME)
    connection, known = alteration.connection(msdb), alteration.objects(msdb).endpoint
    name = statement.name
    is_known = known is not None and known.name == name
    if isinstance(statement, statements.CreateEndpoint):
        if known is not None:
            raise refusal(f"the instance has the Service Broker endpoint {known.name!r}; one is allowed", 7862)
        changes.set_endpoint(
            connection, _changed(BrokerEndpoint(name, "STOPPED", 0, "ALL", False, FORWARDING_SIZE), statement.settings)
        )
    elif isinstance(statement, statements.DropEndpoint):
        if not is_known:
            return _NOT_OURS
        changes.set_endpoint(connection, None)
    elif known is None or not is_known:
        if not statement.for_broker:
            return _NOT_OURS
        raise refusal(f"the instance has no Service Broker endpoint {name!r}", 15151)
    else:
        changes.set_endpoint(connection, _changed(known, statement.settings))
    return "skipped addresses_only: `serve` says where the instance is reached" if annotations else None


def _changed(before: BrokerEndpoint, said: EndpointSettings) -> BrokerEndpoint:
    """The endpoint with what is said; the rest as it was."""
    return BrokerEndpoint(
        before.name,
        before.state if said.state is None else said.state,
        before.port if said.port is None else said.port,
        before.ip if said.ip is None else said.ip,
        before.is_message_forwarding_enabled if said.forwarding is None else said.forwarding,
        before.message_forwarding_size if said.forward_size is None else said.forward_size,
    )
