"""Commands and variables of sqlcmd, and files that scripts include."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssbroker import Catalog, ddl
from ssbroker.ddl.reader import read_servers
from ssbroker.diagnose import Fleet
from ssbroker.exceptions import DdlError, DdlWarning, InputError, OptionError
from tests.ddl.scripts import NOW, names

ROUTE = "CREATE ROUTE {} WITH ADDRESS = 'LOCAL'\n"


def read(text: str, **variables: str) -> ddl.ScriptTables:
    """Reads a script with variables."""
    options = ddl.ScriptOptions(variables=ddl.check_variables(variables))
    return ddl.read(text, now=NOW, file="routes.sql", options=options)


@pytest.mark.parametrize(
    "text",
    [
        ':setvar Db "Sales"\nUSE [$(Db)]\n',
        ":setvar db Sales\nUSE $(DB)\n",
        ":SETVAR Part es\nUSE Sal$(Part)\n",
        ":setvar A Sal\n:setvar B $(A)es\nUSE $(B)\n",
        ":setvar Db Wrong\n:setvar Db Sales\nUSE $(Db)\n",
    ],
)
def test_variables_are_replaced(text: str) -> None:
    assert names(read(text + "CREATE ROUTE R WITH ADDRESS = 'LOCAL'")) == ["AutoCreatedLocal", "R"]


def test_given_variables_are_replaced_also_in_strings_and_setvar_overrides_them() -> None:
    script = read(
        ":setvar Port 4030\nUSE Sales\nCREATE ROUTE $(Name) WITH ADDRESS = 'TCP://$(Host):$(Port)'",
        Host="h",
        Port="1",
        Name="R",
    )
    (row,) = [row for row in script.routes.to_pylist() if row["name"] == "R"]
    assert row["address"] == "TCP://h:4030"


def test_undefined_variable_is_an_error_that_names_it_and_its_place() -> None:
    with pytest.raises(DdlError) as caught:
        read("USE Sales\nGO\nCREATE ROUTE R WITH\n  ADDRESS = 'TCP://$(Host):4022'")
    assert (caught.value.file, caught.value.line) == ("routes.sql", 4)
    assert str(caught.value).startswith(
        "routes.sql:4: the sqlcmd variable $(Host) is not defined; define it with -v Host="
    )
    with pytest.raises(
        DdlError, match=r"routes\.sql:3: the sqlcmd variable \$\(A\) is not defined; define it with -v A="
    ):
        read(":setvar A x\n:setvar A\nUSE $(A)")


def test_comments_hold_no_variables() -> None:
    assert names(read("USE Sales -- $(a)\n/* $(b)\n:r no.sql\n */ DROP ROUTE AutoCreatedLocal")) == []


def test_lines_within_strings_are_no_commands() -> None:
    with pytest.warns(DdlWarning, match="1 PRINT"):
        read("USE Sales\nPRINT '\n:r no.sql\n'\nDROP ROUTE AutoCreatedLocal")


@pytest.mark.parametrize("line", [":setvar", ":r", ":connect", ":setvar 1a x", ":nonsense"])
def test_invalid_commands_are_refused(line: str) -> None:
    with pytest.raises(DdlError, match=r"^routes\.sql:2: :"):
        read(f"USE Sales\n{line}\n")


def test_values_that_may_be_passwords_are_not_shown() -> None:
    with pytest.raises(DdlError) as caught:
        read("USE Sales\nCREATE QUEUE q WITH $(SaPassword)", SaPassword="Hush")
    assert "Hush" not in str(caught.value)
    with pytest.raises(DdlError) as caught:
        read(":setvar pwd Hush\nCREATE ROUTE R WITH ADDRESS = 'LOCAL' $(pwd)")
    assert "Hush" not in str(caught.value)


def test_commands_after_a_unicode_string_with_variables_are_executed(tmp_path: Path) -> None:
    (tmp_path / "main.sql").write_text(
        ":setvar Host h\nUSE Sales\nCREATE ROUTE One WITH ADDRESS = N'TCP://$(Host):4022'\n:r two.inc\n"
    )
    (tmp_path / "two.inc").write_text(ROUTE.format("Two"))
    assert Catalog.load(tmp_path / "main.sql").routes["name"].to_pylist()[:3] == ["AutoCreatedLocal", "One", "Two"]


def test_a_first_line_makes_variables_ordinary_text() -> None:
    script = read("-- ssbroker: sqlcmd=off\nUSE Sales\nCREATE ROUTE [$(x)] WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "$(x)"]
    assert ddl.write(script, now=NOW).startswith("-- ssbroker: sqlcmd=off\n")


@pytest.mark.parametrize("variables", [{"1a": "x"}, {"a": 1}, ["a"], {"a b": "x"}])
def test_invalid_variables_are_refused(tmp_path: Path, variables: object) -> None:
    with pytest.raises(OptionError, match=r"^variables: "):
        Catalog.load(tmp_path, variables=variables)  # type: ignore[arg-type]


def test_included_files_are_relative_to_the_file_that_includes_them(tmp_path: Path) -> None:
    (tmp_path / "parts" / "more").mkdir(parents=True)
    (tmp_path / "main.sql").write_text(
        ":setvar Name Two\nUSE Sales\n" + ROUTE.format("One") + ":r .\\parts\\two.inc\nGO\n"
    )
    (tmp_path / "parts" / "two.inc").write_text(ROUTE.format("$(Name)") + ":r more/three.inc\n")
    (tmp_path / "parts" / "more" / "three.inc").write_text(
        "\ufeff" + ROUTE.format("Three") + "DROP ROUTE Four", encoding="utf-8"
    )
    with pytest.raises(DdlError) as caught:
        Catalog.load(tmp_path / "main.sql")
    assert (caught.value.file, caught.value.line) == (str(tmp_path / "parts" / "more" / "three.inc"), 2)
    (tmp_path / "parts" / "more" / "three.inc").write_text(ROUTE.format("Three"))
    catalog = Catalog.load(tmp_path / "main.sql")
    assert catalog.routes["name"].to_pylist()[:4] == ["AutoCreatedLocal", "One", "Two", "Three"]
    assert catalog.position("route", database="Sales", name="Two") == (str(tmp_path / "parts" / "two.inc"), 1)


def test_the_case_of_an_included_file_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "Inc").mkdir()
    (tmp_path / "Inc" / "More.sql").write_text(ROUTE.format("R"))
    (tmp_path / "main.sql").write_text("USE Sales\n:r .\\inc\\more.SQL\n")
    catalog = Catalog.load(tmp_path / "main.sql")
    assert catalog.position("route", database="Sales", name="R") == (str(tmp_path / "Inc" / "More.sql"), 1)
    (tmp_path / "Inc" / "more.sql").write_text(ROUTE.format("R"))
    with pytest.raises(DdlError, match=r"main\.sql:2: :r .*more\.SQL cannot be read: No such file"):
        Catalog.load(tmp_path / "main.sql")


def test_included_files_are_not_read_twice_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "1.sql").write_text("USE Sales\n:r 2.sql\n")
    (tmp_path / "2.sql").write_text(ROUTE.format("R"))
    assert Catalog.load(tmp_path).routes["name"].to_pylist()[:2] == ["AutoCreatedLocal", "R"]


@pytest.mark.parametrize("name", ["missing.sql", "folder", "self.sql"])
def test_files_that_cannot_be_included_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "self.sql").write_text(f"USE Sales\n:r {name}\n")
    with pytest.raises(DdlError, match=r"self\.sql:2: :r "):
        Catalog.load(tmp_path / "self.sql")


def test_a_text_without_a_file_includes_nothing() -> None:
    with pytest.raises(DdlError, match="is relative to the script, whose file is not known"):
        ddl.read("USE Sales\n:r x.sql", now=NOW)


def test_an_included_file_outside_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "main").mkdir()
    (tmp_path / "secret.inc").write_text(ROUTE.format("R"))
    (tmp_path / "main" / "main.sql").write_text("USE Sales\n:r ../secret.inc\n")
    with pytest.warns(DdlWarning, match="included .*secret.inc, which is outside the folder of the script"):
        Catalog.load(tmp_path / "main" / "main.sql")


def test_connect_is_refused_where_there_is_one_instance(tmp_path: Path) -> None:
    script = tmp_path / "both.sql"
    script.write_text(
        ":connect a -P Hush\nCREATE DATABASE A\nGO\n:connect B\nCREATE DATABASE B\nGO\n:connect A\nCREATE DATABASE C\n"
    )
    with pytest.raises(
        InputError, match=r"connects to several instances with :connect \(a, B\); load it with Fleet.load"
    ) as caught:
        Catalog.load(script)
    assert "Hush" not in str(caught.value)
    fleet = Fleet.load(script)
    assert {name: catalog.databases["name"].to_pylist() for name, catalog in fleet.items()} == {
        "a": ["A", "C", "msdb"],
        "B": ["B", "msdb"],
    }


def test_code_pages_are_read_by_their_name(tmp_path: Path) -> None:
    script = tmp_path / "old.sql"
    script.write_bytes("USE Größe\nCREATE ROUTE R WITH ADDRESS = 'LOCAL'".encode("cp1252"))
    assert "Größe" in Catalog.load(script, encoding="cp1252").databases["name"].to_pylist()
    with pytest.raises(DdlError, match="specify the code page of the script, such as cp1252, as its encoding"):
        Catalog.load(script)
    with pytest.raises(OptionError, match="encoding: 'klingon' is not a text encoding"):
        Catalog.load(script, encoding="klingon")
    script.write_text("USE Sales\nDROP ROUTE AutoCreatedLocal", encoding="utf-16")
    assert "Sales" in Catalog.load(script, encoding="cp1252").databases["name"].to_pylist()


def test_a_project_in_any_order(tmp_path: Path) -> None:
    """Objects wait for those that they need, and a database is created before it is used."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "obj").mkdir()
    (tmp_path / "1.sql").write_text(
        "USE Shop\nGO\nCREATE SERVICE S ON QUEUE Q (C)\nGO\nGRANT SEND ON SERVICE::S TO Ann"
    )
    (tmp_path / "a" / "2.sql").write_text("USE Shop\nGO\nCREATE CONTRACT C (M SENT BY ANY)\nCREATE QUEUE Q")
    (tmp_path / "a" / "b" / "3.SQL").write_text("USE Shop\nCREATE USER Ann WITHOUT LOGIN\nCREATE MESSAGE TYPE M")
    (tmp_path / "z.sql").write_text("CREATE DATABASE Shop")
    (tmp_path / "obj" / "built.sql").write_text("CREATE DATABASE Built")
    catalog = Catalog.load(tmp_path)
    assert catalog.services.to_pylist() == [{"database": "Shop", "name": "S"}]
    assert catalog.databases["name"].to_pylist() == ["Shop", "msdb"]
    (tmp_path / "a" / "2.sql").write_text("USE Shop\nGO\nCREATE QUEUE Q")
    with pytest.raises(
        DdlError,
        match=r"1\.sql:3: CREATE SERVICE \[S\]: error 15151: the contract 'C' does not exist in the database 'Shop'",
    ):
        Catalog.load(tmp_path)


