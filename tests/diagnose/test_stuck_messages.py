"""The cause of a stuck message is found among the findings."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import SchemaError, SsbrokerError, UnknownDatabaseError
from ssbroker.broker.dialogs.transmission_status import dropped_by_next_hop
from ssbroker.catalog.details import EndpointDetails, InstanceDetails, QueueDetails, ServiceDetails
from ssbroker.diagnose import STUCK, Fleet, stuck
from ssbroker.diagnose.status_causes import cause_of
from ssbroker.protocol.wire.frames import DropReason
from tests.diagnose.finding_cases import fleet, north, passing, south
from tests.diagnose.script_fleets import host, loaded, to
from tests.rules.setting import BCN, MSDB, SALES, STORES, here, route
from tests.worlds.universe import NOW

STOPPED = InstanceDetails(endpoint=EndpointDetails(name="Broker", state="STOPPED"))
DISABLED_QUEUE = InstanceDetails(
    services={("Stores", "Stock"): ServiceDetails(queue="dbo.q", accepts_conversations=True)},
    queues={("Stores", "dbo.q"): QueueDetails(schema="dbo", name="Q", is_enabled=False)},
)


def explained(whole: Fleet, service: str, *, database: str = "Sales", **columns: Any) -> dict[str, Any]:
    queue = pa.table(
        {"database": [database], "to_service_name": [service], **{name: [value] for name, value in columns.items()}}
    )
    found = stuck(whole, queue, instance=next(iter(whole)), at=NOW)
    assert found.schema == STUCK
    (row,) = found.to_pylist()
    return dict(row)


@pytest.mark.parametrize(
    ("whole", "service", "code", "reason"),
    [
        (
            fleet(A=here(route(1, "TCP://o", service="Stock", lifetime=NOW - timedelta(days=1)))),
            "Stock",
            "SSB003",
            "no_route",
        ),
        (fleet(A=here(route(1, "TCP://o", service="STOCK"), services=(("Ops", "Stock"),))), "STOCK", None, "matched"),
        (
            fleet(A=here(route(1, "TCP://o", service="Stock"), services=(("Ops", "stock"),))),
            "stock",
            "SSB018",
            "no_route",
        ),
        (fleet(A=here(route(1, "TRANSPORT", service="Stock"))), "Stock", "SSB007", "address_unusable"),
        (
            fleet(A=here(route(1, "LOCAL"), services=(("Sales", "Own"),), disabled=("Sales",))),
            "Stock",
            "SSB021",
            "sender_disabled",
        ),
        (
            fleet(A=north(), SOUTH=replace(south(), routes=(route(1, "TCP://c", table=MSDB),))),
            "Stock",
            "SSB016",
            "matched",
        ),
        (fleet(A=north(), SOUTH=south("LOCAL")), "Stock", "SSB017", "matched"),
        (
            fleet(A=here(route(1, "TCP://b")), B=passing("TCP://b", "TCP://c"), C=passing("TCP://c", "TCP://b")),
            "Stock",
            "SSB020",
            "matched",
        ),
        (fleet(A=north(), SOUTH=south("TCP://north")), "Stock", None, "matched"),
    ],
)
def test_cause_is_the_most_closely_related_finding(whole: Fleet, service: str, code: str | None, reason: str) -> None:
    row = explained(whole, service)
    assert (row["code"], row["reason"]) == (code, reason)
    assert (row["cause"] is None) == (code is None)
    assert row["remedy"] or code is None


@pytest.mark.parametrize(
    ("stopped", "code", "object_name"),
    [
        ({"A": STOPPED}, "SSB026", 'A/endpoint "Broker"'),
        ({"SOUTH": STOPPED}, "SSB026", 'SOUTH/endpoint "Broker"'),
        ({"SOUTH": DISABLED_QUEUE}, "SSB027", 'SOUTH/Stores/queue "dbo.Q"'),
    ],
)
def test_stopped_endpoint_or_disabled_queue_is_the_cause(
    stopped: dict[str, InstanceDetails], code: str, object_name: str
) -> None:
    whole = fleet(A=north("LOCAL"), SOUTH=south("TCP://north"))
    whole = Fleet({name: catalog.with_details(stopped.get(name)) for name, catalog in whole.items()})
    row = explained(whole, "Stock", transmission_status="9754: cannot be reached")
    assert row["code"] == code
    assert row["cause"].startswith(f"{object_name}: is ")
    assert row["end"].startswith("DELAYED: waits in ")


def test_acknowledgement_stopped_by_an_endpoint_is_the_cause() -> None:
    whole = fleet(A=north("LOCAL"), SOUTH=south("TCP://hub"), HUB=passing("TCP://hub", "TCP://north"))
    row = explained(Fleet({**whole, "HUB": whole["HUB"].with_details(STOPPED)}), "Stock")
    assert row["code"] == "SSB026"


def test_advice_is_given_without_a_cause() -> None:
    row = explained(fleet(A=here()), "Stock")
    assert (row["code"], row["cause"]) == (None, None)
    assert row["remedy"].startswith(
        "If the service is in another instance, create a route to it: USE [Sales]; CREATE ROUTE"
    )


def test_return_path_is_described_and_status_is_kept() -> None:
    row = explained(fleet(A=north(), SOUTH=south("LOCAL")), "Stock", transmission_status="")
    assert row["end"] == "DELIVERED to SOUTH/Stores; return path: DELAYED: waits in SOUTH (service_not_found)"
    assert row["transmission_status"] == ""


def test_invalid_queue_is_refused() -> None:
    with pytest.raises(SchemaError, match="the column is missing"):
        stuck(fleet(A=here()), pa.table({"database": ["Sales"]}))
    with pytest.raises(UnknownDatabaseError, match="row 0: 'Nowhere' is not a database of the catalog"):
        explained(fleet(A=here()), "Stock", database="Nowhere")
    empty = pa.table({"database": pa.array([], pa.string()), "to_service_name": pa.array([], pa.string())})
    assert stuck(fleet(A=here()), empty).num_rows == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"to_service_name": pa.array([None], pa.string())}, "to_service_name, row 0: null is not allowed here"),
        ({"to_service_name": [b"Stock"]}, "to_service_name: expected text, got binary"),
        ({"database": pa.array([None], pa.string())}, "queue.database, row 0: null is not allowed here"),
        ({"to_broker_instance": ["no id"]}, "to_broker_instance, row 0: 'no id' is not a valid GUID"),
        ({"is_initiator": [2]}, "is_initiator, row 0: '2' is out of range; expected a bool, 1 or 0"),
        ({"transmission_status": [5]}, "queue.transmission_status: expected text, got int64"),
        ({"from_service_name": [5]}, "queue.from_service_name: expected text, got int64"),
    ],
)
def test_invalid_rows_are_refused(columns: dict[str, Any], message: str) -> None:
    """Values must not be converted: null to "None", or bytes to their repr."""
    queue: Any = {"database": ["Sales"], "to_service_name": ["Stock"], **columns}
    with pytest.raises(SsbrokerError, match=message):
        stuck(fleet(A=here()), pa.table(queue))


@pytest.mark.parametrize(
    "text",
    [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_empty_broker_id_is_none(text: pa.DataType) -> None:
    """`sys.transmission_queue` has an empty text in the rows of conversations without a broker id."""
    whole = fleet(A=north(), SOUTH=south("LOCAL"))
    services = {"database": ["Sales"] * 3, "to_service_name": ["Stock"] * 3}
    queue, nulls = (
        pa.table({**services, "to_broker_instance": pa.array(ids, pa.string()).cast(text)})
        for ids in (["", str(STORES), None], [None, str(STORES), None])
    )
    assert stuck(whole, queue, instance="A", at=NOW) == stuck(whole, nulls, instance="A", at=NOW)


@pytest.mark.rule("R42")
def test_loop_is_the_one_of_the_message() -> None:
    """Not a loop of other instances whose names contain the name of this one."""
    other = route(2, "TCP://ac", service="Other", table=MSDB), route(2, "TCP://ab", service="Other", table=MSDB)
    whole = fleet(
        A=here(route(1, "TCP://b")),
        AB=here(other[0], own=("TCP://ab",), forwarding=True),
        AC=here(other[1], own=("TCP://ac",), forwarding=True),
        B=passing("TCP://b", "TCP://c"),
        C=passing("TCP://c", "TCP://b"),
    )
    assert explained(whole, "Stock")["cause"].startswith("loop B -> C -> B: ")


@pytest.mark.rule("R5")
def test_similar_service_name_is_the_cause() -> None:
    """No route has the name, so no finding about routes explains it."""
    whole = fleet(A=here(route(1, "LOCAL")), B=here(services=(("Ops", "//Stock"),), own=("TCP://b",)))
    row = explained(whole, "//stock")
    assert (row["code"], row["reason"]) == ("SSB018", "service_not_found")
    assert row["cause"] == 'the conversation is for "//stock", but B/Ops has "//Stock", which differs only in case'
    assert (
        row["remedy"]
        == "Start the conversation again with the exact name of the service: BEGIN DIALOG ... TO SERVICE N'//Stock';"
    )
    assert explained(whole, "//Other")["code"] is None
    assert explained(whole, "//stock", is_initiator=False)["code"] is None, "the initiator named its own service"


@pytest.mark.parametrize("service", ["S1", "S4"])
def test_cause_is_a_finding_on_the_service_also_if_its_message_does_not_name_it(service: str) -> None:
    """The message names the first three services only."""
    services = tuple(("Ops", f"S{number}") for number in range(1, 5))
    whole = fleet(A=here(route(1, "LOCAL"), route(2, "TCP://broker", service=BCN), services=services))
    assert explained(whole, service)["code"] == "SSB015"


def test_a_route_with_the_name_of_the_service_is_not_the_cause() -> None:
    whole = fleet(A=here(route(1, "LOCAL", service="Other")))
    assert explained(whole, "Other")["code"] == "SSB008"
    assert explained(whole, "route 1")["code"] is None


SOUND = fleet(A=north(), SOUTH=south("TCP://north"))


@pytest.mark.parametrize(
    ("status", "cause", "remedy"),
    [
        (
            "An error occurred while receiving data: '10054(An existing connection was forcibly closed by the remote host.)'.",
            "the other side closes the connection",
            "error log of the target",
        ),
        (
            (
                "Connection attempt failed with error: '10060(A connection attempt failed because the connected party did not properly "
                "respond after a period of time.)'."
            ),
            "nothing answers at the address",
            "firewall",
        ),
        (
            "Connection attempt failed with error: '10061(No connection could be made because the target machine actively refused it.)'.",
            "nothing listens on the port",
            "sys.tcp_endpoints",
        ),
        (
            "Connection handshake failed. An OS call failed: (8009030c) 0x8009030c(The logon attempt failed). State 67.",
            "Windows authentication between the two endpoints fails",
            "setspn",
        ),
        (
            (
                "Connection handshake failed. An OS call failed: (80090311) 0x80090311(No authority could be contacted for "
                "authentication.). State 67."
            ),
            "no domain controller",
            "domain controller",
        ),
        (
            "An OS call failed: (80090304) 0x80090304(The Local Security Authority cannot be contacted).",
            "Windows authentication between the two endpoints fails",
            "CERTIFICATE on both endpoints",
        ),
        (
            (
                "Connection handshake failed. Error 15581 occurred while initializing the private key corresponding to the certificate. "
                "State 88."
            ),
            "master key in master is missing",
            "In master .*CREATE MASTER KEY",
        ),
        (
            (
                "The security certificate bound to database principal (Id: 1) has expired. Create or install a new certificate for the "
                "database principal."
            ),
            "certificate for dialog security has expired",
            "In the user database",
        ),
        (
            (
                "Cannot find the security certificate because the lookup database principal ID (5) is not valid. The security principal "
                "may have been dropped after the conversation was created."
            ),
            "was dropped from the user database",
            "CREATE USER",
        ),
        (
            (
                "Dialog security is unavailable for this conversation because there is no security certificate bound to the database "
                "principal (Id: 1). Either create a certificate for the principal, or specify ENCRYPTION = OFF when beginning the "
                "conversation."
            ),
            r"1 is dbo.*owner of the sender's service, has no certificate",
            "In the sender's database: CREATE CERTIFICATE",
        ),
        (
            (
                "The message could not be delivered because it could not be classified. Enable broker message classification trace to "
                "see the reason for the failure."
            ),
            "could not be classified",
            "Broker:Message Classify",
        ),
        (
            (
                "Service Broker received an error message on this conversation. Service Broker will not transmit the message; it will "
                "be held until the application ends the conversation."
            ),
            "the conversation has failed",
            "END CONVERSATION",
        ),
        (
            (
                "An exception occurred while enqueueing a message in the target queue. Error: 916, State: 3. The server principal "
                '"sa" is not able to access the database "B" under the current security context.'
            ),
            "does not trust the sender's database",
            "SET TRUSTWORTHY ON",
        ),
        (
            (
                "An exception occurred while enqueueing a message in the target queue. Error: 15404, State: 19. Could not obtain "
                "information about Windows NT group/user 'CORP\\bob', error code 0x5."
            ),
            "Windows account that owns the database cannot be looked up",
            "ALTER AUTHORIZATION ON DATABASE",
        ),
        (
            "The security certificate bound to database principal (Id: 5) is not yet valid. Either wait for it to become valid or change it.",
            "dialog security has expired or is not valid yet",
            "start_date",
        ),
        (
            'Error: 954, State: 1. The database "B" cannot be opened. It is acting as a mirror database.',
            "the mirror of a mirrored pair",
            "MIRROR_ADDRESS",
        ),
        (
            "Error: 942, State: 4. Database 'B' cannot be opened because it is offline.",
            "database of the target is not available",
            "SET ONLINE",
        ),
        (
            "The broker in the sender's database is in single user mode. Messages cannot be delivered at this time.",
            "single-user mode",
            "SET MULTI_USER",
        ),
        (
            "The target database, 'B', is participating in an availability group and is currently not accessible for queries.",
            "availability group",
            "listener",
        ),
        (
            'The Service Broker in the target database is unavailable: "The database B is not available.".',
            "database of the target is not available",
            "state_desc",
        ),
        (
            "Connection handshake failed. There is no compatible encryption algorithm. State 22.",
            "no encryption algorithm in common",
            "ALGORITHM",
        ),
        (
            "Connection handshake failed. There is no compatible encryption algorithm. State 84.",
            "no encryption algorithm in common",
            "ALGORITHM",
        ),
        (
            "Connection handshake failed. There is no compatible authentication protocol. State 85.",
            "no method of authentication in common",
            "AUTHENTICATION",
        ),
        (
            "Connection handshake failed. The certificate used by this endpoint was not found: Certificate expired. State 89.",
            "certificate of the endpoint is unknown",
            "expiry_date",
        ),
        (
            "Dialog security is not available for this conversation because there is no remote service binding for the target service.",
            "dialog security cannot be set up",
            "sys.remote_service_bindings",
        ),
        (
            "The session keys for this conversation could not be created or accessed. The database master key is required for this operation.",
            "a remote service binding, its user or a certificate is missing|no master key",
            "MASTER KEY|sys.remote_service_bindings",
        ),
        (
            "The broker in the sender's database is disabled.",
            "broker of the sender's or the target's database is disabled",
            "ENABLE_BROKER WITH ROLLBACK IMMEDIATE, which disconnects the users",
        ),
        (
            (
                "An exception occurred while enqueueing a message in the target queue. Error: 15517, State: 1. Cannot execute as the database "
                'principal because the principal "dbo" does not exist.'
            ),
            "owner of the database does not exist",
            "ALTER AUTHORIZATION ON DATABASE",
        ),
        (
            "The Service Broker endpoint is in disabled or stopped state.",
            "endpoint of the sending instance is stopped or missing",
            "STATE = STARTED",
        ),
        ("The target queue is currently disabled.", "queue of the target is disabled", "STATUS = ON"),
        (
            "9754: the next hop TCP://south:4022 cannot be reached: [Errno 111] Connection refused",
            "nothing listens",
            "port",
        ),
        (
            "Connection handshake failed. The login 'CORP\\SQL01$' does not have CONNECT permission on the endpoint. State 84.",
            "may not connect to the endpoint",
            "GRANT CONNECT ON ENDPOINT",
        ),
        (
            (
                "A previously existing connection with the same peer was detected during connection handshake. This connection lost the "
                "arbitration and it will be closed. All traffic will be redirected to the previously existing connection."
            ),
            "kept only one of the connections",
            "No action is needed",
        ),
        (
            (
                "The session keys for this conversation could not be created or accessed. The database master key is required for this "
                "operation."
            ),
            "no master key",
            "CREATE MASTER KEY",
        ),
        (
            "One or more messages could not be delivered to the local service targeted by this dialog.",
            "its queue does not accept the message",
            "sys.service_queues",
        ),
        ("The remote service has been dropped.", "target service was dropped", "sys.services"),
        ("The conversation lifetime has expired.", "lifetime of the conversation ended", "LIFETIME"),
        ("Message forwarding is disabled.", "message forwarding is disabled", "MESSAGE_FORWARDING = ENABLED"),
        (
            "9753: sent to TCP://south:4022, but not acknowledged yet.",
            "has not been acknowledged",
            "Message Undeliverable",
        ),
        (
            str(dropped_by_next_hop("TCP://south:4022", DropReason.NOT_FORWARDED)),
            "could not forward",
            "Forwarded Message Dropped",
        ),
        (
            (
                "Service Broker received an END CONVERSATION message on this conversation. Service Broker will not transmit the message; it "
                "will be held until the application ends the conversation."
            ),
            "other side has ended the conversation",
            "END CONVERSATION",
        ),
        (
            (
                "Unable to route the incoming message. The system database msdb containing routing information is not available. The broker "
                "is disabled in msdb."
            ),
            "msdb is not available, its broker is disabled",
            "ALTER DATABASE msdb",
        ),
        (
            "Unable to route the incoming message. The system database msdb containing routing information is in SINGLE USER mode.",
            "single-user mode",
            "ALTER DATABASE msdb",
        ),
        ("Authentication failed with error: 'x'.", "do not agree on authentication", "AUTHENTICATION"),
        (
            (
                "Service Broker connection was refused. The user account of the remote server is not permitted to log in to this SQL Server: "
                "User account: 'CORP\\sql', IP address: '10.0.0.1'."
            ),
            "may not connect to the endpoint",
            "CREATE LOGIN",
        ),
        ("Login protocol negotiation error occurred.", "do not agree on authentication", "AUTHENTICATION"),
        (
            "Service Broker/Database Mirroring network protocol error occurred.",
            "another service uses the port",
            "sys.tcp_endpoints",
        ),
        (
            (
                "An error occurred while looking up the public key certificate associated with this SQL Server instance: No certificate was "
                "found."
            ),
            "certificate of the endpoint",
            "master",
        ),
        (
            "The security certificate bound to database principal (Id: 1) has been disabled for use with BEGIN DIALOG.",
            "certificate for dialog security is not active",
            "ACTIVE FOR BEGIN_DIALOG = ON",
        ),
        (
            (
                "A database user associated with the secure conversation was dropped before credentials had been exchanged with the far "
                "endpoint."
            ),
            "was dropped from the user database",
            "CREATE USER",
        ),
        (
            "Locating routes and security information via the Broker Configuration Service.",
            "waits for the answer",
            "END CONVERSATION",
        ),
        ("The broker mirroring manager has not fully initialized.", "mirrored routes", "mirrored route"),
        ("The target service broker is unreachable.", "next hop cannot be reached", "host and port"),
        (
            "The Service Broker in the target database is unavailable: 'The database is in single-user mode.'.",
            "single-user mode",
            "SET MULTI_USER",
        ),
        (
            "The Service Broker in the target database is unavailable: 'The database is in read-only mode.'.",
            "target is read-only",
            "SET READ_WRITE",
        ),
        (
            "The Service Broker in the target database is unavailable: 'The database is a replica of a mirrored database.'.",
            "the mirror of a mirrored pair",
            "MIRROR_ADDRESS",
        ),
    ],
)
def test_status_gives_the_cause_if_routing_is_sound(status: str, cause: str, remedy: str) -> None:
    row = explained(SOUND, "Stock", transmission_status=status)
    assert row["end"] == "DELIVERED to SOUTH/Stores"
    assert row["cause"].startswith("the routes are correct; the status says that ")
    assert re.search(cause, row["cause"])
    assert re.search(remedy, row["remedy"])


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (
            "The target service name could not be found. Ensure that the service name is specified correctly.",
            "no route led to the service",
        ),
        (
            "The target service name matched a LOCAL route, but there is no service by that name in the local SQL Server instance.",
            "no route led to the service",
        ),
        ("Could not find the target broker in the local SQL Server instance.", "no route led to the service"),
        (
            "Classification has been delayed because the routing information is currently being updated.",
            "the routes were being changed",
        ),
        ("Invalid address specified: 'TCP://'.", "the address of the route was not valid"),
        (
            '9792: the route to "Stock" leads through this instance to another one, but message forwarding is disabled',
            "the route led through an instance whose message forwarding was disabled",
        ),
        (
            str(dropped_by_next_hop("TCP://south:4022", DropReason.NO_RETURN_ROUTE)),
            "the target received the message but had no route back to the sending service, so it could not acknowledge the message",
        ),
        (
            str(dropped_by_next_hop("TCP://south:4022", DropReason.NOT_ACCEPTED)),
            "the instance to which the route led had no route or service for the message",
        ),
    ],
)
def test_status_about_routing_may_be_old(status: str, cause: str) -> None:
    row = explained(SOUND, "Stock", transmission_status=status)
    assert row["cause"] == (
        f"the routes are correct now; the status is from an earlier attempt: at the last attempt, {cause}"
    )
    assert row["remedy"].startswith("Wait for the next attempt")


def test_a_message_that_is_too_large_is_the_cause_although_the_routes_are_correct() -> None:
    status = str(dropped_by_next_hop("TCP://south:4022", DropReason.TOO_LARGE))
    row = explained(SOUND, "Stock", transmission_status=status)
    assert row["cause"].startswith(
        "the routes are correct; the status says that the message exceeds the size limit of the instance"
    )
    assert "max_message_bytes" in row["remedy"]


def test_unknown_status_is_quoted() -> None:
    row = explained(SOUND, "Stock", transmission_status="Something else happened.")
    assert row["cause"] == 'the routes are correct; the status says "Something else happened."'
    assert explained(SOUND, "Stock", transmission_status="")["cause"] is None


def test_fault_of_the_routing_goes_before_the_status() -> None:
    """What the decision shows now is certain."""
    row = explained(fleet(A=north(), SOUTH=south("LOCAL")), "Stock", transmission_status="10061")
    assert row["code"] == "SSB017"
    assert "the routes are correct" not in row["cause"]


def test_wrong_port_is_the_cause_of_a_message_that_leaves_the_fleet() -> None:
    row = explained(fleet(A=north(sender="TCP://south:4023"), SOUTH=south("TCP://north")), "Stock")
    assert row["code"] == "SSB022"


@pytest.mark.parametrize(
    "status", ["Something else happened.", "10061", str(dropped_by_next_hop("TCP://x:4022", DropReason.NOT_ACCEPTED))]
)
def test_routes_that_leave_the_fleet_are_not_called_correct(status: str) -> None:
    row = explained(fleet(A=north(sender="TCP://away")), "Stock", transmission_status=status)
    assert row["end"] == "ELSEWHERE: sent to TCP://away:4022, which is not a known address of any of the instances"
    assert row["cause"].startswith("what happens at that address is not known here; the status says ")
    assert "Wait for the next attempt" not in row["remedy"]
    assert "--address NAME=TCP://away:4022" in explained(fleet(A=north(sender="TCP://away")), "Stock")["remedy"]


STATUSES = (None, "", "Something else happened.", "10061", "Access is denied.", "9792", "The target queue is disabled.")
OPTIONAL: dict[str, tuple[Any, ...]] = {
    "transmission_status": STATUSES,
    "to_broker_instance": (None, str(STORES), str(SALES)),
    "is_initiator": (True, False),
    "from_service_name": (None, "Orders", "Other"),
}
MANY_FAULTS = {
    "sound": SOUND,
    "no way back": fleet(A=north(), SOUTH=south("LOCAL")),
    "no contract": Fleet(
        {
            **SOUND,
            "SOUTH": SOUND["SOUTH"].with_details(
                InstanceDetails(
                    services={("Stores", "Stock"): ServiceDetails(queue="dbo.q", accepts_conversations=False)}
                )
            ),
        }
    ),
    "disabled queue": Fleet({**SOUND, "SOUTH": SOUND["SOUTH"].with_details(DISABLED_QUEUE)}),
    "unknown address": fleet(A=north(sender="TCP://sauth"), SOUTH=south("TCP://north")),
    "similar name": fleet(A=here(route(1, "LOCAL")), SOUTH=south("TCP://north", service="stock")),
}


@pytest.mark.parametrize("fault", MANY_FAULTS)
@pytest.mark.parametrize("columns", [*([name] for name in OPTIONAL), [], list(OPTIONAL)], ids="+".join)
def test_each_row_is_explained_as_if_it_was_the_only_one(fault: str, columns: list[str]) -> None:
    """A queue has many messages for one service, in any order and with different statuses."""
    random = Random(f"{fault} {columns}")
    rows = [
        {"database": "Sales", "to_service_name": random.choice(["Stock", "Stock", "Other"])}
        | {name: random.choice(OPTIONAL[name]) for name in columns}
        for _ in range(8)
    ]
    rows += [random.choice(rows) for _ in range(8)]
    random.shuffle(rows)
    types = {"is_initiator": pa.bool_()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in rows[0]])
    together = stuck(MANY_FAULTS[fault], pa.Table.from_pylist(rows, schema), instance="A", at=NOW).to_pylist()
    alone = {
        tuple(row.values()): stuck(
            MANY_FAULTS[fault], pa.Table.from_pylist([row], schema), instance="A", at=NOW
        ).to_pylist()
        for row in rows
    }
    assert together == [explained for row in rows for explained in alone[tuple(row.values())]]


def test_is_initiator_may_be_a_number() -> None:
    """An export of `sys.transmission_queue` has a bit as 0 or 1; 0 is a message of the target."""
    whole = fleet(A=north(), SOUTH=south("LOCAL"))
    numbers, booleans = (explained(whole, "Stock", is_initiator=value) for value in (0, False))
    assert numbers == booleans
    assert explained(whole, "Stock", is_initiator=1)["code"] == "SSB017"


TO_COPIES = to("B1", "//B", "b1.corp") + to("B2", "//B", "b2.corp")


def copy_without_return_route(folder: Path) -> Fleet:
    return loaded(
        folder,
        A=host("A", service="//A", routes=TO_COPIES),
        B1=host("B1", service="//B", routes=to("A", "//A", "a.corp")),
        B2=host("B2", service="//B"),
    )


def test_status_goes_before_a_fault_of_another_choice(tmp_path: Path) -> None:
    """The message may not have taken the path that has the fault."""
    status = "Connection attempt failed with error: '10061(No connection could be made.)'"
    row = explained(copy_without_return_route(tmp_path), "//B", database="A", transmission_status=status)
    assert (row["code"], row["outcome"], row["end"]) == (None, "REMOTE", "DELIVERED to B1/B1")
    assert row["cause"] == (
        "the status says that nothing listens on the port of the route: the endpoint is stopped or uses another port; with another "
        "choice between equal routes: DELIVERED to B2/B2; return path: DELAYED: waits in B2 (service_not_found), SSB017"
    )
    assert "STATE = STARTED" in row["remedy"]


@pytest.mark.parametrize("status", ["The target service name could not be found.", "Something else happened.", ""])
def test_fault_of_another_choice_goes_before_a_status_that_names_no_other_cause(status: str, tmp_path: Path) -> None:
    row = explained(copy_without_return_route(tmp_path), "//B", database="A", transmission_status=status)
    assert row["code"] == "SSB017"
    assert row["cause"].startswith('B2/B2/database "B2": accepts conversations')


@pytest.mark.parametrize("ids", [100, 0])
@pytest.mark.parametrize(
    ("b2", "end", "code"),
    [
        (
            host("B2", service="//B"),
            "DELIVERED to B2/B2; return path: DELAYED: waits in B2 (service_not_found)",
            "SSB017",
        ),
        (
            host("B2", service="//Other", routes=to("A", "//A", "a.corp")),
            "DROPPED by B2 (service_not_found): not acknowledged, so the sender resends it",
            "SSB024",
        ),
        (
            host("B2", service="//B", routes=to("A", "//A", "a.corp") + to("Wrong", "//A", "b2.corp")),
            "DELIVERED to B2/B2; return path: DROPPED by B2 (service_not_found): not acknowledged, so the sender resends it",
            "SSB017",
        ),
    ],
)
def test_every_choice_between_equal_routes_is_followed(
    b2: str, end: str, code: str, ids: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view sys.transmission_queue does not show the conversation id, which would decide between them.

    If no id is found that leads to the end, a finding about the route to the other copy is not the cause.
    """
    monkeypatch.setattr(import_module("ssbroker.diagnose.trace"), "_IDS_MAX", ids)
    routes = to("B1", "//B", "b1.corp", more=", LIFETIME = 864000") + to("B2", "//B", "b2.corp")
    whole = loaded(
        tmp_path,
        A=host("A", service="//A", routes=routes),
        B1=host("B1", service="//B", routes=to("A", "//A", "a.corp")),
        B2=b2,
    )
    row = explained(whole, "//B", database="A")
    assert (row["end"], row["code"]) == (f"with another choice between equal routes: {end}", code)


