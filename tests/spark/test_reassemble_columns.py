"""Input and output columns and their types; invalid columns are reported before a job starts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import ssbroker.spark
from ssbroker import OptionError, SchemaError
from tests.rules.fragments import KEY, A, parts
from tests.spark.frames import Configure, frame
from tests.spark.traffic import collect_all, expected_rows, fragment_table, random_fragments

KEYS = "conversation_id binary, is_initiator boolean, message_sequence_number bigint"
FRAGMENTS = f"{KEYS}, fragment_number int, fragment_count int, message_body binary"
ROW = (A.bytes, True, 0, 0, 1, b"body")


def fields(frame_: DataFrame) -> list[tuple[str, str, bool]]:
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in frame_.schema]


def test_types_and_nullability_follow_the_contract(spark: SparkSession) -> None:
    """Ids and signatures are binary, labels are strings; columns that are never null are declared so."""
    done = ssbroker.spark.reassemble(spark.createDataFrame([ROW], FRAGMENTS))
    keys = [("conversation_id", "binary", False), ("is_initiator", "boolean", False)]
    keys += [("message_sequence_number", "bigint", False)]
    count = ("fragment_count", "int", False)
    assert fields(done.messages) == [*keys, ("message_body", "binary", False), ("message_signature", "binary", True)]
    assert fields(done.rejected) == [*keys, ("fragment_number", "int", False), count, ("reason", "string", False)]
    assert fields(done.incomplete) == [
        *keys,
        count,
        ("received_fragments", "int", False),
        ("received_bytes", "bigint", False),
        ("first_missing_fragment", "int", True),
        ("waits_for_sequence_number", "bigint", True),
    ]


@pytest.mark.parametrize("shard_by", ["conversation", "message"])
def test_extra_columns_of_any_type_and_name_are_passed_through(spark: SparkSession, shard_by: Any) -> None:
    """They are those of fragment number 0 and follow the message's own columns."""
    made = {
        "a.b": "cast(12.50 as decimal(9,2))",
        "quo`te": "array(named_struct('x', 1, 'y', array('z', null)))",
        "Kind": "map('k', cast(null as int))",
        "reason": "timestamp'2026-11-21 01:02:03.000004'",
        "fragment_counts": "date'2026-11-21'",
        "further_0": "timestamp_ntz'2026-11-21 01:02:03'",
        "interval": "interval '1 02:03:04' day to second",
        "flag": "cast(null as boolean)",
        "double": "1.5D",
        "void": "null",
        "text": "concat('of ', fragment_number)",
        "conversation_handle": "'a handle that nobody asks for'",
    }
    given = frame(spark, fragment_table(parts(b"abc", size=1) + parts(b"d", 2)))
    given = given.select("*", *(sf.expr(source).alias(name) for name, source in made.items()))
    given = given.select("*", sf.lit("again").alias("text"))
    done = ssbroker.spark.reassemble(given, shard_by=shard_by)
    assert done.messages.columns == [*ssbroker.schemas.MESSAGES.names, *made, "text"]
    assert [field.dataType for field in done.messages.schema.fields[5:]] == [
        field.dataType for field in given.schema.fields[8:]
    ]
    first = given.where("fragment_number = 0 and message_sequence_number = 0").collect()
    assert [row[5:] for row in done.messages.collect()] == [row[8:] for row in first]


def test_non_nullable_extra_columns_remain_non_nullable(spark: SparkSession) -> None:
    given = frame(spark, fragment_table(parts(b"abc", size=1)[:3])).selectExpr(
        "*",
        "1 a",
        "'x' b",
        "cast(1 as smallint) c",
        "true d",
        "date'2026-11-21' e",
        "x'00' f",
        "1.5D g",
        "cast(null as int) h",
    )
    done = ssbroker.spark.reassemble(given)
    assert [nullable for _, _, nullable in fields(done.messages)[5:]] == [False] * 7 + [True]
    assert done.messages.count() == 1


@pytest.mark.parametrize("strategy", ["hash", "sort"])
def test_conversation_handles_and_narrow_integers_without_signatures(spark: SparkSession, strategy: Any) -> None:
    table = fragment_table(random_fragments(8, count=10, theme="honest"))
    given = narrow(frame(spark, table))
    expected = expected_rows(table.drop_columns(["message_signature", "fragment_signature"]))
    assert collect_all(ssbroker.spark.reassemble(given, strategy=strategy)) == expected