@pytest.mark.parametrize(
    "ip", ["(1.1.1.1:255.255.0.0)", "(10.1.2.3 : 255.255.255.0)", "(10.1.2.3)", "ALL", "('fe80::1')"]
)
def test_listener_addresses_with_masks(ip: str) -> None:
    text = f"CREATE ENDPOINT e AS TCP (LISTENER_PORT = 4022, LISTENER_IP = {ip}) FOR SERVICE_BROKER"
    assert read(text).addresses
    with pytest.raises(DdlError, match="is not a valid IP address with a subnet mask"):
        read("CREATE ENDPOINT e AS TCP (LISTENER_PORT = 4022, LISTENER_IP = (1.1.1.1:255.1.0.1)) FOR SERVICE_BROKER")


def test_values_and_includes_do_not_grow_without_limit(tmp_path: Path) -> None:
    with pytest.raises(DdlError, match="the value of A has more than 100,000 characters"):
        read(":setvar A xxxxxxxx\n" + ":setvar A $(A)$(A)\n" * 60)
    script = tmp_path / "self.sql"
    script.write_text("USE Sales\n:r self.sql\n:r self.sql\n")
    with pytest.raises(DdlError, match="is nested more than 32 levels deep"):
        Catalog.load(script)
    script.write_text(f":setvar A {'x' * 99_000}\nPRINT '{'$(A)' * 700}'\n{'$(A)' * 10_000}")
    with pytest.raises(DdlError, match=r"self\.sql:2: variables and repeated :r add more than 67,108,864 characters"):
        Catalog.load(script)
    (tmp_path / "large.sql").write_text(f"-- {'x' * 4_000_000}\n")
    script.write_text(":r large.sql\n" * 20)
    with pytest.raises(DdlError, match=r"self\.sql:18: variables and repeated :r add more than 67,108,864 characters"):
        Catalog.load(script)


