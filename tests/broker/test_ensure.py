"""`Instance.ensure` makes the objects match a script."""

from __future__ import annotations

import subprocess
import sys
import uuid
import warnings
from datetime import timedelta
from pathlib import Path

import pytest

from ssbroker import Instance, ObjectChange
from ssbroker.exceptions import DdlError, DdlWarning, OptionError
from tests.broker.conftest import START, Clock
from tests.broker.test_scripts import SCRIPT

MESSAGES = "CREATE MESSAGE TYPE [//order]; CREATE MESSAGE TYPE [//receipt]; "


def done(instance: Instance, script: str) -> list[str]:
    """Ensures a script twice; the second time changes nothing more. Returns what was changed."""
    changed = [str(one) for one in instance.ensure(script)]
    unchanged = [one for one in changed if one.startswith("unchanged ")]
    assert [str(one) for one in instance.ensure(script)] == unchanged
    return changed


def in_sales(instance: Instance, script: str) -> list[str]:
    return done(instance, f"USE Sales; {script}")


@pytest.fixture
def sales(instance: Instance) -> Instance:
    """An instance with the empty database Sales."""
    instance.create_database("Sales")
    return instance


def test_everything_is_created_once(instance: Instance) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DdlWarning)
        changed = done(instance, SCRIPT)
    assert changed == [
        "created endpoint Broker",
        "created database Sales",
        "created message type //order in Sales",
        "created message type //receipt in Sales",
        "created contract //ordering in Sales",
        "created queue [dbo].[Orders] in Sales",
        "created queue [shop].[Replies] in Sales",
        "created service //Orders in Sales",
        "created service //Shop in Sales",
        "created route Far in Sales",
        "created broker priority High in Sales",
    ]
    assert instance.view("sys.databases")["name"].to_pylist() == ["msdb", "Sales"]


def test_what_ensure_creates_is_what_execute_creates(instance: Instance, tmp_path: Path, clock: Clock) -> None:
    with (
        warnings.catch_warnings(),
        Instance.create(tmp_path / "other", name="shop", clock=clock, background=False) as other,
    ):
        warnings.simplefilter("ignore", DdlWarning)
        instance.ensure(SCRIPT)
        instance.ensure(SCRIPT)
        other.execute(SCRIPT)
        for view in (
            "service_queues",
            "services",
            "service_contracts",
            "service_message_types",
            "conversation_priorities",
        ):
            assert instance.view(f"sys.{view}").equals(other.view(f"sys.{view}"))


def test_a_message_type_gets_its_validation(sales: Instance) -> None:
    assert in_sales(sales, "CREATE MESSAGE TYPE [//order]") == ["created message type //order in Sales"]
    assert in_sales(sales, "CREATE MESSAGE TYPE [//order] VALIDATION = WELL_FORMED_XML") == [
        "altered message type //order in Sales: validation: NONE -> WELL_FORMED_XML"
    ]


def test_a_contract_that_differs_is_left(sales: Instance) -> None:
    """T-SQL has no statement that alters it, and services may use it."""
    in_sales(sales, f"{MESSAGES} CREATE CONTRACT [//c] ([//order] SENT BY INITIATOR)")
    (unchanged,) = in_sales(sales, "CREATE CONTRACT [//c] ([//order] SENT BY ANY, [//receipt] SENT BY TARGET)")
    assert (
        unchanged == "unchanged contract //c in Sales: it has //order SENT BY INITIATOR; T-SQL cannot alter contracts"
    )


def test_a_queue_gets_what_the_script_says_and_defaults_for_the_rest(sales: Instance) -> None:
    in_sales(
        sales,
        "CREATE QUEUE Orders WITH RETENTION = ON, "
        "ACTIVATION (PROCEDURE_NAME = dbo.P, MAX_QUEUE_READERS = 3, EXECUTE AS SELF)",
    )
    assert in_sales(sales, "CREATE QUEUE orders WITH POISON_MESSAGE_HANDLING (STATUS = OFF)") == [
        (
            "altered queue [dbo].[Orders] in Sales: retention: on -> off, activation: on -> off, procedure: dbo.P -> (none), "
            "max_queue_readers: 3 -> 0, poison_message_handling: on -> off"
        )
    ]
    assert in_sales(sales, "CREATE QUEUE Orders WITH ACTIVATION (PROCEDURE_NAME = dbo.P, EXECUTE AS SELF)") == [
        (
            "altered queue [dbo].[Orders] in Sales: activation: off -> on, procedure: (none) -> dbo.P, "
            "max_queue_readers: 0 -> 1, poison_message_handling: off -> on"
        )
    ]
    assert in_sales(
        sales, "CREATE QUEUE Orders WITH ACTIVATION (STATUS = OFF, PROCEDURE_NAME = dbo.P, EXECUTE AS SELF)"
    ) == ["altered queue [dbo].[Orders] in Sales: activation: on -> off"]


