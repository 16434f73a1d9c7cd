"""GUIDs as text, in blocks of 64 rows: any case, with or without braces, with nulls; a wrong character is detected at any position."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Router
from ssbroker.router import TieBreak
from tests.boundary.layouts import Array, Layout, as_dictionary, as_type, relaid, replace_with, shifted, then
from tests.routing.conversations import NOW, routes

ROWS = 200
COLUMNS = ("conversation_id", "to_broker_instance")
LAYOUTS: dict[str, Layout] = {
    "string": as_type(pa.string()),
    "large_string": as_type(pa.large_string()),
    "string_view": as_type(pa.string_view()),
    "a slice": shifted(13),
    "a slice of large_string": then(as_type(pa.large_string()), shifted(67)),
    "dictionary": as_dictionary(pa.int16()),
    "dictionary of string_view": as_dictionary(pa.uint32(), pa.string_view()),
}
DASHES = (8, 13, 18, 23)

_random = random.Random(5)
GUIDS = [uuid.UUID(int=_random.getrandbits(128)) for _ in range(ROWS)]
CATALOG = Catalog(
    routes(
        *(
            {
                "name": f"R{number}",
                "address": f"TCP://host{number}",
                "remote_service_name": "//Orders",
                "broker_instance": guid.bytes,
            }
            for number, guid in enumerate(GUIDS[::2])
        )
    )
)
BYTES = pa.array([guid.bytes for guid in GUIDS], pa.binary(16))
NAMED = pa.array([_random.random() < 0.5 for _ in range(ROWS)])


def conversations(ids: Array, brokers: Array) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "conversation_id": ids,
            "to_service_name": pa.array(["//Orders"] * ROWS),
            "to_broker_instance": brokers,
        }
    )


def spelled(*, braced: float) -> Array:
    """Returns the GUIDs as text in random case, some in braces."""

    def one(guid: uuid.UUID) -> str:
        text = "".join(_random.choice((char.lower(), char.upper())) for char in str(guid))
        return f"{{{text}}}" if _random.random() < braced else text

    return pa.array(map(one, GUIDS), pa.string())


def where(flags: Array, values: Array) -> Array:
    return pa.array(
        [value if flag else None for flag, value in zip(flags.to_pylist(), values.to_pylist(), strict=True)],
        values.type,
    )


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("braced", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("tie_break", ["first", "hash"])
def test_all_spellings_are_the_same_guid(tie_break: TieBreak, braced: float, layout: Layout) -> None:
    router = Router(CATALOG, tie_break=tie_break)
    for flags in (NAMED, pa.array([True] * ROWS)):
        expected = router.route(conversations(BYTES, where(flags, BYTES)), now=NOW)
        texts = conversations(layout(spelled(braced=braced)), layout(where(flags, spelled(braced=braced))))
        assert router.route(texts, now=NOW).equals(expected)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_wrong_character_is_detected_at_each_position(column: str, layout: Layout) -> None:
    router = Router(CATALOG, tie_break="first")
    valid = conversations(spelled(braced=0.0), where(NAMED, spelled(braced=0.0)))
    rows = [row for row, named in enumerate(NAMED.to_pylist()) if named]
    for place in range(36):
        row = rows[place * len(rows) // 36]
        values: list[Any] = valid[column].to_pylist()
        wrong = "a" if place in DASHES else _random.choice("-g/:@`G ")
        values[row] = values[row][:place] + wrong + values[row][place + 1 :]
        invalid: Any = relaid(valid, {column: replace_with(layout(pa.array(values, pa.string())))})
        with pytest.raises(ssbroker.InvalidGuidError) as caught:
            router.route(invalid, now=NOW)
        error = caught.value
        assert (error.column, error.row, error.value) == (column, row, values[row])