def narrow(given: DataFrame) -> DataFrame:
    text = sf.lower(sf.hex("conversation_id"))
    pieces = [sf.substring(text, start, length) for start, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))]
    return given.select(
        sf.concat(sf.lit("{"), sf.concat_ws("-", *pieces), sf.lit("}")).alias("conversation_handle"),
        "is_initiator",
        sf.col("message_sequence_number").cast("smallint"),
        sf.col("fragment_number").cast("tinyint"),
        sf.col("fragment_count").cast("bigint"),
        "message_body",
        sf.lit(None).alias("message_signature"),
    )


@pytest.mark.rule("P21")
@pytest.mark.parametrize("where", ["a column", "a mapping"])
def test_session_keys_are_not_exposed(spark: SparkSession, capsys: pytest.CaptureFixture[str], where: str) -> None:
    """The messages have no key column, and the query plan shows no keys from a mapping."""
    fragments = parts(b"abc", size=1, key=KEY)
    table = fragment_table(fragments, keys="column")
    keys: Any = "key_of_session" if where == "a column" else {A: KEY}
    given = frame(spark, table if where == "a column" else table.drop_columns(["key_of_session"]))
    done = ssbroker.spark.reassemble(given, session_keys=keys)
    assert done.messages.columns == [*ssbroker.schemas.MESSAGES.names]
    assert [bytes(row["message_body"]) for row in done.messages.collect()] == [b"abc"]
    capsys.readouterr()
    done.messages.explain(extended=True)
    plan = capsys.readouterr().out
    assert "reassemble_fragments" in plan
    assert KEY.decode() not in plan
    assert KEY.hex() not in plan.lower()


def test_different_keys_for_a_conversation_are_not_confused(spark: SparkSession) -> None:
    given = frame(spark, fragment_table(parts(b"abc", size=1, key=KEY)))
    several: list[Any] = [{A: KEY}, {A: KEY[::-1]}, {A: KEY}, {str(A).upper(): KEY[::-1]}]
    counts = [ssbroker.spark.reassemble(given, session_keys=keys).rejected.count() for keys in several]
    assert counts == [0, 3, 0, 3]


@pytest.mark.parametrize(
    ("columns", "expected_words"),
    [
        (KEYS, ["fragment_number"]),
        (FRAGMENTS.replace("conversation_id binary, ", ""), ["conversation_id", "GUID"]),
        (FRAGMENTS.replace("conversation_id binary", "conversation_id int"), ["conversation_id", "got int"]),
        (FRAGMENTS.replace("is_initiator boolean", "is_initiator int"), ["is_initiator", "expected boolean, got int"]),
        (FRAGMENTS.replace("number bigint", "number string"), ["message_sequence_number", "int64"]),
        (FRAGMENTS.replace("count int", "count double"), ["fragment_count", "expected int, got double"]),
        (FRAGMENTS.replace("body binary", "body string"), ["message_body", "binary"]),
        (FRAGMENTS.replace("body binary", "body array<int>"), ["message_body", "expected binary, got array<int>"]),
        (f"{FRAGMENTS}, fragment_signature string", ["fragment_signature", "binary"]),
    ],
)
def test_columns_are_checked_at_the_call(spark: SparkSession, columns: str, expected_words: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        ssbroker.spark.reassemble(spark.createDataFrame([], columns))
    assert caught.value.column == expected_words[0]
    assert [word for word in expected_words if word not in str(caught.value)] == []


def test_duplicate_columns_are_refused(spark: SparkSession) -> None:
    given = spark.createDataFrame([ROW], FRAGMENTS)
    with pytest.raises(SchemaError, match=r"fragment_count: expected one column with this name, got 2"):
        ssbroker.spark.reassemble(given.select("*", "fragment_count"))


@pytest.mark.parametrize(
    ("keys", "error", "expected_words"),
    [
        ("nowhere", SchemaError, "nowhere"),
        ("message_body", SchemaError, "session_keys: 'message_body' is one of the columns of a fragment"),
        ({A: b"short"}, OptionError, "5 bytes"),
        ({"no-guid": KEY}, OptionError, "no-guid"),
        (7, OptionError, "session_keys"),
    ],
)
def test_invalid_session_keys_are_refused(
    spark: SparkSession, keys: Any, error: type[Exception], expected_words: str
) -> None:
    with pytest.raises(error, match=expected_words):
        ssbroker.spark.reassemble(spark.createDataFrame([ROW], FRAGMENTS), session_keys=keys)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("strategy", "merge"),
        ("shard_by", "direction"),
        ("in_order", 1),
        ("max_message_bytes", 0),
        ("max_message_bytes", (1 << 30) + 1),
        ("max_message_bytes", None),
        ("max_pending_bytes", -1),
        ("max_fragments_per_message", 0),
    ],
)
def test_invalid_options_are_refused(spark: SparkSession, option: str, value: Any) -> None:
    with pytest.raises(OptionError, match=option):
        ssbroker.spark.reassemble(spark.createDataFrame([ROW], FRAGMENTS), **{option: value})


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({0: "'no-guid'"}, "InvalidGuidError: conversation_id, row "),
        ({0: "null"}, "NullError: conversation_id, row "),
        ({2: "null"}, "NullError: message_sequence_number, row "),
        ({5: "null"}, "NullError: message_body, row "),
    ],
)
@pytest.mark.parametrize("strategy", ["hash", "sort"])
def test_invalid_values_are_reported_with_their_row(
    spark: SparkSession, broken: dict[int, str], message: str, strategy: Any
) -> None:
    """Invalid input fails the job instead of becoming a row of the result."""
    good = [f"'{A}'", "true", "1L", "0", "1", "x'00'"]
    bad = [broken.get(place, value) for place, value in enumerate(good)]
    names = [column.split()[0] for column in FRAGMENTS.split(", ")]
    rows = spark.sql(f"select * from values ({', '.join(good)}), ({', '.join(bad)}) as f({', '.join(names)})")
    with pytest.raises(PythonException) as caught:
        ssbroker.spark.reassemble(rows, strategy=strategy).messages.collect()
    lines = str(caught.value).splitlines()
    assert [line for line in lines if line.startswith(f"ssbroker.exceptions.{message}")]
    assert [line for line in lines if line.startswith("Row 0 is the first of ")]


