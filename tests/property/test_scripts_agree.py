"""`Catalog.load` and `Instance.execute` accept and refuse the same scripts, with the same error numbers, and make the same objects."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from ssbroker import Catalog, ddl
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import DdlError, DdlWarning

NOW: Final = datetime(2026, 11, 20, 21, tzinfo=UTC)
Outcome: TypeAlias = tuple[int | None, int | None] | None
"""Number and line of the error; None if the script is accepted."""

NAMES: Final = st.sampled_from(["A", "a", "B", "Orders"])
DATABASES: Final = st.sampled_from(["Sales", "SALES", "Stock", "Other", "msdb", "MSDB"])
USERS: Final = st.sampled_from(["Ann", "ann", "Ben", "dbo", "Public"])
QUEUES: Final = st.sampled_from(["Q", "q", "dbo.Q", "[DBO].[q]", "shop.Q", "Sales..Q", "P"])
TYPES: Final = st.sampled_from(
    ["[//T]", "[//t]", "[DEFAULT]", "[http://schemas.microsoft.com/SQL/Notifications/EventNotification]"]
)
CONTRACTS: Final = st.sampled_from(
    ["[//C]", "[//c]", "[DEFAULT]", "[http://schemas.microsoft.com/SQL/Notifications/PostEventNotification]"]
)
SERVICES: Final = st.sampled_from(
    ["[//S]", "[//s]", "[//R]", "[http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker]"]
)
SENDERS: Final = st.sampled_from(["INITIATOR", "TARGET", "ANY"])
ADDRESSES: Final = st.sampled_from(["LOCAL", "TCP://north:4022", "TRANSPORT", "nowhere", ""])
GUIDS: Final = st.sampled_from(["5a1e5000-0000-4000-8000-000000000001", "no guid"])


def line(template: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Draws a statement of a template."""
    return st.fixed_dictionaries(parts).map(lambda drawn: template.format(**drawn))


