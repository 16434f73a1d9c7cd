"""`ssbroker stuck`: the messages of an exported `sys.transmission_queue`, and why they wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import Instance
from ssbroker.cli import chunks
from ssbroker.diagnose import CODES, STUCK, Fleet, stuck
from tests.cli.conftest import NOW, NOW_TEXT, Run
from tests.cli.formats import SUFFIXES, read, write

NORTH = """-- ssbroker: addresses=TCP://north:4022
CREATE DATABASE Sales; -- ssbroker: service_broker_guid=5a1e5000-0000-4000-8000-000000000001
CREATE DATABASE Billing; -- ssbroker: service_broker_guid=5a1e5000-0000-4000-8000-000000000002
USE Sales; CREATE QUEUE Q; CREATE SERVICE [//Sales] ON QUEUE Q;
CREATE ROUTE Stock WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://south:4022';
CREATE ROUTE Prices WITH SERVICE_NAME = N'//Prices', ADDRESS = N'TCP://prices:4022';
"""
SOUTH = """-- ssbroker: addresses=TCP://south:4022
CREATE DATABASE Stores; -- ssbroker: service_broker_guid=570c4000-0000-4000-8000-000000000003
USE Stores; CREATE QUEUE Q; CREATE SERVICE [//Stock] ON QUEUE Q ([DEFAULT]);
"""
HEADER = (
    "conversation_handle,to_service_name,to_broker_instance,from_service_name,service_contract_name,enqueue_time,"
    "message_sequence_number,message_type_name,is_conversation_error,is_end_of_dialog,message_body,transmission_status,priority\r\n"
)
REFUSED = (
    "Connection attempt failed with error: '10061(No connection could be made because the target machine actively "
    "refused it.)'."
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two instances, of which SOUTH has no route for replies."""
    made = tmp_path / "fleet"
    made.mkdir()
    (made / "NORTH.sql").write_text(NORTH)
    (made / "SOUTH.sql").write_text(SOUTH)
    return made


def row(service: str, *, status: str = "NULL", broker_id: str = "", time: str = "2026-11-20 08:15:00.123") -> str:
    """Returns a row as SSMS writes it."""
    handle = "6F9619FF-8B86-D011-B42D-00C04FC964FF"
    return f'{handle},{service},{broker_id},//Sales,DEFAULT,{time},0,DEFAULT,0,0,0x6F6E65,"{status}",5\r\n'


def queue_file(folder: Path, *rows: str, encoding: str = "utf-8-sig", header: str = HEADER) -> Path:
    """Returns an export next to the folder of instances."""
    path = folder.parent / "queue.csv"
    path.write_text(header + "".join(rows), encoding=encoding, newline="")
    return path


def explained(folder: Path, *services: str, **columns: list[Any]) -> list[dict[str, Any]]:
    """Returns what the function returns for messages of NORTH/Sales."""
    queue = {"database": ["Sales"] * len(services), "to_service_name": [*services], **columns}
    return stuck(Fleet.load(folder, now=NOW), pa.table(queue), instance="NORTH", at=NOW).to_pylist()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The folders of two instances that were served; in shop, messages wait for stock, which lacks a service, and for an unknown instance."""
    shop, stock = tmp_path / "shop", tmp_path / "stock"
    with Instance.create(stock, name="stock") as other, other.serve(port=0, allow_unencrypted=True) as there:
        other.execute("CREATE DATABASE Stores")
    with Instance.create(shop, name="shop", background=False) as instance:
        for database in ("Sales", "Billing"):
            instance.execute(
                f"CREATE DATABASE {database}\nGO\nUSE {database}; CREATE QUEUE Q; CREATE SERVICE [//Sales] ON QUEUE Q; "
                f"CREATE ROUTE Stock WITH SERVICE_NAME = '//Stok', ADDRESS = '{there.address}'; "
                "CREATE ROUTE Away WITH SERVICE_NAME = '//Away', ADDRESS = 'TCP://away:4022';"
            )
            with instance.database(database).transaction() as t:
                for service in ("//Stok", "//Stok", "//Away"):
                    t.send(t.begin_dialog("//Sales", service), b"one")
        yield shop, stock


def test_queue_of_an_instance_folder(served: tuple[Path, Path], run: Run) -> None:
    shop, stock = served
    given = run("stuck", shop, stock, "--from", "shop/Sales")
    assert given.status == 1
    groups = given.out.split("\n\n")
    assert groups[0].startswith('2 messages in shop/Sales for "//Stok", the oldest from ')
    assert "=> DROPPED by stock (service_not_found)" in groups[0]
    assert groups[1].startswith('1 message in shop/Sales for "//Away", the oldest from ')
    assert "=> ELSEWHERE" in groups[1]
    assert "routes are correct" not in groups[1]
    assert groups[2] == "A problem was found for 3 of 3 messages.\n"
    whole = run("stuck", shop, stock, "--queue", shop, "--json")
    assert [row["database"] for row in json.loads(whole.out)] == ["Sales"] * 3 + ["Billing"] * 3
    assert run("stuck", shop, stock, "--from", "shop", "--json").out == whole.out
    assert run("stuck", shop, stock, "--from", "sales").out == given.out, "stock does not have this database"
    specified = run("stuck", shop, "--address", "shop=TCP://away:4022", "--from", "shop/Sales")
    assert "ELSEWHERE: sent to TCP://127.0.0.1" in specified.out
    assert "SSB009" in specified.out, "a route to its own address"
    assert run("stuck", stock).out == "The transmission queue is empty.\n"


def test_queue_of_a_database_that_cannot_be_read(tmp_path: Path, run: Run) -> None:
    """It is not empty."""
    shop = tmp_path / "shop"
    with Instance.create(shop, name="shop", background=False) as instance:
        instance.create_database("Sales")
        instance.create_database("Billing")
    (shop / "Sales.sqlite").unlink()
    found = run("stuck", shop)
    assert (found.status, found.out) == (2, "")
    assert found.err.endswith(
        f"ssbroker: the messages of shop/Sales cannot be read: {shop / 'Sales.sqlite'}: no such file; "
        "--from shop/DATABASE explains those of another database\n"
    )
    assert run("stuck", shop, "--from", "shop/Billing").out == "The transmission queue is empty.\n"


def test_queue_that_is_not_in_a_folder_must_be_specified(served: tuple[Path, Path], folder: Path, run: Run) -> None:
    shop, stock = served
    for arguments, problem in (
        ((shop, stock), "--from: expected INSTANCE[/DATABASE], because several instances are loaded: shop, stock"),
        (
            (shop, stock, "--from", "Nowhere"),
            "--from: 'Nowhere' is not an instance or a database; expected INSTANCE/DATABASE, with one of the instances shop, stock",
        ),
        (
            ("--fleet", folder),
            "--queue: specify files with the rows of sys.transmission_queue, because no catalog is an instance folder",
        ),
        (
            (shop, folder / "NORTH.sql", "--from", "NORTH"),
            "--queue: specify files with the rows of sys.transmission_queue, because the catalog of NORTH is not an instance folder",
        ),
        ((stock, "--queue", shop), f"--queue: {shop} is an instance folder; specify it as a catalog too"),
    ):
        found = run("stuck", *arguments)
        assert (found.status, found.err) == (2, f"ssbroker: {problem}\n")


def test_broker_id_that_scripts_do_not_state(folder: Path, run: Run) -> None:
    """Scripts of SSMS state none, while the rows of the queue name the ids of their conversations."""
    back = "CREATE ROUTE Back WITH SERVICE_NAME = N'//Sales', ADDRESS = N'TCP://north:4022';"
    (folder / "SOUTH.sql").write_text(SOUTH.replace(" -- ssbroker: service_broker_guid=", " -- ") + back)
    named = "570C4000-0000-4000-8000-000000000003"
    queue = queue_file(folder, row("//Stock", broker_id=named), row("//Stock", broker_id=named))
    found = run("stuck", "--fleet", folder, "--queue", queue, "--from", "NORTH/Sales")
    assert found.status == 0, found.out
    _, hint, result = found.out.split("\n\n")
    assert "assumed: SOUTH/Stores has the broker id that the conversation names" in found.out
    assert hint.startswith(
        "The broker id of SOUTH/Stores is not known. SELECT name, service_broker_guid FROM sys.databases"
    )
    assert result == "No problem was found for 2 messages.\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_export_of_sql_server_is_explained_as_it_is(folder: Path, run: Run, encoding: str) -> None:
    """Columns that are not used stay in the file, and the database is that of `--from`."""
    queue = queue_file(
        folder,
        row("//Stock", time="2026-11-20 09:00:00.000"),
        row("//Prices", status=REFUSED, broker_id="NULL"),
        row("//Stock", time="2026-11-20 08:30:00.250"),
        row("//Nowhere"),
        encoding=encoding,
    )
    found = run("stuck", "--fleet", folder, "--queue", queue, "--from", "NORTH/Sales", "--at", NOW_TEXT)
    stock, prices, nowhere = explained(
        folder, "//Stock", "//Prices", "//Nowhere", transmission_status=[None, REFUSED, None]
    )
    assert (found.status, found.err) == (1, "")
    assert found.out.split("\n\n") == [
        (
            '2 messages in NORTH/Sales for "//Stock", the oldest from 2026-11-20 08:30:00 UTC\n'
            "  => DELIVERED to SOUTH/Stores; return path: DELAYED: waits in SOUTH (service_not_found)\n"
            f"  SSB017: {CODES['SSB017'].title}\n  {CODES['SSB017'].why}\n"
            f"  - {stock['cause']}\n    {stock['remedy']}"
        ),
        (
            '1 message in NORTH/Sales for "//Prices", the oldest from 2026-11-20 08:15:00 UTC\n'
            f"  => {prices['end']}\n  transmission_status: {REFUSED}\n"
            f"  - {prices['cause']}\n    {prices['remedy']}"
        ),
        (
            '1 message in NORTH/Sales for "//Nowhere", the oldest from 2026-11-20 08:15:00 UTC\n'
            f"  => {nowhere['end']}\n  - {nowhere['remedy']}"
        ),
        "A problem was found for 4 of 4 messages.\n",
    ]


def test_long_status_ends_after_a_sentence(run: Run, tmp_path: Path) -> None:
    service = f"//stock.example/{'a' * 100}"
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        instance.execute(
            "CREATE DATABASE Sales\nGO\nUSE Sales; CREATE QUEUE Q; CREATE SERVICE [//Sales] ON QUEUE Q ([DEFAULT]);"
        )
        with instance.database("Sales").transaction() as t:
            t.send(t.begin_dialog("//Sales", service), b"two chairs")
    found = run("stuck", tmp_path / "shop")
    (status,) = (line for line in found.out.splitlines() if "transmission_status" in line)
    assert status.endswith(
        f"create it in its database: USE <database>; CREATE SERVICE [{service}] ON QUEUE <queue> (<contract>); ..."
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_json_and_output_equal_the_function(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 7)
    services = ["//Stock", "//Prices", "//Nowhere"] * 10
    columns = {
        "to_broker_instance": ["", None, "570c4000-0000-4000-8000-000000000003"] * 10,
        "transmission_status": ["", REFUSED, None] * 10,
    }
    queue = write(pa.table({"to_service_name": services, **columns}), tmp_path / f"in{suffix}")
    output = tmp_path / f"out{suffix}"
    given = ("stuck", "--fleet", folder, "--queue", queue, "--from", "NORTH/Sales", "--at", NOW_TEXT)
    found = run(*given, "--json", "-o", output)
    expected = explained(folder, *services, **columns)
    if suffix == ".csv":  # an empty cell is null
        expected = [{**each, "transmission_status": each["transmission_status"] or None} for each in expected]
    assert (found.status, found.err) == (1, "")
    assert json.loads(found.out) == expected
    assert read(output) == expected
    assert list(expected[0]) == STUCK.names


def test_message_that_leaves_the_instances_gets_no_all_clear(folder: Path, run: Run) -> None:
    queue = queue_file(folder, row("//Prices"))
    found = run("stuck", "--fleet", folder, "--queue", queue, "--from", "NORTH/Sales", "--at", NOW_TEXT)
    assert found.out.splitlines()[1:] == [
        "  => ELSEWHERE: sent to TCP://prices:4022, which is not a known address of any of the instances",
        "  - there is no transmission_status; a message also waits here until the target acknowledges it",
        (
            "    Add the catalog of the instance at this address, and specify its address: --address NAME=TCP://prices:4022, or -- ssbroker: "
            "addresses=TCP://prices:4022 in its script. Or correct the route."
        ),
        "",
        "No problem was found for 1 message. 1 message could be followed only to an address of no known instance.",
    ]


def test_messages_without_a_problem(folder: Path, run: Run) -> None:
    """They may wait because they were sent a moment ago."""
    with (folder / "SOUTH.sql").open("a") as script:
        script.write("CREATE ROUTE Back WITH SERVICE_NAME = N'//Sales', ADDRESS = N'TCP://north:4022';\n")
    queue = queue_file(folder, row("//Stock"), row("//Stock"))
    found = run("stuck", "--fleet", folder, "--queue", queue, "--from", "NORTH/Sales")
    assert (found.status, found.err) == (0, "")
    assert "  => DELIVERED to SOUTH/Stores\n  - no problem found: the routes are correct, and" in found.out
    assert found.out.endswith("\nNo problem was found for 2 messages.\n")
    queue = queue_file(folder, row("//Stock"), row("//Stock", status=REFUSED))
    found = run("stuck", "--fleet", folder, "--queue", queue, "--from", "NORTH/Sales")
    assert (found.status, found.err) == (1, "")
    assert found.out.endswith("\nA problem was found for 1 of 2 messages.\n")


@pytest.mark.parametrize(("name", "text"), [("queue.csv", HEADER), ("queue.jsonl", "")])
def test_empty_queue(folder: Path, run: Run, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    given = ("stuck", "--fleet", folder, "--queue", tmp_path / name, "--from", "NORTH/Sales")
    found = run(*given, "-o", tmp_path / "out.parquet")
    assert (found.status, found.out, found.err) == (0, "The transmission queue is empty.\n", "")
    assert read(tmp_path / "out.parquet") == []
    assert run(*given, "--json").out == "[]\n"


def test_column_names_the_databases(folder: Path, run: Run) -> None:
    """Then `--from` is needed for the instance only, and not if there is only one."""
    header = "database,to_service_name\n"
    queue = queue_file(folder, "Sales,//Stock\n", "Billing,//Stock\n", header=header)
    found = run("stuck", folder / "NORTH.sql", "--queue", queue)
    assert (found.status, found.err) == (1, "")
    assert '1 message in NORTH/Sales for "//Stock"\n' in found.out
    assert '1 message in NORTH/Billing for "//Stock"\n' in found.out
    assert (
        '1 message in NORTH/Sales for "//Stock"\n'
        in run("stuck", "--fleet", folder, "--queue", queue, "--from", "NORTH").out
    )
    queue = queue_file(folder, "Sales,//Stock\n", "NULL,//Stock\n", header=header)
    found = run("stuck", folder / "NORTH.sql", "--queue", queue, "--from", "Sales")
    assert '2 messages in NORTH/Sales for "//Stock"\n' in found.out


def test_several_files_are_one_queue(folder: Path, run: Run, tmp_path: Path) -> None:
    exports = tmp_path / "exports"
    exports.mkdir()
    for number in (1, 2):
        (exports / f"{number}.csv").write_text("to_service_name\n//Nowhere\n")
    for given in (exports, exports / "*.csv"):
        found = run("stuck", folder / "SOUTH.sql", "--queue", given)
        assert '2 messages in SOUTH/Stores for "//Nowhere"\n' in found.out


def test_enqueue_time_may_be_a_timestamp_or_anything_else(folder: Path, run: Run, tmp_path: Path) -> None:
    times = pa.array([1_795_162_500_000_000_001, None], pa.timestamp("ns", "UTC"))
    for column, shown in (
        (times, f", the oldest from {datetime.fromtimestamp(1_795_162_500, UTC):%Y-%m-%d %H:%M:%S} UTC\n"),
        (times.cast(pa.int64()), "\n"),
        (pa.array(["Nov 20 2026  8:15AM", "NULL"]), "\n"),
    ):
        queue = write(
            pa.table({"to_service_name": ["//Nowhere"] * 2, "enqueue_time": column}), tmp_path / "queue.parquet"
        )
        found = run("stuck", folder / "SOUTH.sql", "--queue", queue)
        assert found.out.startswith(f'2 messages in SOUTH/Stores for "//Nowhere"{shown}')


def test_rare_causes_are_counted(folder: Path, run: Run) -> None:
    queue = queue_file(folder, *(f"//{number}\n" for number in range(20)), "//19\n", header="to_service_name\n")
    found = run("stuck", folder / "SOUTH.sql", "--queue", queue)
    assert found.out.startswith('2 messages in SOUTH/Stores for "//19"\n')
    assert "\nand 5 messages with 5 other causes; --json lists all messages\n" in found.out
    assert len(json.loads(run("stuck", folder / "SOUTH.sql", "--queue", queue, "--json").out)) == 21


@pytest.mark.parametrize(
    ("start", "text", "message"),
    [
        (
            None,
            "to_service_name\n//A\n",
            "--from: specify where the messages wait: expected one of NORTH/Sales, NORTH/Billing, SOUTH/",
        ),
        (None, "database,to_service_name\nSales,//A\n", "--from: specify one of NORTH, SOUTH\n"),
        ("NORTH/Stores", "to_service_name\n", "--from: unknown database 'Stores' in NORTH; expected one of Billing, "),
        (
            "NORTH/Sales",
            "database,to_service_name\nSales,//A\nBilling,//A\n",
            "{queue}: database, row 1: 'Billing' is not the database of --from, 'Sales'; omit the database in --from, or ",
        ),
        (
            "NORTH",
            "database,to_service_name\nSales,//A\nStores,//A\n",
            "{queue}: database, row 1: 'Stores' is not a database of the catalog; expected one of ",
        ),
        (
            "NORTH",
            "database,to_service_name\nSales,//A\nNULL,//A\n",
            "{queue}: database, row 1: null is not allowed here; expected the database in which the message waits (line 3 of the file)\n",
        ),
        (
            "NORTH/Sales",
            "to_service_name,to_broker_instance\n//A,\n//A,\n//A,\n//A,6F9619FF\n",
            "{queue}: to_broker_instance, row 3: '6F9619FF' is not a valid GUID; expected ",
        ),
        (
            "NORTH/Sales",
            "to_broker_instance\n",
            "{queue}: to_service_name: the column is missing; expected the columns of sys.transmission_queue\n",
        ),
        (
            "NORTH/Sales",
            "to_service_name,Transmission Status\n",
            "{queue}: transmission_status: expected a column with exactly this name, ",
        ),
        ("NORTH/Sales", row("//A"), "{queue}: no known column in the first line, '6F9619FF-"),
        ("NORTH/Sales", "", "{queue}: the file is empty; expected a header line with the column names\n"),
    ],
)
def test_wrong_input_is_one_line(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, start: str | None, text: str, message: str
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 2)
    queue = queue_file(folder, header=text, encoding="utf-8")
    given = () if start is None else ("--from", start)
    refused = run("stuck", "--fleet", folder, "--queue", queue, *given, "-o", folder.parent / "out.csv")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith(f"ssbroker: {message.format(queue=queue)}")
    assert refused.err.count("\n") == 1
    assert not (folder.parent / "out.csv").exists()


def test_column_with_a_wrong_type_is_refused(folder: Path, run: Run, tmp_path: Path) -> None:
    for name, message in (("transmission_status", "expected text, got int64"), ("database", "expected text")):
        queue = write(pa.table({"to_service_name": ["//A"], name: [5]}), tmp_path / "queue.parquet")
        refused = run("stuck", folder / "NORTH.sql", "--queue", queue, "--from", "Sales")
        assert (refused.status, refused.out) == (2, "")
        assert refused.err.startswith(f"ssbroker: {queue}: {name}: {message}")


def test_output_replaces_neither_the_queue_nor_a_catalog(folder: Path, run: Run) -> None:
    queue = queue_file(folder, row("//Stock"))
    for output, reason in ((queue, "it is also an input"), (folder / "NORTH.sql", "it is part of the catalog")):
        refused = run("stuck", "--fleet", folder, "--queue", queue, "-o", output, "--format", "csv")
        assert (refused.status, reason in refused.err) == (2, True)
    assert (folder / "NORTH.sql").read_text() == NORTH


def test_names_of_instances_and_databases_are_found_in_another_case(folder: Path, run: Run) -> None:
    queue = folder.parent / "queue.csv"
    queue.write_text("database,to_service_name\nSALES,//Stock\nSales,//Stock\n")
    outs = []
    for start in ("NORTH/Sales", "north/sales", "North"):
        found = run("stuck", "--fleet", folder, "--queue", queue, "--from", start, "--at", NOW_TEXT)
        outs.append((found.status, found.out))
        assert found.err == ""
    assert outs[0][1].startswith("2 messages in NORTH/Sales for")
    assert outs == outs[:1] * 3
    assert run("stuck", folder / "NORTH.sql", "--queue", queue, "--from", "sales").err == ""


SQLCMD = "database,to_service_name,transmission_status\n--------,---------------,-------------------\nSales,//Stock,NULL\n\n(1 rows affected)\n"


@pytest.mark.parametrize(
    "text",
    [
        "database;to_service_name;transmission_status\nSales;//Stock;null\n",
        "database\tto_service_name\ttransmission_status\r\nSales\t//Stock\tNULL\r\n",
        SQLCMD,
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_exports_of_other_tools_are_read(folder: Path, run: Run, text: str, encoding: str) -> None:
    plain, other = folder.parent / "plain.csv", folder.parent / "other.csv"
    plain.write_text("database,to_service_name\nSales,//Stock\n")
    other.write_text(text, encoding=encoding, newline="")
    found = [run("stuck", "--fleet", folder, "--queue", file, "--from", "NORTH") for file in (plain, other)]
    assert found[0].err == found[1].err == ""
    assert found[0].out == found[1].out


@pytest.mark.parametrize("suffix", [".txt", ".tsv"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_rows_that_tabs_separate(folder: Path, run: Run, suffix: str, *, is_folder: bool) -> None:
    """SSMS saves them as .txt."""
    queue = folder.parent / "queue"
    queue.mkdir()
    file = queue / f"queue{suffix}"
    file.write_text("database\tto_service_name\r\nSales\t//A\r\n", encoding="utf-16")
    given = ("stuck", "--fleet", folder, "--from", "NORTH", "--queue", queue if is_folder else file)
    assert '1 message in NORTH/Sales for "//A"' in run(*given).out
    file.write_text("database\tto_service_name\nNowhere\t//A\n")
    assert run(*given).err.endswith("(line 2 of the file)\n")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("database,to_service_name\nSales,//A\n\nNowhere,//B\n", "(line 4 of the file)\n"),
        ('database,to_service_name\nSales,"//A\n"\nNowhere,//B\n', "(line 4 of the file)\n"),
        (SQLCMD.replace("Sales", "Nowhere"), "(line 3 of the file)\n"),
        ("database,to_service_name\nSales,//A\nSales\n", "got 1: 'Sales' (line 3 of the file)\n"),
        ("database;to_service_name\nSales;//A;x\n", "got 3: 'Sales;//A;x' (line 2 of the file)\n"),
        (
            "database to_service_name\n-------- ---------------\n",
            '; to separate columns with commas, run sqlcmd with -s "," -W, or save the results of SSMS from the grid\n',
        ),
    ],
)
def test_error_names_the_line_of_the_file(folder: Path, run: Run, text: str, end: str) -> None:
    queue = folder.parent / "queue.csv"
    queue.write_text(text)
    refused = run("stuck", "--fleet", folder, "--queue", queue, "--from", "NORTH")
    assert (refused.status, refused.err[-len(end) :]) == (2, end)


def test_replies_are_explained_as_messages_of_the_target(folder: Path, run: Run) -> None:
    """A reply is not for a service that accepts conversations, and no acknowledgement of it is followed."""
    (folder / "SOUTH.sql").write_text(
        SOUTH + "CREATE ROUTE Back WITH SERVICE_NAME = N'//Sales', ADDRESS = N'TCP://north:4022';"
    )
    queue = queue_file(folder, row("//Sales"))
    arguments = ["stuck", "--fleet", folder, "--queue", queue, "--from", "SOUTH/Stores", "--at", NOW_TEXT]
    assert "REFUSED by NORTH/Sales" in run(*arguments).out
    found = run(*arguments, "--from-target")
    assert (found.status, found.err) == (0, "")
    assert "  => DELIVERED to NORTH/Sales\n" in found.out


def test_direction_is_specified_once(folder: Path, run: Run, served: tuple[Path, Path]) -> None:
    queue = folder.parent / "queue.csv"
    queue.write_text("to_service_name,is_initiator\n//Stock,1\n")
    found = run("stuck", "--fleet", folder, "--queue", queue, "--from", "NORTH/Sales", "--from-target")
    expected = (
        f"--from-target: {queue} has the column is_initiator, which already specifies which side sent each message"
    )
    assert found.err == f"ssbroker: {expected}; omit the option, or drop the column\n"
    found = run("stuck", *served, "--from", served[0].name, "--from-target")
    assert "--from-target: the rows of an instance folder already specify which side" in found.err