def test_streams_are_refused_with_the_functions_to_use(spark: SparkSession, tmp_path: object) -> None:
    stream = spark.readStream.schema(FRAGMENTS).parquet(str(tmp_path))
    with pytest.raises(
        SchemaError,
        match=r"ssbroker\.spark\.reassemble does not accept a streaming DataFrame.*ssbroker\.spark\.reassemble_stream",
    ):
        ssbroker.spark.reassemble(stream)
    with pytest.raises(SchemaError, match=r"ssbroker\.spark\.pipeline does not accept a streaming DataFrame"):
        ssbroker.spark.pipeline(stream, ssbroker.Catalog(ssbroker.schemas.ROUTES.empty_table()))


@pytest.mark.rule("R5")
def test_malformed_ids_are_refused(spark: SparkSession) -> None:
    """Dashes and braces must be in their places."""
    given = spark.createDataFrame([(A.hex, True, 0, 0, 1, b"")], FRAGMENTS.replace("id binary", "id string"))
    with pytest.raises(PythonException, match="InvalidGuidError"):
        ssbroker.spark.reassemble(given).messages.collect()


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("named_struct('of', make_ym_interval(1))", "struct<of:interval year"),
        ("make_interval(1, 2)", "interval to Python"),
        ("array(named_struct('a', 1, 'a', 2))", "array<struct<a:int,a:int>>"),
        ("array()", "array<void>"),
        ("cast('x' as char(5))", "char(5)"),
        ("array(cast('x' as varchar(5)))", "array<varchar(5)>"),
    ],
)
def test_unsupported_types_are_reported_with_their_column(
    spark: SparkSession, configure: Configure, source: str, kind: str
) -> None:
    configure("spark.sql.preserveCharVarcharTypeInfo", "true")
    given = spark.range(1).selectExpr(
        "cast('' as binary) as conversation_id",
        "true as is_initiator",
        "0L as message_sequence_number",
        "0 as fragment_number",
        "1 as fragment_count",
        "cast('' as binary) as message_body",
        f"{source} as `how.long`",
    )
    with pytest.raises(SchemaError, match=rf"how\.long: Spark cannot transfer a column of type {re.escape(kind)}"):
        ssbroker.spark.reassemble(given)
