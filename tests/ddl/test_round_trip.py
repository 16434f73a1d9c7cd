"""Any catalog that DDL can create survives a round trip, whatever characters its names contain."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ssbroker import ddl, schemas
from ssbroker.ddl.system_objects import SYSTEM_DATABASES, canonical_name
from ssbroker.exceptions import DdlError
from tests.ddl.scripts import NOW

# Text that scripts must escape, and ordinary characters.
SNIPPETS = ["]", "]]", "[", "'", "''", '"', "--", "/*", "*/", "\n", "\r", "\r\n", "\\", "\\\n", "\\\r\n", "\nGO\n", "GO 5", ";", ",", "%2C",
            " ", "\t", "\u2028", "\u00a0", "\x1f", "\x85", "USE x", "-- ssbroker: route_id=1", "$(x)", "a", "Z", "é", "ß", "名", "😀"]  # fmt: skip
TEXTS = st.lists(st.sampled_from(SNIPPETS) | st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).map(
    "".join
)
NAMES = TEXTS.filter(lambda text: 0 < len(text.encode("utf-16-le")) <= 256)
SERVICE_NAMES = NAMES.filter(lambda text: not text.isspace())
DATABASE_NAMES = NAMES.filter(lambda name: canonical_name(name) == name) | st.sampled_from(sorted(SYSTEM_DATABASES))
GUIDS = st.uuids().map(lambda value: value.bytes)
TIMESTAMPS = st.datetimes(timezones=st.just(UTC)) | st.timedeltas(timedelta(days=-1), timedelta(days=1)).map(
    lambda span: NOW + span
)
HOSTS = st.sampled_from(["a", "b-2.example", "10.0.0.1", "[::1]", "[2001:db8::17]", "localhost", "127.0.0.1"])
ADDRESSES = st.builds("TCP://{}:{}".format, HOSTS, st.sampled_from([1, 1024, 4022, 65535]))


@st.composite
def clauses(draw: st.DrawFn) -> dict[str, Any]:
    """Draws the clauses of a valid route."""
    service = draw(st.none() | SERVICE_NAMES)
    guid = None if service is None else draw(st.none() | GUIDS)
    keywords = st.sampled_from(["LOCAL", "Local"] if service is not None else ["LOCAL", "Local", "TRANSPORT"])
    address = draw(keywords | ADDRESSES)
    mirrors = [] if guid is None or not address.startswith("TCP") else ["TCP://mirror", "tcp://Mirror:1/"]
    return {
        "remote_service_name": service,
        "broker_instance": guid,
        "lifetime": draw(st.none() | TIMESTAMPS),
        "address": address,
        "mirror_address": draw(st.sampled_from([None, *mirrors])),
    }


@st.composite
def routes(draw: st.DrawFn, databases: list[str]) -> pa.Table:
    """Draws a table of routes, with sequential ids or others."""
    names = st.tuples(st.sampled_from(databases), NAMES | st.just("AutoCreatedLocal"))
    rows: list[dict[str, Any]] = [
        dict(zip(("database", "name"), key, strict=True)) for key in draw(st.lists(names, unique=True, max_size=8))
    ]
    for database in databases:
        own = [row for row in rows if row["database"] == database]
        numbers = st.lists(st.integers(-(2**31), 2**31 - 1), unique=True, min_size=len(own), max_size=len(own))
        for row, number in zip(own, draw(st.just(range(65536, 65536 + len(own))) | numbers), strict=True):
            row["route_id"] = number
    default = dict.fromkeys(schemas.ROUTES.names) | {"address": "LOCAL"}
    for row in rows:
        is_custom = draw(st.booleans()) if row["name"] == "AutoCreatedLocal" else True
        row.update(draw(clauses()) if is_custom else {key: default[key] for key in default.keys() - row.keys()})
    return pa.Table.from_pylist(rows, schemas.ROUTES)


@st.composite
def scripts(draw: st.DrawFn) -> ddl.ScriptTables:
    """Draws the tables of a catalog."""
    names = draw(st.lists(DATABASE_NAMES.filter(lambda name: name != "msdb"), unique_by=str.casefold, max_size=3))
    names.insert(draw(st.integers(0, len(names))), "msdb")
    ids = draw(st.lists(GUIDS, unique=True, min_size=1, max_size=2))
    enabled: set[bytes] = set()
    rows = []
    for name in names:
        guid = draw(st.none() | st.sampled_from(ids))
        is_enabled = guid not in enabled and draw(st.booleans())
        if is_enabled and guid is not None:
            enabled.add(guid)
        rows.append({"name": name, "service_broker_guid": guid, "is_broker_enabled": is_enabled})
    services = draw(st.lists(st.tuples(st.sampled_from(names), NAMES), unique=True, max_size=5))
    return ddl.ScriptTables(
        routes=draw(routes(names)),
        databases=pa.Table.from_pylist(rows, schemas.DATABASES),
        services=pa.Table.from_pylist([{"database": d, "name": n} for d, n in services], schemas.SERVICES),
        addresses=tuple(draw(st.lists(ADDRESSES, unique=True, max_size=3))),
        message_forwarding=draw(st.booleans()),
        pending_requests=tuple(draw(st.lists(TEXTS, max_size=3))),
    )


@given(scripts(), TIMESTAMPS, st.datetimes(datetime(1, 1, 1), datetime(9900, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_round_trip_changes_nothing(script: ddl.ScriptTables, written_at: datetime, read_at: datetime) -> None:
    text = ddl.write(script, now=written_at)
    again = ddl.read(text, now=read_at)
    assert again == script
    assert ddl.write(again, now=written_at) == text
    assert ddl.decode(text.encode()) == text


@given(scripts(), st.data())
def test_damaged_script_is_read_or_refused(script: ddl.ScriptTables, data: st.DataObject) -> None:
    """No text raises anything but a `DdlError`."""
    text = ddl.write(script, now=NOW)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    damaged = text[:start] + data.draw(st.sampled_from([*SNIPPETS, "", "\ud800", "\0"])) + text[end:]
    assert_read_or_refused(damaged)


WORDS = """CREATE ALTER DROP ROUTE DATABASE QUEUE SERVICE ENDPOINT USE GO IF ELSE BEGIN END CASE WHILE PROCEDURE GRANT TO WITH
ADDRESS LIFETIME SERVICE_NAME 'LOCAL' 5 ON FOR AS TCP SET ENABLE_BROKER MODIFY NAME DIALOG TRY CONVERSATION EXISTS
LISTENER_PORT SERVICE_BROKER CURRENT msdb Sales RETURN SELECT ( ) = @ :"""


@given(st.lists(st.sampled_from([*SNIPPETS, "\0", *WORDS.split()]), max_size=40))
def test_random_words_are_read_or_refused(words: list[str]) -> None:
    assert_read_or_refused(" ".join(words))


def assert_read_or_refused(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            script = ddl.read(text, now=NOW, file="any.sql")
        except DdlError as caught:
            error = caught
        else:
            script.routes.validate(full=True)
            return
    if "no route id is left" in str(error):  # concerns a database, not a line
        return
    assert error.file == "any.sql"
    assert error.line is not None
    assert 1 <= error.line <= text.count("\n") + text.count("\r") + 1