VALIDATIONS: Final = st.sampled_from(["NONE", "EMPTY", "WELL_FORMED_XML"])
OPTIONS: Final = st.sampled_from(["ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "HONOR_BROKER_PRIORITY ON"])
LEVELS: Final = st.sampled_from(["0", "1", "10", "11", "DEFAULT"])
STATEMENTS: Final = [
    line("USE {d}", d=DATABASES),
    line("CREATE DATABASE {d}", d=st.sampled_from(["Sales", "STOCK", "msdb", "New", "new"])),
    line("ALTER DATABASE {d} SET {o}", d=DATABASES, o=OPTIONS),
    line("ALTER DATABASE {d} MODIFY NAME = {e}", d=DATABASES, e=DATABASES),
    line("DROP DATABASE {i}{d}", d=DATABASES, i=st.sampled_from(["", "IF EXISTS "])),
    line("CREATE MESSAGE TYPE {t} VALIDATION = {v}", t=TYPES, v=VALIDATIONS),
    line("ALTER MESSAGE TYPE {t} VALIDATION = {v}", t=TYPES, v=VALIDATIONS),
    line("DROP MESSAGE TYPE {t}", t=TYPES),
    line("CREATE CONTRACT {c} ({t} SENT BY {s})", c=CONTRACTS, t=TYPES, s=SENDERS),
    line("DROP CONTRACT {c}", c=CONTRACTS),
    line("CREATE QUEUE {q}", q=QUEUES),
    line("CREATE QUEUE {q} WITH ACTIVATION (PROCEDURE_NAME = p, MAX_QUEUE_READERS = {n})", q=QUEUES, n=st.sampled_from(["1", "32768"])),
    line("ALTER QUEUE {q} WITH STATUS = OFF", q=QUEUES),
    line("DROP QUEUE {q}", q=QUEUES),
    line("CREATE SERVICE {s} AUTHORIZATION {u} ON QUEUE {q} ({c})", s=SERVICES, u=USERS, q=st.sampled_from(["Q", "dbo.q", "P"]), c=CONTRACTS),
    line("CREATE SERVICE {s} ON QUEUE {q}", s=SERVICES, q=st.sampled_from(["Q", "[Shop].q"])),
    line("ALTER SERVICE {s} (ADD CONTRACT {c})", s=SERVICES, c=CONTRACTS),
    line("ALTER SERVICE {s} ON QUEUE {q} (DROP CONTRACT {c})", s=SERVICES, q=st.sampled_from(["Q", "P"]), c=CONTRACTS),
    line("DROP SERVICE {s}", s=SERVICES),
    line("CREATE ROUTE {n} WITH ADDRESS = '{a}'", n=NAMES, a=ADDRESSES),
    line("CREATE ROUTE {n} WITH SERVICE_NAME = '//S', BROKER_INSTANCE = '{g}', ADDRESS = '{a}'", n=NAMES, g=GUIDS, a=ADDRESSES),
    line("CREATE ROUTE {n} WITH LIFETIME = {l}, ADDRESS = '{a}'", n=NAMES, l=st.sampled_from(["0", "60"]), a=ADDRESSES),
    line("CREATE ROUTE {n} WITH ADDRESS = '{a}'", n=st.sampled_from(["AutoCreatedLocal", "autocreatedlocal"]), a=ADDRESSES),
    line("ALTER ROUTE {n} WITH ADDRESS = '{a}'", n=NAMES, a=ADDRESSES),
    line("DROP ROUTE {n}", n=st.sampled_from(["A", "a", "AutoCreatedLocal", "AUTOCREATEDLOCAL"])),
    line("CREATE BROKER PRIORITY {n} FOR CONVERSATION SET (CONTRACT_NAME = {c}, PRIORITY_LEVEL = {l})", n=NAMES, c=CONTRACTS, l=LEVELS),
    line("ALTER BROKER PRIORITY {n} FOR CONVERSATION SET (LOCAL_SERVICE_NAME = {s})", n=NAMES, s=SERVICES),
    line("DROP BROKER PRIORITY {n}", n=NAMES),
    line("CREATE USER {u} WITHOUT LOGIN", u=USERS),
    line("DROP USER {i}{u}", i=st.sampled_from(["", "IF EXISTS "]), u=USERS),
    line("GRANT SEND ON SERVICE::{s} TO {u}", s=SERVICES, u=USERS),
    line("ALTER AUTHORIZATION ON SERVICE::{s} TO {u}", s=SERVICES, u=USERS),
    line("CREATE REMOTE SERVICE BINDING {n} TO SERVICE '//S' WITH USER = {u}", n=NAMES, u=USERS),
    line("ALTER REMOTE SERVICE BINDING {n} WITH USER = {u}", n=NAMES, u=USERS),
    line("DROP REMOTE SERVICE BINDING {n}", n=NAMES),
    line("CREATE MASTER KEY ENCRYPTION BY PASSWORD = '{p}'", p=st.sampled_from(["", "x"])),
    line("OPEN MASTER KEY DECRYPTION BY PASSWORD = '{p}'", p=st.sampled_from(["", "x", "y"])),
    st.just("DROP MASTER KEY"),
    line("CREATE CERTIFICATE {n} AUTHORIZATION {u} WITH SUBJECT = 'x', EXPIRY_DATE = '{d}'", n=NAMES, u=USERS, d=st.sampled_from(["20301031", "31.10.2030"])),
    line("ALTER CERTIFICATE {n} REMOVE PRIVATE KEY", n=NAMES),
    line("ALTER AUTHORIZATION ON CERTIFICATE::{n} TO {u}", n=NAMES, u=USERS),
    line("DROP CERTIFICATE {n}", n=NAMES),
    line("CREATE ENDPOINT {n} STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER", n=NAMES),
    line("ALTER ENDPOINT {n} FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)", n=NAMES),
    line("DROP ENDPOINT {n}", n=NAMES),
    st.sampled_from(["CREATE QUEU Q", "CREATE ROUTE A WITH ADRESS = 'x'", "hello world", "SET NOCOUNT ON", "BEGIN TRAN", "COMMIT", "ROLLBACK"]),
    st.sampled_from(["USE master CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'x' USE Sales", "USE tempdb USE Stock", "USE master USE Sales"]),
]  # fmt: skip
CONDITIONS: Final = st.sampled_from(
    [
        "DB_ID('stock') IS NULL",
        "OBJECT_ID('dbo.q') IS NOT NULL",
        "EXISTS (SELECT * FROM sys.services WHERE name = N'//S')",
        "NOT EXISTS (SELECT 1 FROM sys.routes AS r WHERE r.name = 'a' OR r.address LIKE 'TCP:%')",
        "(SELECT COUNT(*) FROM sys.service_contracts WHERE name = '//C') = 0",
        "EXISTS (SELECT * FROM sys.services s JOIN sys.service_queues q ON s.service_queue_id = q.object_id WHERE q.name = 'Q')",
        "(SELECT is_broker_enabled FROM sys.databases WHERE name = DB_NAME()) = 1",
        "NOT EXISTS (SELECT * FROM sys.symmetric_keys WHERE name = '##MS_DatabaseMasterKey##')",
        "EXISTS (SELECT * FROM sys.database_principals WHERE name = 'ANN') AND @@TRANCOUNT = 0",
        "@unknown = 1",
    ]
)


@st.composite
def statements(draw: st.DrawFn) -> str:
    """Draws a statement, alone or within control flow or text."""
    statement = draw(st.one_of(STATEMENTS))
    shape = draw(st.integers(0, 9))
    if shape == 0:
        return f"IF {draw(CONDITIONS)} {statement}"
    if shape == 1:
        return f"IF {draw(CONDITIONS)} BEGIN {statement}; END ELSE {draw(st.one_of(STATEMENTS))}"
    if shape == 2:
        doubled = statement.replace("'", "''")
        return f"EXEC (N'{doubled}')"
    if shape == 3:
        return f"BEGIN TRY {statement} END TRY BEGIN CATCH {draw(st.sampled_from(['PRINT 1', 'THROW', 'ROLLBACK']))} END CATCH"
    return statement


SCRIPTS: Final = st.lists(
    st.tuples(statements(), st.sampled_from(["\n", "\n", ";\n", "\nGO\n", "\nGO 2\n"])), max_size=14
).map(lambda lines: "".join(f"{statement}{end}" for statement, end in lines))


@given(SCRIPTS)
def test_scripts_are_accepted_and_refused_alike(script: str) -> None:
    # All databases exist, because a catalog takes those that a script only uses as existing, and an instance refuses them.
    created = "".join(f"CREATE DATABASE {name}\nGO\n" for name in ("Sales", "Stock", "Other"))
    text = f"{created}USE Sales\n{script}"
    read, read_objects = outcome_of(lambda: ddl.read(text, now=NOW))
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance.create(Path(folder, "i"), name="i", background=False)
        with instance:
            run, run_objects = outcome_of(lambda: catalog_after(instance, text))
    assert read == run
    if read is None:
        assert read_objects == run_objects


def catalog_after(instance: Instance, text: str) -> Catalog:
    instance.execute(text)
    return instance.catalog()


def outcome_of(make: Callable[[], Any]) -> tuple[Outcome, object]:
    """Returns how a script ends, and the routes, services and databases that it makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DdlWarning)
        try:
            made = make()
        except DdlError as error:
            return (error.number, error.line), None
    routes = {(r["database"], r["name"], r["remote_service_name"], r["address"]) for r in made.routes.to_pylist()}
    services = {(s["database"], s["name"]) for s in made.services.to_pylist()}
    databases = {(d["name"], d["is_broker_enabled"]) for d in made.databases.to_pylist()}
    return None, (routes, services, databases)
