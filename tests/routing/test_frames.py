"""Conversations come back with their decisions in the kind of table that was passed, and decisions have a summary."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Router, schemas, summarize
from tests.routing.conversations import CATALOG, NOW, ORDERS_ID

ROUTER = Router(CATALOG)
ROWS: list[dict[str, Any]] = [
    {"order": 1, "database": "Sales", "to_service_name": "//Mirrored"},
    {"order": 2, "database": None, "to_service_name": "//Nobody"},
    {"order": 3, "database": "Sales", "to_service_name": "//Sales"},
]
TEXTS = [field.name for field in schemas.DECISIONS if pa.types.is_dictionary(field.type)]


def expected() -> list[dict[str, Any]]:
    decisions = ROUTER.route(pa.Table.from_pylist(ROWS), now=NOW).to_pylist()
    return [row | decision for row, decision in zip(ROWS, decisions, strict=True)]


def test_dicts() -> None:
    assert ROUTER.with_decisions(ROWS, now=NOW) == expected()


def test_dicts_may_lack_keys_and_hold_uuids() -> None:
    rows: list[dict[str, Any]] = [
        {"database": "Sales", "to_service_name": "//Mirrored"},
        {"to_service_name": "//Sales", "to_broker_instance": ORDERS_ID},
    ]
    first, second = ROUTER.with_decisions(rows, now=NOW)
    assert first["outcome"] == "REMOTE"
    assert (second["to_broker_instance"], second["outcome"]) == (ORDERS_ID, "LOCAL")


def test_polars() -> None:
    frame = pl.DataFrame(ROWS)
    got = ROUTER.with_decisions(frame, now=NOW)
    assert isinstance(got, pl.DataFrame)
    assert got.columns == [*frame.columns, *schemas.DECISIONS.names]
    assert got.to_dicts() == expected()


def test_pandas_keeps_the_index_and_the_types() -> None:
    frame = pd.DataFrame(ROWS, index=["x", "x", "y"]).astype({"order": "Int16"})
    got = ROUTER.with_decisions(frame, now=NOW)
    assert isinstance(got, pd.DataFrame)
    assert got.index.tolist() == ["x", "x", "y"]
    assert got.dtypes["order"] == "Int16"
    assert got["outcome"].tolist() == [row["outcome"] for row in expected()]
    assert list(got.columns) == [*frame.columns, *schemas.DECISIONS.names]


def test_decisions_in_pandas_are_text() -> None:
    rows = pa.Table.from_pylist(ROWS)
    frame = rows.set_column(2, "to_service_name", rows["to_service_name"].dictionary_encode()).to_pandas()
    got = ROUTER.with_decisions(frame, now=NOW)
    assert got.dtypes["to_service_name"] == "category"
    for name in TEXTS:
        assert got.dtypes[name] == pd.Series(["a", None]).dtype
        assert [None if pd.isna(value) else value for value in got[name]] == [row[name] for row in expected()]
    other = ROUTER.with_decisions(frame.assign(to_service_name="//Sales"), now=NOW)
    assert (got["outcome"] != other["outcome"]).tolist() == [True, False, False]
    assert got["next_hop_address"].fillna("none").tolist() == ["TCP://a:4022", "none", "none"]
    assert got.groupby(["outcome", "reason"]).size().to_dict() == Counter(
        (row["outcome"], row["reason"]) for row in expected()
    )
    assert got["next_hop_address"].value_counts().to_dict() == {"TCP://a:4022": 1}


def test_decisions_in_polars_are_text() -> None:
    frame = pl.DataFrame(ROWS).with_columns(pl.col("to_service_name").cast(pl.Categorical))
    got = ROUTER.with_decisions(frame, now=NOW)
    assert got.schema["to_service_name"] == pl.Categorical
    assert [got.schema[name] for name in TEXTS] == [pl.String] * len(TEXTS)
    other = ROUTER.with_decisions(frame.with_columns(to_service_name=pl.lit("//Sales")), now=NOW)
    assert (got["outcome"] != other["outcome"]).to_list() == [True, False, False]
    assert got["next_hop_address"].str.starts_with("TCP://a").to_list() == [True, None, None]


def test_broker_ids_of_several_chunks_are_text() -> None:
    rows: list[dict[str, Any]] = [
        {"to_service_name": "//Sales", "to_broker_instance": str(ORDERS_ID)},
        {"to_service_name": "//Nobody", "to_broker_instance": None},
    ]
    frame = pl.concat([pl.DataFrame(rows), pl.DataFrame(rows[::-1]), pl.DataFrame(rows)], rechunk=False)
    known, unknown = str(ORDERS_ID), None
    ids = [known, unknown, unknown, known, known, unknown]
    assert ROUTER.with_decisions(frame, now=NOW)["broker_instance"].to_list() == ids
    assert [row["broker_instance"] for row in ROUTER.with_decisions(frame.to_dicts(), now=NOW)] == ids


@pytest.mark.parametrize("errors", ["raise", "reject"])
def test_frames_without_rows_have_columns_of_text(errors: Any) -> None:
    frame = pl.DataFrame(ROWS).clear()
    of_polars = ROUTER.with_decisions(frame, now=NOW, errors=errors)
    of_pandas = ROUTER.with_decisions(frame.to_pandas(), now=NOW, errors=errors)
    if errors == "reject":
        of_polars, of_pandas = of_polars.decisions, of_pandas.decisions
    assert [of_polars.schema[name] for name in TEXTS] == [pl.String] * len(TEXTS)
    assert {of_pandas.dtypes[name] for name in TEXTS} == {pd.Series(["a", None]).dtype}


def test_pandas_columns_of_nan_are_null() -> None:
    frame = pd.DataFrame(ROWS)
    frame["to_broker_instance"] = np.nan
    assert ROUTER.with_decisions(frame, now=NOW)["outcome"].tolist() == [row["outcome"] for row in expected()]
    frame["to_broker_instance"] = [1.5, np.nan, np.nan]
    with pytest.raises(ssbroker.SchemaError, match=r"to_broker_instance: expected a GUID.*, got double"):
        ROUTER.route(frame, now=NOW)


def test_duckdb() -> None:
    table = pa.Table.from_pylist(ROWS)
    got = ROUTER.with_decisions(duckdb.from_arrow(table), now=NOW)
    assert isinstance(got, duckdb.DuckDBPyRelation)
    assert got.to_arrow_table().to_pylist() == expected()
    kinds = dict(zip(got.columns, got.types, strict=True))
    assert [kinds[name] for name in TEXTS] == ["VARCHAR"] * len(TEXTS)


@pytest.mark.parametrize("empty", [False, True])
def test_pyarrow(*, empty: bool) -> None:
    table = pa.Table.from_pylist(ROWS).slice(0, 0 if empty else None)
    decisions = ROUTER.route(table, now=NOW)
    batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], names=table.column_names)
    got = ROUTER.with_decisions(table, now=NOW)
    assert got.select(schemas.DECISIONS.names).equals(decisions)
    of_batch = ROUTER.with_decisions(batch, now=NOW)
    assert isinstance(of_batch, pa.RecordBatch)
    assert of_batch.to_pylist() == got.to_pylist()


def test_an_empty_list_has_no_rows() -> None:
    assert ROUTER.with_decisions([], now=NOW) == []
    assert ROUTER.route([], now=NOW).equals(ROUTER.route(ROWS[:1], now=NOW).slice(0, 0))
    assert ssbroker.reassemble([]).messages.schema == schemas.MESSAGES
    assert ssbroker.fragment([], max_fragment_bytes=8).schema == schemas.FRAGMENTS
    assert ssbroker.Catalog([], [], []).routes.num_rows == 0
    assert ssbroker.summarize([]).rows == 0


def test_an_empty_frame_of_pandas_may_have_any_types() -> None:
    """An empty column is of type float64 or object."""
    names = ["conversation_id", "database", "to_service_name", "to_broker_instance", "extra"]
    for kind in ("float64", "object"):
        frame = pd.DataFrame({name: [] for name in names}).astype(kind)
        assert ROUTER.route(frame, now=NOW).num_rows == 0
        assert list(ROUTER.with_decisions(frame, now=NOW)) == [*names, *schemas.DECISIONS.names]
        fragments = pd.DataFrame({name: [] for name in schemas.FRAGMENTS.names}).astype(kind)
        assert ssbroker.reassemble(fragments).messages.schema == schemas.MESSAGES
    with pytest.raises(ssbroker.SchemaError, match="to_service_name: the column is missing"):
        ROUTER.route(pd.DataFrame({"service": []}))


def test_duplicate_columns_of_pandas_are_an_error() -> None:
    frame = pd.DataFrame([["//Orders", 1, 2]], columns=["to_service_name", "extra", "extra"])
    for use in (ROUTER.route, ROUTER.with_decisions, ssbroker.reassemble, ssbroker.Catalog):
        with pytest.raises(ssbroker.SchemaError, match=r"^extra: expected unique column names, got two"):
            use(frame)


def test_an_existing_column_of_decisions_is_an_error() -> None:
    with pytest.raises(
        ssbroker.SchemaError,
        match=r"^conversations: routing adds the column 'outcome'; rename or drop the existing column",
    ):
        ROUTER.with_decisions(ROUTER.with_decisions(ROWS, now=NOW), now=NOW)


def test_what_is_passed_by_mistake_for_a_catalog_or_decisions_is_explained() -> None:
    with pytest.raises(ssbroker.SchemaError, match=r"got str; load the catalog with Catalog.load$"):
        Router("routes.sql")  # type: ignore[arg-type]
    with pytest.raises(ssbroker.SchemaError, match=r"got ssbroker.router.Routed; pass its attribute decisions$"):
        summarize(ROUTER.with_decisions(ROWS, errors="reject"))  # type: ignore[arg-type]


def test_duckdb_ignores_the_case_of_existing_columns() -> None:
    """DuckDB would rename the added column, and a query would read the column of the input."""
    table = pa.Table.from_pylist([row | {"Outcome": "ours"} for row in ROWS])
    with pytest.raises(ssbroker.SchemaError, match=r"adds the column 'outcome'; .* column 'Outcome', because DuckDB"):
        ROUTER.with_decisions(duckdb.from_arrow(table), now=NOW)
    assert ROUTER.with_decisions(table, now=NOW)["Outcome"].to_pylist() == ["ours"] * len(ROWS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROWS[0], 5], "conversations, row 1: expected a dict in the list, got int"),
        (
            [ROWS[0], {"to_service_name": 5}],
            "to_service_name: the values in conversations have no common Arrow type: ",
        ),
    ],
)
def test_lists_of_other_values_are_errors(rows: Any, message: str) -> None:
    with pytest.raises(ssbroker.SchemaError, match=f"^{message}"):
        ROUTER.route(rows)


MIXED = ["n/a", 3.5]


@pytest.mark.parametrize("mixed", [MIXED, [2**70, 1]], ids=["mixed", "large"])
def test_columns_that_routing_does_not_read_may_have_any_values(mixed: list[Any]) -> None:
    rows = [row | {"note": note} for row, note in zip(ROWS, mixed, strict=False)]
    wanted = ROUTER.route(ROWS[:2], now=NOW)
    frame = pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=object) for name in rows[0]})
    indexed = frame.set_index(pd.Index(["a", "b"], name="key"))
    assert ROUTER.route(rows, now=NOW) == ROUTER.route(frame, now=NOW) == ROUTER.route(indexed, now=NOW) == wanted
    decided = ROUTER.with_decisions(indexed, now=NOW)
    assert decided["note"].to_list() == [row["note"] for row in ROUTER.with_decisions(rows, now=NOW)] == mixed
    assert decided.index.equals(indexed.index)
    assert decided["outcome"].to_list() == wanted["outcome"].to_pylist()
    routed, rejected = ROUTER.with_decisions(frame.assign(to_service_name=[None, "//a"]), now=NOW, errors="reject")
    assert (routed["note"].to_list(), rejected["row"].to_list()) == (mixed[1:], [0])


def test_a_frame_without_a_column_that_routing_reads_names_its_columns() -> None:
    with pytest.raises(ssbroker.SchemaError, match=r'to_service_name: the column is missing; .*has the column "note"'):
        ROUTER.route(pd.DataFrame({"note": MIXED}))


@pytest.mark.parametrize(
    ("use", "column"),
    [
        (ROUTER.route, "database"),
        (ROUTER.with_decisions, "database"),
        (ssbroker.reassemble, "note"),
        (ssbroker.Catalog, "note"),
    ],
)
def test_a_needed_column_of_several_types_is_named(use: Any, column: str) -> None:
    columns = {"database": ["Sales"] * 2, "to_service_name": ["//a"] * 2, column: MIXED}
    frame = pd.DataFrame(columns)
    for rows in (frame, frame.to_dict("records")):
        with pytest.raises(
            ssbroker.SchemaError, match=f"^{column}: the values in .* have no common Arrow type"
        ) as caught:
            use(rows)
        assert caught.value.column == column


@pytest.mark.parametrize("library", [list, pd.DataFrame])
def test_ids_may_be_text_bytes_and_uuids_in_one_column(library: Any) -> None:
    ids = [str(ORDERS_ID), ORDERS_ID.bytes, ORDERS_ID, None]
    rows = [{"database": "Sales", "to_service_name": "//Sales", "to_broker_instance": id_} for id_ in ids]
    texts = [row | {"to_broker_instance": id_ and str(ORDERS_ID)} for row, id_ in zip(rows, ids, strict=True)]
    assert ROUTER.route(library(rows), now=NOW) == ROUTER.route(texts, now=NOW)
    rows[1]["to_broker_instance"] = b"\x01\xab"
    with pytest.raises(ssbroker.InvalidGuidError, match=r"^to_broker_instance, row 1: '0x01ab' is not a valid GUID"):
        ROUTER.route(library(rows), now=NOW)


@pytest.mark.parametrize("library", [list, pd.DataFrame])
def test_text_that_utf8_cannot_encode_is_named(library: Any) -> None:
    rows = [ROWS[0], ROWS[1] | {"to_service_name": "\ud800"}]
    with pytest.raises(ssbroker.InputError) as caught:
        ROUTER.route(library(rows))
    assert str(caught.value) == r"to_service_name, row 1: expected valid UTF-8 text, got '\ud800'"
    assert (caught.value.column, caught.value.row) == ("to_service_name", 1)


def test_polars_columns_of_128_bits_are_passed_through_or_named() -> None:
    frame = pl.DataFrame(ROWS).with_columns(pl.col("order").cast(pl.Int128))
    got = ROUTER.with_decisions(frame, now=NOW)
    assert got.schema["order"] == pl.Int128
    assert got.to_dicts() == expected()
    message = "^order: Arrow has no type for Int128 in routes; cast the column to Int64, Decimal or String"
    with pytest.raises(ssbroker.SchemaError, match=message):
        ssbroker.Catalog(frame)


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("service_name", '; if "service_name" is meant, rename it to "to_service_name"'),
        ("far_service", '; if "far_service" is meant, rename it to "to_service_name"'),
        ("ServiceName", '; if "ServiceName" is meant, rename it to "to_service_name"'),
        ("colour", ""),
    ],
)
def test_a_missing_column_lists_the_columns_and_asks_for_a_similar_one(name: str, question: str) -> None:
    with pytest.raises(ssbroker.SchemaError) as caught:
        ROUTER.route([{"database": "Sales", name: "//Orders"}])
    assert str(caught.value) == (
        f'to_service_name: the column is missing; expected text; the input has the columns "database", "{name}"{question}'
    )


def test_reassembly_takes_frames_and_lists_and_asks_for_similar_columns() -> None:
    messages = [
        {
            "conversation_id": bytes(16),
            "is_initiator": True,
            "message_sequence_number": 0,
            "message_body": b"Hello, world",
        }
    ]
    fragments = ssbroker.fragment(messages, max_fragment_bytes=5)
    expected_messages = ssbroker.reassemble(fragments).messages.to_pylist()
    for given in (fragments.to_pylist(), pl.DataFrame(fragments), fragments.to_pandas(), duckdb.from_arrow(fragments)):
        assert ssbroker.reassemble(given).messages.to_pylist() == expected_messages
    renamed = [{("body" if name == "message_body" else name): value for name, value in messages[0].items()}]
    with pytest.raises(
        ssbroker.SchemaError, match=r'message_body: .*the input has the columns .*; if "body" is meant, rename it'
    ):
        ssbroker.fragment(renamed, max_fragment_bytes=5)


def test_a_summary_of_any_kind_of_decisions() -> None:
    rows = ROWS * 3 + ROWS[:1]
    frames = [
        rows,
        pl.DataFrame(rows),
        pd.DataFrame(rows),
        pa.Table.from_pylist(rows),
        duckdb.from_arrow(pa.Table.from_pylist(rows)),
    ]
    texts = {repr(summarize(ROUTER.with_decisions(frame, now=NOW))) for frame in frames}
    texts.add(str(summarize(ROUTER.route(rows, now=NOW))))
    (text,) = texts
    assert text.splitlines() == [
        "10 conversations",
        "outcome  reason    to            conversations  share",
        "DELAYED  no_route                            6  60.0%",
        "REMOTE   matched   TCP://a:4022              4  40.0%",
    ]
    html = summarize(ROUTER.route(rows, now=NOW))._repr_html_()
    assert "<td>TCP://a:4022</td><td>4</td><td>40.0%</td>" in html


def test_a_summary_of_labels_that_exceed_2_gib() -> None:
    """The rows share one label in a dictionary."""
    rows = 2_100
    label = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array(["x" * (1 << 20)]))
    plain = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array(["REMOTE"]))
    decided = pa.table(
        {"outcome": plain, "reason": plain, "next_hop_address": label, "target_database": pa.nulls(rows, pa.string())}
    )
    (group,) = summarize(decided).groups
    assert (group["conversations"], len(group["to"])) == (rows, 1 << 20)


def test_a_summary_of_dictionaries_with_many_or_repeated_labels() -> None:
    """Two chunks whose dictionaries together have more labels than their indexes can number, and a label twice in a dictionary."""
    chunks = [
        pa.DictionaryArray.from_arrays(
            pa.array(range(100), pa.int8()), pa.array([f"{first}{each}" for each in range(100)])
        )
        for first in "ab"
    ]
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 100, pa.int8()), pa.array(["REMOTE", "REMOTE"]))
    plain = pa.array(["matched"] * 200)
    for next_hops, groups in ((pa.chunked_array(chunks), 200), (plain, 1)):
        decided = pa.table(
            {
                "outcome": twice,
                "reason": plain,
                "next_hop_address": next_hops,
                "target_database": pa.nulls(200, pa.string()),
            }
        )
        summary = summarize(decided)
        assert (summary.rows, len(summary.groups)) == (200, groups)
        assert sum(group["conversations"] for group in summary.groups) == 200
