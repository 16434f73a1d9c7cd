"""The options of the format `ssbroker`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from ssbroker.broker.dialogs.bulk_send import NumberedBatch, SendDefaults
from ssbroker.broker.views import DATABASE, DATABASE_VIEWS, INSTANCE_VIEWS, QUEUE, TRANSMISSION_QUEUE
from ssbroker.exceptions import InputError, OptionError, SchemaError
from ssbroker.protocol.message_types import DEFAULT
from ssbroker.spark.broadcast import local_path

_OF_SPARK: Final = {"checkpointlocation", "queryname"}
"""What Spark hands to a source of its own accord."""
_LOCATION: Final = "location"
"""What Spark makes of the path of a table that it is told to create."""
_READ: Final = "path view queue database columns pushdown inline starting max_rows_per_batch"
_WRITE: Final = (
    "path database from_service to_service contract message_type to_broker_instance lifetime encryption "
    "end_conversation query_id batch_id"
)
_LONG: Final = 2**63 - 1
_NO_TABLE: Final = (
    "no table of Spark's own catalog can stand for an instance, since Spark does not say again where it lies when the table is used; "
    "expected CREATE TEMPORARY VIEW ... USING ssbroker OPTIONS (path '...', ...), or spark.read and df.write with the path"
)
_WORDS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is read."""

    folder: Path
    """The folder of the instance."""
    name: str
    """A view or a queue."""
    database: str | None
    """The database; None is all."""
    columns: tuple[str, ...] | None
    """The columns that are asked for; None is all."""
    pushdown: bool
    """Whether filters are taken."""
    inline: bool
    """Whether all rows travel with the plan, and no worker opens the instance."""
    starting: Literal["earliest", "latest"]
    """Where a new stream begins."""
    rows_per_batch_max: int | None
    """The most rows of a batch of a stream."""

    @property
    def is_sliced(self) -> bool:
        """Whether it holds messages, which several tasks can read."""
        return self.name == TRANSMISSION_QUEUE or self.is_queue

    @property
    def is_queue(self) -> bool:
        """Whether it is a queue."""
        return self.name not in DATABASE_VIEWS and self.name not in INSTANCE_VIEWS

    def schema(self) -> pa.Schema:
        """The columns, in the types that Spark has.

        Raises:
            InputError: A column is asked for that is not there, or twice.
        """
        whole = INSTANCE_VIEWS.get(self.name)
        if whole is None:
            whole = pa.schema([DATABASE, *DATABASE_VIEWS.get(self.name, QUEUE)])
        wanted = tuple(whole.names) if self.columns is None else self.columns
        for column in wanted:
            if wanted.count(column) > 1:
                raise InputError(f"columns: {column!r} is asked for twice", value=column)
            if column not in whole.names:
                there = ", ".join(whole.names)
                raise InputError(f"columns: {self.name} has no column {column!r}; it has {there}", value=column)
        return pa.schema([pa.field(column, _in_spark(whole.field(column).type)) for column in wanted])


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows are sent."""

    folder: Path
    """The folder of the instance."""
    database: str
    """The database that sends."""
    addressing: SendDefaults
    """What holds for all rows."""
    batch: NumberedBatch | None
    """The batch that a batch write says it is."""


def reading(options: Mapping[str, str]) -> ReadOptions:
    """Reads the options of a read.

    Args:
        options: As Spark gives them, in any case.

    Returns:
        What is read.

    Raises:
        OptionError: One is missing, unknown or has a value that it cannot have.
        InputError: There is no such view.

    Examples:
        >>> reading({"path": "shop", "queue": "dbo.Orders"}).schema().names[:3]
        ['database', 'status', 'priority']
    """
    given = _given(options, _READ)
    folder = _folder(given)
    view, queue = given.get("view"), given.get("queue")
    if (view is None) == (queue is None):
        raise OptionError("expected one of the options view, such as sys.routes, and queue, such as dbo.Orders")
    if view is not None and view not in DATABASE_VIEWS and view not in INSTANCE_VIEWS:
        known = ", ".join(sorted({*DATABASE_VIEWS, *INSTANCE_VIEWS}))
        raise InputError(f"view: there is no view {view!r}; there are {known}", value=view)
    if queue is not None and queue.lower().startswith("sys."):
        raise OptionError(f"queue: {queue!r} is the name of a view; expected option view")
    columns, starting = given.get("columns"), given.get("starting", "earliest")
    if starting not in {"earliest", "latest"}:
        raise OptionError(f"starting: expected earliest or latest, got {starting!r}")
    return ReadOptions(
        folder=folder,
        name=view or queue or "",
        database=given.get("database"),
        columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
        pushdown=_flag(given, "pushdown", default=False),
        inline=_flag(given, "inline", default=False),
        starting="latest" if starting == "latest" else "earliest",
        rows_per_batch_max=_number(given, "max_rows_per_batch"),
    )


def writing(options: Mapping[str, str]) -> WriteOptions:
    """Reads the options of a write.

    Args:
        options: As Spark gives them, in any case.

    Returns:
        How rows are sent.

    Raises:
        OptionError: One is missing, unknown or has a value that it cannot have.
    """
    given = _given(options, _WRITE)
    query_id, batch_id = given.get("query_id"), _number(given, "batch_id", least=0)
    if (query_id is None) != (batch_id is None):
        raise OptionError("query_id and batch_id: expected both or none")
    return WriteOptions(
        folder=_folder(given),
        database=_needed(given, "database", "the database that sends"),
        addressing=SendDefaults(
            from_service=given.get("from_service"),
            to_service=given.get("to_service"),
            contract=given.get("contract", DEFAULT),
            to_broker_instance=given.get("to_broker_instance"),
            message_type=given.get("message_type", DEFAULT),
            lifetime=_number(given, "lifetime"),
            encryption=_flag(given, "encryption", default=True),
            ends=_flag(given, "end_conversation", default=False),
        ),
        batch=None if query_id is None or batch_id is None else NumberedBatch(query_id, batch_id),
    )


def ddl(schema: pa.Schema) -> str:
    """Columns as Spark's DDL has them.

    Examples:
        >>> ddl(pa.schema({"status": pa.int16(), "message_body": pa.binary()}))
        '`status` smallint, `message_body` binary'
    """
    return ", ".join(f"`{field.name}` {_DDL[field.type]}" for field in schema)


def narrowed(wanted: ReadOptions, columns: Mapping[str, str]) -> pa.Schema:
    """The columns that a schema of the reader's choice names.

    Args:
        wanted: What is read.
        columns: Names and types, as Spark's DDL has them.

    Returns:
        These columns.

    Raises:
        SchemaError: One is not there, or has another type.
    """
    whole = wanted.schema()
    for name, kind in columns.items():
        there = _DDL[whole.field(name).type] if name in whole.names else None
        if there != kind:
            found = "is not there" if there is None else f"is {there}"
            raise SchemaError(f"{wanted.name}: column {name} {found}, and is asked for as {kind}", column=name)
    return pa.schema([whole.field(name) for name in columns])


def _given(options: Mapping[str, str], known: str) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items() if name.lower() not in _OF_SPARK}
    if _LOCATION in given:
        raise OptionError(f"CREATE TABLE: {_NO_TABLE}")
    for name in given:
        if name not in known.split():
            raise OptionError(f"there is no option {name}; there are {known.replace(' ', ', ')}")
    return given


def _needed(given: Mapping[str, str], name: str, what: str) -> str:
    if name not in given:
        raise OptionError(f"expected option {name}: {what}")
    return given[name]


def _folder(given: Mapping[str, str]) -> Path:
    path = _needed(given, "path", f"the folder of an instance; {_NO_TABLE}")
    return local_path(path, name="path")


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    if name not in given:
        return default
    said = _WORDS.get(given[name].lower())
    if said is None:
        raise OptionError(f"{name}: expected true or false, got {given[name]!r}")
    return said


def _number(given: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_LONG))
    if not is_number or not least <= int(text) <= _LONG:
        raise OptionError(f"{name}: expected a whole number from {least} to {_LONG}, got {text!r:.80}")
    return int(text)


def _in_spark(kind: pa.DataType) -> pa.DataType:
    if kind == pa.uint8():
        return pa.int16()
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else kind


_DDL: Final = {
    pa.string(): "string",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
