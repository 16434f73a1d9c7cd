"""An extra column that looks like a misspelling of a missing one is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Router, schemas
from ssbroker._arrow import reject_misspelled_columns
from tests.boundary import test_errors, test_fragment_errors
from tests.routing.conversations import CATALOG, NOW

OTHER_NAMES = {
    "routes": {
        "remote_service_name": ("service_name", "Service", "remote_service", "to_service_name"),
        "broker_instance": (
            "broker_id",
            "broker",
            "service_broker_guid",
            "Remote_Broker_Guid",
            "remote_broker_instance",
        ),
        "lifetime": ("expires", "EXPIRY", "expires_at"),
        "mirror_address": ("mirror",),
    },
    "databases": {
        "service_broker_guid": ("guid", "broker_guid", "broker_id", "Broker_Instance", "service_broker_id"),
        "is_broker_enabled": ("broker_enabled", "is_enabled", "Enabled"),
    },
}


def is_long(name: str) -> bool:
    """Returns whether a name is long enough that one with another letter is hardly that of another column."""
    return len(name.replace("_", "")) >= 8


SPELLINGS: tuple[Callable[[str], str], ...] = (
    str.upper,
    str.title,
    lambda name: f" {name}",
    lambda name: f"{name}\t ",
    lambda name: name.title().replace("_", " "),
    lambda name: name.replace("_", "-"),
    lambda name: name.replace("_", ""),
    lambda name: f"{name[:3]}{name[4:]}" if is_long(name) else name,
    lambda name: f"{name[:4]}x{name[4:]}" if is_long(name) else name,
    lambda name: f"{name[:-1]}x" if is_long(name) else name,
    lambda name: f"{name[:-2]}{name[-1]}{name[-2]}" if is_long(name) else name,
)
ROUTES = pa.table(
    {
        "database": ["Sales"],
        "name": ["Orders"],
        "route_id": pa.array([65536], pa.int32()),
        "remote_service_name": ["//Orders"],
        "broker_instance": ["5a1e5000-0000-4000-8000-000000000001"],
        "lifetime": pa.nulls(1, pa.timestamp("us")),
        "address": ["TCP://orders"],
        "mirror_address": ["TCP://spare"],
    }
)
DATABASES = pa.table(
    {"name": ["Sales"], "service_broker_guid": pa.nulls(1, pa.binary(16)), "is_broker_enabled": [True]}
)
SERVICES = pa.table({"database": ["Sales"], "name": ["//Shop"]})
FRAGMENTS: Any = pa.Table.from_batches([test_fragment_errors.VALID])
MESSAGES: Any = FRAGMENTS.drop_columns(["fragment_number", "fragment_count", "fragment_signature", "message_signature"])
READERS: dict[str, tuple[pa.Table, Callable[[pa.Table], object]]] = {
    "routes": (ROUTES, Catalog),
    "databases": (DATABASES, lambda table: Catalog(ROUTES, table)),
    "services": (SERVICES, lambda table: Catalog(ROUTES, DATABASES, table)),
    "": (pa.Table.from_batches([test_errors.VALID]), Router(Catalog(ROUTES)).route),
    "fragments": (FRAGMENTS, ssbroker.reassemble),
    "messages": (MESSAGES, lambda table: ssbroker.fragment(table, max_fragment_bytes=8)),
}


@pytest.mark.parametrize(
    ("name", "column", "other"),
    [
        (name, column, each)
        for name, columns in OTHER_NAMES.items()
        for column, names in columns.items()
        for each in names
    ],
)
def test_another_usual_name_of_an_optional_column_is_refused(name: str, column: str, other: str) -> None:
    """The routing would change silently; with the column, an extra one may have any name."""
    table, read = READERS[name]
    with pytest.raises(ssbroker.SchemaError) as refused:
        read(renamed(table, column, other))
    assert refused.value.column == f"{name}.{column}"
    assert f'{name}.{column}: the column is missing; if "{other}" is meant, rename it to "{column}"' in str(
        refused.value
    )
    assert read(table.append_column(other, table[column])) == read(table)
    read(table.drop_columns([column]))


@pytest.mark.parametrize(
    ("column", "other"),
    [
        ("to_broker_instance", "far_broker_instance"),
        ("to_broker_instance", "To Broker Id"),
        ("is_initiator", "initiator"),
    ],
)
def test_another_usual_name_of_a_column_of_conversations_is_refused(column: str, other: str) -> None:
    table, read = READERS[""]
    with pytest.raises(ssbroker.SchemaError) as refused:
        read(renamed(table, column, other))
    assert str(refused.value) == f'{column}: expected a column with exactly this name, got "{other}"'
    read(table.append_column(other, table[column]))


CASES = [
    (name, column, spell(column))
    for name, (table, _) in READERS.items()
    for column in table.column_names
    for spell in SPELLINGS
    if spell(column) != column
]


def renamed(table: pa.Table, column: str, name: str) -> pa.Table:
    return table.rename_columns([name if each == column else each for each in table.column_names])


@pytest.mark.parametrize(("name", "column", "found"), CASES)
def test_the_error_names_the_misspelled_column(name: str, column: str, found: str) -> None:
    table, read = READERS[name]
    read(table)
    shown = found.replace("\t", "\\t")
    where = f"{name}." if name in ("routes", "databases", "services") else ""
    message = f'{where}{column}: expected a column with exactly this name, got "{shown}"'
    with pytest.raises(ssbroker.SchemaError, match=f"^{re.escape(message)}$") as caught:
        read(renamed(table, column, found))
    assert (caught.value.column, caught.value.actual) == (f"{where}{column}", f'"{shown}"')


@pytest.mark.parametrize("name", ["routes", "fragments"])
def test_next_to_the_expected_column_it_is_an_extra_column(name: str) -> None:
    table, read = READERS[name]
    for column in table.column_names:
        read(table.append_column(column.upper(), table[column]))


def test_an_unread_id_column_may_be_misspelled() -> None:
    """With a `conversation_id`, no `conversation_handle` is read."""
    given = test_errors.VALID.append_column("Conversation_Handle", pa.nulls(test_errors.ROWS))
    Router(CATALOG).route(given, now=NOW)


@pytest.mark.parametrize("spell", SPELLINGS)
def test_python_checks_column_names_that_the_native_module_does_not_see(spell: Callable[[str], str]) -> None:
    for column in schemas.CONVERSATIONS.names:
        found = spell(column)
        reject_misspelled_columns([found, column], expected=[column])
        if found != column:
            with pytest.raises(ssbroker.SchemaError, match="expected a column with exactly this name"):
                reject_misspelled_columns([found], expected=schemas.CONVERSATIONS.names)
