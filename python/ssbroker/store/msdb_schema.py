"""The tables that the file of msdb holds beside those of every database, as migrations from each version to the next."""

from __future__ import annotations

from typing import Final

MSDB: Final = (
    """
    CREATE TABLE ssb_instance (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        name TEXT NOT NULL,
        instance_id BLOB NOT NULL,
        list_version INTEGER NOT NULL DEFAULT 0
    );
    -- B25: the index makes I7 hold whoever tries, and however many at once.
    CREATE TABLE ssb_databases (
        database_id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never one again that was: other processes know it by that
        name TEXT NOT NULL UNIQUE,
        file TEXT NOT NULL UNIQUE,
        service_broker_guid BLOB NOT NULL,
        is_broker_enabled INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX ssb_databases_enabled ON ssb_databases (service_broker_guid) WHERE is_broker_enabled;
    -- At most one row: the Service Broker endpoint (facts 171, 173).
    CREATE TABLE ssb_service_broker_endpoint (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        port INTEGER NOT NULL,
        ip TEXT NOT NULL,
        is_message_forwarding_enabled INTEGER NOT NULL DEFAULT 0,
        message_forwarding_size INTEGER NOT NULL DEFAULT 10
    );
    """,
    "",
    "",
    "",
    "",
)
"""What `msdb` holds besides; each entry runs with the one of `schema.DATABASE` at its place."""
