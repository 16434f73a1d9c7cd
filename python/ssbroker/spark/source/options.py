"""The options of the data source `ssbroker`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from ssbroker._well_known import DEFAULT
from ssbroker.broker.dialogs.bulk_send import NumberedBatch, SendDefaults
from ssbroker.broker.views import DATABASE, DATABASE_VIEWS, INSTANCE_VIEWS, QUEUE, TRANSMISSION_QUEUE
from ssbroker.exceptions import InputError, OptionError, SchemaError
from ssbroker.protocol.settings import LIFETIME_MAX
from ssbroker.spark.arguments import local_path

_SPARK_OPTIONS: Final = {"checkpointlocation", "queryname"}
"""The options that Spark adds itself."""
_LOCATION: Final = "location"
"""The option into which CREATE TABLE turns the option `path`."""
_READ_OPTIONS: Final = "path view queue database columns pushdown inline starting max_rows_per_batch"
_WRITE_OPTIONS: Final = (
    "path database from_service to_service contract message_type to_broker_instance lifetime encryption "
    "end_conversation query_id batch_id"
)
_BIGINT_MAX: Final = 2**63 - 1
_USE_VIEW: Final = (
    "an instance cannot be a table of Spark's catalog, because Spark does not pass on its path when the table is used; "
    "use CREATE TEMPORARY VIEW ... USING ssbroker OPTIONS (path '...', ...), or spark.read and df.write with the path"
)
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read."""

    folder: Path
    """The instance folder."""
    name: str
    """A view or a queue."""
    database: str | None
    """The database; None for all databases."""
    columns: tuple[str, ...] | None
    """The requested columns; None for all columns."""
    pushdown: bool
    """Whether filters are pushed down."""
    inline: bool
    """Whether the driver reads all rows and sends them with the plan, so that no worker opens the instance."""
    starting: Literal["earliest", "latest"]
    """Where a new stream starts."""
    rows_per_batch_max: int | None
    """The maximum number of rows of a micro-batch."""

    @property
    def is_sliced(self) -> bool:
        """Whether the source contains messages, which several tasks can read."""
        return self.name == TRANSMISSION_QUEUE or self.is_queue

    @property
    def is_queue(self) -> bool:
        """Whether the source is a queue, not a view."""
        return self.name not in DATABASE_VIEWS and self.name not in INSTANCE_VIEWS

    def schema(self) -> pa.Schema:
        """Returns the requested columns in types that Spark supports; raises `InputError` for unknown and repeated columns."""
        available = INSTANCE_VIEWS.get(self.name)
        if available is None:
            available = pa.schema([DATABASE, *DATABASE_VIEWS.get(self.name, QUEUE)])
        requested = tuple(available.names) if self.columns is None else self.columns
        for column in requested:
            if requested.count(column) > 1:
                raise InputError(f"columns: {column!r} is listed twice; list each column once", value=column)
            if column not in available.names:
                actual = ", ".join(available.names)
                raise InputError(f"columns: {self.name} has no column {column!r}; it has {actual}", value=column)
        return pa.schema([pa.field(column, _spark_type(available.field(column).type)) for column in requested])


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options of a write."""

    folder: Path
    """The instance folder."""
    database: str
    """The sending database."""
    defaults: SendDefaults
    """The values for missing columns."""
    batch: NumberedBatch | None
    """The writer (`query_id`) and the number (`batch_id`) of a batch write; None if they are not given."""


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parses the options of a read, whose names are case-insensitive; raises `OptionError`, or `InputError` for an unknown view.

    Examples:
        >>> parse_read_options({"path": "shop", "queue": "dbo.Orders"}).schema().names[:3]
        ['database', 'status', 'priority']
    """
    given = _normalized(options, _READ_OPTIONS)
    folder = _folder(given)
    view, queue = given.get("view"), given.get("queue")
    if (view is None) == (queue is None):
        given_options = "neither" if view is None else "both"
        raise OptionError(
            f"view and queue: expected either a view, such as sys.routes, or a queue, such as dbo.Orders, got {given_options}"
        )
    if view is not None and view not in DATABASE_VIEWS and view not in INSTANCE_VIEWS:
        known = ", ".join(sorted({*DATABASE_VIEWS, *INSTANCE_VIEWS}))
        raise InputError(f"view: unknown view {view!r}; expected one of {known}", value=view)
    if queue is not None and queue.lower().startswith("sys."):
        raise OptionError(f"queue: {queue!r} is a view; use the option view")
    columns, starting = given.get("columns"), given.get("starting", "earliest")
    if starting not in {"earliest", "latest"}:
        raise OptionError(f"starting: expected 'earliest' or 'latest', got {starting!r}")
    return ReadOptions(
        folder=folder,
        name=view or queue or "",
        database=given.get("database"),
        columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
        pushdown=_boolean(given, "pushdown", default=False),
        inline=_boolean(given, "inline", default=False),
        starting="latest" if starting == "latest" else "earliest",
        rows_per_batch_max=_integer(given, "max_rows_per_batch"),
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parses the options of a write, whose names are case-insensitive; raises `OptionError`."""
    given = _normalized(options, _WRITE_OPTIONS)
    query_id, batch_id = given.get("query_id"), _integer(given, "batch_id", minimum=0)
    if (query_id is None) != (batch_id is None):
        missing = "query_id" if query_id is None else "batch_id"
        raise OptionError(f"{missing}: the option is missing; specify both query_id and batch_id, or neither")
    return WriteOptions(
        folder=_folder(given),
        database=_required(given, "database", "the sending database"),
        defaults=SendDefaults(
            from_service=given.get("from_service"),
            to_service=given.get("to_service"),
            contract=given.get("contract", DEFAULT),
            to_broker_instance=given.get("to_broker_instance"),
            message_type=given.get("message_type", DEFAULT),
            lifetime=_integer(given, "lifetime", maximum=LIFETIME_MAX),
            encryption=_boolean(given, "encryption", default=True),
            ends=_boolean(given, "end_conversation", default=False),
        ),
        batch=None if query_id is None or batch_id is None else NumberedBatch(query_id, batch_id),
    )


def ddl(schema: pa.Schema) -> str:
    """Returns columns as Spark DDL, in which the type of `timestamp` depends on the setting `spark.sql.timestampType`.

    Examples:
        >>> ddl(pa.schema({"status": pa.int16(), "lifetime": pa.timestamp("us", tz="UTC")}))
        '`status` smallint, `lifetime` timestamp_ltz'
    """
    spark_types = ((field.name, _SPARK_TYPES[field.type]) for field in schema)
    return ", ".join(f"`{name}` {'timestamp_ltz' if kind == 'timestamp' else kind}" for name, kind in spark_types)


def select_columns(requested: ReadOptions, columns: Mapping[str, str]) -> pa.Schema:
    """Returns the columns that a user-specified schema selects; raises `SchemaError` for an unknown column or a wrong type."""
    available = requested.schema()
    for name, spark_type in columns.items():
        actual = _SPARK_TYPES[available.field(name).type] if name in available.names else None
        if actual != spark_type:
            found = "does not exist" if actual is None else f"has type {actual}, but the schema specifies {spark_type}"
            raise SchemaError(f"{requested.name}: column {name} {found}", column=name)
    return pa.schema([available.field(name) for name in columns])


def _normalized(options: Mapping[str, str], known: str) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items() if name.lower() not in _SPARK_OPTIONS}
    if _LOCATION in given:
        raise OptionError(f"CREATE TABLE: {_USE_VIEW}")
    for name in given:
        if name not in known.split():
            raise OptionError(f"unknown option {name}; expected one of {known.replace(' ', ', ')}")
    return given


def _required(given: Mapping[str, str], name: str, what: str) -> str:
    if name not in given:
        raise OptionError(f"the option {name} is required: {what}")
    return given[name]


def _folder(given: Mapping[str, str]) -> Path:
    path = _required(given, "path", f"the instance folder, as in load(folder); {_USE_VIEW}")
    return local_path(path, name="path")


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    if name not in given:
        return default
    parsed = _BOOLEANS.get(given[name].lower())
    if parsed is None:
        raise OptionError(f"{name}: expected true or false, got {given[name]!r}")
    return parsed


def _integer(given: Mapping[str, str], name: str, *, minimum: int = 1, maximum: int = _BIGINT_MAX) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    is_digits = text.isascii() and text.isdigit() and len(text) <= len(str(_BIGINT_MAX))
    if not is_digits or not minimum <= int(text) <= maximum:
        raise OptionError(f"{name}: expected an integer from {minimum} to {maximum}, got {text!r:.80}")
    return int(text)


def _spark_type(arrow_type: pa.DataType) -> pa.DataType:
    if arrow_type == pa.uint8():
        return pa.int16()
    return pa.binary() if pa.types.is_fixed_size_binary(arrow_type) else arrow_type


_SPARK_TYPES: Final = {
    pa.string(): "string",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