TWO_SERVERS = """:connect {north}
CREATE ENDPOINT E STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (ENCRYPTION = DISABLED)
CREATE ROUTE R WITH SERVICE_NAME = 'S', ADDRESS = 'TCP://South:{port}'
GO
:connect {south}
CREATE ENDPOINT E STATE = STARTED AS TCP (LISTENER_PORT = {port}) FOR SERVICE_BROKER (ENCRYPTION = DISABLED)
"""


@pytest.mark.parametrize(
    ("north", "south", "port", "expected"),
    [
        ("North", "South", 4022, ("TCP://north:4022", "TCP://south:4022")),
        ("tcp:North.corp.example,1433", "South\\SQL2022", 4023, ("TCP://north.corp.example:4022", "TCP://south:4023")),
        ("Host\\A", "host\\B", 4023, ("TCP://host:4022", "TCP://host:4023")),
        ("Host\\A", "host\\B", 4022, (None, None)),  # two scripts for one instance, or a host that both are not on
        ("(local)", ".\\SQLEXPRESS", 4022, (None, None)),
        ("localhost", "localhost,1434", 4022, (None, None)),
    ],
)
def test_a_server_is_reached_at_its_host(north: str, south: str, port: int, expected: object) -> None:
    """With the port of its endpoint, so that routes between the servers of a script lead somewhere."""
    text = TWO_SERVERS.format(north=north, south=south, port=port)
    servers = read_servers([(text, None)], now=NOW, options=ddl.STRICT)
    loopback = tuple(f"TCP://{host}:" for host in ("localhost", "127.0.0.1", "[::1]"))
    hosts = [
        next((each for each in tables.addresses if not each.startswith(loopback)), None) for tables in servers.values()
    ]
    assert tuple(hosts) == expected


@pytest.mark.parametrize("command", ["!!dir", "  !! echo CREATE ROUTE S", ":!!dir /b", "!!"])
def test_commands_of_the_operating_system_are_skipped(command: str) -> None:
    script = read(f"USE Sales\n{command}\nCREATE ROUTE R WITH ADDRESS = 'LOCAL'\nGO\n{command}")
    assert names(script) == ["AutoCreatedLocal", "R"]
    assert script.notes == ()
    script = read("USE Sales\nCREATE ROUTE [a\n!!dir] WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "a\n!!dir"]