def test_the_remedy_names_the_database_of_the_status() -> None:
    said = cause_of(
        "An exception occurred while enqueueing a message. Error: 33009, State: 2. The database owner SID recorded in the master "
        "database differs from the database owner SID recorded in database 'Stores'."
    )
    assert said is not None
    assert said.remedy.startswith("ALTER AUTHORIZATION ON DATABASE::[Stores] TO sa")


def test_a_port_is_no_error_number() -> None:
    said = cause_of("9748: the message is for another instance, at TCP://10.0.0.1:916, but no process serves this one")
    assert said is not None
    assert "TRUSTWORTHY" not in said.remedy


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        ("'10060(...)'", "nothing answers at the address of the route"),
        ("'10061(...)'", "nothing listens on the port of the route"),
        ("Fehler: 916, Status: 3.", "the target is in another database of the same instance"),
        ("Fehler: 15404, Status: 19.", "the Windows account that owns the database cannot be looked up"),
        (
            "Erreur\N{NO-BREAK SPACE}: 15517, État\N{NO-BREAK SPACE}: 1.",
            "the owner of the database does not exist as a login",
        ),
    ],
)
def test_error_numbers_are_understood_in_any_language(number: str, cause: str) -> None:
    said = cause_of(f"Beim Einreihen einer Nachricht in die Zielwarteschlange ist eine Ausnahme aufgetreten. {number}")
    assert said is not None
    assert said.cause.startswith(cause)