def test_a_queue_is_distinguished_from_one_whose_name_differs_in_case(sales: Instance) -> None:
    database = sales.database("Sales")
    database.create_queue("Orders", retention=True)
    database.create_queue("orders")
    assert in_sales(sales, "CREATE QUEUE orders WITH RETENTION = ON;") == [
        "altered queue [dbo].[orders] in Sales: retention: off -> on"
    ]


def test_a_queue_that_was_disabled_stays_so_unless_the_script_has_its_status(sales: Instance) -> None:
    in_sales(sales, "CREATE QUEUE Orders")
    sales.database("Sales").alter_queue("Orders", status=False)
    assert in_sales(sales, "CREATE QUEUE Orders") == []
    assert in_sales(sales, "CREATE QUEUE Orders WITH STATUS = ON") == [
        "altered queue [dbo].[Orders] in Sales: status: off -> on"
    ]


def test_a_queue_keeps_where_failed_messages_go(sales: Instance) -> None:
    database = sales.database("Sales")
    database.create_queue("Failed")
    database.create_queue("Orders", on_poison="move", poison_queue="Failed")
    assert in_sales(sales, "CREATE QUEUE Orders WITH RETENTION = ON") != []
    assert sales.view("sys.service_queues")["poison_queue_id"].to_pylist()[1] is not None


def test_a_service_moves_and_gets_its_contracts_and_owner(sales: Instance) -> None:
    contracts = (
        f"{MESSAGES} CREATE CONTRACT [//a] ([//order] SENT BY ANY); CREATE CONTRACT [//b] ([//order] SENT BY ANY); "
    )
    in_sales(sales, f"{contracts} CREATE QUEUE Old; CREATE SERVICE [//s] ON QUEUE Old ([//a], [DEFAULT])")
    changed = in_sales(
        sales,
        "CREATE USER Clerk WITHOUT LOGIN; CREATE QUEUE New; "
        "CREATE SERVICE [//s] AUTHORIZATION Clerk ON QUEUE New ([//b], [DEFAULT])",
    )
    assert changed == [
        "created queue [dbo].[New] in Sales",
        "altered service //s in Sales: queue: [dbo].[Old] -> [dbo].[New], contracts: //a, DEFAULT -> //b, DEFAULT, owner: dbo -> Clerk",
        "created user Clerk in Sales",
    ]


def test_a_route_gets_and_loses_clauses(sales: Instance) -> None:
    guid = uuid.UUID(int=7)
    in_sales(sales, f"CREATE ROUTE R WITH SERVICE_NAME = '//s', BROKER_INSTANCE = '{guid}', ADDRESS = 'TCP://a:1'")
    upper = str(guid).upper()
    assert in_sales(
        sales, f"CREATE ROUTE r WITH SERVICE_NAME = '//s', BROKER_INSTANCE = '{upper}', ADDRESS = 'TCP://b:1'"
    ) == ["altered route R in Sales: address: TCP://a:1 -> TCP://b:1"]
    mirrored = f"CREATE ROUTE R WITH SERVICE_NAME = '//s', BROKER_INSTANCE = '{guid}', ADDRESS = 'TCP://b:1', MIRROR_ADDRESS = 'TCP://c:1'"
    assert in_sales(sales, mirrored) == ["altered route R in Sales: mirror_address: (none) -> TCP://c:1"]
    (changed,) = in_sales(sales, "CREATE ROUTE R WITH ADDRESS = 'TCP://b:1'")
    assert changed == (
        f"altered route R in Sales: service_name: //s -> (none), broker_instance: {guid} -> (none), mirror_address: TCP://c:1 -> (none)"
    )


def test_the_lifetime_of_a_route_counts_from_its_creation(sales: Instance, clock: Clock) -> None:
    """Or else each start of an application would extend it."""
    script = "USE Sales; CREATE ROUTE R WITH LIFETIME = 60, ADDRESS = 'TCP://a:1'"

    def lifetime() -> object:
        return sales.view("sys.routes", database="Sales")["lifetime"].to_pylist()[1]

    sales.ensure(script)
    clock.advance(seconds=59)
    assert sales.ensure(script) == ()
    assert lifetime() == START + timedelta(seconds=60)
    clock.advance(seconds=5)
    (renewed,) = sales.ensure(script)
    assert (renewed.action, lifetime()) == ("altered", START + timedelta(seconds=124))
    in_sales(sales, "CREATE ROUTE R WITH ADDRESS = 'TCP://a:1'")
    assert lifetime() is None


