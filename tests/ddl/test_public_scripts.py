"""Scripts in the manner of public ones make the objects that a person expects of them.

The lists were written by reading the scripts, not by running them. Every database has the route AutoCreatedLocal, unless a list says otherwise,
and msdb exists always.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ssbroker import Catalog
from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance
from ssbroker.ddl import InstanceModel
from ssbroker.exceptions import DdlWarning
from ssbroker.store.objects import Objects

FOLDER: Final = Path(__file__).parents[1] / "data" / "scripts"
FIRST_ID: Final = 65_536
"""The first id of an object that is not a system object."""
VARIABLES: Final = {"Stage": "test", "Port": "4055"}


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script and what it makes.

    Attributes:
        file: The script, or the folder of a database project.
        makes: The objects, one on a line.
        problems: The lines that are not executed.
        existing: The databases that exist before.
        runs: Whether an instance runs it too: not if it reads or writes files of another machine.
    """

    file: str
    makes: str
    problems: tuple[int, ...] = ()
    existing: tuple[str, ...] = ()
    runs: bool = True


SCRIPTS: Final = [
    Script(
        file="01_ssms_database_dump.sql",
        makes="""
            Warehouse: message type //corp/Pick
            Warehouse: contract //corp/Picking of //corp/Pick
            Warehouse: queue dbo.PickQueue
            Warehouse: service //corp/Picker on dbo.PickQueue with //corp/Picking
            Warehouse: route ToShipping for //corp/Shipper to TCP://ship01.corp.example:4022
            Warehouse: user picker
        """,
    ),
    Script(
        file="02_ssdt_publish.sql",
        makes="""
            Billing: message type //billing/Invoice
            Billing: contract //billing/Invoicing of //billing/Invoice
            Billing: queue dbo.InvoiceQueue
            Billing: service //billing/Invoices on dbo.InvoiceQueue with //billing/Invoicing
            Billing: route Ledger for //ledger/Entries to TCP://ledger.example:4022
        """,
    ),
    Script(
        file="03_ssdt_transaction.sql",
        existing=("Claims",),
        makes="""
            Claims: queue dbo.ClaimQueue
            Claims: service //claims/Intake on dbo.ClaimQueue
        """,
    ),
    Script(
        file="04_tutorial_target.sql",
        runs=False,
        makes="""
            endpoint LessonEndpoint STARTED 4022
            LessonTarget: user LessonTargetUser
            LessonTarget: user LessonInitiatorUser
            LessonTarget: certificate LessonTargetCertificate
            LessonTarget: certificate LessonInitiatorCertificate
            LessonTarget: message type //lesson/Two/Request
            LessonTarget: message type //lesson/Two/Reply
            LessonTarget: contract //lesson/Two/Simple of //lesson/Two/Request, //lesson/Two/Reply
            LessonTarget: queue dbo.LessonTargetQueue
            LessonTarget: service //lesson/Two/Target on dbo.LessonTargetQueue with //lesson/Two/Simple
            LessonTarget: route LessonInitiatorRoute for //lesson/Two/Initiator to TCP://initiator.lesson.example:4022
            LessonTarget: binding LessonInitiatorBinding
            msdb: route LessonTargetRoute for //lesson/Two/Target to LOCAL
        """,
    ),
    Script(
        file="05_tutorial_initiator.sql",
        makes="""
            LessonInitiator: message type //lesson/Two/Request
            LessonInitiator: message type //lesson/Two/Reply
            LessonInitiator: contract //lesson/Two/Simple of //lesson/Two/Request, //lesson/Two/Reply
            LessonInitiator: queue dbo.LessonInitiatorQueue
            LessonInitiator: service //lesson/Two/Initiator on dbo.LessonInitiatorQueue
            LessonInitiator: route LessonTargetRoute for //lesson/Two/Target to TCP://target.lesson.example:4022
            msdb: route LessonInitiatorRoute for //lesson/Two/Initiator to LOCAL
        """,
    ),
    Script(
        file="06_guards.sql",
        makes="""
            Events: message type //events/Happened
            Events: contract //events/Feed of //events/Happened
            Events: queue dbo.EventQueue
            Events: service //events/Sink on dbo.EventQueue with //events/Feed
            Events: route Archive for //events/Archive to TCP://archive.example:4022
            Events: route Found for //events/Found to LOCAL
        """,
    ),
    Script(
        file="07_teardown_first.sql",
        makes="""
            Demo: message type DemoMessage
            Demo: contract DemoContract of DemoMessage
            Demo: queue dbo.DemoQueue
            Demo: service DemoService on dbo.DemoQueue with DemoContract
        """,
    ),
    Script(
        file="08_event_notification.sql",
        makes="""
            msdb: queue dbo.DeadlockQueue
            msdb: service DeadlockService on dbo.DeadlockQueue with http://schemas.microsoft.com/SQL/Notifications/PostEventNotification
            msdb: route DeadlockRoute for DeadlockService to LOCAL
        """,
    ),
    Script(
        file="09_transport_security.sql",
        makes="""
            endpoint EastEndpoint STARTED 4022
            East: route West for WestService to TCP://10.4.0.10:4022
        """,
    ),
    Script(
        file="10_windows_users.sql",
        makes="""
            Factory: user FACTORY\\svc_broker
            Factory: queue dbo.MachineQueue
            Factory: service //factory/Machines on dbo.MachineQueue with DEFAULT
        """,
    ),
    Script(
        file="11_try_catch.sql",
        makes="""
            Orders: queue dbo.OrderQueue
            Orders: queue dbo.ReplyQueue
            Orders: service OrderService on dbo.OrderQueue with DEFAULT
        """,
    ),
    Script(
        file="12_load_balancing.sql",
        existing=("Frontend",),
        makes="""
            Frontend: route Worker1 for Worker to TCP://worker1:4022
            Frontend: route Worker2 for Worker to TCP://worker2b:4022
            Frontend: route Worker3 for Worker to TCP://worker3:4022
        """,
    ),
    Script(
        file="13_forwarder.sql",
        makes="""
            endpoint HubEndpoint STARTED 4037
            msdb: no AutoCreatedLocal
            msdb: route Northward for //north/Orders to TCP://north.example:4022
            msdb: route Southward for //south/Orders to TCP://south.example:4022
        """,
    ),
    Script(
        file="14_mirroring.sql",
        existing=("Sales",),
        makes="""
            Sales: route Ledger for //ledger to TCP://ledger-a.example:4022
        """,
    ),
    Script(
        file="15_activation_procedure.sql",
        makes="""
            Mail: queue dbo.MailQueue
            Mail: service MailService on dbo.MailQueue with DEFAULT
        """,
    ),
    Script(
        file="16_priorities.sql",
        makes="""
            Bank: contract Urgent of DEFAULT
            Bank: queue dbo.Payments
            Bank: service Payments on dbo.Payments with Urgent
            Bank: priority UrgentFirst 10
            Bank: priority EverythingElse 2
        """,
    ),
    Script(
        file="17_rename_and_drop.sql",
        makes="""
            Final: queue dbo.Q
            Final: service //draft/S on dbo.Q with DEFAULT
            Final: route Out for //out to TCP://out:4022
        """,
    ),
    Script(
        file="18_sql_dependency.sql",
        existing=("Web",),
        makes="""
            Web: queue dbo.WebNotifications
            Web: service WebNotificationService on dbo.WebNotifications with http://schemas.microsoft.com/SQL/Notifications/PostQueryNotification
        """,
    ),
    Script(
        file="19_undecided.sql",
        existing=("Stock",),
        problems=(3, 7, 17),
        makes="""
            Stock: route Known for //known to TCP://known:4022
        """,
    ),
    Script(
        file="20_noexec_and_return.sql",
        makes="""
            Gate: queue dbo.First
        """,
    ),
    Script(
        file="21_semicolons_and_comments.sql",
        makes="""
            It's "quoted": queue dbo.a ] b
            It's "quoted": service //semi;colon on dbo.a ] b with DEFAULT
            It's "quoted": route R "1" for It's to TCP://one:4022
        """,
    ),
    Script(
        file="22_temporary_objects.sql",
        makes="""
            Import: queue dbo.SettingsChanged off
            Import: service SettingsService on dbo.SettingsChanged
        """,
    ),
    Script(
        file="23_dynamic_routing.sql",
        makes="""
            Locator: queue dbo.LookupQueue
            Locator: service SQL/ServiceBroker/BrokerConfiguration on dbo.LookupQueue with http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice
            Locator: route Lookup for SQL/ServiceBroker/BrokerConfiguration to LOCAL
            Locator: route Broker for http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker to LOCAL
        """,
    ),
    Script(
        file="24_attach.sql",
        runs=False,
        makes="""
            Restored is disabled
            Restored: route Back for //back to TCP://back:4022
        """,
    ),
    Script(
        file="25_blog_ping_pong.sql",
        makes="""
            PingPong: message type Ping
            PingPong: message type Pong
            PingPong: contract Game of Ping, Pong
            PingPong: queue dbo.LeftQueue
            PingPong: queue dbo.RightQueue
            PingPong: service LeftPlayer on dbo.LeftQueue
            PingPong: service RightPlayer on dbo.RightQueue with Game
        """,
    ),
    Script(
        file="26_sqlcmd_variables.sql",
        makes="""
            Tickets_test: queue dbo.TicketsQueue
            Tickets_test: service //test/Tickets on dbo.TicketsQueue with DEFAULT
            Tickets_test: route Peer for //test/Peer to TCP://tickets-test.example:4055
            Tickets_test: route Included for //test/Included to LOCAL
        """,
    ),
    Script(
        file="27_alter_services.sql",
        makes="""
            Moves: message type M
            Moves: contract Two of M
            Moves: queue dbo.NewQueue
            Moves: service Mover on dbo.NewQueue with Two
        """,
    ),
    Script(
        file="project",
        runs=False,
        makes="""
            user: user depot_owner
            user: message type //depot/Pallet
            user: contract //depot/Delivery of //depot/Pallet
            user: queue dbo.IntakeQueue
            user: service //depot/Intake on dbo.IntakeQueue with //depot/Delivery
            user: route Carrier for //carrier to TCP://carrier:4022
        """,
    ),
]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance.create(tmp_path / "instance", name="instance", background=False) as created:
        yield created


