"""Routing by a broadcast join with the decision table, without Python in the executors.

The build side has a row for each listed service name. Its arrays hold the finished decisions: without a broker id, with an id that is not
listed, and with each listed id; each of these once, or once for each of several equal candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker._arguments import epoch_microseconds
from ssbroker.exceptions import UnknownDatabaseError
from ssbroker.router import Router, TieBreak
from ssbroker.spark import compat
from ssbroker.spark.columns import BROKER_COLUMN, ID_COLUMNS, PACKED_FIELDS, Labels, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_Array: TypeAlias = Any  # an Arrow array; pyarrow's stubs are too narrow

_COLUMN_TYPES: Final = {
    **{name: f"array<{kind}>" for name, kind in PACKED_FIELDS.items()},
    "database": "string",
    "first": "array<int>",
    "hash_to": "array<bigint>",
    "ids": "array<binary>",
    "name": "string",
    "number": "int",
    "only_from_initiator": "array<boolean>",
    "source": "int",
}
_LITERAL_SOURCES_MAX: Final = 16
"""The most databases that are compared one after the other; more are joined."""
_ID_BYTES: Final = 16
_SHOWN_MAX: Final = 80
_GUID: Final = "a GUID: 36 characters (braces allowed) or 16 bytes"
_GUID_CHARACTERS: Final = 36
_ERRORS: Final = "ssbroker.exceptions."
_DASHES: Final = (9, 14, 19, 24)
_DIGITS: Final = ((1, 8), (10, 4), (15, 4), (20, 4), (25, 12))


@dataclass(frozen=True, kw_only=True)
class DecisionRelation:
    """The decision table as build sides of joins.

    Attributes:
        databases: The names of the databases; their positions are the numbers of the sources. The next number is that of messages from
            other instances.
        named: A row for each source and listed service name.
        unnamed: A row for each source, for the other names.
        replies: A row for each service name of this instance, for replies from other instances; None if no database has a broker id.
        dropped_reply: The verdict of replies that match no row of `replies`.
        database_ids: The broker ids of the databases.
        fields: The arrays of the decisions' columns, without those that are always null.
        candidates_max: The largest number of candidates in any decision.
        expected_databases: What the error about an unknown database says.
        is_complete: Whether the table has a decision for every conversation.
        made_at: The time of the decisions, in microseconds since 1970.
        valid_until: The time at which the first route expires that a decision depends on; None if there is none.
    """

    databases: tuple[str, ...]
    named: pa.Table
    unnamed: pa.Table
    replies: pa.Table | None
    dropped_reply: int
    database_ids: tuple[bytes, ...]
    fields: tuple[str, ...]
    candidates_max: int
    expected_databases: str
    is_complete: bool
    made_at: int
    valid_until: int | None

    def is_valid_at(self, now: datetime) -> bool:
        """Whether the decisions at a time are these."""
        now_us = epoch_microseconds(now)
        return self.made_at <= now_us and (self.valid_until is None or now_us < self.valid_until)

    @property
    def listed_ids_max(self) -> int:
        """The most broker ids that are listed for one service name."""
        return pc.max(pc.list_value_length(self.named["ids"])).as_py() or 0

    @classmethod
    def of(cls, router: Router, labels: Labels, *, now: datetime) -> DecisionRelation:
        """Returns the decision table of a router at a time."""
        decisions = router.decision_table(now=now)
        table: Any = pa.Table.from_batches([decisions])
        catalog = router.catalog
        databases = tuple(str(name) for name in catalog.databases["name"].to_pylist())
        ids = tuple(value for value in catalog.databases["service_broker_guid"].to_pylist() if value is not None)
        sources = pa.array([*databases, None], pa.string())
        table = table.append_column("source", pc.index_in(table["database"], value_set=sources))
        table = table.append_column("verdict", labels.pack(decisions))
        decided = table.filter(pc.invert(table["is_reply"]))
        rows, candidates_max = _rows(decided)
        is_named = pc.is_valid(rows["name"])
        unnamed = rows.filter(pc.invert(is_named)).sort_by("source")
        replies = table.filter(table["is_reply"])
        is_dropped = pc.is_null(replies["to_service_name"])
        dropped = replies.filter(is_dropped)["verdict"].unique().to_pylist()
        return cls(
            databases=databases,
            named=rows.filter(is_named),
            unnamed=unnamed,
            replies=_reply_rows(replies.filter(pc.invert(is_dropped))) if ids else None,
            dropped_reply=dropped[0] if dropped else 0,
            database_ids=ids,
            fields=tuple(name for name in (*PACKED_FIELDS, "only_from_initiator") if _has_values(decided[name])),
            candidates_max=candidates_max,
            expected_databases=_expected_databases(router, now),
            is_complete=decided["verdict"].null_count == 0,
            made_at=epoch_microseconds(now),
            valid_until=pc.min(table["valid_until"].cast(pa.int64())).as_py(),
        )


def _rows(decided: pa.Table) -> tuple[pa.Table, int]:
    """Groups the sorted rows of a decision table by source and name; returns the most candidates of one decision too."""
    kinds = _run_starts(decided, ["source", "to_service_name", "has_broker_instance", "to_broker_instance"])
    groups = _run_starts(decided, ["source", "to_service_name"])
    offsets = pa.concat_arrays([groups, pa.array([decided.num_rows], groups.type)])
    kind_offsets: _Array = pc.fill_null(pc.index_in(offsets, value_set=kinds), len(kinds))
    group_of_kind = pc.subtract(_number_of_run(len(kinds), kind_offsets), 1)
    first = pc.subtract(kinds, groups.take(group_of_kind))
    ids = decided["to_broker_instance"].combine_chunks().take(kinds).drop_null().cast(pa.binary())
    # Each group starts with two kinds that have no id.
    id_offsets = pc.subtract(kind_offsets, pc.multiply(pa.array(range(len(offsets)), pa.int32()), 2))
    sizes = pc.subtract(pa.concat_arrays([kinds[1:], offsets[-1:]]), kinds)
    lists = {
        "ids": pa.ListArray.from_arrays(id_offsets, ids),
        "first": pa.ListArray.from_arrays(kind_offsets, first),
    }
    for name in ("hash_to", "only_from_initiator", *PACKED_FIELDS):
        values = decided[name].combine_chunks()
        values = values.cast(pa.binary()) if pa.types.is_fixed_size_binary(values.type) else values
        lists[name] = pa.ListArray.from_arrays(offsets, values)
    keys = {"source": decided["source"].take(groups), "name": decided["to_service_name"].take(groups)}
    return pa.table({**keys, **lists}), pc.max(sizes).as_py() or 0


def _has_values(column: _Array) -> bool:
    """Whether a value is neither null nor false."""
    return bool(pc.any(column).as_py()) if pa.types.is_boolean(column.type) else column.null_count < len(column)


def _reply_rows(replies: pa.Table) -> pa.Table:
    groups = _run_starts(replies, ["to_service_name"])
    offsets = pa.concat_arrays([groups, pa.array([replies.num_rows], groups.type)])
    ids = replies["to_broker_instance"].combine_chunks().cast(pa.binary())
    lists = {"ids": pa.ListArray.from_arrays(offsets, ids)}
    for name in ("verdict", "target_database"):
        lists[name] = pa.ListArray.from_arrays(offsets, replies[name].combine_chunks())
    return pa.table({"name": replies["to_service_name"].take(groups), **lists})


def _run_starts(table: pa.Table, keys: Sequence[str]) -> _Array:
    """Returns the index of each row that differs from the row before it in one of the columns."""
    if table.num_rows == 0:
        return pa.array([], pa.int32())
    differences = []
    for name in keys:
        column: _Array = table[name].combine_chunks()
        numbers: _Array = column.dictionary_encode().indices.fill_null(-1)
        differences.append(pc.not_equal(numbers[1:], numbers[:-1]))
    differs = pa.concat_arrays([pa.array([True]), reduce(pc.or_, differences)])
    return pc.indices_nonzero(differs).cast(pa.int32())


def _number_of_run(length: int, offsets: _Array) -> _Array:
    """Returns, for each index below `length`, how many of the offsets are at or before it."""
    is_start = pc.is_in(pa.array(range(length), pa.int32()), value_set=offsets)
    return pc.cumulative_sum(is_start.cast(pa.int32()))


def _expected_databases(router: Router, now: datetime) -> str:
    """Returns what the router says about a database that it does not have."""
    row = {"conversation_id": [bytes(16)], "to_service_name": [""], "database": ["\0"]}
    try:
        router.route(pa.table(row), now=now)
    except UnknownDatabaseError as error:
        return str(error.expected)
    return "a database"


class DecisionJoin:
    """Adds decisions to the rows of a DataFrame by joins.

    Args:
        rows: The DataFrame.
        types: The Arrow types of the columns that routing reads.
        relation: The decisions.
        labels: The labels of verdicts.
        default_database: The database of rows without a column `database`.
        tie_break: How one of several equal candidates is picked: with `hash`, ids must not be null.
    """

    def __init__(
        self,
        rows: DataFrame,
        types: Mapping[str, pa.DataType],
        relation: DecisionRelation,
        labels: Labels,
        *,
        default_database: str | None,
        tie_break: TieBreak,
    ) -> None:
        self._rows = rows
        self._types = types
        self._relation = relation
        self._labels = labels
        self._needs_ids = tie_break == "hash"
        self._prefix = _free_prefix(rows)
        self._id_columns = [name for name in (*ID_COLUMNS, BROKER_COLUMN) if name in types]
        self._has_databases = "database" in types
        self._joins_sources = self._has_databases and len(relation.databases) > _LITERAL_SOURCES_MAX
        self._only_source = None if self._has_databases else relation.databases.index(str(default_database))
        self._may_be_replies = relation.replies is not None and {"is_initiator", BROKER_COLUMN} <= types.keys()

    def routed(self) -> DataFrame:
        """Returns the rows with the decision columns."""
        rows = self._rows
        if self._joins_sources:
            database = self._text("database")
            rows = rows.join(self._source_side(), database.eqNullSafe(self._added("source database")), "left")
        parsed = {name: _parsed_guid(self._text(name)) for name in self._id_columns if self._types[name] == pa.string()}
        rows = self._with(rows, source=self._find_source(), **parsed)
        rows = self._with(rows, key=self._checked_key())
        rows = rows.join(self._named_side(), self._is_named(), "left")
        rows = self._with(rows, position=self._position())
        if self._relation.replies is not None and self._may_be_replies:
            rows = self._with(rows, reply=self._reply_name())
            rows = rows.join(
                self._side(self._relation.replies, "reply"), self._added("reply") == self._added("reply name"), "left"
            )
        added = [name for name in rows.columns if name.startswith(self._prefix)]
        decision = self._labels.unpack(self._decision())
        return rows.select("*", *(column.alias(name) for name, column in decision.items())).drop(*added)

    def _added(self, name: str) -> Column:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return sf.col(quoted(self._prefix + name))

    def _with(self, rows: DataFrame, **added: Column) -> DataFrame:
        return rows.select("*", *(column.alias(self._prefix + name) for name, column in added.items()))

    def _text(self, name: str) -> Column:
        """Returns a column as a string that compares by bytes, without collation."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return sf.col(name).cast("string")

    def _id_bytes(self, name: str) -> Column:
        """Returns the 16 bytes of an id; null if it is null or invalid."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return self._added(name) if self._types[name] == pa.string() else sf.col(name).cast("binary")

    def _source(self) -> Column:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return self._added("source") if self._only_source is None else sf.lit(self._only_source)

    def _find_source(self) -> Column:
        """Returns the number of the routing table; null for an unknown database."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        if self._only_source is not None:
            return sf.lit(self._only_source)
        if self._joins_sources:
            return self._added("source number")
        database, databases = self._text("database"), self._relation.databases
        number = sf.when(database.isNull(), len(databases))
        for position, name in enumerate(databases):
            number = number.when(database == name, position)
        return number

    def _checked_key(self) -> Column:
        """Returns the key of the join; a row with an invalid value fails the job."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        key = _name_hash(self._source(), self._text("to_service_name"))
        for condition, message in reversed(self._invalid_values()):
            key = sf.when(condition, sf.raise_error(message).cast("bigint")).otherwise(key)
        return key

    def _invalid_values(self) -> list[tuple[Column, Column]]:
        """Returns what makes a row invalid, each with the message."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        def message(kind: str, name: str, value: Column, what: str) -> Column:
            shown = sf.when(sf.length(value) > _SHOWN_MAX, sf.concat(sf.substring(value, 1, _SHOWN_MAX), sf.lit("…")))
            return sf.concat(sf.lit(f"{_ERRORS}{kind}: {name}: '"), shown.otherwise(value), sf.lit(f"' {what}"))

        required = {"to_service_name": "the name of the target service", "is_initiator": "true or false"}
        if self._needs_ids:
            required |= dict.fromkeys(ID_COLUMNS, "a conversation id for each row, to break ties")
        found = []
        for name, expected in required.items():
            if name in self._types:
                text = sf.lit(f"{_ERRORS}NullError: {name}: null is not allowed here; expected {expected}")
                found.append((sf.col(name).isNull(), text))
        if self._has_databases:
            what = f"is not a database of the catalog; expected {self._relation.expected_databases}"
            text = message("UnknownDatabaseError", "database", self._text("database"), what)
            found.append((self._source().isNull(), text))
        for name in self._id_columns:
            if self._types[name] == pa.string():
                value, is_wrong = self._text(name), sf.col(name).isNotNull() & self._id_bytes(name).isNull()
            else:
                given = self._id_bytes(name)
                value, is_wrong = sf.concat(sf.lit("0x"), sf.lower(sf.hex(given))), sf.length(given) != _ID_BYTES
            what = f"is not a valid GUID; expected {_GUID}"
            found.append((is_wrong, message("InvalidGuidError", name, value, what)))
        return found

    def _side(self, table: pa.Table, name: str) -> DataFrame:
        """Returns rows of the decision table as the build side of a broadcast join."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        kinds = {field: _COLUMN_TYPES[field] for field in table.column_names}
        rows = compat.arrow_frame(self._rows.sparkSession, table, kinds)
        renamed = [
            # Spark copies binary values to compare them, but not strings.
            sf.col(field).cast("array<string>" if field == "ids" else kind).alias(f"{self._prefix}{name} {field}")
            for field, kind in kinds.items()
        ]
        return sf.broadcast(rows.select(*renamed))

    def _named_side(self) -> DataFrame:
        table = self._relation.named
        if self._only_source is not None:
            table = table.filter(pc.field("source") == self._only_source)
        side = self._side(table.select(["source", "name", *self._lists()]), "named")
        return self._with(side, **{"named key": _name_hash(self._added("named source"), self._added("named name"))})

    def _is_named(self) -> Column:
        """Returns the condition of the join: one number, whose collisions the other comparisons resolve.

        A join by a number is faster than one by a number and a text. Spark would make a condition with `=` a key.
        """
        is_same_name = (self._text("to_service_name") == self._added("named name")).eqNullSafe(other=True)
        is_same = (self._added("key") == self._added("named key")) & is_same_name
        if self._only_source is not None:
            return is_same
        return is_same & (self._added("named source") - self._source() == 0)

    def _source_side(self) -> DataFrame:
        unnamed = self._relation.unnamed.select(["source", *self._lists()])
        names = pa.array([*self._relation.databases, None], pa.string())
        table = unnamed.append_column("database", names.take(unnamed["source"].combine_chunks()))
        return self._side(table.rename_columns(["number", *table.column_names[1:]]), "source")

    def _lists(self) -> list[str]:
        lists = ["ids", *self._relation.fields]
        return lists if self._relation.candidates_max <= 1 else [*lists, "first", "hash_to"]

    def _list(self, name: str) -> Column:
        """Returns the array of the name's row, or that for names without a row."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        listed = self._added(f"named {name}")
        if self._joins_sources:
            return sf.coalesce(listed, self._added(f"source {name}"))
        values: list[Any] = self._relation.unnamed[name].to_pylist()
        literals = [sf.array(*map(sf.lit, each)).cast(_COLUMN_TYPES[name]) for each in values]
        return sf.coalesce(listed, sf.get(sf.array(*literals), self._source()))

    def _position(self) -> Column:
        """Returns the position of the decision in the arrays."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        is_valid, kind = self._added("key").isNotNull(), sf.lit(0)
        if BROKER_COLUMN in self._types:
            own = self._id_bytes(BROKER_COLUMN)
            listed = sf.call_function("array_position", self._added("named ids"), own.cast("string"))
            kind = sf.when(own.isNull(), 0).otherwise(1 + sf.coalesce(listed, sf.lit(0)).cast("int"))
        if self._relation.candidates_max <= 1:
            return sf.when(is_valid, kind)
        first, hash_ = sf.get(self._list("first"), kind), sf.xxhash64(self._id_bytes(self._id_columns[0]))
        following = sf.slice(self._list("hash_to"), first + 1, sf.lit(self._relation.candidates_max))
        picked = sf.call_function("array_position", sf.transform(following, lambda last: last >= hash_), sf.lit(True))
        return sf.when(is_valid, first + picked.cast("int") - 1)

    def _reply_name(self) -> Column:
        """Returns the service name of a reply that is addressed to the broker id of a database of this instance; null otherwise."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        is_reply = ~sf.col("is_initiator") & self._is_own_id()
        is_from_outside = self._source() == len(self._relation.databases)
        if "only_from_initiator" in self._relation.fields:
            returns = sf.get(self._list("only_from_initiator"), self._added("position"))
            is_from_outside |= sf.coalesce(returns, sf.lit(False))
        return sf.when(is_reply & is_from_outside, self._text("to_service_name"))

    def _is_own_id(self) -> Column:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        ids = [sf.lit(value).cast("string") for value in self._relation.database_ids]
        return self._id_bytes(BROKER_COLUMN).cast("string").isin(*ids)

    def _decision(self) -> dict[str, Column]:
        """Returns the columns `PACKED_FIELDS`, without those that are always null."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        position = self._added("position")
        found = {name: sf.get(self._list(name), position) for name in PACKED_FIELDS if name in self._relation.fields}
        if self._may_be_replies:
            own = self._id_bytes(BROKER_COLUMN).cast("string")
            index = sf.call_function("array_position", self._added("reply ids"), own).cast("int") - 1
            dropped = sf.lit(self._relation.dropped_reply).cast("smallint")
            of_reply = {
                "verdict": sf.coalesce(sf.get(self._added("reply verdict"), index), dropped),
                "target_database": sf.get(self._added("reply target_database"), index),
            }
            for name in {*found, *of_reply}:
                other = found.get(name, sf.lit(None))
                found[name] = sf.when(self._added("reply").isNotNull(), of_reply.get(name)).otherwise(other)
        if BROKER_COLUMN in self._types:
            bound = found.get("broker_instance", sf.lit(None))
            found["broker_instance"] = sf.coalesce(self._id_bytes(BROKER_COLUMN), bound)
        # Spark drops a join that finds nothing. Through the position, each column reads the checked key, so that the checks remain.
        return {name: sf.when(position.isNotNull(), column) for name, column in found.items()}


def _free_prefix(rows: DataFrame) -> str:
    """Returns a prefix that no column name has."""
    prefix = "ssbroker "
    while any(name.lower().startswith(prefix) for name in rows.columns):
        prefix = prefix.strip() + "_ "
    return prefix


def _name_hash(source: Column, name: Column) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.xxhash64(source, name)


def _parsed_guid(text: Column) -> Column:
    """Returns the 16 bytes of a GUID of 36 characters, with or without braces; null if it is not one."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    has_braces = (sf.length(text) == _GUID_CHARACTERS + 2) & text.startswith("{") & text.endswith("}")
    bare = sf.when(has_braces, sf.substring(text, 2, _GUID_CHARACTERS)).otherwise(text)
    # Each character must be one byte.
    is_guid = (sf.length(bare) == _GUID_CHARACTERS) & (sf.octet_length(bare) == _GUID_CHARACTERS)
    for position in _DASHES:
        is_guid &= sf.substring(bare, position, 1) == "-"
    digits = sf.concat(*(sf.substring(bare, position, length) for position, length in _DIGITS))
    return sf.when(is_guid, sf.unhex(digits))