def test_a_saved_catalog_is_ensured_with_ids_and_expiries(sales: Instance, tmp_path: Path, clock: Clock) -> None:
    sales.execute(
        "USE Sales; CREATE ROUTE R WITH LIFETIME = 60, ADDRESS = 'TCP://a:1'; CREATE ROUTE S WITH ADDRESS = 'LOCAL'"
    )
    sales.catalog().save(tmp_path / "saved.sql")
    script = (tmp_path / "saved.sql").read_text(encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DdlWarning)
        assert sales.ensure(script) == ()


def test_a_priority_gets_and_loses_criteria(sales: Instance) -> None:
    objects = "CREATE QUEUE Q; CREATE SERVICE [//s] ON QUEUE Q; "
    in_sales(
        sales,
        f"{objects} CREATE BROKER PRIORITY P FOR CONVERSATION SET (LOCAL_SERVICE_NAME = [//s], PRIORITY_LEVEL = 9)",
    )
    assert in_sales(sales, "CREATE BROKER PRIORITY p FOR CONVERSATION SET (REMOTE_SERVICE_NAME = '//r')") == [
        "altered broker priority P in Sales: local_service: //s -> (none), remote_service: (none) -> //r, level: 9 -> 5"
    ]


def test_security_objects(sales: Instance) -> None:
    script = (
        "CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'a long password 1'; CREATE USER Clerk WITHOUT LOGIN; "
        "CREATE CERTIFICATE C AUTHORIZATION Clerk WITH SUBJECT = 'x'; CREATE QUEUE Q; CREATE SERVICE [//s] ON QUEUE Q; "
        "CREATE REMOTE SERVICE BINDING B TO SERVICE '//far' WITH USER = Clerk; GRANT SEND ON SERVICE::[//s] TO Clerk; "
    )
    assert in_sales(sales, script)[-5:] == [
        "created user Clerk in Sales",
        "created master key in Sales",
        "created certificate C in Sales",
        "created remote service binding B in Sales",
        "created SEND permission on //s to Clerk in Sales",
    ]
    later = (
        "CREATE USER clerk WITHOUT LOGIN; CREATE CERTIFICATE c WITH SUBJECT = 'x' ACTIVE FOR BEGIN_DIALOG = OFF; "
        "CREATE REMOTE SERVICE BINDING b TO SERVICE '//other' WITH USER = Clerk, ANONYMOUS = ON; "
        "DENY SEND ON SERVICE::[//s] TO Clerk"
    )
    assert in_sales(sales, later) == [
        "altered certificate C in Sales: active for begin dialog: on -> off",
        "altered remote service binding B in Sales: service: //far -> //other, anonymous: off -> on",
        "altered SEND permission on //s to Clerk in Sales: state: granted -> denied",
    ]


def test_the_endpoint(instance: Instance) -> None:
    def script(name: str, port: int) -> str:
        return (
            f"CREATE ENDPOINT {name} STATE = STARTED AS TCP (LISTENER_PORT = {port}) "
            "FOR SERVICE_BROKER (AUTHENTICATION = WINDOWS)"
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DdlWarning)
        assert done(instance, script("Broker", 4022)) == ["created endpoint Broker"]
        assert done(instance, script("broker", 4023)) == ["altered endpoint Broker: port: 4022 -> 4023"]
        (unchanged,) = done(instance, script("Second", 4024))
        assert unchanged == "unchanged endpoint Broker: its name is not 'Second', and an instance has only one endpoint"


def test_drop_and_alter_make_so_what_they_say(sales: Instance) -> None:
    in_sales(sales, "CREATE QUEUE Old; CREATE QUEUE Q; CREATE SERVICE [//s] ON QUEUE Q ([DEFAULT])")
    script = (
        "DROP QUEUE Old; DROP SERVICE [//gone]; DROP ROUTE Gone; DROP BROKER PRIORITY Gone; DROP USER Gone; DROP CONTRACT [//gone]; "
        "DROP MESSAGE TYPE [//gone]; DROP CERTIFICATE Gone; DROP MASTER KEY; DROP REMOTE SERVICE BINDING Gone; "
        "ALTER QUEUE Q WITH RETENTION = ON; ALTER SERVICE [//s] (DROP CONTRACT [DEFAULT]); "
        "ALTER DATABASE Sales SET DISABLE_BROKER"
    )
    assert in_sales(sales, script) == [
        "altered database Sales: broker: enabled -> disabled",
        "altered queue [dbo].[Q] in Sales: retention: off -> on",
        "altered service //s in Sales: contracts: DEFAULT -> (none)",
        "dropped queue [dbo].[Old] in Sales",
    ]