def expected(script: Script) -> list[str]:
    """Returns the lines of a list."""
    return sorted(line.strip() for line in script.makes.strip().split("\n"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.file)
def test_catalog_has_the_objects_of_the_script(script: Script) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DdlWarning)
        catalog = Catalog.load(FOLDER / script.file, variables=VARIABLES)
    assert catalog.script is not None
    assert catalog.script.model is not None
    assert sorted(of_model(catalog.script.model)) == expected(script)
    assert tuple(note.position.line for note in catalog.notes if note.is_problem) == script.problems


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script.runs], ids=lambda script: script.file)
def test_instance_has_the_objects_of_the_script(script: Script, instance: Instance) -> None:
    for name in script.existing:
        instance.create_database(name)
    file = FOLDER / script.file
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DdlWarning)
        instance.execute(file.read_text(encoding="utf-8"), file=str(file), variables=VARIABLES)
    found = [
        line
        for database in instance.databases
        for line in of_objects(database.name, database_context(database).objects())
    ]
    endpoint = database_context(instance.msdb).objects().endpoint
    if endpoint is not None:
        found.append(f"endpoint {endpoint.name} {endpoint.state} {endpoint.port}")
    assert sorted(found) == expected(script)


def of_model(model: InstanceModel) -> Iterator[str]:
    """Yields the objects of a model as lines."""
    for name, database in model.databases.items():
        if not database.enabled:
            yield f"{name} is disabled"
        if (name, "AutoCreatedLocal") not in model.routes:
            yield f"{name}: no AutoCreatedLocal"
    for name, kind in model.message_types:
        yield f"{name}: message type {kind}"
    for (name, contract), kinds in model.contracts.items():
        yield f"{name}: contract {contract} of {', '.join(kinds)}"
    for (name, _, _), queue in model.queues.items():
        yield f"{name}: queue {queue.schema}.{queue.name}{' off' if queue.settings.status is False else ''}"
    for (name, service), one in model.services.items():
        queue = model.queues[one.queue]
        yield f"{name}: service {service} on {queue.schema}.{queue.name}{_with(one.contracts)}"
    for (name, route), row in model.routes.items():
        if route != "AutoCreatedLocal":
            yield f"{name}: route {route} for {row.service_name} to {row.address}"
    yield from _others_of_model(model)


