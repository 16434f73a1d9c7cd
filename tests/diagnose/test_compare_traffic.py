"""Traffic of a comparison in the layouts of several libraries, and errors in its rows."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import ssbroker
from ssbroker.diagnose import compare
from tests.diagnose.finding_cases import fleet, north, south

BEFORE, AFTER = fleet(NORTH=north(), SOUTH=south("LOCAL")), fleet(NORTH=north(), SOUTH=south("TCP://north"))
TRAFFIC: dict[str, list[Any]] = {
    "instance": ["SOUTH", "NORTH", "SOUTH"],
    "database": ["Stores", "Sales", "Stores"],
    "conversation_id": [f"00000000-0000-0000-0000-00000000000{number}" for number in range(3)],
    "to_service_name": ["Orders", "Orders", "Stock"],
    "note": ["a", None, "a"],
}
FRAME = pl.DataFrame(TRAFFIC)
LAYOUTS = {
    "views": FRAME,
    "views in dictionaries": FRAME.with_columns(pl.all().cast(pl.Categorical)),
    "large": pa.table({name: pa.array(values, pa.large_string()) for name, values in TRAFFIC.items()}),
    "dictionaries": pa.table({name: pa.array(values).dictionary_encode() for name, values in TRAFFIC.items()}),
}


@pytest.mark.parametrize("traffic", LAYOUTS.values(), ids=LAYOUTS)
def test_traffic_in_any_layout(traffic: Any) -> None:
    """pyarrow can neither compare nor take string views, which Polars exports."""
    count_pairs = compare(BEFORE, AFTER, traffic)
    assert repr(count_pairs) == "Comparison(changes=2, conversations=2 of 3)"
    (south_before, south_after) = (each["SOUTH"] for each in (BEFORE, AFTER))
    alone = compare(south_before, south_after, pa.concat_tables([pa.table(traffic).slice(at, 1) for at in (0, 2)]))
    assert repr(alone) == "Comparison(changes=2, conversations=2 of 2)"


@pytest.mark.parametrize("rows", [6, 300_000], ids=["in chunks", "more than a batch"])
@pytest.mark.parametrize("of_fleet", [False, True], ids=["one instance", "a fleet"])
def test_error_names_the_row_within_the_whole_traffic(rows: int, *, of_fleet: bool) -> None:
    """Not the row within a batch, or among the rows of its instance."""
    both = pa.table(TRAFFIC).slice(1, 2)
    good = pa.concat_tables([both if of_fleet else both.slice(1)] * rows).slice(0, rows)
    wrong = both.slice(1).set_column(2, "conversation_id", pa.array(["no guid"]))
    traffic = pa.concat_tables([good.combine_chunks() if rows > 6 else good, wrong])
    before, after = (BEFORE, AFTER) if of_fleet else (BEFORE["SOUTH"], AFTER["SOUTH"])
    with pytest.raises(
        ssbroker.InvalidGuidError, match=f"conversation_id, row {rows}: 'no guid' is not a valid GUID"
    ) as caught:
        compare(before, after, traffic)
    assert caught.value.row == rows


def test_error_names_the_row_of_an_unknown_instance() -> None:
    for wrong, problem in (("EAST", "unknown instance 'EAST'"), (None, "null is not allowed here")):
        traffic = pa.table({**TRAFFIC, "instance": ["SOUTH", "NORTH", wrong]})
        with pytest.raises(ssbroker.SchemaError, match=f"instance, row 2: {problem}; expected one of"):
            compare(BEFORE, AFTER, traffic)