def test_a_create_that_a_later_statement_alters_is_no_change(sales: Instance) -> None:
    """Only the result is compared."""
    script = "CREATE QUEUE Q; ALTER QUEUE Q WITH RETENTION = ON"
    assert in_sales(sales, script) == ["created queue [dbo].[Q] in Sales"]
    assert in_sales(sales, script) == []


def test_databases_are_created_and_dropped_once(instance: Instance) -> None:
    assert done(instance, "CREATE DATABASE Sales; CREATE DATABASE Old") == [
        "created database Sales",
        "created database Old",
    ]
    assert done(instance, "CREATE DATABASE sales; DROP DATABASE Old") == ["dropped database Old"]


@pytest.mark.parametrize("option", ["NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"])
def test_what_does_something_each_time_is_refused(sales: Instance, option: str) -> None:
    with pytest.raises(
        DdlError,
        match=f"ensure does not run SET {option}, because it changes the database each time; run it once with Instance.execute",
    ):
        sales.ensure(f"ALTER DATABASE Sales SET {option}")


def test_an_error_changes_nothing_at_all(instance: Instance) -> None:
    """All batches are one transaction, of new databases too."""
    instance.create_database("Stock")
    script = "CREATE DATABASE Sales\nGO\nUSE Sales\nCREATE QUEUE Q\nGO\nUSE Stock\nCREATE QUEUE Q\nGO\nCREATE SERVICE [//s] ON QUEUE Missing"
    with pytest.raises(DdlError, match=r"9: .*Missing"):
        instance.ensure(script)
    assert instance.view("sys.databases")["name"].to_pylist() == ["msdb", "Stock"]
    assert instance.view("sys.service_queues").num_rows == 0
    assert not (instance.folder / "Sales.sqlite").exists()


def test_conditions_and_texts_are_evaluated(sales: Instance) -> None:
    guard = "IF NOT EXISTS (SELECT * FROM sys.service_queues WHERE name = 'Q')"
    assert in_sales(sales, f"CREATE QUEUE Other; {guard} EXEC ('CREATE QUEUE Q WITH RETENTION = ON')") == [
        "created queue [dbo].[Other] in Sales",
        "created queue [dbo].[Q] in Sales",
    ]


def test_messages_stay(sales: Instance) -> None:
    script = "USE Sales; CREATE QUEUE Q; CREATE SERVICE [//s] ON QUEUE Q ([DEFAULT])"
    sales.ensure(script)
    database = sales.database("Sales")
    with database.transaction() as t:
        t.send(t.begin_dialog("//s", "//s"), b"one")
    sales.ensure(script.replace("QUEUE Q", "QUEUE Other"))
    with database.transaction() as t:
        assert t.receive("Other")["message_body"].to_pylist() == [b"one"]


def test_changes_are_values(sales: Instance) -> None:
    (change,) = sales.ensure("CREATE QUEUE Q")
    assert change == ObjectChange("created", "queue", "[dbo].[Q]", "Sales")
    assert (change.action, change.kind, change.name, change.database, change.text) == (
        "created",
        "queue",
        "[dbo].[Q]",
        "Sales",
        "",
    )


def test_what_is_left_undone_is_warned_of(sales: Instance) -> None:
    with pytest.warns(DdlWarning, match="not about Service Broker") as found:
        sales.ensure("CREATE TABLE t (a INT); CREATE QUEUE Q")
    assert {Path(one.filename) for one in found} == {Path(__file__)}
    with pytest.warns(DdlWarning, match="an instance determines this value itself"):
        sales.ensure("-- ssbroker: addresses=a:4022\nCREATE QUEUE Q")
    with pytest.raises(DdlError, match="no statement"):
        sales.ensure("PRINT 'x'")
    with pytest.raises(DdlError, match=r"^line 1: :connect other: ensure changes a single instance"):
        sales.ensure(":connect other\nCREATE QUEUE Q")
    with pytest.raises(OptionError, match="ddl: expected the text of a script, got bytes"):
        sales.ensure(b"CREATE QUEUE Q")  # type: ignore[arg-type]


def test_processes_that_ensure_at_the_same_time_agree(tmp_path: Path) -> None:
    program = (
        "import sys; from ssbroker import Instance\n"
        "with Instance.open(sys.argv[1], create=True, background=False) as instance:\n"
        "    instance.ensure('CREATE DATABASE Sales\\nGO\\nUSE Sales\\nCREATE QUEUE Q; CREATE SERVICE [//s] ON QUEUE Q')\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "shop")]) for _ in range(4)]
    assert [one.wait(120) for one in started] == [0, 0, 0, 0]
    with Instance.open(tmp_path / "shop", background=False) as instance:
        assert instance.view("sys.services")["name"].to_pylist() == ["//s"]
