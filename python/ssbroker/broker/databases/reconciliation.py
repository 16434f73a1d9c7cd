"""What is done where a database file and the list differ when an instance opens: after a crash, or because the file is another one (B25)."""

from __future__ import annotations

from ssbroker.exceptions import StorageError
from ssbroker.store import object_changes as changes
from ssbroker.store import objects as stored
from ssbroker.store import registry
from ssbroker.store.file import DatabaseFile
from ssbroker.store.registry import Listed, Note
from ssbroker.store.sqlite import Connection


def reconcile(file: DatabaseFile, msdb: DatabaseFile, database_id: int, *, instance_id: bytes) -> None:
    """Has file and list say the same: the id is the file's, and the broker is enabled only where both say so.

    Args:
        file: The database's file, open.
        msdb: The file with the list.
        database_id: The database.
        instance_id: The instance.

    Raises:
        StorageError: Another instance has the file, or a file cannot be used.
    """
    here = Note(instance_id, registry.identity_of(file.path))
    with msdb.read() as listing, file.read() as connection:
        if _agree(connection, _row(listing, database_id), here):
            return
    # The file before msdb, as everywhere; whoever was in the middle of a change is done with it then.
    with file.write() as connection, msdb.write() as listing:
        row = _row(listing, database_id)
        if row is None or _agree(connection, row, here):
            return
        note, broker = registry.note_of(connection), stored.load(connection).broker
        if note.attached_to not in (None, instance_id) and note.identity == here.identity:
            raise StorageError(f"{file.path}: is attached to another instance", file=str(file.path))
        guid = broker.service_broker_guid
        twin = registry.enabled_twin(listing, service_broker_guid=guid, name=row.name)
        is_enabled = broker.is_broker_enabled and row.is_broker_enabled and twin is None
        registry.note(connection, attached_to=instance_id, identity=here.identity)
        if is_enabled != broker.is_broker_enabled:
            changes.set_broker(connection, is_broker_enabled=is_enabled)
        registry.set_broker(listing, name=row.name, service_broker_guid=guid, is_broker_enabled=is_enabled)


def _row(listing: Connection, database_id: int) -> Listed | None:
    return next((row for row in registry.load(listing) if row.database_id == database_id), None)


def _agree(connection: Connection, row: Listed | None, here: Note) -> bool:
    broker = stored.load(connection).broker  # refuses an altered file before anything is written to it
    if row is None or registry.note_of(connection) != here:
        return False
    said = (broker.service_broker_guid, broker.is_broker_enabled)
    return said == (row.service_broker_guid, row.is_broker_enabled)
