"""Routing by a broadcast join with the decision table, without Python in the executors.

The build side of the join contains a row for each service name that the table lists. The arrays of a row contain the
precomputed decisions for conversations without a broker id, with an unlisted id, and with each listed id. For each of
these cases, there is one decision, or one for each of several equal candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.router import TieBreak
from ssbroker.schemas import DECISIONS
from ssbroker.spark import compat
from ssbroker.spark.decision_codes import LABEL_BITS, NO_STEP, Labels
from ssbroker.spark.decision_join_table import (
    CANDIDATES_BITS,
    CANDIDATES_MAX,
    DETAILS,
    IN_NAME,
    KINDS,
    DecisionJoinTable,
)
from ssbroker.spark.input_columns import BROKER_COLUMN, ID_COLUMNS, SHOWN_MAX, quoted, start_of
from ssbroker.spark.text_expressions import PARSING_STEPS, address_in_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    _Check: TypeAlias = tuple[Column, str, tuple[Column, Column] | None, str]

_COLUMN_TYPES: Final = {
    **dict.fromkeys(LABEL_BITS, "tinyint"),
    "choice": "array<bigint>",
    "database": "string",
    "decision_code": "array<smallint>",
    "ids": "array<binary>",
    "key": "bigint",
    "name": "string",
    "number": "int",
    "only_from_initiator": "array<boolean>",
    "source": "int",
    "target_database": "array<string>",
}
_LITERAL_SOURCES_MAX: Final = 16
"""The maximum number of databases that are compared one after the other; if there are more, they are joined."""
_ID_BYTES: Final = 16
_SHOWN_BYTES_MAX: Final = SHOWN_MAX // 2 - 1
"""The maximum number of bytes that an error shows in hexadecimal, after `0x`."""
_GUID: Final = "a GUID: 36 characters (braces allowed) or 16 bytes"
_ERRORS: Final = "ssbroker.exceptions."


class DecisionJoin:
    """Adds decisions to the rows of a DataFrame by joins.

    Args:
        rows: The DataFrame.
        types: The Arrow types of the columns that routing reads.
        join_table: The decision table.
        labels: The labels of decision codes.
        default_database: The database of rows without a column `database`.
        tie_break: How to choose among equal candidates; with `hash`, conversation ids must not be null.
    """

    def __init__(
        self,
        rows: DataFrame,
        types: Mapping[str, pa.DataType],
        join_table: DecisionJoinTable,
        labels: Labels,
        *,
        default_database: str | None,
        tie_break: TieBreak,
    ) -> None:
        self._rows = rows
        self._types = types
        self._join_table = join_table
        self._labels = labels
        self._needs_ids = tie_break == "hash"
        self._prefix = _free_prefix(rows)
        self._id_columns = [name for name in (*ID_COLUMNS, BROKER_COLUMN) if name in types]
        self._has_databases = "database" in types
        self._joins_sources = self._has_databases and len(join_table.databases) > _LITERAL_SOURCES_MAX
        self._only_source = None if self._has_databases else join_table.databases.index(str(default_database))
        self._details = [name for name in join_table.fields if name in DETAILS]
        details = ", ".join(f"{name}: {DETAILS[name]}" for name in self._details)
        self._column_types = {**_COLUMN_TYPES, "details": f"array<struct<{details}>>"}
        self._may_be_replies = join_table.replies is not None and {"is_initiator", BROKER_COLUMN} <= types.keys()
        self._final = "final " if self._may_be_replies else ""

    def routed(self) -> DataFrame:
        """Returns the rows with the decision columns."""
        rows = self._rows
        if self._joins_sources:
            database = self._text("database")
            rows = rows.join(
                self._sources_build_side(), database.eqNullSafe(self._temporary("source database")), "left"
            )
        given = {name: self._text(name) for name in self._id_columns if self._types[name] == pa.string()}
        for step in PARSING_STEPS if given else ():
            rows = self._with(rows, **{f"{name} {step.__name__}": step(text) for name, text in given.items()})
            given = {name: self._temporary(f"{name} {step.__name__}") for name in given}
        rows = self._with(rows, source=self._find_source_index(), **given)
        rows = self._with(rows, wrong=self._message_index(self._inputs_of_labels()))
        rows = self._with(rows, key=self._value_or_error(self._inputs_of_labels(), "wrong", self._key(), "bigint"))
        rows = rows.join(self._names_build_side(), self._is_row_of_name(), "left")
        others, is_known = self._inputs_of_details(), self._temporary("key").isNotNull()
        rows = self._with(rows, **{"also wrong": self._message_index(others)})
        rows = self._with(rows, valid=self._value_or_error(others, "also wrong", is_known, "boolean"))
        if self._join_table.reads_names:
            rows = self._with(rows, hop=address_in_name(self._text("to_service_name"), only_if=self._reads_name()))
        rows = self._with(rows, kind=self._kind_position())
        if self._join_table.candidates_max > 1:
            rows = self._with(rows, choice=self._candidate_range())
            rows = self._with(rows, hash=self._tie_hash())
        rows = self._with(rows, position=self._picked_position())
        rows = self._with(
            rows,
            decision_code=self._decision_field("decision_code"),
            **({"details": self._decision_field("details")} if self._details else {}),
        )
        if self._join_table.replies is not None and self._may_be_replies:
            rows = self._with(rows, reply=self._reply_name())
            rows = rows.join(
                self._build_side(self._join_table.replies, "reply"),
                self._temporary("reply") == self._temporary("reply name"),
                "left",
            )
            rows = self._with(rows, **self._final_fields())
        added = [name for name in rows.columns if name.startswith(self._prefix)]
        decision = self._decision()
        return rows.select("*", *(decision[name].alias(name) for name in DECISIONS.names)).drop(*added)

    def _temporary(self, name: str) -> Column:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return sf.col(quoted(self._prefix + name))

    def _with(self, rows: DataFrame, **added: Column) -> DataFrame:
        return rows.select("*", *(column.alias(self._prefix + name) for name, column in added.items()))

    def _text(self, name: str) -> Column:
        """Returns a column as a string that is compared byte by byte, without collation."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return sf.col(name).cast("string")

    def _id_bytes(self, name: str) -> Column:
        """Returns the bytes of an id; null if the id is null, or is a string that is not a GUID."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return self._temporary(name) if self._types[name] == pa.string() else sf.col(name).cast("binary")

    def _source_index(self) -> Column:
        """Returns the index of the routing table of each row; a constant if it is the same for all rows."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return self._temporary("source") if self._only_source is None else sf.lit(self._only_source)

    def _find_source_index(self) -> Column:
        """Returns the index of the routing table of each row, computed from the database; null for an unknown database."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        if self._only_source is not None:
            return sf.lit(self._only_source)
        if self._joins_sources:
            return self._temporary("source number")
        database, databases = self._text("database"), self._join_table.databases
        index = sf.when(database.isNull(), len(databases))
        for position, name in enumerate(databases):
            index = index.when(database == name, position)
        return index

    def _key(self) -> Column:
        return _name_hash(self._source_index(), self._text("to_service_name"))

    def _message_index(self, names: Sequence[str]) -> Column:
        """Returns the index of the error message of the first check that a row fails; null if the row passes all checks."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        wrong = sf.lit(None).cast("int")
        for index, (is_wrong, _, shown, _) in reversed([*enumerate(self._checks(names))]):
            message = sf.lit(2 * index)
            if shown is not None:
                message = sf.when(shown[1], 2 * index + 1).otherwise(message)
            wrong = sf.when(is_wrong, message).otherwise(wrong)
        return wrong

    def _value_or_error(self, names: Sequence[str], wrong: str, value: Column, sql_type: str) -> Column:
        """Returns the value; a row with an invalid value in one of the columns fails the job.

        The message is formatted in one place, because the JVM does not compile functions that are too long.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        checks, failed = self._checks(names), self._temporary(wrong)
        if not checks:
            return value
        messages, values = list[str](), list["Column"]()
        for _, before, shown, after in checks:
            start, end = before.replace("%", "%%"), after.replace("%", "%%")
            values += [] if shown is None else [shown[0]]
            value_and_cut = ("", "") if shown is None else (f"%{len(values)}$s", f"%{len(values)}$s…")
            messages += [f"{start}{each}{end}" for each in value_and_cut]
        text = sf.call_function("format_string", _one_of(messages, failed), *values)
        return sf.when(failed.isNull(), value).otherwise(sf.raise_error(text).cast(sql_type))

    def _inputs_of_labels(self) -> list[str]:
        """Returns the columns on which outcome, reason and step depend."""
        ids = self._id_columns if "decision_code" not in self._join_table.by_kind else []
        return [
            name
            for name in ("to_service_name", "is_initiator", "database", *self._id_columns)
            if name in self._types
            and (name not in ID_COLUMNS or name in ids)
            and (name != "is_initiator" or self._may_be_replies)
        ]

    def _inputs_of_details(self) -> list[str]:
        """Returns the columns on which only decision columns other than outcome, reason and step depend."""
        read = ("to_service_name", "is_initiator", "database", *self._id_columns)
        labels = self._inputs_of_labels()
        return [name for name in read if name in self._types and name not in labels]

    def _checks(self, names: Sequence[str]) -> list[_Check]:
        return [check for name in names for check in self._checks_of(name)]

    def _checks_of(self, name: str) -> list[_Check]:
        """Returns the conditions for invalid values of a column, with the error message: the text before the value, the value, and the text after it.

        Only the start of a value is shown, with an indication if the value is longer.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        required = {"to_service_name": "the name of the target service", "is_initiator": "true or false"}
        if self._needs_ids:
            required |= dict.fromkeys(ID_COLUMNS, "a conversation id for each row, to break ties")
        found: list[_Check] = []
        if name in required:
            text = f"{_ERRORS}NullError: {name}: null is not allowed here; expected {required[name]}"
            found.append((sf.col(name).isNull(), text, None, ""))
        if name == "database":
            before = f"{_ERRORS}UnknownDatabaseError: database: '"
            after = f"' is not a database of the catalog; expected {self._join_table.expected_databases}"
            found.append((self._source_index().isNull(), before, start_of(self._text("database")), after))
        if name in self._id_columns:
            before = f"{_ERRORS}InvalidGuidError: {name}: '"
            if self._types[name] == pa.string():
                shown, is_wrong = start_of(self._text(name)), sf.col(name).isNotNull() & self._id_bytes(name).isNull()
            else:
                given, before = self._id_bytes(name), f"{before}0x"
                start = sf.lower(sf.hex(sf.substring(given, 1, _SHOWN_BYTES_MAX)))
                shown, is_wrong = (start, sf.length(given) > _SHOWN_BYTES_MAX), sf.length(given) != _ID_BYTES
            found.append((is_wrong, before, shown, f"' is not a valid GUID; expected {_GUID}"))
        return found

    def _build_side(self, table: pa.Table, name: str) -> DataFrame:
        """Returns rows of the decision table as the build side of a broadcast join."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        column_types = {f"{self._prefix}{name} {field}": self._column_types[field] for field in table.column_names}
        ids = f"{self._prefix}{name} ids"
        # Spark copies binary values to compare them, but does not copy strings.
        rows, are_strings = compat.arrow_frame(
            self._rows.sparkSession, table.rename_columns([*column_types]), column_types, as_strings=ids
        )
        if not are_strings:
            rows = rows.withColumn(ids, sf.col(quoted(ids)).cast("array<string>"))
        return sf.broadcast(rows)

    def _names_build_side(self) -> DataFrame:
        table = self._join_table.with_keys(self._computed_keys)
        if self._only_source is not None:
            table = table.filter(pc.field("source") == self._only_source)
        return self._build_side(table.select(["source", "name", "key", *LABEL_BITS, *self._array_names()]), "named")

    def _computed_keys(self, names: pa.Table) -> list[int]:
        """Returns the key of each pair of source and name, as Spark computes it."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        column_types = {name: _COLUMN_TYPES[name] for name in names.column_names}
        rows, _ = compat.arrow_frame(self._rows.sparkSession, names, column_types)
        return [int(row[0]) for row in rows.select(_name_hash(sf.col("source"), sf.col("name"))).collect()]

    def _is_row_of_name(self) -> Column:
        """Returns the join condition: a comparison of one number, and further comparisons that resolve collisions.

        A join by a number is faster than a join by a number and a text, and Spark would make any condition with `=` a part of the join key.
        """
        is_same_name = (self._text("to_service_name") == self._temporary("named name")).eqNullSafe(other=True)
        is_same = (self._temporary("key") == self._temporary("named key")) & is_same_name
        if self._only_source is not None:
            return is_same
        return is_same & (self._temporary("named source") - self._source_index() == 0)

    def _sources_build_side(self) -> DataFrame:
        join_table = self._join_table
        arrays: dict[str, Any] = {
            name: pa.array([each[name] for each in join_table.unnamed], join_table.named.schema.field(name).type)
            for name in self._array_names()
        }
        names: Any = pa.array([*join_table.databases, None], pa.string())
        indices = pa.array(range(len(names)), pa.int32())
        return self._build_side(pa.table({"number": indices, "database": names, **arrays}), "source")

    def _array_names(self) -> list[str]:
        """Returns the names of the arrays from which decisions are read."""
        is_read = {
            "ids": True,
            "decision_code": True,
            "only_from_initiator": "only_from_initiator" in self._join_table.fields,
            "details": bool(self._details),
            "choice": self._join_table.candidates_max > 1,
        }
        return [name for name in is_read if is_read[name]]

    def _array(self, name: str) -> Column:
        """Returns an array from the row of the service name, or the array for service names without a row."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        listed = self._temporary(f"named {name}")
        if self._joins_sources:
            return sf.coalesce(listed, self._temporary(f"source {name}"))
        sql_type = self._column_types[name].removeprefix("array<").removesuffix(">")
        # Casting the whole array would make Spark check each value for null.
        literals = [
            sf.array(*(self._literal(value).cast(sql_type) for value in each[name]))
            for each in self._join_table.unnamed
        ]
        return sf.coalesce(listed, sf.get(sf.array(*literals), self._source_index()))

    def _literal(self, value: Any) -> Column:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        if not isinstance(value, dict):
            return sf.lit(value)
        return sf.struct(*(sf.lit(each).cast(DETAILS[name]).alias(name) for name, each in value.items()))

    def _decision_field(self, name: str) -> Column:
        """Returns a field of the decision."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return sf.get(self._array(name), self._temporary("kind" if name in self._join_table.by_kind else "position"))

    def _reads_name(self) -> Column:
        """Returns whether the decision may depend on the address at the start of the service name."""
        return self._temporary("named name").isNull() & self._source_index().isin(*self._join_table.reads_names)

    def _kind_position(self) -> Column:
        """Returns the position of the kind of broker id in the arrays.

        If the service name has no row, the kinds of the preceding forms of names are counted too.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        kind = sf.lit(0)
        if BROKER_COLUMN in self._types:
            own = self._id_bytes(BROKER_COLUMN)
            listed = sf.call_function("array_position", self._temporary("named ids"), own.cast("string"))
            kind = sf.when(own.isNull(), 0).otherwise(1 + sf.coalesce(listed, sf.lit(0)).cast("int"))
        if not self._join_table.reads_names:
            return kind
        hop, own_addresses = self._temporary("hop"), [*self._join_table.own_addresses]
        form = sf.when(hop.isNull(), KINDS)
        if own_addresses:
            form = form.when(hop.isin(*own_addresses), 2 * KINDS)
        return sf.when(self._temporary("named name").isNotNull(), kind).otherwise(kind + form.otherwise(0))

    def _candidate_range(self) -> Column:
        """Returns the position of the first candidate and the number of candidates, as in `choice`; null if the name's row has no `choice`."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        has_ties = self._temporary("named name").isNull() | self._temporary("named choice").isNotNull()
        return sf.when(has_ties, sf.get(self._array("choice"), self._temporary("kind")))

    def _tie_hash(self) -> Column:
        """Returns the hash that picks one of several candidates; null if there is only one candidate."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        candidates = self._temporary("choice").bitwiseAND(CANDIDATES_MAX)
        return sf.when(candidates > 1, sf.xxhash64(self._id_bytes(self._id_columns[0])))

    def _picked_position(self) -> Column:
        """Returns the position of the picked candidate in the arrays."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        if self._join_table.candidates_max <= 1:
            return self._temporary("kind")
        choice, hash_ = self._temporary("choice"), self._temporary("hash")
        first, candidates = sf.shiftright(choice, CANDIDATES_BITS), choice.bitwiseAND(CANDIDATES_MAX)
        # floor((hash + 2**63) * candidates / 2**64), computed in two halves because the product does not fit into a
        # bigint.
        upper, lower = sf.shiftright(hash_, 32) + sf.lit(1 << 31), hash_.bitwiseAND((1 << 32) - 1)
        picked = sf.shiftright(upper * candidates + sf.shiftright(lower * candidates, 32), 32)
        return sf.coalesce((first + sf.coalesce(picked, sf.lit(0))).cast("int"), self._temporary("kind"))

    def _reply_name(self) -> Column:
        """Returns the service name of a reply that is addressed to the broker id of a database of this instance; null otherwise."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        is_reply = ~sf.col("is_initiator") & self._is_id_of_instance()
        is_from_outside = self._source_index() == len(self._join_table.databases)
        if "only_from_initiator" in self._join_table.fields:
            is_from_outside |= sf.coalesce(self._decision_field("only_from_initiator"), sf.lit(False))
        return sf.when(is_reply & is_from_outside, self._text("to_service_name"))

    def _is_id_of_instance(self) -> Column:
        """Returns whether the broker id belongs to a database of this instance."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        ids = [sf.lit(value).cast("string") for value in self._join_table.database_ids]
        return self._id_bytes(BROKER_COLUMN).cast("string").isin(*ids)

    def _decision(self) -> dict[str, Column]:
        """Returns the decision columns."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        join_table = self._join_table
        found = {name: self._temporary(f"{self._final}details")[name] for name in self._details}
        if join_table.reads_names and "next_hop_address" in found:
            hop = found["next_hop_address"]
            found["next_hop_address"] = sf.when(hop == IN_NAME, self._temporary("hop")).otherwise(hop)
        decision_code = self._temporary(f"{self._final}decision_code").cast("int")
        codes = {name: self._code(name, decision_code) for name in LABEL_BITS}
        codes["match_step"] = decision_code.bitwiseAND(NO_STEP)
        if self._may_be_replies:
            database = found.get("target_database", sf.lit(None))
            found["target_database"] = sf.coalesce(self._temporary("reply database"), database)
        if BROKER_COLUMN in self._types:
            bound = found.get("broker_instance", sf.lit(None))
            found["broker_instance"] = sf.coalesce(self._id_bytes(BROKER_COLUMN), bound)
        # Spark drops a join that finds no rows; the checks remain, because each column reads the checked values.
        is_known, is_valid = self._temporary("key").isNotNull(), self._temporary("valid")
        step = codes["match_step"]
        labels = {
            "outcome": sf.when(is_known, _one_of(self._labels.outcomes, codes["outcome"])),
            "reason": sf.when(is_known, _one_of(self._labels.reasons, codes["reason"])),
            "match_step": sf.when(is_known & (step != NO_STEP), step.cast("tinyint")),
        }
        # A field that is always null must read `is_valid`, too, which raises the error about an invalid row. Spark simplifies
        # `sf.when(is_valid, NULL)` to NULL, but not this; "0" never appears, because `is_valid` is never false.
        never = sf.when(~is_valid, "0")
        others = {
            name: (sf.when(is_valid, found[name]) if name in found else never).cast(sql_type)
            for name, sql_type in DETAILS.items()
        }
        return {**labels, **others}

    def _code(self, name: str, decision_code: Column) -> Column:
        """Returns the code of a label: the code that all decisions for the name share, or else the code in the decision code."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        shift, mask = LABEL_BITS[name]
        own = sf.shiftright(decision_code, shift).bitwiseAND(mask)
        shared = self._temporary(f"named {name}").cast("int")
        return sf.coalesce(sf.when(self._temporary("reply").isNull(), shared) if self._may_be_replies else shared, own)

    def _final_fields(self) -> dict[str, Column]:
        """Returns the fields of the final decision, which for rows with a `_reply_name` come from the table of replies."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        is_reply, own = self._temporary("reply").isNotNull(), self._id_bytes(BROKER_COLUMN).cast("string")
        index = sf.call_function("array_position", self._temporary("reply ids"), own).cast("int") - 1
        dropped = sf.lit(self._join_table.dropped_reply).cast("smallint")
        of_reply = sf.coalesce(sf.get(self._temporary("reply decision_code"), index), dropped)
        found = {
            "final decision_code": sf.when(is_reply, of_reply).otherwise(self._temporary("decision_code")),
            "reply database": sf.when(is_reply, sf.get(self._temporary("reply target_database"), index)),
        }
        if self._details:
            found["final details"] = sf.when(~is_reply, self._temporary("details"))
        return found


def _one_of(texts: Sequence[str], index: Column) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.get(sf.array(*map(sf.lit, texts)), index)


def _free_prefix(rows: DataFrame) -> str:
    """Returns a prefix that does not occur in any column name."""
    prefix = "ssbroker "
    while any(name.lower().startswith(prefix) for name in rows.columns):
        prefix = prefix.strip() + "_ "
    return prefix


def _name_hash(source: Column, name: Column) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.xxhash64(source, name)