def _others_of_model(model: InstanceModel) -> Iterator[str]:
    for (name, priority), level in model.priorities.items():
        yield f"{name}: priority {priority} {level.level}"
    yield from (f"{name}: user {user}" for name, user in model.users)
    yield from (f"{name}: certificate {certificate}" for name, certificate in model.certificates)
    yield from (f"{name}: binding {binding}" for name, binding in model.bindings)
    if model.endpoint is not None:
        yield f"endpoint {model.endpoint.name} {model.endpoint.settings.state} {model.endpoint.settings.port}"


def of_objects(name: str, objects: Objects) -> Iterator[str]:
    """Yields the objects of a database as lines, without system objects."""
    types = {kind.message_type_id: kind.name for kind in objects.message_types.values()}
    if not objects.broker.is_broker_enabled:
        yield f"{name} is disabled"
    if "AutoCreatedLocal" not in objects.routes:
        yield f"{name}: no AutoCreatedLocal"
    yield from (f"{name}: message type {kind}" for number, kind in types.items() if number >= FIRST_ID)
    for contract in objects.contracts.values():
        if contract.service_contract_id >= FIRST_ID:
            yield f"{name}: contract {contract.name} of {', '.join(types[number] for number in contract.messages)}"
    for (schema, queue), row in objects.queues.items():
        yield f"{name}: queue {schema}.{queue}{'' if row.is_receive_enabled else ' off'}"
    for service in objects.services.values():
        row = objects.queues_by_id[service.queue_id]
        contracts = tuple(objects.contracts_by_id[number].name for number in sorted(service.contracts))
        yield f"{name}: service {service.name} on {row.schema_name}.{row.name}{_with(contracts)}"
    for route in objects.routes.values():
        if route.name != "AutoCreatedLocal":
            yield f"{name}: route {route.name} for {route.remote_service_name} to {route.address}"
    for priority in objects.priorities.values():
        yield f"{name}: priority {priority.name} {priority.priority}"
    security = objects.security
    yield from (f"{name}: user {user}" for user in security.principals if user not in ("public", "dbo"))
    yield from (f"{name}: certificate {certificate}" for certificate in security.certificates)
    yield from (f"{name}: binding {binding}" for binding in security.bindings)


def _with(contracts: tuple[str, ...]) -> str:
    return f" with {', '.join(contracts)}" if contracts else ""
