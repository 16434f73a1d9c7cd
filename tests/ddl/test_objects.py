"""Queues, services and the endpoint."""

from __future__ import annotations

import uuid

import pytest

from tests.ddl.scripts import GUID, read, services, skipped

ID = uuid.UUID(GUID)


def test_services_are_in_order_of_creation() -> None:
    script = read(
        "USE Sales",
        "CREATE QUEUE dbo.Q WITH STATUS = ON, RETENTION = OFF, ACTIVATION (STATUS = ON, PROCEDURE_NAME = dbo.p, EXECUTE AS SELF) ON [DEFAULT]",
        "CREATE QUEUE HR.[other].[Q]",
        "CREATE SERVICE [//B] AUTHORIZATION dbo ON QUEUE Q (DEFAULT_CONTRACT, [//Contract])",
        "CREATE SERVICE [//A] ON QUEUE [DBO].q ([DEFAULT]);",
        "USE HR CREATE SERVICE [//A] ON QUEUE other.Q",
    )
    assert services(script) == [("Sales", "//B"), ("Sales", "//A"), ("HR", "//A")]


def test_roles_are_skipped_where_they_are_named() -> None:
    """SQL Server accepts them as owners and grantees; there is no role here, so the owner is dbo."""
    script, notes = skipped(
        "CREATE DATABASE Sales",
        "GO",
        "USE Sales",
        "CREATE QUEUE Q",
        "IF DATABASE_PRINCIPAL_ID(N'Senders') IS NULL CREATE ROLE Senders AUTHORIZATION dbo",
        "CREATE SERVICE [//A] AUTHORIZATION [db_owner] ON QUEUE Q ([DEFAULT])",
        "CREATE SERVICE [//B] AUTHORIZATION senders ON QUEUE Q ([DEFAULT])",
        "GRANT SEND ON SERVICE::[//A] TO Senders, public, guest",
        "ALTER AUTHORIZATION ON SERVICE::[//A] TO [Senders]",
    )
    assert services(script) == [("Sales", "//A"), ("Sales", "//B")]
    why = "roles and guest are not supported; name users instead"
    assert notes[1:] == [
        f"routes.sql:6: CREATE SERVICE [//A]: skipped db_owner: {why}",
        f"routes.sql:7: CREATE SERVICE [//B]: skipped senders: {why}",
        f"routes.sql:8: GRANT SEND [//A]: skipped Senders, guest: {why}",
        f"routes.sql:9: ALTER AUTHORIZATION [//A]: skipped Senders: {why}",
    ]
    assert not any(note.is_problem for note in script.notes)


def test_queues_and_services_are_altered_and_dropped() -> None:
    script = read(
        "USE Sales",
        "CREATE QUEUE Q CREATE QUEUE Spare",
        "ALTER QUEUE Q WITH STATUS = OFF, POISON_MESSAGE_HANDLING (STATUS = OFF)",
        "CREATE SERVICE S ON QUEUE Q CREATE SERVICE T ON QUEUE Q",
        "ALTER SERVICE S ON QUEUE Spare (ADD CONTRACT c, DROP CONTRACT [//d])",
        "ALTER SERVICE S (ADD CONTRACT e)",
        "DROP SERVICE T DROP QUEUE Q",
    )
    assert services(script) == [("Sales", "S")]


ENDPOINT = "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022{ip}) FOR SERVICE_BROKER ({options})"
LOOPBACK = ("TCP://localhost:4022", "TCP://127.0.0.1:4022", "TCP://[::1]:4022")


@pytest.mark.parametrize(
    ("ip", "addresses"),
    [
        ("", LOOPBACK),
        (", LISTENER_IP = ALL", LOOPBACK),
        (", LISTENER_IP = (10.20.0.11)", ("TCP://10.20.0.11:4022",)),
        (", LISTENER_IP = ('2001:DB8:0::17')", ("TCP://[2001:db8::17]:4022",)),
    ],
)
def test_addresses_of_a_listener(ip: str, addresses: tuple[str, ...]) -> None:
    assert read(ENDPOINT.format(ip=ip, options="AUTHENTICATION = WINDOWS")).addresses == addresses


@pytest.mark.parametrize(
    ("options", "forwarding"),
    [
        ("MESSAGE_FORWARDING = ENABLED", True),
        ("message_forwarding = disabled", False),
        (
            "AUTHENTICATION = WINDOWS NEGOTIATE CERTIFICATE [c], ENCRYPTION = REQUIRED ALGORITHM AES RC4, MESSAGE_FORWARDING = ENABLED, MESSAGE_FORWARD_SIZE = 20",
            True,
        ),
        ("AUTHENTICATION = CERTIFICATE MESSAGE_FORWARDING", False),
    ],
)
def test_message_forwarding_is_off_unless_enabled(options: str, forwarding: bool) -> None:  # noqa: FBT001
    assert read(ENDPOINT.format(ip="", options=options)).message_forwarding is forwarding


def test_alter_endpoint_keeps_unspecified_settings() -> None:
    create = ENDPOINT.format(ip="", options="MESSAGE_FORWARDING = ENABLED")
    stopped = read(create, "ALTER ENDPOINT Broker STATE = STOPPED")
    assert (stopped.addresses, stopped.message_forwarding) == (LOOPBACK, True)
    moved = read(create, "ALTER ENDPOINT Broker AUTHORIZATION sa AS TCP (LISTENER_IP = (10.0.0.1))")
    assert (moved.addresses, moved.message_forwarding) == (("TCP://10.0.0.1:4022",), True)
    off = read(create, "ALTER ENDPOINT Broker FOR SERVICE_BROKER (MESSAGE_FORWARDING = DISABLED)")
    assert (off.addresses, off.message_forwarding) == (LOOPBACK, False)


def test_existing_endpoint_can_be_altered() -> None:
    script = read("ALTER ENDPOINT Broker FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)")
    assert (script.addresses, script.message_forwarding) == ((), True)


def test_dropped_endpoint_can_be_recreated() -> None:
    create = ENDPOINT.format(ip="", options="MESSAGE_FORWARDING = ENABLED")
    script = read(create, "DROP ENDPOINT Broker")
    assert (script.addresses, script.message_forwarding) == ((), False)
    assert read(create, "DROP ENDPOINT Broker", create).addresses == LOOPBACK


@pytest.mark.parametrize(
    "line",
    [
        "CREATE ENDPOINT Mirroring AS TCP (LISTENER_PORT = 5022) FOR DATABASE_MIRRORING (ROLE = ALL)",
        "CREATE ENDPOINT Web AS HTTP (PATH = '/a', PORTS = (CLEAR)) FOR SOAP (WSDL = NONE)",
        "CREATE ENDPOINT Admin STATE = STARTED, AFFINITY = ADMIN AS TCP (LISTENER_PORT = 1500) FOR TSQL ()",
        "ALTER ENDPOINT Mirroring FOR DATABASE_MIRRORING (ROLE = PARTNER)",
        "ALTER ENDPOINT Mirroring STATE = STARTED",
        "DROP ENDPOINT Mirroring",
    ],
)
def test_other_endpoints_are_skipped(line: str) -> None:
    script, warnings = skipped(ENDPOINT.format(ip="", options=""), line)
    assert script.addresses == LOOPBACK
    assert len(warnings) == 1
