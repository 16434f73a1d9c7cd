"""The page says what the lanes check, and the lanes notice what is wrong. `make compat` runs them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat.lanes import LANES, ROWS, page_rows, problems, rows
from tests.compat.matrix import features

FINE: dict[str, Any] = {"results": {"route": {"digest": "1:abc"}}}


def test_the_table_of_the_page_is_what_the_lanes_state() -> None:
    head, _, *lines = page_rows()
    with_spark = [name for name, lane in LANES.items() if lane.has_spark]
    assert head[1:] == with_spark
    specified = {line[0]: line for line in lines}
    for row in rows(with_spark):
        assert specified[row[0]] == row


def test_the_versions_of_the_page_are_those_of_the_lanes() -> None:
    _, _, pyarrow, pandas, protobuf, *_ = page_rows()
    for column, lane in enumerate(filter(lambda lane: lane.has_spark, LANES.values()), start=1):
        pinned = dict(each.split("==") for each in lane.packages if "==" in each)
        assert pyarrow[column] == pinned.get("pyarrow", "newest")
        assert protobuf[column] == pinned.get("protobuf", "newest")
        if "numpy" in pinned:
            assert pandas[column] == f"{pinned['pandas']}, {pinned['numpy']}"


def test_the_lane_of_the_lowest_versions_pins_all_that_is_required() -> None:
    packages = LANES["lowest extras"].packages
    assert "pyarrow==14" in packages
    assert {"apsw", "cryptography", "rich", "typer"} <= {each.partition("==")[0] for each in packages}
    assert all("==" in each for each in packages[:-1])


def test_every_feature_of_the_matrix_has_a_row() -> None:
    assert sorted(features()) == sorted(name for names in ROWS.values() for name in names)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"digest": "1:abd"}, "Spark 4.0.1: route: 1:abd, elsewhere 1:abc"),
        ({"error": "KeyError: 'a'", "all": "'a'"}, "Spark 4.0.1: route: KeyError: 'a'\n'a'"),
    ],
)
def test_a_lane_that_differs_or_fails_is_a_problem(result: dict[str, str], said: str) -> None:
    assert problems({"Spark 4.0.1": FINE, "Spark 4.3.0": FINE}) == []
    assert problems({"Spark 4.0.1": {"results": {"route": result}}, "Spark 4.3.0": FINE}) == [said]


def test_what_a_lane_refuses_must_be_refused_with_its_error() -> None:
    found = {"results": {"spark.stream": {"digest": "1:abc"}}}
    assert len(problems({"Spark 3.5.1": found})) == 1
    right = {"error": "", "all": "ssbroker.spark.stream needs PySpark 4.0 or newer, and 3.5.1 is installed; use ..."}
    assert problems({"Spark 3.5.1": {"results": {"spark.stream": right}}}) == []
