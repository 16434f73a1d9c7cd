"""Statements that SQL Server refuses raise an error with file, line, statement, number and reason."""

from __future__ import annotations

import pytest

from ssbroker import ddl
from ssbroker.exceptions import DdlError, DdlWarning, InputError
from tests.ddl.scripts import GUID, NOW, read, refused, routes

CREATE = "CREATE ROUTE X WITH "
NAMED = f"SERVICE_NAME = 'S', BROKER_INSTANCE = '{GUID}'"
CONFIGURATION = "SERVICE_NAME = 'SQL/ServiceBroker/BrokerConfiguration'"

REFUSED_CLAUSES = [
    ("SERVICE_NAME = 'S'", None, "ADDRESS is required"),
    ("LIFETIME = 5", None, "ADDRESS is required"),
    ("SERVICE_NAME = '', ADDRESS = 'LOCAL'", 9659, "SERVICE_NAME is empty; specify a value, or omit the clause"),
    (
        "SERVICE_NAME = 'S', BROKER_INSTANCE = '', ADDRESS = 'LOCAL'",
        9659,
        "BROKER_INSTANCE is empty; specify a value, or omit the clause",
    ),
    ("ADDRESS = ''", 9659, "ADDRESS is empty; specify an address"),
    (
        f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = N''",
        9659,
        "MIRROR_ADDRESS is empty; specify a value, or omit the clause",
    ),
    (f"SERVICE_NAME = '{'s' * 257}', ADDRESS = 'LOCAL'", 9660, "SERVICE_NAME has more than 256 characters"),
    (f"SERVICE_NAME = N'{'😀' * 128}s', ADDRESS = 'LOCAL'", 9660, "SERVICE_NAME has more than 256 characters"),
    (f"ADDRESS = 'TCP://{'a' * 251}'", 9660, "ADDRESS has more than 256 characters"),
    (
        f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://{'a' * 251}'",
        9660,
        "MIRROR_ADDRESS has more than 256 characters",
    ),
    (
        "ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://b'",
        9661,
        "MIRROR_ADDRESS requires SERVICE_NAME and BROKER_INSTANCE",
    ),
    ("SERVICE_NAME = 'S', ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://b'", 9661, "MIRROR_ADDRESS requires"),
    (f"BROKER_INSTANCE = '{GUID}', ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://b'", 9661, "MIRROR_ADDRESS requires"),
    (f"BROKER_INSTANCE = '{GUID}', ADDRESS = 'LOCAL'", 9662, "BROKER_INSTANCE requires SERVICE_NAME"),
    (f"{NAMED}, ADDRESS = 'local', MIRROR_ADDRESS = 'TCP://b'", 9743, "ADDRESS is LOCAL"),
    (f"{NAMED}, ADDRESS = 'TRANSPORT', MIRROR_ADDRESS = 'TCP://b'", 9743, "ADDRESS is TRANSPORT"),
    (f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'LOCAL'", 9743, "MIRROR_ADDRESS is LOCAL"),
    (f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'Transport'", 9743, "MIRROR_ADDRESS is TRANSPORT"),
    ("ADDRESS = 'somewhere'", 9744, "ADDRESS 'somewhere' is not a valid address"),
    (
        "ADDRESS = 'TCP://a:0'",
        9744,
        "ADDRESS 'TCP://a:0' is not a valid address: the port is outside the range 1 to 65535",
    ),
    (
        "ADDRESS = 'tcp://[::1]:65536/'",
        9744,
        "is not a valid address: the port is outside the range 1 to 65535; expected",
    ),
    ("ADDRESS = 'TCP://a b:1'", 9744, "is not a valid address: it contains white space; expected TCP://host[:port]"),
    (
        "ADDRESS = 'TCP://A\\I:4022'",
        9744,
        "ADDRESS 'TCP://A\\I:4022' is not a valid address: a route cannot name an instance of SQL Server; specify the host and the port",
    ),
    ("ADDRESS = 'TCP://a..b:1'", 9744, "ADDRESS 'TCP://a..b:1' is not a valid address; expected TCP://host[:port]"),
    ("ADDRESS = 'HTTP://a:1'", 9744, "ADDRESS 'HTTP://a:1' is not a valid address"),
    ("ADDRESS = ' LOCAL'", 9744, "ADDRESS ' LOCAL' is not a valid address"),
    (f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'b'", 9744, "MIRROR_ADDRESS 'b' is not a valid address"),
    (
        "SERVICE_NAME = 'S', ADDRESS = 'transport'",
        9745,
        "a route with the address TRANSPORT cannot have SERVICE_NAME; create the route without this clause, or with another address",
    ),
    ("LIFETIME = 0, ADDRESS = 'LOCAL'", 9746, "LIFETIME = 0 is outside the range 1 to 2147483647"),
    ("LIFETIME = -1, ADDRESS = 'LOCAL'", 9746, "LIFETIME = -1 is outside"),
    ("LIFETIME = 2147483648, ADDRESS = 'LOCAL'", 9746, "LIFETIME = 2147483648 is outside"),
    (f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://a'", 9747, "are the same, TCP://a:4022"),
    (f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'tcp://A:4022/'", 9747, "are the same, TCP://a:4022"),
    ("SERVICE_NAME = N' \u3000', ADDRESS = 'LOCAL'", 8412, "is not a valid service name"),
    ("SERVICE_NAME = 'a\0', ADDRESS = 'LOCAL'", 8412, "is not a valid service name"),
    (f"SERVICE_NAME = 'S', BROKER_INSTANCE = '{'0' * 129}', ADDRESS = 'LOCAL'", 8413, "more than 128 characters"),
    ("SERVICE_NAME = 'S', BROKER_INSTANCE = '7', ADDRESS = 'LOCAL'", None, "BROKER_INSTANCE '7' is not a valid GUID"),
    (f"{CONFIGURATION}, BROKER_INSTANCE = '{GUID}', ADDRESS = 'LOCAL'", None, "cannot have BROKER_INSTANCE"),
]


@pytest.mark.parametrize(("clauses", "number", "reason"), REFUSED_CLAUSES)
def test_create_route_refuses(clauses: str, number: int | None, reason: str) -> None:
    error = refused("USE Sales", "", CREATE, clauses)
    assert (error.file, error.line, error.number) == ("routes.sql", 3, number)
    label = "" if number is None else f"error {number}: "
    assert str(error).startswith(f"routes.sql:3: CREATE ROUTE [X]: {label}")
    assert reason in str(error)


@pytest.mark.parametrize(
    "clauses",
    [
        f"SERVICE_NAME = '{'s' * 256}', ADDRESS = 'LOCAL'",
        f"SERVICE_NAME = N'{'😀' * 128}', ADDRESS = 'LOCAL'",
        "LIFETIME = 1, ADDRESS = 'LOCAL'",
        "LIFETIME = 2147483647, ADDRESS = 'LOCAL'",
        f"{CONFIGURATION}, ADDRESS = 'LOCAL'",
        "ADDRESS = 'TRANSPORT'",
        f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://a:4023'",
        "SERVICE_NAME = ' s ', ADDRESS = 'LOCAL'",
    ],
)
def test_create_route_accepts_limits(clauses: str) -> None:
    assert "X" in routes(read("USE Sales", CREATE + clauses))


@pytest.mark.parametrize(
    ("before", "alter", "number"),
    [
        ("ADDRESS = 'LOCAL'", "SERVICE_NAME = ''", 9659),
        ("ADDRESS = 'LOCAL'", "MIRROR_ADDRESS = 'TCP://b'", 9661),
        ("ADDRESS = 'LOCAL'", f"BROKER_INSTANCE = '{GUID}'", 9662),
        (f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://b'", "ADDRESS = 'LOCAL'", 9743),
        ("ADDRESS = 'LOCAL'", "ADDRESS = 'x'", 9744),
        ("ADDRESS = 'TRANSPORT'", "SERVICE_NAME = 'S'", 9745),
        ("ADDRESS = 'LOCAL'", "LIFETIME = 0", 9746),
        (f"{NAMED}, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://b'", "ADDRESS = 'TCP://B:4022'", 9747),
        (f"{NAMED}, ADDRESS = 'LOCAL'", CONFIGURATION, None),
    ],
)
def test_alter_route_validates_the_resulting_route(before: str, alter: str, number: int | None) -> None:
    error = refused("USE Sales", CREATE + before, f"ALTER ROUTE X WITH {alter}")
    assert (error.line, error.number) == (3, number)
    assert str(error).startswith("routes.sql:3: ALTER ROUTE [X]: ")


NEAR = "syntax error near "


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE ROUTE", "at the end of the batch: expected a name"),
        ("CREATE ROUTE WITH ADDRESS = 'LOCAL'", f"{NEAR}WITH: expected a name, but WITH is a reserved word"),
        ("CREATE ROUTE Print WITH ADDRESS = 'LOCAL'", "to use it as a name, write [Print]"),
        ("CREATE ROUTE 'X' WITH ADDRESS = 'LOCAL'", f"{NEAR}'X': expected a name"),
        ("CREATE ROUTE @x WITH ADDRESS = 'LOCAL'", f"{NEAR}@x: expected a name"),
        ("CREATE ROUTE 1X WITH ADDRESS = 'LOCAL'", f"{NEAR}1X: expected a name"),
        ("CREATE ROUTE dbo.X WITH ADDRESS = 'LOCAL'", f"{NEAR}.: expected WITH"),
        ("CREATE ROUTE X", "at the end of the batch: expected WITH"),
        ("CREATE ROUTE X WITH", "at the end of the batch: expected a clause"),
        ("CREATE ROUTE X WITH ADDRESS 'LOCAL'", f"{NEAR}'LOCAL': expected ="),
        ("CREATE ROUTE X WITH ADDRESS = LOCAL", f"{NEAR}LOCAL: expected a string in '...'"),
        ('CREATE ROUTE X WITH ADDRESS = "LOCAL"', f"{NEAR}\"LOCAL\": expected a string in '...'"),
        ("CREATE ROUTE X WITH ADDRESS = @a", f"{NEAR}@a: expected a string"),
        ("CREATE ROUTE X WITH ADDRESS = 'LOCAL',", "at the end of the batch: expected a clause"),
        ("CREATE ROUTE X WITH ADDRESS = 'LOCAL' LIFETIME = 5", f"{NEAR}LIFETIME: expected the end of the statement"),
        ("CREATE ROUTE X WITH ADDRESS = 'LOCAL' + 'X'", f"{NEAR}+: expected the end of the statement"),
        ("CREATE ROUTE X WITH ADRESS = 'LOCAL'", f"{NEAR}ADRESS: expected a clause"),
        ("CREATE ROUTE X WITH LIFETIME = '5'", f"{NEAR}'5': expected an integer"),
        ("CREATE ROUTE X WITH LIFETIME = 1e3, ADDRESS = 'LOCAL'", f"{NEAR}1e3: expected an integer"),
        ("CREATE ROUTE X WITH LIFETIME = 1.5, ADDRESS = 'LOCAL'", f"{NEAR}.: expected the end of the statement"),
        ("CREATE ROUTE X WITH LIFETIME = " + "9" * 5000, "expected an integer"),
        ("CREATE ROUTE X (ADDRESS = 'LOCAL')", f"{NEAR}(: expected WITH"),
        ("ALTER ROUTE X AUTHORIZATION dbo WITH ADDRESS = 'LOCAL'", f"{NEAR}AUTHORIZATION: expected WITH"),
        ("DROP ROUTE IF EXISTS X", f"{NEAR}IF: expected a name; DROP ROUTE has no IF EXISTS"),
        (
            "DROP QUEUE IF EXISTS dbo.Q",
            f"{NEAR}IF: expected a name; DROP QUEUE has no IF EXISTS: use IF EXISTS (SELECT ...)",
        ),
        (
            "DROP REMOTE SERVICE BINDING IF EXISTS B",
            f"DROP REMOTE SERVICE BINDING: error 102: {NEAR}IF: expected a name; DROP REMOTE SERVICE BINDING has no IF EXISTS",
        ),
        ("CREATE REMOTE SERVICE B", f"CREATE REMOTE SERVICE: error 102: {NEAR}B: expected BINDING"),
        ("ALTER REMOTE SERVICE BINDING B WITH X", f"ALTER REMOTE SERVICE BINDING [B]: error 102: {NEAR}X: "),
        ("DROP ROUTE AutoCreatedLocal, X", f"{NEAR},: expected the end of the statement"),
        ("USE", "at the end of the batch: expected a name"),
        ("USE Sales HR", f"{NEAR}HR: expected the end of the statement"),
        ("CREATE DATABASE X WITH ENABLE_BROKER", "one broker option is allowed, after FOR ATTACH WITH"),
        ("CREATE DATABASE X FOR ATTACH WITH ENABLE_BROKER, NEW_BROKER", f"{NEAR}NEW_BROKER: only one broker option"),
        ("CREATE DATABASE X ON (NAME = a", "unbalanced parentheses"),
        ("ALTER DATABASE X SET", "at the end of the batch: expected an option"),
        ("ALTER DATABASE X ENABLE_BROKER", f"{NEAR}ENABLE_BROKER: expected SET"),
        ("ALTER DATABASE X SET ENABLE_BROKER,", "expected an option"),
        ("ALTER DATABASE X SET ENABLE_BROKER ON", f"{NEAR}ON: expected the end of the statement"),
        ("ALTER DATABASE X SET ENABLE_BROKER WITH ROLLBACK", "expected AFTER"),
        ("ALTER DATABASE X MODIFY NAME Y", f"{NEAR}Y: expected ="),
        ("CREATE SERVICE S", "at the end of the batch: expected ON"),
        ("CREATE SERVICE S ON Q", f"{NEAR}Q: expected QUEUE"),
        ("CREATE SERVICE S ON QUEUE Sales.dbo.Q", "the name of the queue has more than 2 parts"),
        ("CREATE SERVICE S ON QUEUE Q ()", f"{NEAR}): expected a name"),
        ("CREATE SERVICE S ON QUEUE Q ([DEFAULT],)", f"{NEAR}): expected a name"),
        ("CREATE SERVICE '//S' ON QUEUE Q", f"{NEAR}'//S': expected a name"),
        ("CREATE SERVICE //S ON QUEUE Q", f"{NEAR}/: expected a name"),
        ("ALTER SERVICE S", "at the end of the batch: expected ("),
        ("ALTER SERVICE S (CREATE CONTRACT c)", f"{NEAR}CREATE: expected DROP"),
        ("CREATE QUEUE a.b.c.d", "the name of the queue has more than 3 parts"),
        ("DROP QUEUE Q WITH STATUS = ON", f"{NEAR}WITH: expected the end of the statement"),
        ("CREATE ENDPOINT E FOR SERVICE_BROKER ()", "expected AS TCP (...) and FOR"),
        ("CREATE ENDPOINT E AS TCP (LISTENER_PORT = 1)", "expected AS TCP (...) and FOR"),
        (
            "CREATE ENDPOINT E AS TCP (LISTENER_IP = ALL) FOR SERVICE_BROKER ()",
            "expected AS TCP (LISTENER_PORT = ...)",
        ),
        (
            "CREATE ENDPOINT E AS TCP (PORT = 1) FOR SERVICE_BROKER ()",
            f"{NEAR}PORT: expected LISTENER_PORT or LISTENER_IP",
        ),
        (
            "CREATE ENDPOINT E STATE = ON AS TCP (LISTENER_PORT = 1) FOR SERVICE_BROKER ()",
            "STARTED, STOPPED or DISABLED",
        ),
        (
            "CREATE ENDPOINT E AS TCP (LISTENER_PORT = 1) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ON)",
            "ENABLED or DISABLED",
        ),
        ("CREATE ENDPOINT E AS TCP (LISTENER_PORT = 1) FOR SERVICE_BROKER (FORWARDING = ON)", f"{NEAR}FORWARDING: "),
        (
            "CREATE ENDPOINT E AS TCP (LISTENER_PORT = 1) FOR SERVICE_BROKER (ENCRYPTION = DISABLED",
            "the end of the batch",
        ),
        ("CREATE ENDPOINT E AS HTTP (PORTS = (CLEAR)) FOR SERVICE_BROKER ()", "SERVICE_BROKER requires AS TCP"),
        ("ALTER ENDPOINT E AS HTTP (PORTS = (CLEAR", "unbalanced parentheses"),
    ],
)
def test_syntax_errors(statement: str, reason: str) -> None:
    error = refused("USE Sales", statement)
    assert (error.line, error.number) == (2, 102)
    assert reason in str(error)


def test_syntax_error_names_the_statement_and_the_line_of_the_token() -> None:
    error = refused("USE Sales", "CREATE ROUTE [a b] WITH", "  ADDRESS = 'LOCAL',", "  COLOUR = 'red'")
    assert error.line == 2
    assert str(error).startswith("routes.sql:2: CREATE ROUTE [a b]: error 102: syntax error near COLOUR on line 4: ")


@pytest.mark.parametrize(
    ("statement", "number", "reason"),
    [
        ("CREATE ROUTE X WITH ADDRESS = 'LOCAL', address = 'LOCAL'", 1039, "ADDRESS is specified more than once"),
        (
            "CREATE ROUTE X WITH LIFETIME = 5, LIFETIME = 6, ADDRESS = 'LOCAL'",
            1039,
            "LIFETIME is specified more than once",
        ),
        ("CREATE ROUTE [] WITH ADDRESS = 'LOCAL'", 1038, "a name is empty"),
        (f"CREATE ROUTE {'x' * 129} WITH ADDRESS = 'LOCAL'", 103, "has more than 128 characters"),
        ("CREATE ROUTE [a\0b] WITH ADDRESS = 'LOCAL'", None, "contains NUL, which is not a valid character"),
        (
            "CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'TCP://x'",
            None,
            "the route 'AutoCreatedLocal' already exists in the database 'Sales'; every database is created with this route",
        ),
        (
            "CREATE ROUTE X WITH ADDRESS = 'LOCAL' CREATE ROUTE X WITH ADDRESS = 'LOCAL'",
            None,
            "the route 'X' already exists",
        ),
        ("ALTER ROUTE X WITH ADDRESS = 'LOCAL'", 15151, "the route 'X' does not exist in the database 'Sales'"),
        ("DROP ROUTE X", 15151, "the route 'X' does not exist in the database 'Sales'"),
        (
            "DROP ROUTE AutoCreatedLoca",
            15151,
            "the route 'AutoCreatedLoca' does not exist in the database 'Sales'; did you mean AutoCreatedLocal?",
        ),
        (
            "CREATE DATABASE Sales",
            1801,
            "'Sales' already exists; to run a script again, remove the statement, or guard it",
        ),
        ("CREATE DATABASE SALES", 1801, "IF DB_ID(N'Sales') IS NULL CREATE DATABASE [Sales]"),
        ("CREATE DATABASE MSDB", 1801, "the name 'msdb' is reserved for a system database; choose another one"),
        ("CREATE DATABASE master", 1801, "the name 'master' is reserved for a system database; choose another one"),
        ("USE HR DROP DATABASE Sales; DROP DATABASE Sales", 3701, "does not exist"),
        ("USE HR DROP DATABASE Sales; USE Sales", 911, "was dropped"),
        ("USE HR DROP DATABASE Sales; ALTER DATABASE Sales SET ENABLE_BROKER", 5011, "was dropped"),
        ("DROP DATABASE Sales", 3702, "in use"),
        ("DROP DATABASE MSDB", 3708, "system database"),
        ("ALTER DATABASE msdb MODIFY NAME = other", 3708, "system database"),
        ("ALTER DATABASE Sales MODIFY NAME = tempdb", 1801, "the name 'tempdb' is reserved"),
        ("CREATE DATABASE HR ALTER DATABASE Sales MODIFY NAME = HR", 1801, "the database 'HR' already exists"),
        ("ALTER DATABASE Sales SET ENABLE_BROKER, NEW_BROKER", None, "NEW_BROKER after ENABLE_BROKER"),
        ("CREATE QUEUE Q CREATE QUEUE dbo.q", 2714, "the queue 'dbo.Q' already exists in the database 'Sales'"),
        ("ALTER QUEUE Q WITH STATUS = ON", 15151, "the queue 'dbo.Q' does not exist in the database 'Sales'"),
        ("DROP QUEUE Q", 15151, "the queue 'dbo.Q' does not exist"),
        (
            "CREATE QUEUE Q CREATE SERVICE S ON QUEUE Q DROP QUEUE Q",
            None,
            "the queue 'dbo.Q' is used by the service 'S'; drop the service, or move the service to another",
        ),
        ("CREATE SERVICE S ON QUEUE Q", 15151, "the queue 'dbo.Q' does not exist"),
        ("CREATE QUEUE HR..Q CREATE SERVICE S ON QUEUE Q", 15151, "the queue 'dbo.Q' does not exist"),
        (
            "CREATE QUEUE Q CREATE SERVICE S ON QUEUE Q CREATE SERVICE S ON QUEUE Q",
            None,
            "the service 'S' already exists in the database 'Sales'",
        ),
        ("ALTER SERVICE S (ADD CONTRACT c)", 15151, "the service 'S' does not exist"),
        ("DROP SERVICE S", 15151, "the service 'S' does not exist"),
        (
            "CREATE QUEUE Q CREATE SERVICE S ON QUEUE Q ([DEFAULT]) ALTER SERVICE S (ADD CONTRACT [DEFAULT])",
            None,
            "the service 'S' already has the contract 'DEFAULT'",
        ),
        (
            "CREATE MESSAGE TYPE T CREATE MESSAGE TYPE T",
            None,
            "the message type 'T' already exists in the database 'Sales'",
        ),
        (
            "CREATE CONTRACT C ([DEFAULT] SENT BY ANY) CREATE CONTRACT C ([DEFAULT] SENT BY ANY)",
            None,
            "the contract 'C' already exists in the database 'Sales'",
        ),
        (
            "CREATE BROKER PRIORITY P FOR CONVERSATION CREATE BROKER PRIORITY p FOR CONVERSATION",
            None,
            "the broker priority 'P' already exists in the database 'Sales'",
        ),
        (
            "DROP MESSAGE TYPE [DEFAULT]",
            9663,
            "the message type 'DEFAULT' is a system message type, which cannot be altered",
        ),
        ("DROP CONTRACT [DEFAULT]", 9663, "the contract 'DEFAULT' is a system contract, which cannot be dropped"),
        (
            "CREATE REMOTE SERVICE BINDING B TO SERVICE '' WITH USER = U",
            8412,
            "'' is not a valid service name; expected 1 to 256 characters, without NUL or unpaired surrogates",
        ),
        (
            "CREATE CERTIFICATE C WITH SUBJECT = 'C', START_DATE = '20261121', EXPIRY_DATE = '20251121'",
            15297,
            "the certificate 'C': EXPIRY_DATE (2025-11-21 00:00:00 UTC) must be later than START_DATE (2026-11-21 00:00:00 UTC)",
        ),
    ],
)
def test_missing_and_duplicate_objects_are_refused(statement: str, number: int | None, reason: str) -> None:
    error = refused("USE Sales", statement)
    assert (error.line, error.number) == (2, number)
    assert reason in str(error)


ENDPOINT = "CREATE ENDPOINT {name} AS TCP (LISTENER_PORT = {port}, LISTENER_IP = {ip}) FOR SERVICE_BROKER ()"


@pytest.mark.parametrize(
    ("line", "number", "reason"),
    [
        (ENDPOINT.format(name="Other", port=4022, ip="ALL"), 7862, "already has the Service Broker endpoint 'Broker'"),
        (
            "ALTER ENDPOINT Other FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)",
            15151,
            "the Service Broker endpoint 'Other' does not exist; the endpoint of the instance is 'Broker'",
        ),
        ("ALTER ENDPOINT Broker AS TCP (LISTENER_PORT = 0)", None, "LISTENER_PORT = 0 is not a valid port"),
        ("ALTER ENDPOINT Broker AS TCP (LISTENER_PORT = 65536)", None, "LISTENER_PORT = 65536 is not a valid port"),
        (
            "ALTER ENDPOINT Broker AS TCP (LISTENER_PORT = 1, LISTENER_PORT = 1)",
            1039,
            "LISTENER_PORT is specified more than once",
        ),
        ("ALTER ENDPOINT Broker AS TCP (LISTENER_IP = (10.0.0.256))", None, "(10.0.0.256) is not a valid IP address"),
    ],
)
def test_invalid_endpoint_is_refused(line: str, number: int | None, reason: str) -> None:
    error = refused(ENDPOINT.format(name="Broker", port=4022, ip="ALL"), line)
    assert (error.line, error.number) == (2, number)
    assert reason in str(error)


@pytest.mark.parametrize("statement", ["ALTER ENDPOINT E STATE = STOPPED", "DROP ENDPOINT E"])
def test_an_endpoint_that_the_script_does_not_create_is_noted_as_such(statement: str) -> None:
    said = "skipped (the script does not create this endpoint, and the statement does not say whether the endpoint is for Service Broker)"
    with pytest.warns(DdlWarning):
        script = read("USE Sales CREATE QUEUE Q", statement)
    assert [note.text for note in script.notes] == [said]
    with pytest.warns(DdlWarning):
        script = read(ENDPOINT.format(name="Broker", port=4022, ip="ALL"), statement)
    assert [note.text for note in script.notes] == ["skipped (not the Service Broker endpoint)"]


DISABLED_COPY = f"ALTER DATABASE Copy SET DISABLE_BROKER -- ssbroker: service_broker_guid={GUID}"


@pytest.mark.rule("I7")
@pytest.mark.parametrize(
    "line",
    [
        f"USE Copy -- ssbroker: service_broker_guid={GUID}",
        f"CREATE DATABASE Copy -- ssbroker: service_broker_guid={GUID}",
        f"{DISABLED_COPY}\nALTER DATABASE Copy SET ENABLE_BROKER",
        f"{DISABLED_COPY}\nALTER DATABASE Copy SET ERROR_BROKER_CONVERSATIONS",
    ],
)
def test_two_databases_with_the_same_id_are_never_both_enabled(line: str) -> None:
    known = "" if "CREATE DATABASE" in line else "USE Copy "
    error = refused(f"{known}CREATE DATABASE Sales -- ssbroker: service_broker_guid={GUID.lower()}", line)
    assert error.number == 9772
    assert str(error).endswith(
        "the database 'Copy' has the same broker id as the database 'Sales', which is enabled; use NEW_BROKER for one of the two"
    )


def test_error_without_a_file_names_the_line() -> None:
    with pytest.raises(DdlError, match=r"^line 2: DROP ROUTE \[X\]: error 15151: ") as caught:
        ddl.read("USE Sales\nDROP ROUTE X", now=NOW)
    assert (caught.value.file, caught.value.line) == (None, 2)
    assert isinstance(caught.value, InputError)


def test_route_ids_run_out() -> None:
    """The error concerns the whole database, so it has no line."""
    line = "USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=2147483647"
    error = refused(line)
    assert (
        str(error) == "the database Sales: no route id is left after 2147483647; annotate each route with its route_id"
    )
    assert routes(read(line, "DROP ROUTE AutoCreatedLocal"))["R"]["route_id"] == 2**31 - 1


def test_lifetime_beyond_the_year_9999_is_refused() -> None:
    with pytest.raises(DdlError, match="error 9746: LIFETIME = 5 ends after the year 9999"):
        read("USE Sales CREATE ROUTE R WITH LIFETIME = 5, ADDRESS = 'LOCAL'", now=NOW.replace(9999, 12, 31, 23, 59, 59))


def test_a_similar_name_is_suggested_among_thousands() -> None:
    """`lint` continues after errors, and each of them looks for a similar name."""
    services = [f"CREATE SERVICE [//shop/Service/{number:05}] ON QUEUE Q;" for number in range(20_000)]
    error = refused("CREATE DATABASE Shop; USE Shop; CREATE QUEUE Q;", *services, "DROP SERVICE [//shop/Servic/00042];")
    assert (
        "the service '//shop/Servic/00042' does not exist in the database 'Shop'; did you mean //shop/Service/00042?"
        in str(error)
    )


@pytest.mark.parametrize(
    ("cause", "note"),
    [
        (
            "SELECT @q = N'CREATE QUEUE Q WITH ' + Options FROM dbo.T; EXEC sp_executesql @q",
            "EXEC sp_executesql ...: not executed, although it contains CREATE QUEUE: its text cannot be determined from the script",
        ),
        (
            "IF @@VERSION LIKE 'x' CREATE QUEUE Q",
            "IF @@VERSION LIKE '...' CREATE QUEUE Q: not executed, although it contains CREATE QUEUE: its condition cannot be evaluated from the script",
        ),
    ],
)
def test_the_error_names_the_statement_that_was_not_executed(cause: str, note: str) -> None:
    error = refused("CREATE DATABASE Sales", "GO", "USE Sales", cause, "GO", "CREATE SERVICE [//S] ON QUEUE Q")
    assert (error.number, error.line) == (15151, 6)
    assert str(error).endswith(f"the queue 'dbo.Q' does not exist in the database 'Sales'; see routes.sql:4: {note}")


def test_a_statement_that_was_not_executed_is_not_the_cause_of_every_error() -> None:
    start = ("CREATE DATABASE Sales", "GO", "USE Sales", "WHILE @x = 1 CREATE ROUTE R WITH ADDRESS = 'LOCAL'", "GO")
    assert "see routes.sql" not in str(refused(*start, "CREATE SERVICE [//S] ON QUEUE Q"))
    assert "see routes.sql" not in str(refused(*start, "CREATE QUEUE Q", "CREATE QUEUE Q"))
